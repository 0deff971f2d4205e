"""Per-example functions: the values are those of calling them one by one, however they come about.

A column that is computed in blocks must not be told from one that is not; most tests here are
functions for which a trace would give another column.
"""

from __future__ import annotations

import functools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from elasticdl.errors import DefinitionError, UserCodeError
from elasticdl.evaluation.functions import EvalFunctions

NUM_ROWS = 100
IDS = [f"image_{i}.jpg" for i in range(NUM_ROWS)]


@pytest.fixture(scope="module")
def batch():
    """Return labels and probabilities of ten classes."""
    rng = np.random.default_rng(0)
    outputs = rng.random((NUM_ROWS, 10)).astype(np.float32)
    return rng.integers(0, 10, NUM_ROWS), outputs / outputs.sum(axis=1, keepdims=True)


def seeds_function():
    """Return the function of the sessions' document, as it stands there."""
    import tensorflow as tf

    tfk = tf.keras
    from_logits = False

    def scce_loss(y_true, y_pred):
        scce = tfk.losses.SparseCategoricalCrossentropy(from_logits=from_logits)
        return scce(y_true, y_pred).numpy()

    return scce_loss


def column(function, labels, outputs, ids=None):
    functions = EvalFunctions({"f": function})
    values = functions.columns(ids or range(len(outputs)), labels, outputs)["f"]
    return values, functions


def one_by_one(function, labels, outputs):
    return [float(function(labels[i], outputs[i])) for i in range(len(outputs))]


# --- values ---------------------------------------------------------------------------------


def test_the_function_of_the_documents_gives_the_same_as_alone(batch) -> None:
    values, functions = column(seeds_function(), *batch)

    assert values.dtype == np.float64
    alone = one_by_one(seeds_function(), *batch)
    np.testing.assert_allclose(values, alone, rtol=1e-6)
    np.testing.assert_array_equal(values[:32], alone[:32])
    assert functions.notes == []


def test_the_function_of_the_documents_is_called_on_few_rows(batch) -> None:
    calls = []
    inner = seeds_function()

    def counted(y_true, y_pred):
        return inner(y_true, y_pred)

    # Counted from outside: a function that counts would be called one by one.
    functions = EvalFunctions({"f": counted})
    own = functions._columns[0]
    value = own._value
    own._value = lambda *args: calls.append(1) or value(*args)
    labels, outputs = (np.concatenate([a] * 20) for a in batch)
    for _ in range(3):
        functions.columns(range(len(labels)), labels, outputs)

    assert len(calls) < 60


def test_a_function_gets_one_example_as_numpy() -> None:
    seen = []

    def look(y_true, y_pred):
        seen.append((type(y_true), y_pred.shape))
        return 0.0

    column(look, np.int64([3, 4]), np.zeros((2, 5), np.float32))

    assert seen == [(np.int64, (5,))] * 2


def test_a_function_that_expects_tensors_gets_tensors() -> None:
    import tensorflow as tf

    def as_documented(y_true, y_pred):
        return tf.abs(y_pred - y_true).numpy() + 0 * y_true.numpy()

    values, _ = column(as_documented, np.float32([1, 2]), np.float32([3, 2]))

    assert values.tolist() == [2.0, 0.0]


def test_none_and_nan_are_missing_values() -> None:
    values, _ = column(lambda t, p: None if t else p, np.int64([1, 0, 0]), np.array([1, np.nan, 3]))

    np.testing.assert_array_equal(values, [np.nan, np.nan, 3.0])


@pytest.mark.parametrize("value", [True, np.float16(1), np.int8(1), np.ones((1, 1)), 1])
def test_single_numbers_of_any_type_are_accepted(value) -> None:
    assert column(lambda t, p: value, np.zeros(2), np.zeros(2))[0].tolist() == [1.0, 1.0]


def test_nested_outputs_are_passed_row_by_row() -> None:
    outputs = {"box": np.arange(6.0).reshape(3, 2), "score": np.array([1.0, 2.0, 3.0])}

    values, _ = column(lambda t, p: p["box"][1] + p["score"], np.zeros(3), outputs, [0, 1, 2])

    assert values.tolist() == [2.0, 5.0, 8.0]


@settings(max_examples=12)
@given(
    st.integers(33, 70).flatmap(
        lambda n: arrays.arrays(np.float32, (2, n), elements=st.floats(-100, 100, width=32))
    )
)
def test_a_traced_function_gives_the_same_as_alone(pair) -> None:
    import tensorflow as tf

    def huber(y_true, y_pred):
        error = tf.abs(y_true - y_pred)
        return tf.where(error < 1, 0.5 * error**2, error - 0.5).numpy()

    values, _ = column(huber, *pair)

    largest = np.abs(values).max()
    np.testing.assert_allclose(values, one_by_one(huber, *pair), rtol=1e-6, atol=1e-6 * largest)


# --- functions that must not be computed in blocks ------------------------------------------


def counter():
    calls = [0]

    def f(y_true, y_pred):
        calls[0] += 1
        return float(calls[0])

    return f


def hidden_counter():
    """Return a function whose state is out of sight: an object of a library keeps it."""
    import itertools

    import tensorflow as tf

    counted = itertools.count()
    return functools.partial(lambda it, t, p: tf.constant(float(next(it))), counted)


class Running:
    """A function with a state in its object."""

    total = 0.0

    def __call__(self, y_true, y_pred):
        self.total += float(y_true)
        return self.total


def swallows(y_true, y_pred):
    import tensorflow as tf

    try:
        if y_true == 7:
            return -1.0
    except Exception:  # noqa: BLE001 - this is what it is about
        pass
    return tf.reduce_max(y_pred)


def asks_the_type(y_true, y_pred):
    import tensorflow as tf

    if isinstance(y_pred, np.ndarray) and y_true == 7:
        return -1.0
    return tf.reduce_max(y_pred)


def asks_the_shape(y_true, y_pred):
    import tensorflow as tf

    return tf.reduce_max(y_pred) if y_true.shape else tf.reduce_min(y_pred)


def branches_on_a_value(y_true, y_pred):
    import tensorflow as tf

    return tf.reduce_max(y_pred) if y_true > 4 else tf.constant(0.0)


def uses_numpy(y_true, y_pred):
    return np.log(y_pred[y_true])


MUST_BE_EXACT = [
    counter,
    hidden_counter,
    Running,
    lambda: swallows,
    lambda: asks_the_type,
    lambda: asks_the_shape,
    lambda: branches_on_a_value,
    lambda: uses_numpy,
]


@pytest.mark.parametrize("make", MUST_BE_EXACT)
def test_a_function_that_tracing_would_change_is_called_per_example(make, batch) -> None:
    import tensorflow as tf  # noqa: F401 - without it nothing would be traced

    expected = one_by_one(make(), *batch)

    values, _ = column(make(), *batch)

    np.testing.assert_array_equal(values, expected)


def test_a_random_function_is_called_once_per_example(batch) -> None:
    import tensorflow as tf  # noqa: F401

    drawn = random.Random(1)
    expected = [drawn.random() for _ in range(NUM_ROWS)]
    again = random.Random(1)

    values, _ = column(lambda t, p: again.random(), *batch)

    assert values.tolist() == expected


def test_a_function_that_deviates_later_is_then_called_per_example(batch, monkeypatch):
    import tensorflow as tf

    def f(y_true, y_pred):
        return tf.reduce_max(y_pred)

    functions = EvalFunctions([f])
    labels, outputs = batch
    first = functions.columns(IDS, labels, outputs)["f"]
    own = functions._columns[0]
    for key, block in list(own._blocks.items()):
        own._blocks[key] = lambda *a, block=block: (block(*a)[0] + 1, "float32")
    second = functions.columns(IDS, labels, outputs)["f"]

    np.testing.assert_array_equal(first, second)
    assert functions.notes
    assert "one by one from row 100 on" in functions.notes[0]


def test_tensors_have_a_numpy_method_only_during_tracing(batch) -> None:
    import tensorflow as tf

    column(seeds_function(), *batch)
    symbols = []
    tf.function(lambda x: symbols.append(x) or x)(tf.constant(1.0))

    assert not hasattr(symbols[0], "numpy")


# --- what is wrong --------------------------------------------------------------------------


def test_a_function_that_raises_is_named_with_its_line_and_the_example() -> None:
    def broken(y_true, y_pred):
        raise ZeroDivisionError("of mine")

    with pytest.raises(UserCodeError) as error:
        column(broken, np.zeros(2), np.zeros(2), ["a.jpg", "b.jpg"])

    assert f"test_functions.py:{broken.__code__.co_firstlineno + 1}: " in str(error.value)
    assert "'f' raised on the example 'a.jpg'" in str(error.value)
    assert "of mine" in str(error.value)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (np.zeros((2, 3)), "ndarray of shape [2, 3]"),
        ("good", "str for"),
        ({"a": 1}, "dict"),
        (np.zeros(0), "ndarray of shape [0]"),
        (1j, "complex"),
    ],
)
def test_a_result_that_is_not_a_number_is_reported_with_its_type(value, told) -> None:
    with pytest.raises(DefinitionError) as error:
        column(lambda t, p: value, np.zeros(1), np.zeros(1), ["a.jpg"])

    assert told in str(error.value)
    assert "'a.jpg'" in str(error.value)
    assert "test_functions.py:" in str(error.value)


def test_functions_of_a_list_keep_their_names() -> None:
    def dice(y_true, y_pred):
        return 1.0

    assert EvalFunctions([dice, uses_numpy]).names == ("dice", "uses_numpy")


def test_functions_with_the_same_name_are_refused_naming_both() -> None:
    def made():
        def func(y_true, y_pred):
            return 1.0

        return func

    def other():
        def func(y_true, y_pred):
            return 2.0

        return func

    with pytest.raises(DefinitionError) as error:
        EvalFunctions([made(), other()])

    lines = [made.__code__.co_firstlineno + 1, other.__code__.co_firstlineno + 1]
    assert all(f"{__file__}:{line}" in str(error.value) for line in lines)
    assert "dict of name -> function" in str(error.value)


@pytest.mark.parametrize("given", [{3: abs}, {"a": 3}, "abs", 7, [3]])
def test_invalid_functions_are_refused(given) -> None:
    with pytest.raises(DefinitionError):
        EvalFunctions(given)


def test_no_functions_give_no_columns() -> None:
    assert EvalFunctions(None).columns(["a"], np.zeros(1), np.zeros(1)) == {}


class Off:
    """As `aimedeval` has evaluation functions."""

    @property
    def name(self):
        return "off by"

    @property
    def description(self):
        return "The difference."

    def get_func(self):
        return lambda y_true, y_pred: abs(y_true - y_pred)


@pytest.mark.parametrize("functions", [[Off()], {"off by": Off()}])
def test_an_object_with_a_function_is_accepted(functions):
    made = EvalFunctions(functions)

    assert made.names == ("off by",)
    assert made.columns(["a", "b"], np.float32([1, 2]), np.float32([1, 5]))["off by"].tolist() == [
        0,
        3,
    ]


def test_an_object_without_a_name_is_named_after_its_class():
    class Late(Off):
        name = None

    assert EvalFunctions([Late()]).names == ("Late",)


def test_an_object_that_raises_is_a_user_code_error():
    class Broken(Off):
        def get_func(self):
            raise KeyError("threshold")

    with pytest.raises(UserCodeError, match="Broken.get_func.. raised:\n(.*\n)*KeyError"):
        EvalFunctions([Broken()])
