"""Whatever a model draws is a function of (seed, step, rank)."""

import dataclasses

import numpy as np
import pytest

from elasticdl.data.batch import Batch
from elasticdl.definition import ModelDefinition, Origin, RecordInput
from elasticdl.errors import DefinitionError

ORIGIN = Origin("elasticdl_module", "model.py", 1, "model", "zoo")


def tf_normal(x):
    import tensorflow as tf

    return x + tf.random.normal(tf.shape(x))


def tf_dropout(x):
    import tensorflow as tf

    return tf.nn.dropout(x, 0.5)


def tf_with_a_seed(x):
    import tensorflow as tf

    return x * tf.random.uniform(tf.shape(x), seed=7)


def tf_integers(x):
    import tensorflow as tf

    return x + tf.cast(tf.random.uniform(tf.shape(x), 0, 10, tf.int32), x.dtype)


def tf_shuffle(x):
    import tensorflow as tf

    return x * tf.cast(tf.random.shuffle(tf.range(tf.shape(x)[0]))[:, None], x.dtype)


def tf_gamma(x):
    import tensorflow as tf

    return x * tf.random.gamma(tf.shape(x), 2.0) + tf.random.truncated_normal(tf.shape(x))


def tf_poisson_and_categories(x):
    import tensorflow as tf

    drawn = tf.random.categorical(tf.zeros([tf.shape(x)[0], 50]), 4, dtype=tf.int32)
    return x * tf.random.poisson(tf.shape(x), 9.0) + tf.cast(drawn, x.dtype)


def keras_without_seed(x):
    import keras

    return x + keras.random.normal(keras.ops.shape(x))


def keras_dropout(x):
    import keras

    return keras.random.dropout(x, 0.5)


def in_a_loop(x):
    """Add noise of its own to each of four times the input; the loss sees that it differs."""
    import tensorflow as tf

    def body(i, total):
        return i + 1, total * tf.random.normal(tf.shape(x))

    return tf.while_loop(lambda i, total: i < 4, body, (0, x))[1]


DRAWS = [
    tf_normal,
    tf_dropout,
    tf_with_a_seed,
    tf_integers,
    tf_shuffle,
    tf_gamma,
    tf_poisson_and_categories,
    keras_without_seed,
    keras_dropout,
    in_a_loop,
]


def model_with(draw):
    import keras

    class Noise(keras.layers.Layer):
        def call(self, x):
            return draw(x)

    def create():
        inputs = keras.Input((4,))
        return keras.Model(inputs, keras.layers.Dense(1)(Noise(name="noise")(inputs)))

    return create


def layers(*make):
    def create():
        import keras

        inputs = keras.Input((4, 4, 1))
        x = inputs
        for each in make:
            x = each(keras.layers)(x, training=True)
        return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(x)))

    return create


def users_generator():
    import keras

    class Noise(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.generators = [keras.random.SeedGenerator(3)]

        def call(self, x):
            return x + keras.random.normal(keras.ops.shape(x), seed=self.generators[0])

    return keras.Sequential([keras.Input((4,)), Noise(), keras.layers.Dense(1)])


LAYERS = {
    "flip": layers(lambda kind: kind.RandomFlip()),
    "rotation and zoom": layers(
        lambda kind: kind.RandomRotation(0.5), lambda kind: kind.RandomZoom(0.5)
    ),
    "brightness": layers(lambda kind: kind.RandomBrightness(0.5, value_range=(-3, 3))),
    "noise": layers(lambda kind: kind.GaussianNoise(1.0), lambda kind: kind.GaussianDropout(0.5)),
    "alpha": layers(lambda kind: kind.AlphaDropout(0.5), lambda kind: kind.SpatialDropout2D(0.5)),
    "a user's generator": users_generator,
}
MODELS = {**{draw.__name__: model_with(draw) for draw in DRAWS}, **LAYERS}


def mse(outputs, labels):
    import keras

    return keras.ops.mean(keras.ops.square(outputs - labels))


def definition_of(create_model):
    import keras

    return ModelDefinition(
        origin=ORIGIN,
        framework="keras",
        create_model=create_model,
        input=RecordInput(lambda records: records),
        loss=mse,
        create_optimizer=lambda: keras.optimizers.SGD(0.01),
    )


def trainer_of(name, rank=0):
    from elasticdl.training.keras import KerasTrainer

    create = MODELS[name] if isinstance(name, str) else name
    shape = (4, 4, 1) if name in LAYERS and name != "a user's generator" else (4,)
    batch = batch_of(shape=shape)
    return KerasTrainer(definition_of(create), batch, minibatch_size=8, rank=rank), batch


def batch_of(seed=0, shape=(4,)):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(8, *shape)).astype("float32")
    return Batch(features, rng.normal(size=(8, 1)).astype("float32"), 8)


def same_bits(one, other):
    return all(one[path].tobytes() == other[path].tobytes() for path in one)


@pytest.mark.parametrize("name", MODELS)
def test_draws_are_the_same_after_a_resume_and_differ_by_step_and_rank(name):
    import tensorflow as tf

    first, batch = trainer_of(name)
    second, _ = trainer_of(name)
    other, _ = trainer_of(name, rank=1)
    first.train_steps([batch] * 2)
    tf.random.normal([3])
    second.load_state(first.state())

    mine = first.gradients(batch)[0].buffer
    np.testing.assert_array_equal(mine, first.gradients(batch)[0].buffer)
    np.testing.assert_array_equal(mine, second.gradients(batch)[0].buffer)
    other.load_state(first.state())
    assert not np.array_equal(mine, other.gradients(batch)[0].buffer)
    losses = [first.train_steps([batch]).losses[0] for _ in range(2)]
    assert [second.train_steps([batch]).losses[0] for _ in range(2)] == losses
    assert same_bits(first.state(), second.state())


@pytest.mark.parametrize("name", ["tf_normal", "keras_without_seed", "in_a_loop"])
def test_prediction_and_evaluation_draws_are_reproducible(name):
    trainer, batch = trainer_of(name)

    np.testing.assert_array_equal(trainer.predict(batch.features), trainer.predict(batch.features))
    one, other = (trainer.evaluate(batch)["loss"] for _ in range(2))
    np.testing.assert_array_equal(one, other)


def test_each_loop_iteration_draws_different_numbers():
    def total(x):
        import tensorflow as tf

        first = tf.TensorArray(x.dtype, 2)

        def body(i, drawn):
            return i + 1, drawn.write(i, tf.random.normal([8]))

        drawn = tf.while_loop(lambda i, drawn: i < 2, body, (0, first))[1].stack()
        return x + tf.reduce_sum(tf.abs(drawn[0] - drawn[1]))

    import keras

    class Apart(keras.layers.Layer):
        def call(self, x):
            return total(x) - x

    trainer, batch = trainer_of(lambda: keras.Sequential([keras.Input((4,)), Apart()]))

    assert trainer.predict(batch.features).min() > 1


def test_draws_are_normal_and_independent():
    import keras
    import tensorflow as tf

    class Two(keras.layers.Layer):
        def call(self, x):
            return tf.random.normal([1000, 2])[:, 0], tf.random.normal([1000])

    def create():
        inputs = keras.Input((4,))
        return keras.Model(inputs, Two()(inputs))

    trainer, batch = trainer_of(create)
    one, other = trainer.predict(batch.features)

    assert abs(one.mean()) < 0.1
    assert abs(one.std() - 1) < 0.1
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.1


def test_draws_of_input_functions_do_not_depend_on_steps():
    import keras

    trainer, batch = trainer_of("keras_without_seed")
    keras.utils.set_random_seed(3)
    expected = [keras.random.normal((2,)) for _ in range(2)]
    keras.utils.set_random_seed(3)
    first = keras.random.normal((2,))

    trainer.train_steps([batch])

    np.testing.assert_array_equal([first, keras.random.normal((2,))], expected)


def sampled(x):
    import tensorflow as tf

    drawn, _, _ = tf.random.log_uniform_candidate_sampler(
        tf.zeros([8, 1], tf.int64), 1, 2, True, 10
    )
    return x + tf.cast(drawn[0], x.dtype)


def of_a_generator():
    import tensorflow as tf

    generator = tf.random.Generator.from_seed(1, alg="philox")
    return lambda x: x + generator.normal([8, 4])


@pytest.mark.parametrize("make", [lambda: sampled, of_a_generator])
def test_draws_that_cannot_be_seeded_are_refused_with_their_line(make):
    trainer, batch = trainer_of(model_with(make()))

    with pytest.raises(DefinitionError, match=r"test_random_draws.py:\d+: '.*noise") as error:
        trainer.train_steps([batch])

    assert "keras.random.SeedGenerator" in str(error.value)


def test_tensorflow_draws_are_refused_in_uncompiled_steps():
    def numpy_only(outputs, labels):
        return mse(outputs, np.asarray(labels.tolist(), "float32"))

    definition = dataclasses.replace(
        definition_of(MODELS["tf_normal"]), loss=numpy_only, labels_as_numpy=True
    )
    from elasticdl.training.keras import KerasTrainer

    trainer = KerasTrainer(definition, batch_of(), minibatch_size=8)

    with pytest.raises(DefinitionError, match=r"RandomStandardNormal.*cannot be compiled"):
        trainer.train_steps([batch_of()])


def test_a_generator_outside_any_layer_is_refused():
    import keras

    generator = keras.random.SeedGenerator(1)
    noisy = model_with(lambda x: x + keras.random.normal(keras.ops.shape(x), seed=generator))
    trainer, batch = trainer_of(noisy)

    with pytest.raises(DefinitionError, match="which is not in any layer"):
        trainer.train_steps([batch])


def test_an_already_traced_function_is_refused():
    import tensorflow as tf

    drawing = tf.function(lambda x: x + tf.random.normal([8, 4]))
    drawing(tf.zeros([8, 4]))
    trainer, batch = trainer_of(model_with(drawing))

    with pytest.raises(DefinitionError, match="RandomStandardNormal"):
        trainer.train_steps([batch])


def test_layers_of_one_seed_draw_alike_if_they_draw_equally_often():
    import keras

    from elasticdl.training.keras import KerasTrainer

    def model():
        x = keras.Input((50,))
        one, other, of_two_calls = (keras.layers.Dropout(0.5, seed=3) for _ in range(3))
        unlike = [keras.layers.Dropout(0.5) for _ in range(2)]
        first = of_two_calls(x)
        return keras.Model(
            x, [one(x), other(x), first, of_two_calls(first), *(each(x) for each in unlike)]
        )

    definition = dataclasses.replace(definition_of(model), loss=None)
    trainer = KerasTrainer(definition, batch_of(shape=(50,)), minibatch_size=8)
    trainer._seeds.set(np.int64([5, 0]))
    one, other, first, _, *unlike = (
        each.numpy() for each in trainer.model(np.ones((8, 50)), training=True)
    )

    np.testing.assert_array_equal(one, other)
    assert (one != first).any()
    assert (unlike[0] != unlike[1]).any()
