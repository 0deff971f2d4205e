"""Class weights become sample weights as `keras.Model.fit(class_weight=...)` makes them."""

import numpy as np
import pytest

from elasticdl.data.batch import Batch
from elasticdl.data.class_weights import checked, with_class_weights
from elasticdl.errors import DefinitionError

FIVE = {0: 1.0, 2: 5.0}


def batch_of(labels, weights=None):
    return Batch(np.zeros((len(labels), 1)), labels, len(labels), weights)


@pytest.mark.parametrize(
    "labels", [np.array([0, 2, 1]), np.array([[0], [2], [1]]), np.eye(3)[[0, 2, 1]]]
)
def test_a_class_without_a_weight_counts_once(labels):
    weights = with_class_weights(batch_of(labels), FIVE, "model.py:1").weights

    np.testing.assert_array_equal(weights, [1, 5, 1])


def test_class_weights_multiply_sample_weights():
    batch = batch_of(np.array([0, 2]), np.float32([2.0, 3.0]))

    np.testing.assert_array_equal(with_class_weights(batch, FIVE, "here").weights, [2, 15])


def test_class_weights_multiply_weights_of_time_steps():
    batch = batch_of(np.array([0, 2]), np.ones((2, 3), np.float32))

    expected = [[1, 1, 1], [5, 5, 5]]
    np.testing.assert_array_equal(with_class_weights(batch, FIVE, "here").weights, expected)


@pytest.mark.parametrize(
    "labels", [np.array([0.5, 1.5]), np.zeros((2, 3, 4)), {"a": np.array([0, 1])}, None]
)
def test_labels_that_are_not_classes_are_refused(labels):
    batch = Batch(np.zeros((2, 1)), labels, 2)

    with pytest.raises(DefinitionError, match="model.py:1: there are class weights"):
        with_class_weights(batch, FIVE, "model.py:1")


def test_a_class_beyond_one_hot_labels_is_refused():
    with pytest.raises(DefinitionError, match="has the class 2; labels are one-hot rows of 2"):
        with_class_weights(batch_of(np.eye(2)), FIVE, "model.py:1")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([1.0, 2.0], "expected a dict"),
        ({"cat": 1.0}, "the key 'cat'"),
        ({-1: 1.0}, "the key -1"),
        ({0: "high"}, r"class_weight\[0\] is 'high'"),
        ({0: -1.0}, "not negative"),
        ({0: float("nan")}, r"class_weight\[0\] is nan"),
    ],
)
def test_an_invalid_class_weight_is_refused(given, said):
    with pytest.raises(DefinitionError, match=said):
        checked(given, "model.py:1")


def test_class_weights_match_keras():
    from keras.src.trainers.data_adapters.data_adapter_utils import class_weight_to_sample_weights

    labels = np.random.default_rng(0).integers(0, 4, (16, 1))

    np.testing.assert_array_equal(
        with_class_weights(batch_of(labels), FIVE, "here").weights,
        class_weight_to_sample_weights(labels, FIVE),
    )
