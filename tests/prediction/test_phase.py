"""What is written of a model's outputs: what its own hook makes of them."""

from __future__ import annotations

import numpy as np
import pytest

from elasticdl.data.batch import Batch
from elasticdl.data.record_source import RecordFile
from elasticdl.definition import ModelDefinition, Origin, RecordInput
from elasticdl.errors import DefinitionError, UserCodeError
from elasticdl.prediction.phase import Predictor

ORIGIN = Origin("keras_class", "model.py", 1, "model", "zoo")


class Doubling:
    """A trainer whose model doubles."""

    def predict(self, features):
        return 2 * features


def written(predictions):
    """Return what a model with this hook writes for the features 1 and 2."""
    definition = ModelDefinition(
        origin=ORIGIN,
        framework="keras",
        create_model=lambda: None,
        input=RecordInput(list),
        loss=None,
        create_optimizer=lambda: None,
        predictions=predictions,
        places={"predictions": ("model.py", 7)},
    )
    rows = []
    predictor = Predictor(Doubling(), definition, [RecordFile("a.csv", 2)])
    batch = Batch(np.float32([1, 2]), None, 2)
    for _ in predictor.predict([(0, batch)], lambda *row: rows.append(row)):
        pass
    return rows


def test_outputs_are_written_as_they_are() -> None:
    ((first, keys, outputs),) = written(None)

    assert (first, keys, outputs.tolist()) == (0, ["a.csv:0", "a.csv:1"], [2, 4])


def test_a_hook_says_what_is_written() -> None:
    ((_, _, outputs),) = written(lambda outputs: {"half": outputs / 2})

    assert {name: array.tolist() for name, array in outputs.items()} == {"half": [1, 2]}


def test_a_hook_that_returns_none_changes_nothing() -> None:
    ((_, _, outputs),) = written(lambda _: None)

    assert outputs.tolist() == [2, 4]


@pytest.mark.parametrize("made", [[1], {}, "text"])
def test_a_hook_returns_a_dict(made) -> None:
    with pytest.raises(DefinitionError, match=r"^model.py:7: default_predictions\(\) returned"):
        written(lambda _: made)


def test_a_hook_that_raises_is_the_users_error() -> None:
    with pytest.raises(
        UserCodeError, match=r"default_predictions\(\) raised:\n(.|\n)*ZeroDivision"
    ):
        written(lambda _: 1 / 0)
