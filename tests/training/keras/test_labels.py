"""Labels that are numpy to the user and tensors to TensorFlow."""

import numpy as np
import pytest


@pytest.fixture(scope="module")
def labels_module():
    from elasticdl.training.keras import labels

    return labels


LABELS = np.array([[3], [1], [2]])


@pytest.mark.parametrize(
    "function",
    [
        lambda y: y.flatten(),
        lambda y: y.ravel().astype("float32"),
        lambda y: y.reshape(-1),
        lambda y: y.reshape((1, 3)),
        lambda y: y.squeeze(axis=1),
        lambda y: y[:, 0],
        lambda y: y.T,
        lambda y: y * 2 + 1,
        lambda y: 1.5 * y,
        lambda y: -y,
        lambda y: y == 3,
        lambda y: y != 3,
        lambda y: (y > 1) & (y < 3),
        lambda y: y.mean(axis=0),
        lambda y: np.reshape(y, [-1]),
        np.squeeze,
        lambda y: np.maximum(y, 2),
        lambda y: np.concatenate([y, y]),
        lambda y: y.flatten() @ np.ones((3,), "int64"),
    ],
)
def test_numpy_code_gives_the_same_result_in_a_compiled_step(labels_module, function):
    import tensorflow as tf

    @tf.function(autograph=False)
    def step(labels):
        return tf.convert_to_tensor(function(labels_module.as_numpy(labels)))

    np.testing.assert_array_equal(step(tf.constant(LABELS)), function(LABELS))


@pytest.mark.parametrize(
    "function",
    [lambda y: np.eye(10)[y], lambda y: y.tolist(), np.linalg.norm, np.asarray],
)
def test_numpy_code_that_cannot_be_compiled_is_reported(labels_module, function):
    import tensorflow as tf

    @tf.function(autograph=False)
    def step(labels):
        return function(labels_module.as_numpy(labels))

    with pytest.raises(labels_module.NotANumpyFunctionError):
        step(tf.constant(LABELS))


def test_tensorflow_and_keras_accept_these_labels_as_tensors(labels_module):
    import keras
    import tensorflow as tf

    @tf.function(autograph=False)
    def step(labels):
        mine = labels_module.as_numpy(labels)
        return tf.one_hot(mine, 4), keras.ops.ravel(mine), tf.shape(mine), tf.cast(mine, tf.int32)

    one_hot, ravelled, shape, cast = step(tf.constant(LABELS))

    assert one_hot.shape == (3, 1, 4)
    assert ravelled.numpy().tolist() == [3, 1, 2]
    assert shape.numpy().tolist() == [3, 1]
    assert cast.dtype == tf.int32


def test_labels_are_plain_numpy_outside_a_compiled_step(labels_module):
    import tensorflow as tf

    assert type(labels_module.as_numpy(tf.constant(LABELS))) is np.ndarray
