"""The functions that evaluate single examples, each called on a few."""

from __future__ import annotations

import collections
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from elasticdl.dialects.reference import place_of
from elasticdl.errors import users_traceback
from elasticdl.sessions.checks.finding import Finding, error, warning

# What MLflow takes as the name of a metric.
_TAKEN = re.compile(r"[\w\-./: ]+")
Example = tuple[str, Any, Any]
"""The split, y as it was preprocessed, and what the model says."""


def named(made: Any) -> list[tuple[str, Callable[[Any, Any], Any]]] | None:
    """Return the functions of an evaluator with their names; None if they are none."""
    if isinstance(made, Mapping):
        pairs = [(str(name), function) for name, function in made.items()]
    elif isinstance(made, Sequence) and not isinstance(made, (str, bytes)):
        pairs = [(str(getattr(f, "__name__", type(f).__name__)), f) for f in made]
    else:
        return None
    return pairs if all(callable(function) for _, function in pairs) else None


def look(made: Any, examples: Sequence[Example], where: str) -> Iterator[Finding]:
    """Yield what is wrong with evaluation functions.

    Args:
        made: By `get_eval_funcs()`.
        examples: To call them on.
        where: That method.
    """
    functions = named(made)
    if functions is None:
        yield error(
            f"get_eval_funcs() returned {made!r}; expected functions by name, or a list of them.",
            where,
            "Return {'name': function}.",
        )
        return
    for name, number in collections.Counter(name for name, _ in functions).items():
        if number > 1:
            yield error(
                f"{number} evaluation functions are called {name!r}; reports have a column a name.",
                where,
                "Return a dict with a name for each.",
            )
        if not _TAKEN.fullmatch(name):
            refused = "".join(sorted({*re.sub(_TAKEN, "", name)}))
            yield warning(
                f"the name of the evaluation function {name!r} has {refused!r}, which MLflow "
                "refuses in the name of a metric.",
                where,
                "Use letters, digits, spaces and _ - . / : only.",
            )
    for name, function in functions:
        place = place_of(function)
        at = where if place is None else f"{place[0]}:{place[1]}"
        for example in examples:
            problem = _called(name, function, example, at)
            if problem is not None:
                yield problem
                break


def _called(
    name: str, function: Callable[[Any, Any], Any], example: Example, at: str
) -> Finding | None:
    split, truth, said = example
    shown = f"{name!r}, called with y_true {_shown(truth)} and y_pred {_shown(said)} ({split})"
    try:
        value = np.asarray(_value(function, truth, said))
    except Exception as problem:  # noqa: BLE001 - a function of the user's
        return error(
            f"{shown}, raised:\n{users_traceback(problem)}",
            at,
            "It gets one example, not a batch, and returns a number.",
        )
    if value.size != 1 or (not np.issubdtype(value.dtype, np.number) and value.dtype != bool):
        return error(
            f"{shown}, returned {value.dtype!s}{list(value.shape)}; expected one number.",
            at,
            "Return the mean over whatever it has computed.",
        )
    if not np.isfinite(value.astype(float)).all():
        return warning(
            f"{shown}, returned {float(value.reshape(())):g}.",
            at,
            "Guard the division or logarithm; means over all examples leave such rows out or are "
            "not finite themselves.",
        )
    return None


def _value(function: Callable[[Any, Any], Any], truth: Any, said: Any) -> Any:
    value = function(truth, said)
    return value.numpy() if hasattr(value, "numpy") else value


def _shown(value: Any) -> str:
    array = np.asarray(value)
    return f"{array.dtype}{list(array.shape)}"
