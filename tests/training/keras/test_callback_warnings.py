"""What callbacks keep and no checkpoint can store is named, once."""

import pytest
from tests.training.keras.test_hooks import Checkpointed


@pytest.fixture(autouse=True)
def keras():
    import keras

    return keras


def test_callback_state_that_cannot_be_kept_is_named_once(keras, tmp_path, caplog):
    class Writing(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            self.file = (tmp_path / "notes").open("w")

        def on_train_end(self, logs=None):
            self.file.close()

    seen = []

    def create():
        return [
            Writing(),
            keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(epoch)),
        ]

    job = Checkpointed(create)
    said = [record.getMessage() for record in caplog.records]
    job.epoch(0, val_loss=1.0)
    job.hooks.state()
    job.finish()

    assert len(said) == 2
    assert "the callback LambdaCallback calls its on_epoch_end, which changes seen." in said[0]
    assert "the callback Writing keeps a _io.TextIOWrapper in self.file, which a check" in said[1]
    assert [record.getMessage() for record in caplog.records] == said


class Halving:
    """Counts its calls, as schedules of learning rates may."""

    def __init__(self):
        self.num_calls = 0

    def rate(self, epoch):
        self.num_calls += 1
        return 0.5**self.num_calls


def halving():
    num_calls = 0

    def rate(epoch):
        nonlocal num_calls
        num_calls += 1
        return 0.5**num_calls

    return rate


@pytest.mark.parametrize(
    ("schedule", "kept"),
    [
        (halving, "rate, which changes num_calls"),
        (lambda: Halving().rate, "Halving.rate, which changes Halving.num_calls"),
    ],
)
def test_a_function_of_a_callback_that_counts_its_calls_is_named(keras, schedule, kept, caplog):
    def create():
        return [
            keras.callbacks.LearningRateScheduler(schedule()),
            keras.callbacks.LearningRateScheduler(lambda epoch: 0.1),
        ]

    job = Checkpointed(create)
    job.epoch(0, val_loss=1.0)
    job.hooks.state()
    (said,) = [record.getMessage() for record in caplog.records]

    assert f"the callback LearningRateScheduler calls {kept}. A checkpoint cannot" in said


def test_what_a_function_of_a_callback_has_changed_is_named_at_the_checkpoint(keras, caplog):
    class Rates:
        n = 0

        def rate(self, epoch):
            # Not seen in the code.
            setattr(self, "n", self.n + 1)  # noqa: B010
            return 0.5**self.n

    job = Checkpointed(lambda: [keras.callbacks.LearningRateScheduler(Rates().rate)])
    assert caplog.messages == []
    job.epoch(0, val_loss=1.0)
    for _ in range(2):
        job.hooks.state()
    (said,) = caplog.messages
    job.resume()
    job.epoch(1, val_loss=1.0)
    job.hooks.state()

    assert ".rate, which uses Rates.n, whose value has changed. A checkpoint cannot store" in said
    assert caplog.messages == [said, said]


def test_a_schedule_that_reads_its_object_has_no_warning(keras, caplog):
    class Rates:
        def __init__(self):
            self.base = 0.1

        def rate(self, epoch):
            return self.base / (epoch + 1)

    job = Checkpointed(lambda: [keras.callbacks.LearningRateScheduler(Rates().rate)])
    job.epoch(0, val_loss=1.0)
    job.resume()
    job.hooks.state()

    assert caplog.messages == []
