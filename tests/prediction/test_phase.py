"""What is written of a model's outputs: what its own hook makes of them."""

from __future__ import annotations

import re

import numpy as np
import pytest

from elasticdl.data.batch import Batch
from elasticdl.data.record_source import RecordFile
from elasticdl.definition import ModelDefinition, Origin, RecordInput
from elasticdl.errors import DataError, DefinitionError, UserCodeError
from elasticdl.prediction.phase import Predictor, prediction_note

ORIGIN = Origin("keras_class", "model.py", 1, "model", "zoo")


class Doubling:
    """A trainer whose model doubles."""

    def predict(self, features):
        return 2 * features


class Scoring(Doubling):
    """A classifier whose probabilities are the features."""

    def predict(self, features):
        return features

    def scores(self, shape):
        assert shape == (2,)
        return "probabilities"


def definition_with(predictions):
    """Return the definition of a model with this hook."""
    return ModelDefinition(
        origin=ORIGIN,
        framework="keras",
        create_model=lambda: None,
        input=RecordInput(list),
        loss=None,
        create_optimizer=lambda: None,
        predictions=predictions,
        places={"predictions": ("model.py", 7)},
    )


class ScoringTwice(Scoring):
    """A classifier with a loss of logits, whose outputs are the features."""

    def scores(self, shape):
        return "logits"

    def repeated_activation(self):
        return "a sigmoid, and the loss applies one itself"


def written(predictions):
    """Return what a model with this hook writes for the features 1 and 2."""
    rows = []
    predictor = Predictor(Doubling(), definition_with(predictions), [RecordFile("a.csv", 2)])
    batch = Batch(np.float32([1, 2]), None, 2)
    for _ in predictor.predict([(0, batch)], lambda *row: rows.append(row)):
        pass
    return rows


def test_two_examples_of_each_record_are_refused_before_any_is_written() -> None:
    rows = []
    predictor = Predictor(Doubling(), definition_with(None), [RecordFile("a.csv", 2)])
    batch = Batch(np.zeros(4, np.float32), None, 4)

    with pytest.raises(DataError, match=r"made 4 examples of the first 2 records, .* several view"):
        list(predictor.predict([(0, batch)], lambda *row: rows.append(row)))
    assert rows == []


def test_outputs_are_written_unchanged_by_default() -> None:
    ((first, keys, outputs),) = written(None)

    assert (first, keys, outputs.tolist()) == (0, ["a.csv:0", "a.csv:1"], [2, 4])


def test_a_hook_determines_what_is_written() -> None:
    ((_, _, outputs),) = written(lambda outputs: {"half": outputs / 2})

    assert {name: array.tolist() for name, array in outputs.items()} == {"half": [1, 2]}


def test_a_hook_that_returns_none_changes_nothing() -> None:
    ((_, _, outputs),) = written(lambda _: None)

    assert outputs.tolist() == [2, 4]


@pytest.mark.parametrize("made", [[1], {}, "text"])
def test_a_hook_must_return_a_dict(made) -> None:
    with pytest.raises(DefinitionError, match=r"^model.py:7: default_predictions\(\) returned"):
        written(lambda _: made)


def test_a_hook_that_raises_is_a_user_code_error() -> None:
    with pytest.raises(
        UserCodeError, match=r"default_predictions\(\) raised:\n(.|\n)*ZeroDivision"
    ):
        written(lambda _: 1 / 0)


@pytest.mark.parametrize(
    ("classes", "predicted", "how"),
    [
        (["cat"], ["cat", "1"], "for 1 class, .* for 2: the other classes are predicted as their"),
        (["cat", "dog", "owl"], [0, 1], "for 3 classes, .* for 2: predictions are class numbers"),
        (["cat", "dog"], ["cat", "dog"], ""),
    ],
)
def test_a_number_of_names_that_is_not_that_of_the_outputs_has_a_note(
    classes, predicted, how
) -> None:
    predictor = Predictor(
        Scoring(), definition_with(None), [RecordFile("a.csv", 2)], classes=classes
    )
    batch = Batch(np.float32([[0.9, 0.1], [0.2, 0.8]]), None, 2)
    rows = []

    for _ in predictor.predict([(0, batch)], lambda *row: rows.append(row)):
        pass

    assert rows[0][2]["prediction"].tolist() == predicted
    assert re.search(how, predictor.class_note) if how else not predictor.class_note


@pytest.mark.parametrize(
    ("features", "what"),
    [
        ([[0.9, 0.1], [0.2, 0.8]], "softmax of a softmax, at most 0.73: return"),
        (np.eye(2, 1000), "softmax of a softmax, at most 0.0027: return"),
        ([0.9, 0.2], "sigmoid of a sigmoid, and the prediction is"),
    ],
)
def test_outputs_that_are_probabilities_where_the_loss_expects_logits_have_a_note(
    features, what
) -> None:
    predictor = Predictor(ScoringTwice(), definition_with(None), [RecordFile("a.csv", 2)])
    batch = Batch(np.float32(features), None, 2)

    list(predictor.predict([(0, batch)], lambda *_: None))

    assert predictor.class_note.startswith("model.py:1: the model's outputs are already probab")
    assert f"`probability` is the {what}" in predictor.class_note


def test_predictions_without_class_are_counted_in_the_note() -> None:
    predictor = Predictor(Scoring(), definition_with(None), [RecordFile("a.csv", 4)])
    batches = [
        (0, Batch(np.float32([[0.2, 0.8], [np.nan, 1]]), None, 2)),
        (2, Batch(np.float32([[0.9, 0.1], [0.4, 0.6]]), None, 2)),
    ]
    rows = []

    for _ in predictor.predict(batches, lambda *row: rows.append(row)):
        pass

    assert [row[2]["prediction"].tolist() for row in rows] == [[1, -1], [0, 1]]
    note = prediction_note("", predictor.num_without_class, 4)
    assert "1 prediction of 4 has no class, because the model's output is NaN" in note


class Penalized(Doubling):
    """A trainer whose model also returns a number for the batch."""

    def predict(self, features):
        return [2 * features, np.float32(0.5)]


def test_an_output_that_is_one_number_for_a_batch_is_left_out_with_one_warning(caplog) -> None:
    rows = []
    predictor = Predictor(Penalized(), definition_with(None), [RecordFile("a.csv", 4)])
    batches = [(at, Batch(np.float32([1, 2]), None, 2)) for at in (0, 2)]
    list(predictor.predict(batches, lambda *row: rows.append(row)))

    assert [{n: a.tolist() for n, a in row[2].items()} for row in rows] == [
        {"output_0": [2, 4]},
        {"output_0": [2, 4]},
    ]
    (warning,) = caplog.messages
    assert "does not contain the model's output 'output_1', which is one number" in warning


def test_a_hook_gets_an_output_that_is_one_number_for_a_batch() -> None:
    rows = []

    def hook(outputs):
        return {"sum": outputs[0] + outputs[1]}

    predictor = Predictor(Penalized(), definition_with(hook), [RecordFile("a.csv", 2)])
    batch = Batch(np.float32([1, 2]), None, 2)
    list(predictor.predict([(0, batch)], lambda *row: rows.append(row)))

    assert rows[0][2]["sum"].tolist() == [2.5, 4.5]
