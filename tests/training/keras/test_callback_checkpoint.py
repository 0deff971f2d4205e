"""Callbacks know after a resume what they knew before."""

import collections
import csv
import http.server
import json
import logging
import random
import threading

import numpy as np
import pytest
from tests.training.keras.test_hooks import Checkpointed
from tests.training.keras.test_trainer import batch_of, definition_of, trainer_of

from elasticdl.dialects.losses import KerasLoss


@pytest.fixture(autouse=True)
def keras():
    import keras

    return keras


LOSSES = [3.0, 1.0, 2.0, 1.5, 0.5]


def run(create, resume_after=(), **sgd):
    """Run epochs; begin again after some of them."""
    job = Checkpointed(create, len(LOSSES), **sgd)
    for epoch, loss in enumerate(LOSSES):
        stops = job.epoch(epoch, loss=loss / 2, val_loss=loss)
        if epoch in resume_after:
            job.resume()
        if stops:
            break
    return job, job.finish()


def callbacks_of_keras(folder):
    import keras

    c = keras.callbacks
    return {
        "stopping": lambda: [c.EarlyStopping("val_loss", patience=2, restore_best_weights=True)],
        "warming": lambda: [
            c.EarlyStopping("val_loss", patience=1, restore_best_weights=True, start_from_epoch=1)
        ],
        "plateau": lambda: [c.ReduceLROnPlateau("val_loss", factor=0.5, patience=1, min_delta=0.1)],
        "scheduler": lambda: [c.LearningRateScheduler(lambda epoch, lr: lr * 0.8)],
        "checkpoint": lambda: [
            c.ModelCheckpoint(f"{folder}/{{epoch}}.weights.h5", "val_loss", save_best_only=True,
                              save_weights_only=True)
        ],
        "csv": lambda: [c.CSVLogger(f"{folder}/log.csv")],
        "tensorboard": lambda: [c.TensorBoard(f"{folder}/tb")],
        "nan": lambda: [c.TerminateOnNaN()],
        "history": lambda: [c.History()],
        "progress": lambda: [c.ProgbarLogger()],
        "lambda": lambda: [c.LambdaCallback(on_epoch_end=lambda epoch, logs: None)],
        "averages": lambda: [c.SwapEMAWeights()],
        "swapped": lambda: [c.SwapEMAWeights(swap_on_epoch=True)],
    }  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        "stopping", "warming", "plateau", "scheduler", "checkpoint", "csv", "history", "progress",
        "averages", "swapped",
        # These keep nothing; `tests/parity` resumes them as well.
        pytest.param("tensorboard", marks=pytest.mark.exhaustive),
        pytest.param("nan", marks=pytest.mark.exhaustive),
        pytest.param("lambda", marks=pytest.mark.exhaustive),
    ],
)  # fmt: skip
def test_keras_callbacks_behave_the_same_when_every_epoch_is_resumed(name, tmp_path, caplog):
    more = {"use_ema": True, "ema_momentum": 0.5} if name in {"averages", "swapped"} else {}
    results = []
    for number, resume_after in enumerate([(), range(len(LOSSES) - 1)]):
        folder = tmp_path / str(number)
        folder.mkdir()
        with caplog.at_level(logging.WARNING, "elasticdl"):
            job, weights = run(callbacks_of_keras(folder)[name], resume_after, **more)
        files = sorted(p.name for p in folder.iterdir())
        log = folder / "log.csv"
        rows = list(csv.reader(log.read_text().splitlines())) if log.exists() else []
        results.append((weights, float(job.trainer.optimizer.learning_rate), files, rows))
        assert job.trainer.model.history.history["val_loss"] == LOSSES[: len(job_epochs(job))]

    (weights, rate, files, rows), (again, *rest) = results
    assert rest == [rate, files, rows]
    for one, other in zip(weights, again, strict=True):
        np.testing.assert_array_equal(one, other)
    assert "cannot store" not in caplog.text


def job_epochs(job):
    return job.trainer.model.history.epoch


def test_early_stopping_restores_best_weights_from_before_a_resume(keras):
    def create():
        return [keras.callbacks.EarlyStopping("val_loss", patience=9, restore_best_weights=True)]

    job = Checkpointed(create)
    job.epoch(0, val_loss=1.0)
    best = job.trainer.model.get_weights()
    job.epoch(1, val_loss=2.0)
    job.resume()
    job.epoch(2, val_loss=2.0)

    for mine, theirs in zip(job.finish(), best, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_the_state_of_early_stopping_survives_a_checkpoint(keras):
    def hooks():
        stopping = keras.callbacks.EarlyStopping(monitor="loss", patience=2)
        made = trainer_of(definition_of(create_callbacks=lambda: [stopping])).hooks
        made.train_begin(num_epochs=5, num_steps=None, resumes=False)
        return made

    first, second = hooks(), hooks()
    for epoch, loss in enumerate([1.0, 2.0]):
        first.epoch_end(epoch, {"loss": loss})
    second.load_state(first.state(), first.arrays())
    second.epoch_end(2, {"loss": 2.0})

    assert second.stop_requested


def test_the_state_of_a_plateau_survives_a_checkpoint(keras):
    def made():
        plateau = keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=0.5)
        trainer = trainer_of(definition_of(create_callbacks=lambda: [plateau]))
        trainer.hooks.train_begin(num_epochs=8, num_steps=None, resumes=False)
        return trainer

    whole, begun, resumed = made(), made(), made()
    losses = [3.0, 2.9, 2.0, 1.8, 1.7, 1.0, 0.9, 0.8]
    for epoch, loss in enumerate(losses):
        whole.hooks.epoch_end(epoch, {"loss": loss})
        if epoch < 4:
            begun.hooks.epoch_end(epoch, {"loss": loss})
    resumed.load_state(begun.state())
    resumed.hooks.load_state(begun.hooks.state(), begun.hooks.arrays())
    for epoch, loss in enumerate(losses[4:], 4):
        resumed.hooks.epoch_end(epoch, {"loss": loss})

    left, right = ({**t.hooks.state(), "clocks": None} for t in (resumed, whole))
    assert left == right
    rates = [float(t.optimizer.learning_rate.numpy()) for t in (whole, resumed)]
    assert rates[0] == rates[1] < 0.1


def test_a_remote_monitor_reports_each_epoch_even_after_a_resume(keras):
    received = []

    class Received(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Received)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    run(lambda: [keras.callbacks.RemoteMonitor(url, send_as_json=True)], [1])
    server.shutdown()
    server.server_close()

    assert [row["epoch"] for row in received] == [0, 1, 2, 3, 4]


def test_backup_and_restore_is_ignored_with_a_warning(keras, tmp_path, caplog):
    run(lambda: [keras.callbacks.BackupAndRestore(tmp_path / "backup")])

    assert not (tmp_path / "backup").exists()
    assert "BackupAndRestore is ignored" in caplog.text


class Everything:
    """What a callback may remember, of each kind."""

    @staticmethod
    def values():
        import keras
        import tensorflow as tf

        return {
            "array": np.arange(6.0).reshape(2, 3),
            "nested": {"a": [np.float32([1, 2]), (3, {4.5})], 7: None},
            "number": np.float32(1.5),
            "tensor": tf.constant([1, 2]),
            "variable": tf.Variable([1.0, 2.0]),
            "keras_variable": keras.Variable([3.0]),
            "metric": keras.metrics.Mean(),
            "window": collections.deque([1.0, 2.0], maxlen=3),
            "counts": collections.Counter("aab"),
            "by_name": collections.defaultdict(list, {"x": [1]}),
            "rng": np.random.default_rng(4),
            "draws": random.Random(4),
            "infinite": float("inf"),
            "texts": np.array(["a", "bc"]),
            "half": tf.cast([1.5], tf.bfloat16),
        }

    @staticmethod
    def plain(value):
        """Return what can be compared."""
        import keras

        if isinstance(value, keras.metrics.Metric):
            return [np.array(v).tolist() for v in value.variables]
        if isinstance(value, np.random.Generator):
            return value.bit_generator.state
        if isinstance(value, random.Random):
            return value.getstate()
        if isinstance(value, dict):
            return {key: Everything.plain(each) for key, each in value.items()}
        if isinstance(value, (list, tuple, collections.deque)):
            return [type(value).__name__, *map(Everything.plain, value)]
        return np.array(value).tolist() if hasattr(value, "dtype") else value


def test_values_of_every_kind_are_restored_with_their_types(keras, caplog):
    class Remembering(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            vars(self).update(Everything.values())

        def on_epoch_end(self, epoch, logs=None):
            self.metric.update_state(float(epoch + 2))
            self.variable.assign_add([1.0, 1.0])
            self.keras_variable.assign([9.0])
            self.array = self.array + 1
            self.rng.normal(), self.draws.random()
            self.window.append(9.0)
            self.by_name["y"].append(2)
            self.infinite = -self.infinite

    job = Checkpointed(lambda: [Remembering()])
    job.epoch(0, val_loss=1.0)
    before = {name: getattr(job.callbacks[0], name) for name in Everything.values()}
    expected = {name: (type(v), Everything.plain(v)) for name, v in before.items()}
    job.resume()
    after = {name: getattr(job.callbacks[0], name) for name in before}

    for name, value in after.items():
        assert issubclass(type(value), expected[name][0]), name
        assert Everything.plain(value) == expected[name][1], name
    assert "cannot store" not in caplog.text


def test_only_changed_arguments_of_a_callback_are_restored(keras):
    class Decaying(keras.callbacks.Callback):
        def __init__(self, rate, patience):
            super().__init__()
            self.rate, self.patience = rate, patience

        def on_epoch_end(self, epoch, logs=None):
            self.rate = self.rate * 0.5

    patience = iter([3, 4])
    job = Checkpointed(lambda: [Decaying(1.0, next(patience))])
    job.epoch(0, val_loss=1.0)
    job.resume()

    assert (job.callbacks[0].rate, job.callbacks[0].patience) == (0.5, 4)


def test_a_callback_resumes_its_generator_and_model_attributes(keras):
    class Drawing(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.generator = keras.random.SeedGenerator(3)
            self.drawn = []

        def on_epoch_end(self, epoch, logs=None):
            number = float(keras.random.uniform([], seed=self.generator))
            self.model.rounds = getattr(self.model, "rounds", 0) + 1
            self.drawn.append((number, self.model.rounds))

    def drawn(resume_after=()):
        job, _ = run(lambda: [Drawing()], resume_after=resume_after)
        return [tuple(each) for each in job.callbacks[0].drawn]

    whole = drawn()

    assert drawn(resume_after=(1, 3)) == whole
    assert [number for _, number in whole] == [1, 2, 3, 4, 5]


@pytest.fixture
def replacing(keras):
    """A training whose callback replaces parts of the layer."""

    class Replaces(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:
                (layer,) = self.model.layers
                layer.activation = keras.activations.tanh
                layer.kernel.regularizer = keras.regularizers.L2(0.25)
                layer.bias.constraint = lambda bias: bias * 0.5

    return Checkpointed(lambda: [Replaces()])


def test_replaced_parts_that_keras_can_name_are_restored_after_a_resume(keras, replacing, caplog):
    replacing.epoch(0, val_loss=1.0)
    replacing.epoch(1, val_loss=1.0)

    replacing.resume()

    (layer,) = replacing.trainer.model.layers
    assert layer.activation is keras.activations.tanh
    assert float(layer.kernel.regularizer.l2) == 0.25
    assert layer.bias.constraint is None
    (warning,) = {each for each in caplog.messages if "cannot store" in each}
    assert f"a callback sets constraint of {layer.bias.path} to a function" in warning


def test_a_loss_that_a_callback_changes_is_stored_and_restored(keras):
    class Focal(keras.losses.Loss):
        gamma = 2.0

        def call(self, y_true, y_pred):
            return self.gamma * keras.losses.sparse_categorical_crossentropy(y_true, y_pred)

    class Anneals(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.loss.gamma = 0.5

    focal = Focal()
    definition = definition_of(
        create_callbacks=lambda: [Anneals()],
        loss=KerasLoss(lambda: focal),
    )
    first = trainer_of(definition)
    first.hooks.train_begin(num_epochs=2, num_steps=1, resumes=False)
    first.train_steps([batch_of(8)])
    first.hooks.epoch_end(0, {})
    state = json.loads(json.dumps(first.hooks.state()))
    del focal.gamma
    resumed = trainer_of(definition)

    resumed.hooks.load_state(state, {})

    assert focal.gamma == 0.5
    assert focal in resumed.hooks.stored


@pytest.mark.parametrize("replaces", [False, True])
def test_callbacks_that_share_containers_share_them_after_a_resume(keras, replaces):
    class Counts(keras.callbacks.Callback):
        def __init__(self, seen, totals, *, replaces):
            super().__init__()
            self.seen, self.totals, self.replaces = seen, totals, replaces

        def on_epoch_begin(self, epoch, logs=None):
            if self.replaces:
                self.seen, self.totals = dict(self.seen), self.totals.copy()
            self.seen[epoch] = self.seen.get(epoch, 0) + 1
            self.totals += 1.0

    def create():
        seen, totals = {}, np.zeros(2)
        return [Counts(seen, totals, replaces=replaces), Counts(seen, totals, replaces=False)]

    run = Checkpointed(create)
    run.hooks.epoch_begin(0)
    run.resume()
    run.hooks.epoch_begin(1)
    first, second = run.callbacks

    assert (first.seen is second.seen) is not replaces
    assert second.seen == ({0: 1, 1: 1} if replaces else {0: 2, 1: 2})
    assert second.totals.tolist() == ([2.0, 2.0] if replaces else [4.0, 4.0])
    assert first.totals.tolist() == ([2.0, 2.0] if replaces else [4.0, 4.0])
