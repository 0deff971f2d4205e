"""Validation of replies: whether a party's reply can be used, and if not, why.

A reply that could be parsed (`messages.py`) may still belong to another round or another model, or
be full of NaN; one such reply must not spoil the round. This module only describes problems: the
aggregator leaves the party out of the round and reports them.

Callers: `client_registry.py`. The functions have no side effects.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from elasticdl.data.wording import shown
from elasticdl.engines.federated.protocol.messages import architecture_of
from elasticdl.engines.federated.strategies.updates import is_averaged, named, num_not_finite
from elasticdl.errors import AggregationError
from elasticdl.evaluation.metrics import add_states

if TYPE_CHECKING:
    from elasticdl.engines.federated.protocol.messages import Architecture, Reply, RoundRequest
    from elasticdl.training.trainer import Metrics, MetricStates

_LOSS = "loss"
# Above this, float64 cannot count single examples; the others' shares would round to nothing.
_MAX_EXAMPLES = 2**53
_SAME_MODEL = "Compare the `model:` section of its config with that of the other parties."


def problem_of(reply: Reply, request: RoundRequest, architecture: Architecture) -> str | None:
    """Describe what is wrong with a reply; None if it can be used.

    Args:
        reply: A party's reply.
        request: The request that it answers.
        architecture: Dtype and shape of each array of the global model; empty before the first
            party has joined. A reply with gradients may contain only some of these arrays.

    Returns:
        One problem, in a sentence or two that name the party; None if the reply can be used.

    Example:
        >>> from elasticdl.engines.federated.protocol.messages import Reply, RoundRequest
        >>> request = RoundRequest("train", history="h1", round=3)
        >>> problem_of(Reply("north", "train", "h1", round=2), request, {})
        "Party 'north' replied for round 2; expected round 3. It is left out of this round."
    """
    for problem in (
        _of_another_question(reply, request),
        _of_its_examples(reply),
        _of_its_architecture(reply, request, architecture),
        _of_its_weights(reply, request, architecture),
        _of_its_metrics(reply, request),
    ):
        if problem:
            return f"Party {reply.party!r} {problem}"
    return None


def problem_of_metrics(reply: Reply, training: Metrics, evaluation: Metrics) -> str | None:
    """Describe what is wrong with the metrics of a reply that is otherwise usable.

    Args:
        reply: A party's reply.
        training: Training metrics of the aggregator's own model. Computing their values from the
            reply's metric states must not fail, and the loss must be finite.
        evaluation: Evaluation metrics of the aggregator's own model, for the same check.

    Returns:
        One problem, in a sentence or two that name the party; None if all metrics can be used.
    """
    for metrics, states in (
        (training, reply.training_metrics),
        (evaluation, reply.evaluation_metrics),
    ):
        for name, state in states.items():
            try:
                metrics.results(add_states([{name: state}]))
            except Exception as error:  # noqa: BLE001 - a library may raise anything on arrays from outside
                shapes = ", ".join(str(list(part.shape)) for part in state) or "none"
                return (
                    f"Party {reply.party!r} sent the metric {named([name])} as arrays of shapes "
                    f"{shapes}, which cannot be read ({type(error).__name__}). Install the same "
                    "version of elasticdl everywhere."
                )
    loss = training.results(add_states([reply.training_metrics])).get(_LOSS, 0.0)
    if not np.isfinite(loss).all():
        # Not expected: a party with a loss that is not finite refuses instead of replying.
        return f"Party {reply.party!r} sent a training loss of {loss}; expected a finite number."
    return None


def _of_another_question(reply: Reply, request: RoundRequest) -> str:
    if reply.history != request.history:
        return (
            f"replied for the training {reply.history!r}; this one is {request.history!r}. It is "
            "left out of this round; restart the party if it keeps replying for the other."
        )
    if reply.round != request.round:
        return (
            f"replied for round {shown(reply.round)}; expected round {request.round}. "
            "It is left out of this round."
        )
    if reply.kind != request.kind:
        return (
            f"sent a reply of kind {reply.kind!r}; expected {request.kind!r}. It is left out of "
            "this round."
        )
    return ""


def _of_its_examples(reply: Reply) -> str:
    if reply.kind in {"join", "train"} and not 1 <= reply.num_examples <= _MAX_EXAMPLES:
        expected = "at least 1" if reply.num_examples < 1 else f"at most {_MAX_EXAMPLES}"
        return (
            f"reports {shown(reply.num_examples)} training examples; expected {expected}. Check "
            "the `data:` section of its config."
        )
    return ""


def _of_its_architecture(reply: Reply, request: RoundRequest, expected: Architecture) -> str:
    if request.kind != "join":
        return ""
    if not reply.architecture:
        return f"has a model without any weights. {_SAME_MODEL}"
    return _unlike("has", reply.architecture, expected) if expected else ""


def _of_its_weights(reply: Reply, request: RoundRequest, expected: Architecture) -> str:
    if request.kind != "train":
        if reply.weights:
            return f"sent {len(reply.weights)} arrays; a reply to {request.kind!r} has none."
        return ""
    if not reply.weights:
        return "sent no weights; expected the trained weights."
    sent = architecture_of(reply.weights)
    gradients = request.options.sends_gradients
    if gradients:
        # Counters and layers' statistics have no gradient, so they may be missing.
        expected = {name: form for name, form in expected.items() if name in sent}
    problem = _unlike("sent", sent, expected)
    if problem:
        return problem
    for name, array in reply.weights.items():
        try:
            averaged = is_averaged(array.dtype)
        except AggregationError as error:
            return f"sent {name}, which is not a weight. {error}"
        if gradients and not averaged:
            return f"sent a gradient of {name} in {array.dtype.name}; expected real numbers."
        number = num_not_finite(array)
        if number:
            return (
                f"sent {name} with {number} of {array.size} numbers not finite. Its training "
                "diverged: check its data, or lower the learning rate."
            )
    return ""


def _unlike(verb: str, found: Architecture, expected: Architecture) -> str:
    """Describe how the arrays of a party's model or reply differ from the global model's.

    Args:
        verb: First word of the description, `has` or `sent`.
        found: Name -> (dtype, shape) of the party's arrays.
        expected: The same of the global model's arrays.

    Returns:
        One difference, to follow the party's name in an error message, such as "has dense/kernel
        with shape [2, 3]; the global model's is [2, 4]. ..."; empty if there is none.
    """
    missing = sorted(expected.keys() - found.keys())
    more = sorted(found.keys() - expected.keys())
    if missing or more:
        differences = [
            *([f"without {_near(missing, more)}"] if missing else []),
            *([f"with {named(more)} in addition"] if more else []),
        ]
        return (
            f"{verb} {len(found)} arrays {' and '.join(differences)}; the global model has "
            f"{len(expected)}. {_SAME_MODEL}"
        )
    for name, (dtype, shape) in found.items():
        expected_dtype, expected_shape = expected[name]
        if shape != expected_shape:
            return (
                f"{verb} {name} with shape {list(shape)}; the global model's is "
                f"{list(expected_shape)}. {_SAME_MODEL}"
            )
        if dtype != expected_dtype:
            return (
                f"{verb} {name} as {dtype}; the global model's is {expected_dtype}. Set the same "
                "precision everywhere."
            )
    return ""


def _near(missing: list[str], more: list[str]) -> str:
    """Format missing names for an error message, with a similar unexpected name if there is one.

    For example, `weight (it has weights)`: the party may have named the array differently.

    Args:
        missing: Names that the reply lacks.
        more: Names that the reply has unexpectedly.
    """
    near = difflib.get_close_matches(missing[0], more, n=1)
    return f"{named(missing)}{f' (it has {near[0]})' if near else ''}"


def _of_its_metrics(reply: Reply, request: RoundRequest) -> str:
    groups: Mapping[str, tuple[MetricStates, bool]] = {
        "training": (reply.training_metrics, request.kind == "train"),
        "evaluation": (
            reply.evaluation_metrics,
            request.kind == "evaluate"
            or (request.kind == "train" and request.options.evaluate_before),
        ),
    }
    for group, (states, promised) in groups.items():
        if states and reply.metrics_stay_home:
            return (
                f"sent {group} metrics although its config disables them (`privacy.metrics: "
                "false`). The reply is discarded; install the same version of elasticdl everywhere."
            )
        if promised and not reply.metrics_stay_home and _LOSS not in states:
            there = f"it has {named(sorted(states))}" if states else "it has none"
            return f"sent {group} metrics without {_LOSS!r}, which all models have; {there}."
        for name, state in states.items():
            for part in state:
                if part.dtype.kind not in "biuf":
                    return (
                        f"sent the metric {named([name])} as {part.dtype}; expected real numbers."
                    )
    return ""
