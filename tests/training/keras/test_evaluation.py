"""A weight that changes where a model is evaluated is refused by name; one in training is not."""

import re

import numpy as np
import pytest
from tests.training.keras.test_overrides import ORIGIN, batch_of, mse

from elasticdl.definition import ModelDefinition, RecordInput
from elasticdl.errors import DefinitionError


def counting(change, *, is_of_training=False):
    """Return what makes a model with a layer that changes a weight of its own.

    Args:
        change: (Weight, inputs) -> None.
        is_of_training: Whether it does so in training only.
    """
    import keras

    class Counting(keras.layers.Layer):
        def build(self, shape):
            self.total = self.add_weight(shape=shape[1:], trainable=False, name="total")

        def call(self, inputs, training=False):
            if training or not is_of_training:
                change(self.total, inputs)
            return inputs + 0.1 * self.total

    def create():
        return keras.Sequential(
            [keras.Input((4,)), Counting(name="counting"), keras.layers.Dense(1, name="out")]
        )

    return create


def add(total, inputs):
    import keras

    total.assign_add(keras.ops.sum(inputs, axis=0))


def leave(total, _inputs):
    total.assign(total.value)


def trainer_of(create_model, loss=mse):
    import keras

    from elasticdl.training.keras import KerasTrainer

    definition = ModelDefinition(
        origin=ORIGIN,
        framework="keras",
        create_model=create_model,
        input=RecordInput(lambda records: records),
        loss=loss,
        create_optimizer=lambda: keras.optimizers.SGD(0.1),
    )
    return KerasTrainer(definition, batch_of(8), minibatch_size=8)


CALLS = {
    "evaluate": lambda trainer: trainer.evaluate(batch_of(8)),
    "evaluate_per_example": lambda trainer: trainer.evaluate_per_example(batch_of(8)),
    "predict": lambda trainer: trainer.predict(batch_of(8).features),
    "check_evaluation": lambda trainer: trainer.check_evaluation(batch_of(8)),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_layer_that_changes_weights_in_evaluation_is_refused(name):
    trainer = trainer_of(counting(add))
    trainer.train_steps([batch_of(8)])
    before = trainer.state()

    for _ in "12":
        where = rf"{re.escape(__file__)}:\d+: Counting changes its weight \S*total where"
        with pytest.raises(DefinitionError, match=where):
            CALLS[name](trainer)

    after = trainer.state()
    assert all(before[path].tobytes() == after[path].tobytes() for path in before)


def test_a_weight_that_the_first_call_initializes_is_refused_with_true_words():
    def initialize(total, inputs):
        import keras

        first = 100 + keras.ops.std(inputs, axis=0)
        total.assign(keras.ops.where(total < 100, first, total.value))

    trainer = trainer_of(counting(initialize))

    with pytest.raises(DefinitionError) as caught:
        trainer.evaluate(batch_of(8))

    assert "the first call initializes is changed by them only before training" in str(caught.value)
    assert "initialize a weight in build()" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "is_of_training"), [(add, True), (leave, False)], ids=["in training", "not at all"]
)
def test_a_layer_that_changes_no_weight_in_evaluation_is_evaluated(change, is_of_training):
    trainer = trainer_of(counting(change, is_of_training=is_of_training))
    trainer.train_steps([batch_of(8)])

    for call in CALLS.values():
        call(trainer)


def test_a_loss_that_changes_model_weights_is_refused_in_evaluation():
    import keras

    class Net(keras.Model):
        def __init__(self):
            super().__init__(name="net")
            self.out = keras.layers.Dense(1)
            self.scale = self.add_weight(shape=(), trainable=False, name="scale")

        def call(self, x):
            return self.out(x)

        def compute_loss(self, x, y, y_pred, sample_weight, training=True):
            self.scale.assign(keras.ops.max(y_pred))
            return keras.ops.mean(keras.ops.square(y - y_pred))

    with pytest.raises(DefinitionError, match=r"Net changes its weight \S*scale"):
        trainer_of(Net).evaluate(batch_of(8))


def test_batch_normalization_that_always_trains_is_evaluated_and_logged(caplog):
    import keras

    class Net(keras.Model):
        def __init__(self):
            super().__init__(name="net")
            self.normal, self.out = keras.layers.BatchNormalization(), keras.layers.Dense(1)

        def call(self, x):
            return self.out(self.normal(x, training=True))

    trainer = trainer_of(Net)
    begun = np.array(trainer.model.normal.moving_mean)
    for _ in "12":
        trainer.evaluate(batch_of(8))

    said = [r.getMessage() for r in caplog.records if "training=True" in r.getMessage()]
    assert len(said) == 1
    assert "moving_mean" in said[0]
    np.testing.assert_array_equal(trainer.model.normal.moving_mean, begun)
