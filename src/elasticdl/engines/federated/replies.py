"""Whether a party's reply can be used, and in words why not.

A reply that could be read (`messages.py`) may still be of another round, of another model, or full
of NaN; one such reply must not spoil a round of many. Here it is judged, and nothing is done: the
aggregator leaves the party out of the round and says what this says.

Callers: `aggregator.py`. Pure.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from elasticdl.data.wording import shown
from elasticdl.engines.federated.messages import architecture_of
from elasticdl.engines.federated.updates import is_averaged, named, num_not_finite
from elasticdl.errors import AggregationError
from elasticdl.evaluation.metrics import add_states

if TYPE_CHECKING:
    from elasticdl.engines.federated.messages import Architecture, Reply, Request
    from elasticdl.training.trainer import Metrics, MetricStates

_LOSS = "loss"
# More examples than a float64 can count one by one would make shares of nothing.
_MOST_EXAMPLES = 2**53
_SAME_MODEL = "Compare the `model:` section of its config with those of the others."


def problem_of(reply: Reply, request: Request, architecture: Architecture) -> str | None:
    """Say what is wrong with a reply.

    Args:
        reply: A party's.
        request: What it was asked.
        architecture: Of the global model; empty where none is known yet, before the first `join`.
            Where gradients are asked for, they may be of some of its names.

    Returns:
        One problem in a sentence or two that name the party; None if the reply can be used.

    Example:
        >>> from elasticdl.engines.federated.messages import Reply, Request
        >>> request = Request("train", history="h1", round=3)
        >>> problem_of(Reply("north", "train", "h1", round=2), request, {})
        "Party 'north' answered round 2; asked was round 3. It is left out of this round."
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
    """Say what is wrong with the metrics of a reply that can be used otherwise.

    Args:
        reply: A party's.
        training: What reads states of training, of the aggregator's own model.
        evaluation: What reads states of evaluations.

    Returns:
        As `problem_of`.
    """
    for metrics, states in (
        (training, reply.training_metrics),
        (evaluation, reply.evaluation_metrics),
    ):
        for name, state in states.items():
            try:
                metrics.results(add_states([{name: state}]))
            except Exception as error:  # noqa: BLE001 - whatever a library says of a stranger's arrays
                shapes = ", ".join(str(list(part.shape)) for part in state) or "none"
                return (
                    f"Party {reply.party!r} sent the metric {named([name])} as arrays of shapes "
                    f"{shapes}, which cannot be read ({type(error).__name__}). Install the same "
                    "version of elasticdl everywhere."
                )
    loss = training.results(add_states([reply.training_metrics])).get(_LOSS, 0.0)
    if not np.isfinite(loss).all():
        # Who trains stops there, and would have said so.
        return f"Party {reply.party!r} sent a training loss of {loss}; expected a finite number."
    return None


def _of_another_question(reply: Reply, request: Request) -> str:
    if reply.history != request.history:
        return (
            f"answered for the training {reply.history!r}; this one is {request.history!r}. It is "
            "left out of this round; start the party anew if it stays with the other."
        )
    if reply.round != request.round:
        return (
            f"answered round {shown(reply.round)}; asked was round {request.round}. It is left "
            "out of this round."
        )
    if reply.kind != request.kind:
        return f"answered {reply.kind!r}; asked was {request.kind!r}. It is left out of this round."
    return ""


def _of_its_examples(reply: Reply) -> str:
    if reply.kind in {"join", "train"} and not 1 <= reply.num_examples <= _MOST_EXAMPLES:
        expected = "1 at least" if reply.num_examples < 1 else f"{_MOST_EXAMPLES} at most"
        return (
            f"says it has {shown(reply.num_examples)} training examples; expected {expected}. Look "
            "at the `data:` section of its config."
        )
    return ""


def _of_its_architecture(reply: Reply, request: Request, expected: Architecture) -> str:
    if request.kind != "join":
        return ""
    if not reply.architecture:
        return f"has a model without a single array. {_SAME_MODEL}"
    return _unlike("has", reply.architecture, expected) if expected else ""


def _of_its_weights(reply: Reply, request: Request, expected: Architecture) -> str:
    if request.kind != "train":
        if reply.weights:
            return f"sent {len(reply.weights)} arrays; {request.kind!r} asks for none."
        return ""
    if not reply.weights:
        return "sent no weights; expected those it has trained."
    sent = architecture_of(reply.weights)
    gradients = request.options.sends_gradients
    if gradients:
        # Counters and statistics have no gradient.
        expected = {name: form for name, form in expected.items() if name in sent}
    problem = _unlike("sent", sent, expected)
    if problem:
        return problem
    for name, array in reply.weights.items():
        try:
            averaged = is_averaged(array.dtype)
        except AggregationError as error:
            return f"sent {name}, which is no weight. {error}"
        if gradients and not averaged:
            return f"sent a gradient of {name} in {array.dtype.name}; expected real numbers."
        number = num_not_finite(array)
        if number:
            return (
                f"sent {name} with {number} of {array.size} numbers not finite. Its training went "
                "astray: look at its data, or lower the learning rate."
            )
    return ""


def _unlike(verb: str, found: Architecture, expected: Architecture) -> str:
    """Say how two architectures differ; nothing if they do not."""
    missing = sorted(expected.keys() - found.keys())
    more = sorted(found.keys() - expected.keys())
    if missing or more:
        said = [
            *([f"without {_near(missing, more)}"] if missing else []),
            *([f"with {named(more)} besides"] if more else []),
        ]
        return (
            f"{verb} {len(found)} arrays {' and '.join(said)}; the global model has "
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
    """Return the names that are missing, with what may be the first of them."""
    near = difflib.get_close_matches(missing[0], more, n=1)
    return f"{named(missing)}{f' (it has {near[0]})' if near else ''}"


def _of_its_metrics(reply: Reply, request: Request) -> str:
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
                f"sent {group} metrics and says that they stay at home (`privacy.metrics: false`). "
                "Nothing of the reply is used; install the same version of elasticdl everywhere."
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
