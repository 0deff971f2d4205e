"""Batches of many lengths share a compiled step, and a step does not depend on those before it."""

import logging

import numpy as np
import pytest

from elasticdl.data.batch import Batch
from elasticdl.definition import ModelDefinition, Origin, RecordInput
from elasticdl.errors import UserCodeError
from elasticdl.training.keras.sequence_lengths import Functions, Lengths, signature

ORIGIN = Origin("elasticdl_module", "model.py", 1, "model", "zoo")


@pytest.fixture(scope="module", autouse=True)
def keras():
    import keras

    return keras


def batch(length, size=4, seed=0, *, per_step=False):
    rng = np.random.default_rng([length, size, seed])
    x = rng.normal(size=(size, length, 3)).astype("float32")
    labels = rng.normal(size=(size, length, 1) if per_step else (size, 1)).astype("float32")
    return Batch(x, labels, size)


def recurrent():
    import keras

    layers = keras.layers
    return keras.Sequential([keras.Input((None, 3)), layers.LSTM(4), layers.Dense(1)])


def convolution():
    import keras

    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((None, 3)),
            layers.Conv1D(4, 3, padding="same", activation="relu"),
            layers.BatchNormalization(),
            layers.GlobalAveragePooling1D(),
            layers.Dense(1),
        ]
    )


def per_step():
    import keras

    layers = keras.layers
    return keras.Sequential([keras.Input((None, 3)), layers.LSTM(4, return_sequences=True)])


def over_time():
    """Keras takes as many steps of it as there are examples where both are open."""
    import keras

    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((None, 3)),
            layers.TimeDistributed(layers.Dense(2)),
            layers.GlobalAveragePooling1D(),
            layers.Dense(1),
        ]
    )


def by_python():
    """Needs to know the length while it is compiled."""
    import keras

    class Sum(keras.layers.Layer):
        def call(self, x):
            return sum(x[:, i] for i in range(x.shape[1]))

    return keras.Sequential([Sum(), keras.layers.Dense(1)])


def trainer_of(create, example):
    import keras

    from elasticdl.training.keras import KerasTrainer

    definition = ModelDefinition(
        origin=ORIGIN,
        framework="keras",
        create_model=create,
        input=RecordInput(lambda records: records),
        loss=lambda outputs, labels: keras.ops.mean(keras.ops.square(outputs - labels)),
        create_optimizer=lambda: keras.optimizers.Adam(0.01),
    )
    return KerasTrainer(definition, example, minibatch_size=4)


def same_bits(one, other):
    return all(np.array_equal(one[path], other[path]) for path in one)


# --- which axes -------------------------------------------------------------------------------


def test_an_axis_of_varying_size_is_open():
    lengths = Lengths({"x": np.zeros((4, 7, 3))}, np.zeros((4, 7)))

    found = lengths.open_axes(({"x": np.zeros((2, 9, 3))}, np.zeros((2, 9))), leading=1)

    assert found == {(0, 0), (1, 0)}
    assert signature((2, 9, 3), 0, 1, None, found) == (None, None, 3)
    assert not lengths.open_axes(({"x": np.zeros((2, 7, 3))}, np.zeros((2, 7))), leading=1)


def test_arrays_of_a_group_of_steps_have_an_additional_axis():
    lengths = Lengths(np.zeros((4, 7, 3)), None)

    found = lengths.open_axes((np.zeros((5, 2, 9, 3)), None), leading=2)

    assert signature((5, 2, 9, 3), 0, 2, None, found) == (None, None, None, 3)
    assert signature((5, 2, 7, 3), 0, 2, 1, frozenset()) == (None, 2, 7, 3)


def test_the_least_recently_used_function_is_dropped():
    functions = Functions()
    for key in range(64):
        functions.get(key, lambda: print)
    functions.get(0, lambda: pytest.fail("it is there"))
    functions.get(64, lambda: print)

    functions.get(0, lambda: pytest.fail("it is there"))
    assert functions.get(1, lambda: repr) is repr
    assert len(functions) == 64


# --- steps ------------------------------------------------------------------------------------


def test_thirty_lengths_share_one_function():
    trainer = trainer_of(recurrent, batch(10))
    for length in range(10, 40):
        trainer.train_steps([batch(length)])

    # The example's, that of all others, and the predictions that were compared.
    assert len(trainer._functions) == 3


@pytest.mark.parametrize("create", [recurrent, convolution, over_time, by_python])
def test_steps_with_many_lengths_match_keras(keras, create):
    some = [batch(length) for length in (6, 9, 7, 6)]
    trainer = trainer_of(create, some[0])
    reference = create()
    reference(some[0].features)
    # Uncompiled: there every length is known.
    reference.compile(keras.optimizers.Adam(0.01), "mse", run_eagerly=True)
    reference.set_weights(trainer.model.get_weights())

    losses = [trainer.train_steps([one]).losses[0] for one in some]

    theirs = [reference.train_on_batch(one.features, one.labels) for one in some]
    np.testing.assert_allclose(losses, theirs, rtol=1e-4)
    for mine, their in zip(trainer.model.get_weights(), reference.get_weights(), strict=True):
        np.testing.assert_allclose(mine, their, rtol=1e-3, atol=1e-5)


def test_labels_may_have_a_length_too():
    trainer = trainer_of(per_step, batch(6, per_step=True))
    for length in (6, 9, 7, 8):
        trainer.train_steps([batch(length, per_step=True)])

    assert len(trainer._functions) == 3


@pytest.mark.parametrize("create", [over_time, by_python])
def test_a_model_that_relies_on_the_length_is_compiled_for_each(create, caplog):
    trainer = trainer_of(create, batch(6))

    with caplog.at_level(logging.WARNING, "elasticdl"):
        outputs = [trainer.predict(batch(length).features) for length in (6, 9, 8)]

    trainer._functions.is_eager = True
    for length, found in zip((6, 9, 8), outputs, strict=True):
        np.testing.assert_allclose(found, trainer.predict(batch(length).features), rtol=1e-5)
    (record,) = caplog.records
    assert "model.py: the model cannot be compiled for sequences" in record.getMessage()


def test_features_that_the_model_cannot_take_are_an_error_without_a_warning(caplog):
    import keras

    def of_one_channel():
        layers = keras.layers
        return keras.Sequential(
            [layers.Conv2D(2, 1), layers.GlobalAveragePooling2D(), layers.Dense(1)]
        )

    labels = np.ones((4, 1), "float32")
    trainer = trainer_of(of_one_channel, Batch(np.ones((4, 8, 8, 1), "float32"), labels, 4))

    with pytest.raises(UserCodeError):
        trainer.evaluate(Batch(np.ones((4, 1, 8, 8), "float32"), labels, 4))
    assert not caplog.records


# Their bits differ between a function with an open axis and one without.
@pytest.mark.parametrize("path", ["train_steps", "gradients"])
def test_a_resumed_trainer_does_not_depend_on_seen_lengths(path):
    def step(trainer, one):
        if path == "train_steps":
            trainer.train_steps([one])
        else:
            trainer.apply(trainer.gradients(one)[0])

    some = [batch(length, size) for length, size in ((6, 4), (9, 4), (7, 3), (6, 4), (8, 4))]
    whole = trainer_of(convolution, some[0])
    for one in some[:3]:
        step(whole, one)
    resumed = trainer_of(convolution, some[0])
    resumed.load_state(whole.state())
    for one in some[3:]:
        step(whole, one)
        step(resumed, one)

    assert same_bits(whole.state(), resumed.state())
