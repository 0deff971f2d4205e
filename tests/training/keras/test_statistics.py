"""What moves without a gradient is on two workers what it is in one process."""

import logging

import numpy as np
import pytest
from tests.training.keras.test_optimizers import joined, squared, trainer_of

from elasticdl.data.batch import Batch
from elasticdl.errors import DefinitionError, TrainingError


@pytest.fixture(autouse=True)
def keras():
    import keras

    yield keras
    keras.config.set_dtype_policy("float32")


def batch_of(size, seed=1):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(size, 4)).astype("float32")
    return Batch(x, rng.normal(size=(size, 3)).astype("float32"), size)


def parts_of(batch, first=8):
    return [
        Batch(batch.features[:first], batch.labels[:first], first),
        Batch(batch.features[first:], batch.labels[first:], batch.num_examples - first),
    ]


def keeping(dtype, start, change, shape=()):
    """Return a model with one variable that every training step moves.

    Args:
        dtype: Of the variable.
        start: Its first value.
        change: (Variable, features) -> the next value.
        shape: Of the variable.
    """
    import keras

    class Keeping(keras.Model):
        def __init__(self):
            super().__init__(name="keeping")
            self.out = keras.layers.Dense(3, name="out")
            self.kept = self.add_weight(
                shape=shape, dtype=dtype, trainable=False, name="kept", initializer="zeros"
            )
            self.kept.assign(np.full(shape, start, dtype if dtype != "bfloat16" else "float32"))

        def call(self, x, training=False):
            if training:
                self.kept.assign(keras.ops.cast(change(self.kept.value, x), dtype))
            return self.out(x)

    return Keeping


def sgd():
    import keras

    return keras.optimizers.SGD(0.1)


def kept(trainer):
    return np.array(trainer.model.kept)


def size_of(x):
    import tensorflow as tf

    return tf.shape(x)[0]


def mean_of(x, dtype):
    import tensorflow as tf

    return tf.cast(tf.reduce_mean(x), dtype)


def one_and_two(model, some):
    """Return the variable after steps in one process, and after the same on two workers."""
    alone = trainer_of(sgd, model, squared)
    workers = [trainer_of(sgd, model, squared) for _ in range(2)]
    for batch in some:
        alone.train_steps([batch])
        joined(workers, parts_of(batch))
    np.testing.assert_array_equal(kept(workers[0]), kept(workers[1]))
    return kept(alone), kept(workers[0])


@pytest.mark.parametrize(
    ("dtype", "start", "change"),
    [
        ("int32", 5, lambda v, x: v + 1),
        ("int32", 0, lambda v, x: v + size_of(x)),
        ("int64", 2**40, lambda v, x: v + 4),
        ("int64", 2**40, lambda v, x: v + 2**33),
        ("int64", 7, lambda v, x: v - 3),
        ("uint8", 3, lambda v, x: (v + 1) % 5),
        ("float32", 0.0, lambda v, x: v + 1),
        ("float32", 10.0, lambda v, x: v + np.float32(1) * size_of_float(x)),
        ("float64", 2.0**40, lambda v, x: v + 4),
        ("bool", False, lambda v, x: v | True),
    ],
)
def test_a_counter_counts_the_same_on_two_workers(dtype, start, change):
    alone, two = one_and_two(keeping(dtype, start, change), [batch_of(12), batch_of(12, 2)])

    assert alone != start
    assert two == alone


def size_of_float(x):
    import tensorflow as tf

    return tf.cast(size_of(x), tf.float32)


def test_a_counter_unchanged_at_first_is_recognized_later():
    import tensorflow as tf

    def positive(v, x):
        return v + tf.reduce_sum(tf.cast(x[:, 0] > 100, tf.int32))

    first, second = batch_of(12), batch_of(12, 2)
    second.features[[0, 3, 9], 0] = 101.0

    alone, two = one_and_two(keeping("int32", 0, positive), [first, second])

    assert (alone, two) == (3, 3)


def test_a_running_mean_in_float64_keeps_its_precision():
    def change(v, x):
        import tensorflow as tf

        return v * 0.9 + 0.1 * tf.reduce_mean(tf.cast(x, tf.float64))

    alone, two = one_and_two(keeping("float64", 1 / 3, change), [batch_of(12), batch_of(12, 2)])

    np.testing.assert_allclose(two, alone, rtol=1e-13)


@pytest.mark.parametrize("policy", ["bfloat16", "mixed_bfloat16", "mixed_float16"])
def test_a_half_precision_batch_norm_mean_is_not_rounded(policy, keras):
    keras.config.set_dtype_policy(policy)

    def model():
        return keras.Sequential(
            [
                keras.Input((4,)),
                keras.layers.BatchNormalization(momentum=0.5),
                keras.layers.Dense(3),
            ]
        )

    alone, split = trainer_of(sgd, model, squared), trainer_of(sgd, model, squared)
    batch = batch_of(12)
    batch.features[:] += 5.66
    for _ in range(2):
        alone.train_steps([batch])
        joined([split], [batch])

    mean = next(path for path in alone.state() if path.endswith("moving_mean"))
    expected = alone.state()[mean].astype("float32")
    assert not np.array_equal(expected, expected.round())
    np.testing.assert_allclose(split.state()[mean].astype("float32"), expected, rtol=1e-2)


def test_a_mask_of_infinities_is_kept():
    alone, two = one_and_two(keeping("float32", -np.inf, lambda v, x: v), [batch_of(12)])

    assert (alone, two) == (-np.inf, -np.inf)


def test_a_value_that_leaves_infinity_is_refused_in_sums():
    import tensorflow as tf

    model = keeping("float32", -np.inf, lambda v, x: tf.maximum(v, tf.reduce_max(x)))

    trainer_of(sgd, model, squared).train_steps([batch_of(8)])
    with pytest.raises(DefinitionError, match=r"kept holds NaN or infinity, and a step changes"):
        trainer_of(sgd, model, squared).gradients(batch_of(8))


def test_an_integer_that_counts_neither_steps_nor_examples_is_refused():
    import tensorflow as tf

    def different_signs(v, x):
        return v + tf.size(tf.unique(tf.cast(x[:, 0] > 0, tf.int32))[0]) * size_of(x)

    batch = batch_of(8)
    batch.features[:, 0] = [1, 1, 1, 1, -1, -1, -1, -1]

    with pytest.raises(DefinitionError, match=r"kept changes by 16 on a batch, and by 4 and 4"):
        trainer_of(sgd, keeping("int32", 0, different_signs), squared).gradients(batch)


def test_a_count_of_steps_that_differs_between_workers_ends_the_update():
    import tensorflow as tf

    def largest(v, x):
        return v + tf.cast(tf.reduce_max(x), tf.int32)

    model = keeping("int32", 0, largest)
    workers = [trainer_of(sgd, model, squared) for _ in range(2)]
    low, high = batch_of(8), batch_of(4)
    low.features[:], high.features[:] = 1.0, 3.0

    with pytest.raises(TrainingError, match="kept counts steps, but changed by other numbers"):
        joined(workers, [low, high])


def test_a_moving_average_from_zero_is_not_mistaken_for_a_counter(caplog):
    with caplog.at_level(logging.WARNING, "elasticdl"):
        alone, two = one_and_two(
            keeping("float32", 0.0, lambda v, x: v * 0.9 + 0.1 * size_of_float(x)),
            [batch_of(12), batch_of(12, 2)],
        )

    # Not what one process gives, and said: the mean of 0.1 * 8 and 0.1 * 4, by examples.
    assert alone > two
    assert "kept changes neither like a mean nor like a sum" in caplog.text


def drawing(draw, every=2):
    """Return a model with an orthogonal matrix that is drawn again at every second step."""
    import keras

    class Drawing(keras.Model):
        def __init__(self):
            super().__init__(name="drawing")
            self.out = keras.layers.Dense(3, name="out")
            self.seeds = keras.random.SeedGenerator(1)
            self.calls = self.add_weight(shape=(), dtype="int32", trainable=False, name="calls")
            self.calls.assign(0)
            self.matrix = self.add_weight(
                shape=(4, 4), trainable=False, name="matrix", initializer="identity"
            )

        def call(self, x, training=False):
            if training:
                drawn, _ = keras.ops.qr(draw(self, x))
                is_due = keras.ops.equal(self.calls.value % every, every - 1)
                self.matrix.assign(keras.ops.where(is_due, drawn, self.matrix.value))
                self.calls.assign(self.calls.value + 1)
            return self.out(x @ self.matrix)

    return Drawing


def two_workers(model):
    workers = [trainer_of(sgd, model, squared) for _ in range(2)]
    for rank, worker in enumerate(workers):
        worker.rank = rank
    return workers


def from_a_layer(model, x):
    import keras

    return keras.random.normal((4, 4), seed=model.seeds)


def from_keras(model, x):
    import keras

    return keras.random.normal((4, 4))


def from_tensorflow(model, x):
    import tensorflow as tf

    return tf.random.normal((4, 4))


@pytest.mark.parametrize("draw", [from_a_layer, from_keras, from_tensorflow])
def test_a_randomly_drawn_variable_is_refused_in_sums(draw):
    model = drawing(draw)

    trainer_of(sgd, model, squared).train_steps([batch_of(12)] * 4)
    workers = two_workers(model)
    joined(workers, parts_of(batch_of(12)))
    with pytest.raises(DefinitionError, match="matrix is drawn at random in a step"):
        joined(workers, parts_of(batch_of(12, 2)))


def test_a_step_seeded_variable_is_equal_on_two_workers():
    import tensorflow as tf

    def by_step(model, x):
        return tf.random.stateless_normal((4, 4), seed=tf.stack([7, model.calls.value]))

    model = drawing(by_step)
    alone = trainer_of(sgd, model, squared)
    workers = two_workers(model)
    for number in range(4):
        alone.train_steps([batch_of(12, number)])
        joined(workers, parts_of(batch_of(12, number)))

    matrix = np.array(workers[0].model.matrix)
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(4), atol=1e-6)
    np.testing.assert_allclose(matrix, alone.model.matrix, atol=1e-6)


@pytest.mark.parametrize("shape", [None, (1, 4)])
def test_a_running_mean_after_dropout_is_a_mean_on_two_workers(shape, keras):
    class Running(keras.Model):
        def __init__(self):
            super().__init__(name="running")
            self.dropout = keras.layers.Dropout(0.1, noise_shape=shape)
            self.norm = keras.layers.BatchNormalization(momentum=0.5)
            self.out = keras.layers.Dense(3)
            self.kept = self.add_weight(shape=(4,), trainable=False, name="kept")
            self.kept.assign(np.zeros(4))

        def call(self, x, training=False):
            x = self.dropout(x, training=training)
            if training:
                self.kept.assign(0.5 * self.kept + 0.5 * keras.ops.mean(x, axis=0))
            return self.out(self.norm(x, training=training))

    workers = two_workers(Running)
    batch = batch_of(40)
    batch.features[:] += 5
    for _ in range(6):
        joined(workers, parts_of(batch, 20))

    np.testing.assert_allclose(kept(workers[0]), batch.features.mean(0), rtol=0.5)
    assert (kept(workers[0]) > 0).all()


def sign_of_mean(v, x):
    import tensorflow as tf

    return v + 0.01 * tf.sign(tf.reduce_mean(x))


def signs(*rows):
    batch = batch_of(len(rows))
    batch.features[:] = np.reshape(rows, (-1, 1))
    return batch


ALIKE, MIXED = signs(*[1] * 12), signs(*[-1] * 6, *[2] * 6)


def trained_on(change, start, *batches, dtype="float32"):
    worker = trainer_of(sgd, keeping(dtype, start, change), squared)
    for batch in batches:
        joined([worker], [batch])
    return kept(worker)


def test_a_nonlinear_statistic_such_as_a_sign_is_reported(caplog):
    trained_on(sign_of_mean, 0.0, signs(-1, *[2] * 11))

    (warning,) = [record.getMessage() for record in caplog.records]
    assert "kept changes neither like a mean nor like a sum" in warning


def test_a_variable_that_is_not_a_mean_in_a_later_step_is_reported_once(caplog):
    found = trained_on(sign_of_mean, 0.0, *[ALIKE] * 15, *[MIXED] * 6)

    (warning,) = [record.getMessage() for record in caplog.records]
    assert "since step 16 at the latest, keeping/kept no longer behaves like a mean" in warning
    np.testing.assert_allclose(found, 0.21, rtol=1e-5)


def test_a_count_that_does_not_add_up_in_a_later_step_is_reported(caplog):
    import tensorflow as tf

    def up_to_8(v, x):
        return v + tf.minimum(tf.reduce_sum(tf.cast(x[:, 0] > 0, tf.int32)), 8)

    few = signs(*[-1, 1] * 6)
    trained_on(up_to_8, 5, *[few] * 15, *[ALIKE] * 2, dtype="int32")

    (warning,) = [record.getMessage() for record in caplog.records]
    assert "since step 16 at the latest, keeping/kept no longer behaves like a sum" in warning


def mean_of_features(v, x):
    import tensorflow as tf

    return v + 0.1 * (tf.cast(tf.reduce_mean(x), v.dtype) - v)


@pytest.mark.parametrize(
    ("dtype", "start", "change"),
    [
        ("int32", 5, lambda v, x: v + 1),
        ("int32", 0, lambda v, x: v + size_of(x)),
        ("float32", 0.0, lambda v, x: v + size_of_float(x)),
        ("float32", 0.0, mean_of_features),
        ("float64", 0.0, mean_of_features),
        ("float32", 1.0, lambda v, x: v * 0.9),
    ],
)
def test_counts_and_settled_means_are_not_reported(dtype, start, change, caplog):
    batches = [batch_of(12, seed) for seed in range(33)]
    for batch in batches:
        batch.features[:] += 300

    trained_on(change, start, *batches, dtype=dtype)

    assert not caplog.records


def test_a_true_mean_of_unequal_parts_is_not_reported(caplog):
    found = trained_on(mean_of_features, 0.0, *[signs(*[3, -1] * 6)] * 3)

    assert not caplog.records
    np.testing.assert_allclose(found, 1 - 0.9**3, rtol=1e-5)
