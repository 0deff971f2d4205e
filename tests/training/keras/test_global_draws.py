"""Draws from `numpy.random` and `random` in models and callbacks are repeated or refused."""

# ruff: noqa: NPY002 - models draw from np.random.*

import dataclasses
import random
import threading

import numpy as np
import pytest
from tests.training.keras.test_random_draws import (
    batch_of,
    definition_of,
    model_with,
    mse,
    same_bits,
)

from elasticdl.errors import DefinitionError


def trainer_of(definition, **more):
    from elasticdl.training.keras import KerasTrainer

    return KerasTrainer(definition, batch_of(), minibatch_size=8, **more)


def of_numpy(x):
    return x * np.float32(np.random.normal())


def of_python(x):
    return x * random.gauss(0, 1)


def numpy_only(outputs, labels):
    """Return the loss, and let steps run uncompiled: labels are asked for their numbers."""
    return mse(outputs, np.asarray(labels.tolist(), "float32"))


def uncompiled(definition):
    return dataclasses.replace(definition, loss=numpy_only, labels_as_numpy=True)


def drawing_in_python(x):
    import tensorflow as tf

    # Within Python code that TensorFlow calls, in a step that is not compiled.
    drawn = tf.numpy_function(lambda: np.float32(np.random.rand()), [], tf.float32)
    return x * tf.ensure_shape(drawn, [])


DEFINITIONS = {
    "numpy, compiled": lambda: definition_of(model_with(of_numpy)),
    "python, compiled": lambda: definition_of(model_with(of_python)),
    "numpy": lambda: uncompiled(definition_of(model_with(of_numpy))),
    "python": lambda: uncompiled(definition_of(model_with(of_python))),
    "a numpy_function": lambda: uncompiled(definition_of(model_with(drawing_in_python))),
}
UNCOMPILED = ["numpy", "python", "a numpy_function"]


@pytest.mark.parametrize("name", DEFINITIONS)
def test_a_resumed_training_draws_the_same_numbers(name):
    whole, first = trainer_of(DEFINITIONS[name]()), trainer_of(DEFINITIONS[name]())
    batches = [batch_of(seed) for seed in range(4)]
    expected = [whole.train_steps([batch]).losses[0] for batch in batches]

    losses = list(first.train_steps(batches[:2]).losses)
    np.random.rand(7), random.random()
    second = trainer_of(DEFINITIONS[name]())
    second.load_state(first.state())
    np.random.rand(7), random.random()
    losses += list(second.train_steps(batches[2:]).losses)

    assert losses == expected
    assert same_bits(second.state(), whole.state())


@pytest.mark.parametrize("name", UNCOMPILED)
def test_draws_of_uncompiled_steps_differ_by_step_and_rank(name):
    trainer, batch = trainer_of(DEFINITIONS[name]()), batch_of()

    mine = trainer.gradients(batch)[0].buffer
    np.testing.assert_array_equal(trainer.gradients(batch)[0].buffer, mine)
    trainer.rank = 1
    assert not np.array_equal(trainer.gradients(batch)[0].buffer, mine)
    trainer.rank, trainer.step = 0, 5
    assert not np.array_equal(trainer.gradients(batch)[0].buffer, mine)


@pytest.mark.parametrize("name", DEFINITIONS)
def test_a_model_that_draws_does_not_advance_global_generators(name):
    np.random.seed(3), random.seed(3)
    expected = np.random.normal(), np.random.normal(), random.gauss(0, 1), random.gauss(0, 1)

    np.random.seed(3), random.seed(3)
    first = np.random.normal(), random.gauss(0, 1)
    trainer = trainer_of(DEFINITIONS[name]())
    trainer.train_steps([batch_of()])
    trainer.gradients(batch_of())
    trainer.evaluate(batch_of())

    assert (first[0], np.random.normal(), first[1], random.gauss(0, 1)) == expected


def numpy_noise(x):
    import tensorflow as tf

    def noise(x):
        return x + np.random.rand(*x.shape).astype("float32")

    return tf.ensure_shape(tf.numpy_function(noise, [x], tf.float32), x.shape)


def python_choice(x):
    import tensorflow as tf

    def choose(x):
        return x * random.choice([1.0, 2.0])

    return tf.ensure_shape(tf.py_function(choose, [x], tf.float32), x.shape)


@pytest.mark.parametrize("draw", [numpy_noise, python_choice])
def test_python_draws_within_a_compiled_step_are_refused(draw):
    trainer = trainer_of(definition_of(model_with(draw)))
    line = (
        rf"(?s)test_global_draws.py:{draw.__code__.co_firstlineno + 4}: .*(tf.random|keras.random)"
    )

    for _ in "12":
        with pytest.raises(DefinitionError, match=line):
            trainer.train_steps([batch_of()])
    with pytest.raises(DefinitionError, match=line):
        trainer.gradients(batch_of())


def test_python_draws_in_an_optimizer_are_refused():
    import keras
    import tensorflow as tf

    class Noisy(keras.optimizers.SGD):
        def update_step(self, gradient, variable, learning_rate):
            drawn = tf.numpy_function(lambda: np.float32(np.random.rand()), [], tf.float32)
            super().update_step(gradient * tf.ensure_shape(drawn, []), variable, learning_rate)

    definition = dataclasses.replace(
        definition_of(model_with(lambda x: x)), create_optimizer=lambda: Noisy(0.1)
    )
    trainer = trainer_of(definition)

    with pytest.raises(DefinitionError, match=r"test_global_draws.py:\d+: the model draws from"):
        trainer.apply(trainer.gradients(batch_of())[0])


def test_python_draws_of_the_feed_are_allowed_during_training():
    import tensorflow as tf

    def halved(x):
        return tf.ensure_shape(tf.numpy_function(lambda x: x / 2, [x], tf.float32), x.shape)

    trainer, ended = trainer_of(definition_of(model_with(halved))), threading.Event()
    batches = [batch_of()] * 200
    dataset = tf.data.Dataset.range(100).map(
        lambda i: tf.numpy_function(lambda _: np.random.rand(99), [i], tf.float64),
        num_parallel_calls=4,
    )

    def feed():
        while not ended.is_set():
            np.random.seed(1), random.seed(1)
            list(dataset)
            np.random.rand(999), random.random()

    thread = threading.Thread(target=feed)
    thread.start()
    try:
        trainer.train_steps(batches)
    finally:
        ended.set()
        thread.join()


def test_python_draws_are_refused_in_eager_models_too():
    def create():
        model = model_with(of_numpy)()
        model.compile(run_eagerly=True)
        return model

    trainer = trainer_of(definition_of(create))

    with pytest.raises(DefinitionError, match=r"test_global_draws.py:\d+: .*run_eagerly"):
        trainer.train_steps([batch_of()])


def test_weights_drawn_by_numpy_start_from_the_seed():
    import keras

    def create():
        dense = keras.layers.Dense(1)
        model = keras.Sequential([keras.Input((4,)), dense])
        dense.kernel.assign(np.random.normal(size=(4, 1)))
        return model

    np.random.seed(7)
    expected = np.float32(np.random.normal(size=(4, 1)))

    state = trainer_of(definition_of(create), seed=7).state()

    assert any(np.array_equal(array, expected) for array in state.values())


def test_draws_of_callbacks_depend_on_step_and_hook():
    import keras

    class Drawing(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            drawn.append((np.random.rand(), random.random(), float(keras.random.normal(()))))

        def on_epoch_begin(self, epoch, logs=None):
            drawn.append((np.random.rand(), random.random(), float(keras.random.normal(()))))

    def moments(trainer):
        drawn.clear()
        trainer.hooks.batch_end(0, {})
        trainer.hooks.epoch_begin(0)
        return tuple(drawn)

    drawn = []
    definition = dataclasses.replace(
        definition_of(model_with(lambda x: x)), create_callbacks=lambda: [Drawing()]
    )
    one, other = trainer_of(definition), trainer_of(definition, rank=1)

    first = moments(one)
    assert moments(other) == first
    assert not set(first[0]) & set(first[1])
    one.step = other.step = 1
    assert moments(one) == moments(other)
    assert not set(moments(one)[0]) & set(first[0])


def test_tensorflow_draws_in_a_callback_are_reported_with_their_line(caplog):
    import keras
    import tensorflow as tf

    class Drawing(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            tf.random.normal([2])

    trainer = trainer_of(
        dataclasses.replace(
            definition_of(model_with(lambda x: x)), create_callbacks=lambda: [Drawing()]
        )
    )
    for batch in range(2):
        trainer.hooks.batch_end(batch, {})

    [said] = [r.getMessage() for r in caplog.records if "a callback draws" in r.getMessage()]
    assert said.startswith(f"{__file__}:")


def keras_noise(shape):
    import keras

    return 0.1 * keras.random.normal(shape)


def tf_noise(shape):
    import tensorflow as tf

    return 0.1 * tf.random.normal(shape)


def noisy_optimizer(noise):
    import keras

    class Langevin(keras.optimizers.SGD):
        def update_step(self, gradient, variable, learning_rate):
            super().update_step(gradient, variable, learning_rate)
            self.assign_add(variable, noise(variable.shape))

    plain = definition_of(model_with(lambda x: x))
    return dataclasses.replace(plain, create_optimizer=lambda: Langevin(0.1))


def noisy_constraint(noise):
    import keras

    class Noisy(keras.constraints.Constraint):
        def __call__(self, weights):
            return weights + noise(weights.shape)

    dense = keras.layers.Dense
    return definition_of(
        lambda: keras.Sequential([keras.Input((4,)), dense(1, kernel_constraint=Noisy())])
    )


@pytest.mark.parametrize("of", [noisy_optimizer, noisy_constraint])
@pytest.mark.parametrize("noise", [keras_noise, tf_noise])
def test_draws_of_an_update_are_equal_on_workers_and_after_a_resume(of, noise):
    one, other, resumed = (trainer_of(of(noise), rank=rank) for rank in (0, 1, 0))

    def update(*trainers):
        total = one.gradients(batch_of(1))[0]
        for trainer in trainers:
            # What one computes for itself draws by its rank.
            trainer.gradients(batch_of(2))
            trainer.apply(total)

    before = one.state()
    update(one, other)
    assert same_bits(one.state(), other.state())
    assert not same_bits(before, one.state())
    resumed.load_state(one.state())
    update(one, resumed)
    assert same_bits(one.state(), resumed.state())
