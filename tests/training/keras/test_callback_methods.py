"""Methods of callbacks for batches are found, and refused where batches are grouped or shared."""

import pytest
from tests.training.keras.test_trainer import definition_of, small_model, trainer_of

from elasticdl.errors import DefinitionError


@pytest.fixture(autouse=True)
def keras():
    import keras

    return keras


def test_a_callback_that_observes_batches_is_detected(keras):
    callback = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: None)

    assert trainer_of(definition_of(create_callbacks=lambda: [callback])).hooks.observes_batches


def test_a_checkpoint_each_few_batches_is_refused_for_grouped_steps(keras):
    def create():
        model = small_model()
        model.compile(steps_per_execution=2)
        return model

    def callbacks(**more):
        return [keras.callbacks.ModelCheckpoint("a.weights.h5", save_weights_only=True, **more)]

    trainer_of(definition_of(create, create_callbacks=callbacks))
    with pytest.raises(DefinitionError, match=r"save_freq=3, and steps_per_execution=2"):
        trainer_of(definition_of(create, create_callbacks=lambda: callbacks(save_freq=3)))


def test_methods_for_batches_of_an_evaluation_are_refused_on_workers(keras):
    class Counts(keras.callbacks.Callback):
        def on_test_batch_end(self, batch, logs=None):
            pass

    hooks = trainer_of(definition_of(create_callbacks=lambda: [Counts()])).hooks

    with pytest.raises(DefinitionError, match=r"Counts has on_test_batch_end\(\)"):
        hooks.check_sharing()
