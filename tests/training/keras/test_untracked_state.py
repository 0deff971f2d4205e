"""A variable that a step uses and no checkpoint holds may not move."""

import numpy as np
import pytest
import tensorflow as tf
from tests.training.keras.test_trainer import batch_of, definition_of, trainer_of

from elasticdl.errors import DefinitionError


@pytest.fixture(autouse=True)
def keras():
    import keras

    return keras


def scaled(variable, *, moves=False):
    """Return a function that makes a model with a layer that reads a variable."""
    import keras

    class Scaled(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.scale = variable

        def call(self, x):
            if moves:
                self.scale.assign_add(1.0)
            return x * tf.convert_to_tensor(self.scale)

    return lambda: keras.Sequential([keras.Input((4,)), Scaled(), keras.layers.Dense(3)])


@pytest.mark.parametrize("step", ["train_steps", "gradients"])
def test_an_untracked_variable_changed_by_a_step_is_refused(step):
    trainer = trainer_of(definition_of(scaled(tf.Variable(1.0), moves=True)))
    batch = batch_of(8)

    with pytest.raises(DefinitionError, match=r"the variable Scaled\.scale changes in training"):
        getattr(trainer, step)([batch] if step == "train_steps" else batch)


def test_an_unchanged_untracked_variable_is_accepted():
    trainer = trainer_of(definition_of(scaled(tf.Variable(2.0))))
    trainer.train_steps([batch_of(8)])

    assert np.isfinite(trainer.train_steps([batch_of(8)]).losses).all()
    assert trainer.state()["step"] == 2


def test_an_untracked_variable_changed_elsewhere_is_refused():
    variable = tf.Variable(1.0)
    trainer = trainer_of(definition_of(scaled(variable)))
    trainer.train_steps([batch_of(8)])
    variable.assign(3.0)

    with pytest.raises(DefinitionError, match=r"Scaled\.scale changes in training"):
        trainer.state()


def test_a_variable_of_a_callback_is_kept_with_the_callback(keras):
    variable = tf.Variable(1.0)

    class Anneals(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.weight = variable

    made = definition_of(scaled(variable), create_callbacks=lambda: [Anneals()])
    trainer = trainer_of(made)
    trainer.train_steps([batch_of(8)])
    variable.assign(3.0)

    assert trainer.state()["step"] == 1


@pytest.mark.parametrize("kind", ["within", "variables"])
def test_an_unlisted_optimizer_variable_is_refused(keras, kind):
    class Lookahead(keras.optimizers.SGD):
        """Every step also moves something that only the class itself knows of."""

        def __init__(self):
            super().__init__(0.1)
            self.inner = keras.optimizers.SGD(0.1)
            self.slow = [tf.Variable(0.0, name="slow")]

        def apply(self, grads, trainable_variables=None):
            moved = self.inner.iterations if kind == "within" else self.slow[0]
            moved.assign_add(1)
            return super().apply(grads, trainable_variables)

    trainer = trainer_of(definition_of(create_optimizer=Lookahead))

    with pytest.raises(DefinitionError, match="of the optimizer Lookahead changes in training.*"):
        trainer.train_steps([batch_of(8)])


def counting_with(table, *, inserts=False):
    """Return a function that makes a model with a layer that looks its inputs up in a table."""
    import keras

    class Look(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.table = table

        def call(self, x):
            # A dense table takes one axis only.
            ids = tf.reshape(tf.cast(tf.round(x), tf.int64), [-1])
            if inserts:
                self.table.insert(ids, self.table.lookup(ids) + 1)
            return x + tf.reshape(tf.cast(self.table.lookup(ids), tf.float32), tf.shape(x))

    return lambda: keras.Sequential([keras.Input((4,)), Look(), keras.layers.Dense(3)])


def empty_table(kind):
    if kind == "dense":
        return tf.lookup.experimental.DenseHashTable(tf.int64, tf.int64, 0, -98, -99)
    return tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, default_value=0)


@pytest.mark.parametrize("kind", ["mutable", "dense"])
@pytest.mark.parametrize("step", ["train_steps", "gradients"])
def test_a_lookup_table_changed_by_a_step_is_refused(step, kind):
    trainer = trainer_of(definition_of(counting_with(empty_table(kind), inserts=True)))
    batch = batch_of(8)

    with pytest.raises(DefinitionError, match=r"the lookup table Look\.table changes in training"):
        getattr(trainer, step)([batch] if step == "train_steps" else batch)


def test_a_lookup_table_changed_by_a_callback_is_refused():
    table = empty_table("mutable")
    keys = tf.range(1, 100, dtype=tf.int64)
    table.insert(keys, 2 * keys)
    trainer = trainer_of(definition_of(counting_with(table)))
    trainer.train_steps([batch_of(8)])

    # The same content in another order is no change.
    before = table.export()[0].numpy().tolist()
    table.remove(keys)
    table.insert(keys[::-1], 2 * keys[::-1])
    assert table.export()[0].numpy().tolist() != before
    assert trainer.state()["step"] == 1
    table.insert(tf.constant([100], tf.int64), tf.constant([7], tf.int64))

    with pytest.raises(DefinitionError, match=r"the lookup table Look\.table changes in training"):
        trainer.state()


def test_a_table_in_a_list_is_named():
    made = counting_with(empty_table("mutable"), inserts=True)()
    trainer = trainer_of(definition_of(lambda: made))
    layer = made.layers[0]
    layer.tables = [vars(layer).pop("table")]
    type(layer).table = property(lambda self: self.tables[0])

    with pytest.raises(DefinitionError, match=r"the lookup table Look\.tables changes"):
        trainer.train_steps([batch_of(8)])


def test_a_vocabulary_is_accepted(keras):
    def create_model():
        texts = keras.Input((4,))
        words = keras.layers.Lambda(lambda x: tf.strings.as_string(tf.round(x)))(texts)
        ids = keras.layers.StringLookup(vocabulary=["0.000000", "1.000000"])(words)
        return keras.Model(texts, keras.layers.Dense(3)(keras.ops.cast(ids, "float32")))

    trainer = trainer_of(definition_of(create_model))
    trainer.train_steps([batch_of(8)])

    assert trainer.state()["step"] == 1
