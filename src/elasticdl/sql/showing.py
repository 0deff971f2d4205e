"""SHOW TRAIN: reports how a model was trained, as rows.

    section   | step | name        | value
    model     |      | statement   | SELECT ... TO TRAIN ...
    version   |      | v2          | SELECT ... TO TRAIN ...        all versions, newest first
    metric    |      | val_loss    | 0.12
    training  |  200 | loss        | 0.34     the curve, at most 50 steps of it
    validation|  200 | loss        | 0.40

Used by `execute.py`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from elasticdl.artifacts.trained_model import load_trained_model
from elasticdl.event_file import read_events
from elasticdl.events import EpochFinished, Evaluated

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from elasticdl.sql.models import Models, ModelVersion

_Point = TypeVar("_Point", EpochFinished, Evaluated)

_MAX_POINTS = 50
_SCHEMA = pa.schema(
    [
        ("section", pa.string()),
        ("step", pa.int64()),
        ("name", pa.string()),
        ("value", pa.string()),
    ]
)


def show_train(name: str, models: Models) -> pa.Table:
    """Return the statement, versions, metrics and training curve of a model, as rows.

    Raises:
        UsageError: There is no trained model of this name.
    """
    version = models.current(name)
    rows = [*_model(version), *_versions(name, models), *_curve(version)]
    columns = zip(*rows, strict=True)
    return pa.table([pa.array(column) for column in columns], schema=_SCHEMA)


def _model(version: ModelVersion) -> Iterator[tuple[str, int | None, str, str]]:
    record = version.record
    known: dict[str, Any] = {
        "name": version.name,
        "version": version.number,
        "statement": record.statement,
        "database": record.database,
        "label": record.label,
        "folder": version.uri,
        **{key: value for key, value in record.details.items() if key != "metrics"},
    }
    description = load_trained_model(version.uri).description
    known |= {"framework": description.framework, "versions": dict(description.versions)}
    for key, value in known.items():
        yield "model", None, key, value if isinstance(value, str) else json.dumps(value)
    yield from _numbers("metric", None, record.details.get("metrics", {}))


def _versions(name: str, models: Models) -> Iterator[tuple[str, int | None, str, str]]:
    for version in models.versions(name):
        unfinished = "" if version.record.is_complete else "(training not complete) "
        yield "version", None, f"v{version.number}", f"{unfinished}{version.record.statement}"


def _curve(version: ModelVersion) -> Iterator[tuple[str, int | None, str, str]]:
    events = read_events(f"{version.uri}/events.jsonl")
    for event in _thinned([each for each in events if isinstance(each, EpochFinished)]):
        own = {n: value for n, value in event.metrics.items() if not n.startswith("val_")}
        yield from _numbers("training", event.step, own)
    for evaluated in _thinned([each for each in events if isinstance(each, Evaluated)]):
        yield from _numbers("validation", evaluated.step, evaluated.metrics)


def _thinned(events: Sequence[_Point]) -> Sequence[_Point]:
    """Reduce a curve to at most `_MAX_POINTS` evenly spaced points, including the last one."""
    stride = -(-len(events) // _MAX_POINTS)
    return events[::-1][:: max(stride, 1)][::-1]


def _numbers(
    section: str, step: int | None, metrics: Mapping[str, Any]
) -> Iterator[tuple[str, int | None, str, str]]:
    for name, value in metrics.items():
        if isinstance(value, (int, float)):
            yield section, step, name, f"{value:.6g}"
