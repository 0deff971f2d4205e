"""Requests to parties and their replies, and their encoding as arrays and JSON values.

    aggregator --Request--> party
    aggregator <--Reply---- party        or a Refusal, with a redacted reason

A message is sent as named arrays and JSON values (`to_message`); it never contains code, a class
or a pickle. Incoming messages are parsed strictly. An unknown or missing field, a value of another
type, an array that the JSON values do not announce, or another protocol version raises
`MessageError`, and no part of the message is used. `replies.py` decides whether a parsed reply can
be used.

This module does not depend on the transport; `flower/` packs the arrays and the JSON values into
its records.

Callers: `party.py`, `aggregator.py`, `flower/`.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np

from elasticdl.data.wording import shown
from elasticdl.engines.federated.client.redaction import redacted
from elasticdl.engines.federated.protocol.message_fields import (
    Rules,
    check_fields,
    is_amount,
    is_architecture,
    is_count,
    is_counts,
    is_example,
    is_flag,
    is_long_text,
    is_mapping,
    is_printable,
    is_text,
    is_whole,
    or_none,
)
from elasticdl.engines.federated.strategies.updates import Array, Weights
from elasticdl.errors import MessageError

if TYPE_CHECKING:
    from elasticdl.training.trainer import MetricStates

__all__ = [
    "KINDS",
    "VERSION",
    "Answer",
    "Architecture",
    "Kind",
    "LocalTraining",
    "Message",
    "Refusal",
    "Reply",
    "RoundRequest",
    "architecture_of",
    "digest_of",
    "read_answer",
    "read_request",
    "redacted",
]

VERSION = 1
"""Version of the messages; party and aggregator must have the same."""

Kind = Literal["join", "train", "evaluate", "sync"]
KINDS: tuple[str, ...] = get_args(Kind)

Message: TypeAlias = tuple[dict[str, Array], dict[str, Any]]
"""Named arrays, and JSON values."""

Architecture: TypeAlias = Mapping[str, tuple[str, tuple[int, ...]]]
"""Name of an array -> dtype and shape."""


@dataclass(frozen=True)
class LocalTraining:
    """Options of a party's local training in one round.

    Attributes:
        num_epochs: Number of passes over its examples.
        minibatch_size: Examples in a step; None means the value of the party's own job.
        learning_rate: Learning rate of the local optimizer; None means the model's.
        max_steps: Stop after this many steps; 0 means no limit.
        seed: Determines the order of records and dropout.
        rank: The party's number in the federation; seeds its random numbers.
        proximal_mu: Strength mu of the proximal term, which adds mu/2 * |w - weights of the
            request|² to the loss.
        keeps_own_weights: Whether the party continues from its own weights; the proximal term
            pulls them towards the weights of the request.
        sends_gradients: Whether the party makes no step, but replies with the gradient of the mean
            loss over its examples, by parameter.
        evaluate_before: Whether the party evaluates the received weights before it trains.
    """

    num_epochs: int = 1
    minibatch_size: int | None = None
    learning_rate: float | None = None
    max_steps: int = 0
    seed: int = 0
    rank: int = 0
    proximal_mu: float = 0.0
    keeps_own_weights: bool = False
    sends_gradients: bool = False
    evaluate_before: bool = True


@dataclass(frozen=True, eq=False)
class RoundRequest:
    """A request of the aggregator to a party.

    Attributes:
        kind: What the party does: `join`: describe its examples and its model; `train`: train from
            `weights`; `evaluate`: evaluate `weights`; `sync`: adopt `weights` as its model.
        history: ID of the training run, from its first round to its last, including resumes.
        round: Number of the round, from 1; 0 before the first round.
        weights: The global weights; empty for `join`.
        options: How the party trains and evaluates.
    """

    kind: Kind
    history: str
    round: int
    weights: Weights = field(default_factory=dict)
    options: LocalTraining = LocalTraining()

    def to_message(self) -> Message:
        """Encode the request as arrays and JSON values; the arrays are not copied."""
        facts = {
            "version": VERSION,
            "message": "request",
            "kind": self.kind,
            "history": self.history,
            "round": self.round,
            "num_arrays": len(self.weights),
            "options": dataclasses.asdict(self.options),
        }
        return {f"weights/{name}": array for name, array in self.weights.items()}, facts


@dataclass(frozen=True, eq=False)
class Reply:
    """A party's reply to a request.

    Attributes:
        party: Name of the party.
        kind: Kind of the request, such as `train`.
        history: ID of the training run that the request belongs to.
        round: Round of the request.
        weights: Its trained weights, or gradients; empty for other kinds than `train`.
        num_examples: Number of its training examples.
        training_metrics: Metric states of the local training, including `loss`. The sum of several
            parties' states gives the metrics over all their records.
        evaluation_metrics: Metric states of the received weights, evaluated before training; they
            can be summed in the same way.
        metrics_stay_home: Whether the party's config does not share metrics
            (`privacy.metrics: false`); then both metrics are empty.
        architecture: Dtype and shape of each of its model's weights, by name; for `join`.
        example: Shapes and dtypes of one of its examples, without the contents
            (`party.shapes_of`); for `join`.
        is_evaluating: Whether it has validation data and shares its metrics; for `join`.
        seconds: How long the party took to execute the request.
    """

    party: str
    kind: Kind
    history: str
    round: int
    weights: Weights = field(default_factory=dict)
    num_examples: int = 0
    training_metrics: MetricStates = field(default_factory=dict)
    evaluation_metrics: MetricStates = field(default_factory=dict)
    metrics_stay_home: bool = False
    architecture: Architecture = field(default_factory=dict)
    example: Mapping[str, Any] = field(default_factory=dict)
    is_evaluating: bool = False
    seconds: float = 0.0

    def to_message(self) -> Message:
        """Encode the reply as arrays and JSON values; the arrays are not copied."""
        arrays = {f"weights/{name}": array for name, array in self.weights.items()}
        counts = {}
        for group in _METRICS:
            states: MetricStates = getattr(self, group)
            counts[group] = {name: len(state) for name, state in states.items()}
            for name, state in states.items():
                arrays.update({f"{group}/{name}/{i}": part for i, part in enumerate(state)})
        facts = {
            "version": VERSION,
            "message": "reply",
            "party": self.party,
            "kind": self.kind,
            "history": self.history,
            "round": self.round,
            "num_arrays": len(self.weights),
            "num_examples": self.num_examples,
            **counts,
            "metrics_stay_home": self.metrics_stay_home,
            "architecture": {
                name: [dtype, list(shape)] for name, (dtype, shape) in self.architecture.items()
            },
            "example": self.example,
            "is_evaluating": self.is_evaluating,
            "seconds": self.seconds,
        }
        return arrays, facts


@dataclass(frozen=True)
class Refusal:
    """A party's answer to a request that it could not fulfil.

    Attributes:
        party: Name of the party.
        error_kind: Name of the error's class.
        text: What went wrong, without data of the party (see `redaction.py`).
        history: ID of the training run that the request belongs to.
        round: Round of the request.
    """

    party: str
    error_kind: str
    text: str
    history: str
    round: int

    @staticmethod
    def of(party: str, error: BaseException, request: RoundRequest) -> Refusal:
        """Turn an error into a refusal, with a redacted message."""
        return Refusal(
            party, type(error).__name__, redacted(str(error)), request.history, request.round
        )

    def to_message(self) -> Message:
        """Encode the refusal as arrays and JSON values."""
        facts = {"version": VERSION, "message": "refusal", **dataclasses.asdict(self)}
        return {}, facts


Answer: TypeAlias = Reply | Refusal


def read_request(arrays: Mapping[str, Array], facts: Mapping[str, Any]) -> RoundRequest:
    """Parse a request; the inverse of `RoundRequest.to_message`.

    Raises:
        MessageError: The message is not a request, or has another version.
    """
    _check(facts, "request", _REQUEST_FIELDS)
    options = facts["options"]
    check_fields(options, _OPTION_FIELDS, "a request's options")
    return RoundRequest(
        kind=facts["kind"],
        history=facts["history"],
        round=facts["round"],
        weights=_weights(arrays, facts["num_arrays"], {}),
        options=LocalTraining(**options),
    )


def read_answer(arrays: Mapping[str, Array], facts: Mapping[str, Any]) -> Answer:
    """Parse a reply or a refusal; the inverse of their `to_message`.

    Raises:
        MessageError: The message is neither, or has another version.
    """
    if facts.get("message") == "refusal":
        _check(facts, "refusal", _REFUSAL_FIELDS)
        _weights(arrays, 0, {})
        values = {name: facts[name] for name in _REFUSAL_FIELDS}
        # Redacted again, because the sender may not have done it.
        return Refusal(**{**values, "text": redacted(values["text"])})
    _check(facts, "reply", _REPLY_FIELDS)
    counts = {group: facts[group] for group in _METRICS}
    weights = _weights(arrays, facts["num_arrays"], counts)
    return Reply(
        **{name: facts[name] for name in _REPLY_FIELDS if name not in _NOT_AS_THEY_ARE},
        weights=weights,
        training_metrics=_states(arrays, "training_metrics", counts["training_metrics"]),
        evaluation_metrics=_states(arrays, "evaluation_metrics", counts["evaluation_metrics"]),
        architecture={
            name: (dtype, tuple(shape)) for name, (dtype, shape) in facts["architecture"].items()
        },
    )


def architecture_of(weights: Weights) -> Architecture:
    """Return dtype and shape of each array.

    Example:
        >>> architecture_of({"dense/kernel": np.zeros((2, 3), np.float32)})
        {'dense/kernel': ('float32', (2, 3))}
    """
    return {name: (array.dtype.name, array.shape) for name, array in weights.items()}


def digest_of(weights: Weights) -> str:
    """Return a SHA-256 over names, dtypes, shapes and values; the order of names does not matter.

    A party stores its replies by (history, round, digest), so that a repeated request gets the
    same answer.
    """
    digest = hashlib.sha256()
    for name in sorted(weights):
        array = weights[name]
        digest.update(repr((name, array.dtype.name, array.shape)).encode())
        # In logical order, not in memory order.
        digest.update(array.tobytes())
    return digest.hexdigest()


# ---------------------------------------------------------------------------------------------


def _is_kind(value: object) -> bool:
    return isinstance(value, str) and value in KINDS


_METRICS = ("training_metrics", "evaluation_metrics")
_REQUEST_FIELDS: Rules = {
    "kind": _is_kind,
    "history": is_text,
    "round": is_count,
    "num_arrays": is_count,
    "options": is_mapping,
}
_OPTION_FIELDS: Rules = {
    "num_epochs": is_count,
    "minibatch_size": or_none(lambda value: is_count(value) and value != 0),
    "learning_rate": or_none(is_amount),
    "max_steps": is_count,
    "seed": is_whole,
    "rank": is_count,
    "proximal_mu": is_amount,
    "keeps_own_weights": is_flag,
    "sends_gradients": is_flag,
    "evaluate_before": is_flag,
}
_REPLY_FIELDS: Rules = {
    "party": is_text,
    "kind": _is_kind,
    "history": is_text,
    "round": is_count,
    "num_arrays": is_count,
    # Its range is checked by `replies.py`, which names the party.
    "num_examples": is_whole,
    "training_metrics": is_counts,
    "evaluation_metrics": is_counts,
    "metrics_stay_home": is_flag,
    "architecture": is_architecture,
    "example": is_example,
    "is_evaluating": is_flag,
    "seconds": is_amount,
}
_NOT_AS_THEY_ARE = {"num_arrays", "architecture", *_METRICS}
_REFUSAL_FIELDS: Rules = {
    "party": is_text,
    "error_kind": is_printable,
    "text": is_long_text,
    "history": is_text,
    "round": is_count,
}


def _check(facts: Mapping[str, Any], what: str, rules: Rules) -> None:
    version = facts.get("version")
    if version != VERSION:
        raise MessageError(
            f"The message has protocol version {shown(version)}; expected {VERSION}. Install the "
            "same version of elasticdl for the aggregator and all parties."
        )
    if facts.get("message") != what:
        raise MessageError(f"The message is a {shown(facts.get('message'))}; expected a {what}.")
    inside = {name: value for name, value in facts.items() if name not in {"version", "message"}}
    check_fields(inside, rules, f"a {what}")


def _weights(
    arrays: Mapping[str, Array], num_weights: int, counts: Mapping[str, Mapping[str, int]]
) -> dict[str, Array]:
    """Return the weights among a message's arrays, after checking the names of all arrays.

    Args:
        arrays: The arrays of the message, by name.
        num_weights: Number of arrays of weights that the message's JSON values announce.
        counts: The metric states that they announce: group, such as `training_metrics` -> name of
            the metric -> number of its arrays.

    Raises:
        MessageError: An array is missing or was not announced.
    """
    announced = {
        f"{group}/{name}/{i}"
        for group, states in counts.items()
        for name, count in states.items()
        for i in range(min(count, len(arrays) + 1))
    }
    weights = {}
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise MessageError(f"{shown(name)} is a {type(array).__name__}; expected an array.")
        group, _, inner = name.partition("/")
        if group == "weights" and inner:
            weights[inner] = _native(array)
        elif name not in announced:
            raise MessageError(f"The array {shown(name)} is not listed in its message.")
    missing = sorted(announced - arrays.keys())
    if missing:
        raise MessageError(f"The array {shown(missing[0])} is listed in its message but missing.")
    if len(weights) != num_weights:
        raise MessageError(
            f"The message has {len(weights)} arrays of weights; expected {num_weights}."
        )
    return weights


def _states(arrays: Mapping[str, Array], group: str, counts: Mapping[str, int]) -> MetricStates:
    return {
        name: tuple(_native(arrays[f"{group}/{name}/{i}"]) for i in range(count))
        for name, count in counts.items()
    }


def _native(array: Array) -> Array:
    """Return a received array in this machine's byte order; the sender's may differ."""
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


# A field added to a dataclass must be added to its rules; otherwise every message is refused.
assert {f.name for f in dataclasses.fields(LocalTraining)} == _OPTION_FIELDS.keys()  # noqa: S101
assert {f.name for f in dataclasses.fields(Refusal)} == _REFUSAL_FIELDS.keys()  # noqa: S101
assert {f.name for f in dataclasses.fields(Reply)} - {"weights"} == (  # noqa: S101
    _REPLY_FIELDS.keys() - {"num_arrays"}
)
