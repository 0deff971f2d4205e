"""The value of a function of a batch for each example of it alone."""

from __future__ import annotations

import numpy as np
import pytest

OUTPUTS = np.float32([[1, 2], [3, 4], [5, 9]])
LABELS = np.float32([1, 2, 3])


def root_mean_square(outputs, labels):
    """Return what is no mean of its examples' values."""
    import tensorflow as tf

    return tf.sqrt(tf.reduce_mean((tf.reduce_sum(outputs, axis=1) - labels) ** 2))


def without_a_form_for_many(outputs, labels):
    import tensorflow as tf

    known = tf.numpy_function(lambda x: x, [outputs], tf.float32)
    return root_mean_square(tf.ensure_shape(known, [None, 2]), labels)


@pytest.mark.parametrize("function", [root_mean_square, without_a_form_for_many])
@pytest.mark.parametrize("eager", [False, True])
def test_each_example_is_a_separate_batch(function, eager) -> None:
    import tensorflow as tf

    from elasticdl.training.keras.per_example import one_by_one

    def run(outputs, labels):
        return one_by_one(function, outputs, labels, eager=eager)

    call = run if eager else tf.function(run, autograph=False)

    alone = call(tf.constant(OUTPUTS), tf.constant(LABELS))

    np.testing.assert_allclose(alone, [2.0, 5.0, 11.0], rtol=1e-6)
