"""What a function's code says against tracing it."""

from __future__ import annotations

import functools
import random

import numpy as np
import pytest

from elasticdl.evaluation.traceable import why_not_traceable

SCALE = 2.0
SEEN = []
CALLS = 0


def helper(y):
    return abs(y) * SCALE


def noting_helper(y):
    SEEN.append(y)
    return y


def counting(t, p):
    global CALLS  # noqa: PLW0603
    CALLS += 1
    return CALLS


class Counter:
    count = 0

    def bump(self, y):
        self.count += 1
        return y


class Evaluator:
    """As a user writes one: with methods that have nothing to do with its functions."""

    def __init__(self):
        self.scale = 2
        self.counter = Counter()

    def load(self):
        self.scale = 3

    def scaled(self, y):
        return y * self.scale

    def pure(self, t, p):
        return self.scaled(t - p)

    def stateful(self, t, p):
        self.load()
        return p

    def deeper(self, t, p):
        return self.stateful(t, p)

    def holding(self, t, p):
        return self.counter.bump(p)


def nonlocal_state():
    count = 0

    def f(t, p):
        nonlocal count
        count += 1
        return count

    return f


def swallowing(t, p):
    try:
        return p if t else t
    except TypeError:
        return t


def generator(t, p):
    yield p


GENERATOR = np.random.default_rng(0)


@pytest.mark.parametrize(
    "function",
    [
        lambda t, p: helper(t - p),
        functools.partial(lambda k, t, p: k * (t - p), 3),
        Evaluator().pure,
        lambda t, p: p.shape[0],
        lambda t, p: p if SCALE else t,
        max,
    ],
)
def test_a_pure_function_may_be_traced(function) -> None:
    assert why_not_traceable(function) == ""


@pytest.mark.parametrize(
    "function",
    [
        counting,
        nonlocal_state(),
        swallowing,
        generator,
        Evaluator().stateful,
        Evaluator().deeper,
        Evaluator().holding,
        lambda t, p: noting_helper(p),
        lambda t, p: [noting_helper(x) for x in p],
        functools.partial(noting_helper),
        lambda t, p: random.random(),
        lambda t, p: GENERATOR.normal(),
        lambda t, p: p if p.shape else t,
        lambda t, p: t if p.dtype == float else p,
        lambda t, p: p if isinstance(p, np.ndarray) else t,
        lambda t, p: next(iter([p])),
    ],
)
def test_an_impure_function_is_not_traced(function) -> None:
    assert why_not_traceable(function) != ""


def test_installed_code_is_not_read() -> None:
    import tensorflow as tf

    assert why_not_traceable(tf.keras.losses.MeanSquaredError()) == ""
    assert why_not_traceable(tf.keras.losses.MSE) == ""
    assert why_not_traceable(tf.keras.metrics.Mean()) != ""


def test_the_users_other_modules_are_read(tmp_path, monkeypatch) -> None:
    (tmp_path / "their_metrics.py").write_text(
        "seen = []\n\ndef noting(y):\n    seen.append(y)\n    return y\n\n"
        "def pure(y):\n    return y\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import their_metrics

    assert why_not_traceable(lambda t, p: their_metrics.pure(p)) == ""
    assert why_not_traceable(lambda t, p: their_metrics.noting(p)) != ""


def test_methods_that_a_library_calls_are_read() -> None:
    import keras

    class Loss(keras.losses.Loss):
        def call(self, y_true, y_pred):
            self.seen = y_true
            return y_pred

    assert why_not_traceable(Loss()) != ""
