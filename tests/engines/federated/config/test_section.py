"""A section of a config: every key is asked for, and every mistake has its line."""

import pytest

from elasticdl.config_file import read_config
from elasticdl.engines.federated.config.section import Notes, Section
from elasticdl.errors import DefinitionError


def opened(text):
    notes = Notes()
    return Section(read_config(text, "a.yml"), "", notes, "a.yml"), notes


def test_values_are_read_by_type():
    section, notes = opened("a: text\nb: 'True'\nc: 3\nd: 0.5\ne: {f: 1}\n")

    assert section.text("a") == "text"
    assert section.flag("b", default=False) is True
    assert section.whole("c") == 3
    assert section.number("d", "a part") == 0.5
    assert section.values("e") == {"f": 1}
    assert notes == Notes()


def test_missing_and_null_values_are_none():
    section, notes = opened("a:\n")

    assert section.text("a") is section.whole("b") is section.number("c", "x") is None
    assert section.flag("d", default=True) is True
    assert section.values("e") == {}
    assert not section.section("f")
    assert notes == Notes()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x: 0", "is 0; expected a whole number, at least 1."),
        ("x: true", "is True; expected a whole number, at least 1."),
        ("x: 1.5", "is 1.5; expected a whole number, at least 1."),
        ("x: '3'", "is '3'; expected a whole number, at least 1."),
        ("x: {y: 1}", "is {'y': 1}; expected a whole number, at least 1."),
    ],
)
def test_an_invalid_whole_number_is_reported_with_its_line(text, said):
    section, notes = opened(f"before: 1\n{text}\n")

    assert section.whole("x") is None
    assert notes.problems == [f"a.yml:2: x: {said}"]


@pytest.mark.parametrize("text", ["0", "-1", "1.1", ".nan", ".inf", "true", "'0.5'", "[0.5]"])
def test_a_number_out_of_range_is_reported(text):
    section, notes = opened(f"x: {text}\n")

    assert section.number("x", "a part", high=1) is None
    (problem,) = notes.problems
    assert problem.startswith("a.yml:1: x: is ")
    assert problem.endswith("; expected a part.")


@pytest.mark.parametrize("text", ["3", "''", "[a]", "{b: c}"])
def test_an_invalid_text_is_reported(text):
    section, notes = opened(f"x: {text}\n")

    assert section.text("x") is None
    assert len(notes.problems) == 1


@pytest.mark.parametrize(("text", "value"), [("'false'", False), ("No", False), ("'yes'", True)])
def test_flags_may_be_strings(text, value):
    section, _ = opened(f"x: {text}\n")

    assert section.flag("x", default=not value) is value


def test_an_invalid_flag_is_reported():
    section, notes = opened("x: maybe\n")

    assert section.flag("x", default=True) is True
    assert notes.problems == ["a.yml:1: x: is 'maybe'; expected true or false."]


def test_a_value_in_place_of_a_section_is_reported():
    section, notes = opened("outer:\n  inner: 3\n")

    assert not section.section("outer").section("inner")
    assert notes.problems == [
        "a.yml:2: outer.inner: is 3; expected a section of `key: value` lines."
    ]


def test_an_inner_key_is_reported_with_its_full_path():
    section, notes = opened("outer:\n  inner:\n    key: x\n")

    section.section("outer").section("inner").whole("key")

    assert notes.problems[0].startswith("a.yml:3: outer.inner.key: is 'x'")


def test_a_missing_key_has_the_line_of_the_nearest_section():
    section, notes = opened("outer:\n  other: 3\n")

    section.section("outer").section("inner").missing("key", "write it")
    section.section("nothing").missing("key", "write it")

    assert notes.problems == [
        "a.yml:1: outer.inner.key: is missing; write it.",
        "a.yml: nothing.key: is missing; write it.",
    ]


def test_an_unknown_key_is_reported_with_a_similar_one():
    section, notes = opened("round: 3\nother: 1\n")
    section.whole("rounds")
    section.text("zoo")

    section.close()

    assert notes.problems == [
        "a.yml:1: round: is not a key of this section; expected rounds, zoo; did you mean rounds?",
        "a.yml:2: other: is not a key of this section; expected rounds, zoo; leave it out.",
    ]


def test_a_known_unsupported_key_is_refused_with_the_reason():
    section, notes = opened("max_iter: 3\n")

    section.close({"max_iter": "it is of other models"})

    assert notes.problems == ["a.yml:1: max_iter: is not supported: it is of other models."]


def test_all_problems_are_raised_at_once():
    section, notes = opened("a: 0\nb: 0\n")
    section.whole("a")
    section.whole("b")

    with pytest.raises(DefinitionError, match=r"^2 problems:\n- a.yml:1: a: .*\n- a.yml:2: b: "):
        notes.raise_problems()


def test_one_problem_is_raised_and_none_raises_nothing():
    section, notes = opened("a: 0\n")
    notes.raise_problems()
    section.whole("a")

    with pytest.raises(DefinitionError, match=r"^a.yml:1: a: is 0"):
        notes.raise_problems()
