"""An error in validation names the records, and a difference from the training data."""

import numpy as np
import pytest

from elasticdl.data.batch import Batch
from elasticdl.engines.validation_errors import evaluate_first, in_validation
from elasticdl.errors import DataError, UserCodeError


def test_an_error_in_validation_names_its_records() -> None:
    batch = Batch(np.zeros(2), None, 2, where=lambda: "v.csv, records 0 to 1")

    with pytest.raises(UserCodeError) as caught, in_validation(batch):
        raise UserCodeError("m.py:3: the loss raised")

    assert str(caught.value) == (
        "m.py:3: the loss raised\n  This happened in validation: v.csv, records 0 to 1."
    )


class Takes:
    """A trainer whose loss raises, and whose model takes features of one shape and type."""

    def __init__(self, shape, dtype="float32"):
        self.shape, self.dtype = shape, dtype

    def evaluate(self, batch):
        raise UserCodeError("m.py:3: the loss or the model raised")

    def predict(self, features):
        if features.shape[1:] != self.shape or features.dtype != self.dtype:
            raise UserCodeError("m.py:2: the model raised")


def examples(shape, name, dtype="float32"):
    return Batch(np.zeros((2, *shape), dtype), None, 2, where=lambda: f"{name}, records 0 to 1")


@pytest.mark.parametrize(
    ("shape", "dtype", "words", "advice"),
    [
        ((64,), "float32", "float32[64]", ", such as x.reshape(-1, 8, 8, 1)."),
        ((1, 8, 8), "float32", "float32[1, 8, 8]", ", such as x.reshape(-1, 8, 8, 1)."),
        ((8, 8, 1), "int64", "int64[8, 8, 1]", ', such as x.astype("float32").'),
        ((64,), "int64", "int64[64]", ', such as x.reshape(-1, 8, 8, 1).astype("float32").'),
        ((16, 16, 1), "float32", "float32[16, 16, 1]", "."),
        ((16, 4), "float32", "float32[16, 4]", "."),
    ],
)
def test_validation_data_unlike_the_training_data_is_named(shape, dtype, words, advice) -> None:
    validation = examples(shape, "validation_data", dtype)

    with pytest.raises(DataError) as caught:
        evaluate_first(Takes((8, 8, 1)), validation, lambda: examples((8, 8, 1), "data"))

    assert str(caught.value) == (
        "The model cannot take the validation data, because its features differ in shape or type "
        f"from those of the training data:\n  {words} in validation_data, records 0 to 1\n"
        "  float32[8, 8, 1] in data, records 0 to 1\n"
        f"  Convert the validation data in the same way as the training data{advice}"
    )


@pytest.mark.parametrize(("taken", "given"), [((3,), (3,)), ((5,), (5,))])
def test_an_error_of_the_loss_or_of_like_features_stays(taken, given) -> None:
    with pytest.raises(UserCodeError, match="the loss or the model raised"):
        evaluate_first(Takes(taken), examples(given, "v"), lambda: examples((3,), "data"))
