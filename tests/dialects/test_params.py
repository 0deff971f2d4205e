"""A param is checked against what the function that takes it says of it."""

from __future__ import annotations

import collections.abc
import dataclasses
import inspect
from typing import Any, Literal, Optional

import numpy as np
import pytest

from elasticdl.dialects.model_code import Symbol
from elasticdl.dialects.params import Declared, Params, check_params, fits
from elasticdl.errors import UsageError


def declared(function: Any) -> Declared:
    symbol = Symbol("m.f", function, "m.py", 7)
    return Declared(symbol, dict(inspect.signature(function).parameters))


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (1, int),
        (1, float),
        (0.5, float),
        ("x", str),
        (True, bool),
        (None, Optional[int]),  # noqa: UP045 - as users write it
        (None, None),
        ([1, 2], list[int]),
        ((1, 2), collections.abc.Sequence[int]),
        ([1, 2.5], tuple[float, ...]),
        ([1, "x"], tuple[int, str]),
        ({"a": 1}, dict[str, int]),
        ("relu", Literal["relu", "tanh"]),
        ([1], Any),
        ("a", Symbol),
        ([], list),
    ],
)
def test_a_value_of_the_annotated_type_fits(value, hint) -> None:
    assert fits(value, hint)


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (0.5, int),
        (True, int),
        (True, float),
        ("1", int),
        (1, str),
        (1, bool),
        (None, int),
        (0.5, int | None),
        ([1, 2.5], list[int]),
        ("ab", list[str]),
        ("ab", collections.abc.Sequence[str]),
        ([1, 2, 3], tuple[int, int]),
        ({"a": "b"}, dict[str, int]),
        ("gelu", Literal["relu", "tanh"]),
    ],
)
def test_a_value_of_another_type_does_not_fit(value, hint) -> None:
    assert not fits(value, hint)


@pytest.mark.parametrize(
    ("default", "value"),
    [
        (0.1, 1),
        (1, 2),
        ("a", "b"),
        ((1, 2), [3, 4]),
        ([0.5], [1]),
        (None, "x"),
        (3, None),
        ([], [1]),
    ],
)
def test_a_value_like_the_default_fits(default, value) -> None:
    def f(x=default): ...

    check_params({"x": value}, [declared(f)])


@pytest.mark.parametrize(
    ("default", "value"),
    [(1, 0.5), (0.1, "x"), (1, True), ("a", 1), ((1, 2), 3), ([10, 5], [10, "a"]), ({}, [1])],
)
def test_a_value_unlike_the_default_is_refused_with_its_place(default, value) -> None:
    def f(x=default): ...

    with pytest.raises(UsageError) as caught:
        check_params({"x": value}, [declared(f)])

    assert f"x={value!r} is not valid" in str(caught.value)
    assert "m.py:7: f(x=" in str(caught.value)


def test_a_prebuilt_model_is_named_instead_of_its_place() -> None:
    def f(x=1, y=2): ...

    file = "/usr/lib/elasticdl/zoo/prebuilt/classifier.py"
    model = dataclasses.replace(declared(f), function=Symbol("DNN", f, file, 7))

    with pytest.raises(UsageError) as caught:
        check_params({"x": "a", "z": 1}, [model])

    assert "\n  classifier.DNN(x=1, ...)" in str(caught.value)
    assert "\n    classifier.DNN(x, y)" in str(caught.value)


def test_an_annotation_takes_precedence_over_the_default() -> None:
    def f(rate: float = 1): ...

    check_params({"rate": 0.5}, [declared(f)])


def test_an_annotation_for_type_checkers_only_is_understood() -> None:
    def f(units: Sequence[int] = (64, 64)): ...  # noqa: F821 - as under `if TYPE_CHECKING:`

    check_params({"units": [1, 2]}, [declared(f)])
    with pytest.raises(UsageError, match=r"expected a list of whole numbers, .* units=\[64, 64\]"):
        check_params({"units": ["a"]}, [declared(f)])


@pytest.mark.parametrize(
    ("hint", "value", "words"),
    [
        (
            collections.abc.Sequence[int],
            64,
            r"an int; .* a list of whole numbers, such as u=\[64\]",
        ),
        (list[int] | None, 64, r"a list of whole numbers, such as u=\[64\]"),
        (list[float], 0.5, r"a list of numbers, such as u=\[0.5\]"),
        (list[int], 0.5, r"a float; expected a list of whole numbers\."),
        (list[str], [0, 1], r"a list; expected a list of strings\."),
        (str, 2, r"an int; expected str\."),
        (list[str], 1, r"an int; expected a list of strings\."),
        (tuple[int, int], 1, r"an int; expected tuple\[int, int\]\."),
        (list, 1, r"an int; expected list\."),
        (list[int | str], 0.5, r"a float; expected list\[int \| str\]\."),
        (int, 0.5, r"a float; expected int\."),
    ],
)
def test_a_list_that_is_expected_is_named_in_words(hint, value, words) -> None:
    def f(u): ...

    f.__annotations__["u"] = hint
    with pytest.raises(UsageError, match=words):
        check_params({"u": value}, [declared(f)])


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"label": 2}, r'an int; expected a string, such as label="2"\.'),
        ({"label": 0.5}, r"a float; expected str\."),
        ({"ignore": [0, "a"]}, r'a list of strings, such as ignore=\["0", "a"\]'),
        ({"ignore": [0.5]}, r"a list; expected a list of strings\."),
    ],
)
def test_a_whole_number_for_a_column_is_answered_with_its_string(params, words) -> None:
    def f(label: str = "", ignore: list[str] = ()): ...  # type: ignore[assignment]

    with pytest.raises(UsageError, match=words):
        check_params(params, [declared(f)])


@pytest.mark.parametrize(
    ("default", "example"),
    [((np.int64(3),), ""), ([*range(100)], ""), ((3, 4), r", such as u=\[3, 4\]")],
)
def test_a_default_is_an_example_of_a_list_if_it_is_short_json(default, example) -> None:
    def f(u: Sequence[int] = default): ...  # noqa: F821 - as under `if TYPE_CHECKING:`

    with pytest.raises(UsageError, match=rf"expected a list of whole numbers{example}\.\n"):
        check_params({"u": "a"}, [declared(f)])


def test_a_string_for_a_list_of_strings_is_told_how_to_write_a_list() -> None:
    def f(ignore: Sequence[str] = ()): ...  # noqa: F821 - as under `if TYPE_CHECKING:`

    with pytest.raises(UsageError, match=r'a list of strings, such as ignore=\["Name"\]'):
        check_params({"ignore": "Name"}, [declared(f)])


def test_an_unresolvable_annotation_accepts_any_value() -> None:
    def f(x: NoSuchName = 1): ...  # noqa: F821 - that is what is tested

    check_params({"x": "anything"}, [declared(f)])


def test_all_problems_are_reported_at_once() -> None:
    def f(rate=0.1, units=8): ...

    with pytest.raises(UsageError) as caught:
        check_params({"rate": "x", "unit": 1}, [declared(f)])

    assert str(caught.value).count("--params: ") == 2
    assert "Did you mean 'units'?" in str(caught.value)


def test_a_param_that_differs_by_case_is_suggested() -> None:
    def f(LR=0.1, log=1): ...  # noqa: N803

    with pytest.raises(UsageError, match="Did you mean 'LR'"):
        check_params({"lr": 1}, [declared(f)])


def test_params_are_refused_if_nothing_accepts_them() -> None:
    with pytest.raises(UsageError, match="The model takes no params"):
        Params({"x": 1}).check()


def test_names_in_one_string_are_separated_in_the_suggested_list() -> None:
    def model(ignore: collections.abc.Sequence[str] = ()) -> None: ...

    with pytest.raises(UsageError, match=r'such as ignore=\["Name", "Ticket"\]'):
        check_params({"ignore": "Name,Ticket"}, [declared(model)])
