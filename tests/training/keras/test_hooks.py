"""Callbacks are called as `fit` calls them."""

import json

import pytest
from tests.training.keras.test_trainer import batch_of, definition_of, trainer_of

from elasticdl.definition import MetricFunctions, NamedMetric
from elasticdl.errors import DefinitionError, UserCodeError


@pytest.fixture(autouse=True)
def keras():
    import keras

    return keras


class Checkpointed:
    """Callbacks in a process that can end at any moment and begin again.

    Args:
        create: Makes the callbacks.
        num_epochs: How many there will be.
        leads: It is alone, or the one of several workers that writes files.
        sgd: Options of the optimizer.
    """

    def __init__(self, create, num_epochs=5, *, leads=True, **sgd):
        import keras

        self._create, self._num_epochs = create, num_epochs
        self._optimizer = lambda: keras.optimizers.SGD(0.1, **sgd)
        self._leads = leads
        self.start(resumes=False)

    def start(self, *, resumes):
        self.callbacks = self._create()
        self.trainer = trainer_of(
            definition_of(create_callbacks=lambda: self.callbacks, create_optimizer=self._optimizer)
        )
        self.hooks = self.trainer.hooks
        self.hooks.committed(leads=self._leads)
        self.hooks.train_begin(num_epochs=self._num_epochs, num_steps=1, resumes=resumes)

    def resume(self):
        # What a checkpoint does: JSON and arrays in files.
        state = json.loads(json.dumps(self.hooks.state()))
        arrays, weights = dict(self.hooks.arrays()), self.trainer.state()
        for callback in self.callbacks:
            if hasattr(callback, "csv_file"):
                # The end of a process closes its files.
                callback.csv_file.close()
        self.start(resumes=True)
        self.trainer.load_state(weights)
        self.hooks.load_state(state, arrays)

    def epoch(self, epoch, **logs):
        self.hooks.epoch_begin(epoch)
        self.trainer.train_steps([batch_of(8, epoch)])
        self.hooks.test_begin()
        self.hooks.test_end({"loss": logs["val_loss"]})
        self.hooks.epoch_end(epoch, logs)
        return self.hooks.stop_requested

    def finish(self):
        self.trainer.finish()
        self.hooks.train_end({})
        return self.trainer.model.get_weights()


def test_a_callback_that_is_left_out_is_named_when_training_begins(keras, tmp_path, caplog):
    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
    hooks = trainer_of(definition_of(create_callbacks=lambda: [backup])).hooks
    assert caplog.messages == []

    hooks.train_begin(num_epochs=1, num_steps=1, resumes=False)

    (said,) = caplog.messages
    assert "the callback BackupAndRestore is ignored" in said


def test_the_class_of_a_callback_is_refused(keras):
    definition = definition_of(create_callbacks=lambda: [keras.callbacks.TerminateOnNaN])

    with pytest.raises(DefinitionError, match="TerminateOnNaN of the callbacks is a class"):
        trainer_of(definition)


def test_callbacks_know_the_number_of_epochs_and_steps_as_in_fit(keras):
    callback = keras.callbacks.Callback()
    Checkpointed(lambda: [callback], num_epochs=5)

    assert callback.params == {"verbose": 1, "epochs": 5, "steps": 1}


def test_a_callback_that_raises_is_a_user_code_error(keras):
    def end(epoch, logs):
        raise KeyError("mae")

    hooks = Checkpointed(lambda: [keras.callbacks.LambdaCallback(on_epoch_end=end)]).hooks

    with pytest.raises(UserCodeError, match=r"raised in on_epoch_end:(?s:.*)KeyError: 'mae'"):
        hooks.epoch_end(0, {"loss": 1.0})


def test_a_metric_that_a_callback_changes_before_the_first_step_is_refused(keras):
    class Share(keras.metrics.Mean):
        bound = 0.5

        def update_state(self, y_true, y_pred, sample_weight=None):
            return super().update_state(y_pred > self.bound)

    class Moves(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            share.bound = 0.9

    share = Share(name="share")
    metrics = MetricFunctions(named=[NamedMetric("share", share)])
    hooks = trainer_of(
        definition_of(create_callbacks=lambda: [Moves()], create_metrics=lambda mode: metrics)
    ).hooks

    with pytest.raises(DefinitionError, match=r"on_train_begin\(\) changes bound of share"):
        hooks.train_begin(num_epochs=1, num_steps=1, resumes=False)


def test_callbacks_are_called_as_by_fit(keras):
    class Recorder(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.seen = []

        def on_epoch_begin(self, epoch, logs=None):
            self.seen.append(f"begin {epoch}")

        def on_epoch_end(self, epoch, logs=None):
            self.seen.append(f"end {epoch} {sorted(logs)}")
            self.model.stop_training = True

    recorder = Recorder()
    hooks = trainer_of(definition_of(create_callbacks=lambda: [recorder])).hooks
    hooks.train_begin(num_epochs=1, num_steps=None, resumes=False)
    hooks.epoch_begin(0)
    hooks.epoch_end(0, {"loss": 1.0})

    assert recorder.seen == ["begin 0", "end 0 ['loss']"]
    assert hooks.stop_requested
    assert not hooks.observes_batches


def test_a_callback_may_stop_an_evaluation(keras):
    class Few(keras.callbacks.Callback):
        def on_test_batch_end(self, batch, logs=None):
            self.model.stop_evaluating = batch == 1

    hooks = trainer_of(definition_of(create_callbacks=lambda: [Few()])).hooks
    hooks.train_begin(num_epochs=1, num_steps=1, resumes=False)
    hooks.test_begin()
    continues = [hooks.test_batch_end(number, {}) for number in range(2)]
    hooks.test_begin()

    assert continues == [True, False]
    assert not hooks._model.stop_evaluating
