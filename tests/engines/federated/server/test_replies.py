"""What is wrong with a reply, in words that name the party."""

import dataclasses

import numpy as np
import pytest

from elasticdl.engines.federated.protocol.messages import (
    LocalTraining,
    Reply,
    RoundRequest,
    architecture_of,
)
from elasticdl.engines.federated.server.replies import problem_of

WEIGHTS = {"dense/kernel": np.float32([[1, 2]]), "dense/bias": np.float32([0, 0]),
           "seed": np.int64([3])}  # fmt: skip
EXPECTED = architecture_of(WEIGHTS)
LOSS = {"loss": (np.float64(1), np.float64(9))}
TRAIN = RoundRequest("train", "h1", 3, WEIGHTS)
GOOD = Reply(
    "north", "train", "h1", 3, WEIGHTS, 9, training_metrics=LOSS, evaluation_metrics=LOSS
)  # fmt: skip
JOIN = RoundRequest("join", "h1", 0)
JOINED = Reply("north", "join", "h1", 0, num_examples=9, architecture=EXPECTED)


def problem(reply=GOOD, request=TRAIN, **changes):
    return problem_of(dataclasses.replace(reply, **changes), request, EXPECTED)


def with_array(name, array):
    return {**WEIGHTS, name: array}


def test_a_valid_reply_has_no_problem():
    assert problem() is None
    assert problem(JOINED, JOIN) is None
    assert problem_of(JOINED, JOIN, {}) is None
    evaluated = Reply("north", "evaluate", "h1", 3, evaluation_metrics=LOSS)
    assert problem(evaluated, RoundRequest("evaluate", "h1", 3, WEIGHTS)) is None
    assert problem(Reply("north", "sync", "h1", 3), RoundRequest("sync", "h1", 3)) is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"history": "h0"}, "replied for the training 'h0'; this one is 'h1'."),
        ({"round": 2}, "replied for round 2; expected round 3."),
        ({"kind": "evaluate"}, "sent a reply of kind 'evaluate'; expected 'train'."),
        ({"num_examples": 0}, "reports 0 training examples; expected at least 1."),
        ({"num_examples": -5}, "reports -5 training examples"),
        ({"num_examples": 2**53 + 1}, "reports 9007199254740993 training examples"),
        ({"weights": {}}, "sent no weights; expected the trained weights."),
        ({"training_metrics": {}}, "sent training metrics without 'loss', which all"),
        ({"evaluation_metrics": {"auc": (np.ones(2),)}}, "all models have; it has auc."),
        ({"metrics_stay_home": True}, "sent training metrics although its config disables them"),
        ({"training_metrics": {**LOSS, "who": (np.array(["Ada"]),)}}, "sent the metric who as <U3"),
    ],
)  # fmt: skip
def test_a_problem_is_reported_with_party_and_value(changes, said):
    found = problem(**changes)

    assert found.startswith("Party 'north' ")
    assert said in found


def test_missing_names_are_reported_with_similar_ones():
    weights = {name.replace("kernel", "kernal"): array for name, array in WEIGHTS.items()}

    assert problem(weights=weights) == (
        "Party 'north' sent 3 arrays without dense/kernel (it has dense/kernal) and with "
        "dense/kernal in addition; the global model has 3. Compare the `model:` section of its "
        "config with that of the other parties."
    )


def test_unexpected_names_are_reported():
    assert "sent 4 arrays with extra in addition; the global model has 3." in problem(
        weights=with_array("extra", np.float32([1]))
    )


def test_another_shape_is_reported():
    assert "sent dense/bias with shape [3]; the global model's is [2]." in problem(
        weights=with_array("dense/bias", np.zeros(3, np.float32))
    )


def test_another_dtype_is_reported():
    assert "sent dense/bias as float64; the global model's is float32." in problem(
        weights=with_array("dense/bias", np.zeros(2))
    )


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_counted_by_array(number):
    assert "sent dense/bias with 1 of 2 numbers not finite." in problem(
        weights=with_array("dense/bias", np.float32([1, number]))
    )


def test_arrays_that_are_not_weights_are_reported():
    reply = dataclasses.replace(GOOD, weights={"w": np.array(["Ada"])})

    found = problem_of(reply, TRAIN, architecture_of(reply.weights))

    assert found.startswith("Party 'north' sent w, which is not a weight. An array of dtype <U3")


@pytest.mark.parametrize("kind", ["join", "evaluate", "sync"])
def test_unrequested_weights_are_a_problem(kind):
    reply = Reply("north", kind, "h1", 0, WEIGHTS, 9, architecture=EXPECTED)

    assert f"sent 3 arrays; a reply to {kind!r} has none." in problem(
        reply, RoundRequest(kind, "h1", 0)
    )


def test_a_party_that_joins_with_another_model_is_a_problem():
    other = {**EXPECTED, "dense/bias": ("float32", (3,))}

    assert "has dense/bias with shape [3]; the global model's is [2]." in problem(
        JOINED, JOIN, architecture=other
    )
    assert "has a model without any weights." in problem(JOINED, JOIN, architecture={})
    assert "reports 0 training examples" in problem(JOINED, JOIN, num_examples=0)


def test_metrics_may_be_withheld():
    assert problem(metrics_stay_home=True, training_metrics={}, evaluation_metrics={}) is None


def test_a_missing_evaluation_is_a_problem_only_if_requested():
    request = dataclasses.replace(TRAIN, options=LocalTraining(evaluate_before=False))

    assert problem(evaluation_metrics={}) is not None
    assert problem(request=request, evaluation_metrics={}) is None


def test_a_metric_may_be_nan():
    assert problem(training_metrics={**LOSS, "auc": (np.float64([np.nan]),)}) is None


GRADIENTS = dataclasses.replace(TRAIN, options=LocalTraining(sends_gradients=True))


def test_only_parameters_may_have_gradients():
    gradients = {"dense/kernel": np.float32([[1, 2]])}

    assert problem(request=GRADIENTS, weights=gradients) is None
    assert "sent 1 arrays without dense/bias, seed;" in problem(weights=gradients)


def test_gradients_of_counters_and_unknown_names_are_a_problem():
    assert "sent a gradient of seed in int64; expected real numbers." in problem(
        request=GRADIENTS, weights={"seed": np.int64([1])}
    )
    assert "sent 1 arrays with other in addition" in problem(
        request=GRADIENTS, weights={"other": np.float32([1])}
    )
