"""What callbacks and an optimizer's averages make of a whole job, stopped and gone on with."""

import json
import textwrap
import time

import numpy as np
import pytest
from tests.engines.test_in_process import WORSE, assert_same_bits, best_of, events, weights

import elasticdl
from elasticdl.artifacts.checkpoint_store import CheckpointStore
from elasticdl.artifacts.folder import OutputFolder
from elasticdl.artifacts.trained_model import load_trained_model
from elasticdl.engines.audit import audit
from elasticdl.engines.progress_bar import Silent
from elasticdl.errors import UsageError
from elasticdl.events import EpochFinished, Evaluated, Noted

AVERAGES = """
def optimizer():
    return keras.optimizers.SGD(0.05, use_ema=True, ema_momentum=0.9)
"""


def last_state(output):
    return CheckpointStore(OutputFolder(output)).latest().checkpoint.state


def noting(path, moment, *values):
    """Return code of a callback that writes down what it is called with."""
    return f"""
        def callbacks():
            def note(number, logs=None):
                with open({str(path)!r}, "a") as file:
                    print({", ".join(values)}, file=file)
            return [keras.callbacks.LambdaCallback({moment}=note)]
    """


def test_averages_are_published_and_the_checkpoint_keeps_the_trained_weights(train, zoo, tmp_path):
    zoo(AVERAGES)

    train(num_epochs=2)

    state, published = last_state(tmp_path / "out"), weights(tmp_path / "out")
    averages = {path: array for path, array in state.items() if path.endswith("_average")}
    kernel = next(path for path in published if path.endswith("dense/kernel"))
    average = next(a for path, a in averages.items() if "dense_kernel" in path)
    np.testing.assert_array_equal(published[kernel], average)
    assert np.abs(state[f"model/{kernel}"] - average).max() > 1e-4


def test_a_job_with_averages_resumes_as_one_longer_run(train, zoo, tmp_path):
    zoo(AVERAGES)
    train(num_epochs=1)
    train(num_epochs=2)
    train(num_epochs=2, output=str(tmp_path / "longer"))

    assert_same_bits(weights(tmp_path / "out"), weights(tmp_path / "longer"))
    assert_same_bits(last_state(tmp_path / "out"), last_state(tmp_path / "longer"))


@pytest.mark.parametrize("swaps", [False, True])
def test_the_best_model_has_the_evaluated_weights(train, zoo, data, tmp_path, swaps):
    callbacks = "\ndef callbacks():\n    return [keras.callbacks.SwapEMAWeights()]\n"
    zoo(AVERAGES + callbacks * swaps)

    train(num_epochs=2, validation_data=str(data), restore_best_weights=True)

    published, trained = weights(tmp_path / "out"), best_of(tmp_path / "out")
    kernel = next(path for path in published if path.endswith("dense/kernel"))
    assert np.array_equal(published[kernel], trained[kernel]) != swaps


SWAPPING = """
class Swap(keras.callbacks.Callback):
    def on_test_begin(self, logs=None):
        self.trained = self.model.get_weights()
        self.model.set_weights([weights / 2 for weights in self.trained])

    def on_test_end(self, logs=None):
        self.model.set_weights(self.trained)

class Halve(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.set_weights([weights / 2 for weights in self.model.get_weights()])
"""


@pytest.mark.parametrize("callback", ["Swap", "Halve"])
def test_the_best_model_has_the_evaluated_weights_despite_callbacks(train, zoo, data, callback):
    zoo(f"{SWAPPING}\ndef callbacks():\n    return [{callback}()]\n")

    outcome = train(num_epochs=2, validation_data=str(data), restore_best_weights=True)

    found = elasticdl.evaluate(
        trained_model=outcome.output, data=str(data), reporter=Silent()
    ).metrics
    assert found["loss"] == pytest.approx(outcome.metrics["val_loss"], rel=1e-5)


def test_batch_numbers_continue_through_the_epoch_after_a_resume(train, zoo, tmp_path):
    zoo(noting(tmp_path / "seen", "on_train_batch_begin", "number"))

    # Three shards of 32 batches or fewer.
    train(minibatch_size=2, num_epochs=2, max_steps=40)
    train(minibatch_size=2, num_epochs=2)

    seen = [int(line) for line in (tmp_path / "seen").read_text().split()]
    assert seen == [*range(75), *range(75)]


def test_callbacks_see_several_minibatches_as_one_batch(train, zoo, tmp_path):
    zoo(noting(tmp_path / "seen", "on_train_batch_end", "number"))

    train(minibatch_size=10, global_batch_size=40)

    assert (tmp_path / "seen").read_text().split() == ["0", "1", "2", "3"]


def test_batch_logs_cover_the_epoch_so_far(train, zoo, tmp_path):
    zoo(noting(tmp_path / "seen", "on_train_batch_end", "logs['loss']"))

    train(minibatch_size=50)

    logs = [float(line) for line in (tmp_path / "seen").read_text().split()]
    assert len(set(logs)) == 3
    assert logs[-1] == events(tmp_path, EpochFinished)[-1].metrics["loss"]


@pytest.mark.parametrize("moment", ["on_train_begin", "on_epoch_begin", "on_train_batch_begin"])
def test_a_callback_that_stops_before_a_batch_ends_the_training_after_it(train, zoo, moment):
    zoo(
        f"""
        class Stop(keras.callbacks.Callback):
            def {moment}(self, *args, **logs):
                self.model.stop_training = True

        def callbacks():
            return [Stop()]
        """
    )

    # `fit` looks after a batch, and after an epoch.
    assert train(num_epochs=3).step == 1


def test_a_shortened_epoch_ends_once_and_counts_trained_records(train, zoo, data, tmp_path):
    zoo(
        f"""
        class Stop(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                self.model.stop_training = batch == 3

            def on_epoch_end(self, epoch, logs=None):
                with open({str(tmp_path / "seen")!r}, "a") as file:
                    print(epoch, *logs, file=file)

        def callbacks():
            return [Stop()]
        """
    )
    more = {"num_epochs": 3, "validation_data": str(data), "best_metric": "val_loss"}

    train(**more)

    assert train(**more).already_done
    assert (tmp_path / "seen").read_text() == "0 loss val_accuracy val_loss\n"
    (ended,) = events(tmp_path, EpochFinished)
    assert (ended.epoch, ended.step, ended.stopped) == (0, 4, True)
    # It is not taken for an epoch that lost records.
    report = audit(str(tmp_path / "out"))
    assert [epoch.counts.finished for epoch in report.epochs] == [False]
    assert CheckpointStore(OutputFolder(tmp_path / "out")).best_step() == 4


@pytest.mark.parametrize(
    ("moment", "epochs", "note"),
    [
        ("on_epoch_end(self, epoch, logs=None)", 3, "after epoch 1 of 3, at step "),
        ("on_train_batch_end(self, batch, logs=None)", 3, "in epoch 1 of 3, at step 1."),
        ("on_epoch_end(self, epoch, logs=None)", 1, None),
    ],
)
def test_a_training_ended_by_a_callback_reports_it(train, zoo, tmp_path, moment, epochs, note):
    zoo(
        f"""
        class Stop(keras.callbacks.Callback):
            def {moment}:
                self.model.stop_training = True

        def callbacks():
            return [Stop()]
        """
    )

    train(num_epochs=epochs)

    notes = [event.message for event in events(tmp_path, Noted)]
    assert [f"ended the training {note}" in each for each in notes] == [True] * (note is not None)


def test_callbacks_see_the_batches_of_an_evaluation(train, zoo, data, tmp_path):
    zoo(
        f"""
        class Seeing(keras.callbacks.Callback):
            def on_test_batch_end(self, batch, logs=None):
                with open({str(tmp_path / "seen")!r}, "a") as file:
                    print(batch, logs["loss"], file=file)

        def callbacks():
            return [Seeing()]
        """
    )

    train(validation_data=str(data), minibatch_size=50)

    seen = [line.split() for line in (tmp_path / "seen").read_text().splitlines()]
    assert [number for number, _ in seen] == ["0", "1", "2"]
    assert float(seen[-1][1]) == pytest.approx(events(tmp_path, Evaluated)[-1].metrics["loss"])


def test_early_stopping_restores_best_weights_from_before_a_stop(train, zoo, data, tmp_path):
    stopping = """
        def callbacks():
            return [keras.callbacks.EarlyStopping("val_loss", patience=9,
                                                  restore_best_weights=True)]
    """
    zoo(WORSE)
    more = {"num_epochs": 3, "validation_data": str(data)}
    train(num_epochs=1, validation_data=str(data), output=str(tmp_path / "first"))
    zoo(textwrap.dedent(WORSE) + textwrap.dedent(stopping))

    part = train(**more, max_steps=15)
    outcome = train(**more)

    assert part.restored.endswith("; the metrics are those at the end, step 15.")
    assert outcome.restored.endswith("; the metrics are those of the last epoch.")
    # The first epoch is the best, and the second attempt never saw its end.
    assert_same_bits(weights(tmp_path / "out"), weights(tmp_path / "first"))
    notes = [each.message for each in events(tmp_path, Noted)]
    restored = [each for each in notes if "EarlyStopping has restored" in each]
    assert "the weights of epoch 1 (val_loss" in restored[-1]
    again = train(**more)
    assert (outcome.restored, again.restored) == (restored[-1], restored[-1])
    assert again.already_done


@pytest.mark.parametrize(("metric", "mode"), [("val_accuracy", "max"), ("val_wrong", "max")])
def test_the_direction_of_a_metric_comes_from_the_metric(train, zoo, data, tmp_path, metric, mode):
    zoo(
        WORSE
        + """
def eval_metrics_fn():
    return {"accuracy": keras.metrics.SparseCategoricalAccuracy(),
            "wrong": keras.metrics.SparseCategoricalAccuracy()}
"""
    )
    train(num_epochs=3, validation_data=str(data), best_metric=metric)

    name = metric.removeprefix("val_")
    best = (max if mode == "max" else min)(
        events(tmp_path, Evaluated), key=lambda e: e.metrics[name]
    )
    assert CheckpointStore(OutputFolder(tmp_path / "out")).best_step() == best.step


def test_a_metric_without_a_direction_is_refused(train, zoo, data):
    zoo(
        """
        def eval_metrics_fn(predictions, labels):
            return {"spread": keras.ops.std(predictions)}
        """
    )

    with pytest.raises(UsageError, match=r"=val_spread: neither .* Add best_mode=min or"):
        train(validation_data=str(data), best_metric="val_spread")


class RecordingReporter:
    """Keeps what it is given to show."""

    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)

    def __getattr__(self, name):
        return lambda *_, **__: None


def test_a_damaged_best_checkpoint_keeps_the_last_model_with_a_warning(train, zoo, data, tmp_path):
    zoo(WORSE)
    reporter = RecordingReporter()
    more = {"validation_data": str(data), "restore_best_weights": True, "reporter": reporter}
    train(num_epochs=2, **more)
    store = CheckpointStore(OutputFolder(tmp_path / "out"))
    folder = tmp_path / "out" / "checkpoints" / f"step-{store.best_step():010d}"
    tensors = next(folder.glob("tensors*"))
    tensors.write_bytes(tensors.read_bytes()[:-8])

    outcome = train(num_epochs=3, **more)

    assert load_trained_model(outcome.output).description.step == 30
    warning = next(note for note in reporter.notes if note.startswith("WARNING"))
    assert "best checkpoint by val_loss is damaged" in warning
    assert "last step, 30, is published instead" in warning
    # It was not written over in the meantime, and the second run finds all done.
    assert store.best_step() is None
    assert train(num_epochs=3, **more).already_done
    assert json.loads((folder / "manifest.json").read_text())["step"] == 10


@pytest.mark.parametrize(
    ("more", "first"),
    [
        ({}, "The trained model has the weights of epoch 1 (step 10), with the best val_loss, "),
        ({"evaluation_steps": 10}, "The trained model has the weights of epoch 1 (step 10), "),
        ({"evaluation_steps": 4}, "The trained model has the weights of epoch 1 (step 4), "),
        ({"best_mode": "max"}, "The trained model has the weights of epoch 3 (step 30), "),
        (
            {"best_mode": "max", "max_steps": 25},
            "The trained model has the weights of epoch 3 (ste",
        ),
    ],
)
def test_the_last_note_names_the_epoch_of_the_best_model(train, zoo, data, more, first):
    zoo(WORSE)
    reporter = RecordingReporter()

    options = {"validation_data": str(data), "restore_best_weights": True, "reporter": reporter}
    outcome = train(num_epochs=3, **options, **more)

    assert reporter.notes[-1].startswith(first)
    assert reporter.notes[-1] == outcome.restored
    again = train(num_epochs=3, **options, **more)
    assert again.restored == outcome.restored
    assert reporter.notes[-1].endswith(f"steps. {outcome.restored}")


TORCH_MODEL = """
import numpy as np
import torch

def custom_model():
    return torch.nn.Linear(4, 3)

def data_schema():
    return [
        {"name": "x", "shape": [4], "dtype": "float32"},
        {"name": "label", "shape": [1], "dtype": "int64"},
    ]

def input_fn(records):
    return np.stack([r["x"] for r in records]), np.stack([r["label"][0] for r in records])

def loss(outputs, labels):
    return torch.nn.functional.cross_entropy(outputs, labels)

def optimizer(parameters):
    return torch.optim.SGD(parameters, 0.05)
"""


@pytest.mark.parametrize("framework", ["keras", "torch"])
def test_the_time_in_which_a_job_did_not_run_does_not_count(
    train, zoo, tmp_path, framework, monkeypatch
):
    base = {"keras": "keras.callbacks.Callback", "torch": "object"}[framework]
    callback = f"""
        import time

        class Limit({base}):
            def on_train_begin(self, logs=None):
                self.start, self.end = time.perf_counter(), time.time() + 600

            def on_epoch_end(self, epoch, logs=None):
                with open({str(tmp_path / "times")!r}, "a") as file:
                    elapsed = time.perf_counter() - self.start
                    print(elapsed, self.end - time.time(), file=file)

        def callbacks():
            return [Limit()]
    """
    model = zoo(callback) / "small.py"
    if framework == "torch":
        model.write_text(TORCH_MODEL + textwrap.dedent(callback))

    train(num_epochs=1)
    # Another machine, half a day later.
    for name, later_s in (("time", 40_000), ("perf_counter", -40_000)):
        clock = getattr(time, name)
        monkeypatch.setattr(time, name, lambda clock=clock, later_s=later_s: clock() + later_s)
    train(num_epochs=2)

    lines = (tmp_path / "times").read_text().splitlines()
    (first, left), (second, still_left) = (map(float, line.split()) for line in lines)
    assert 0 < first < second < 20_000
    assert 600 > left > still_left > 0
