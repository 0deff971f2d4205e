"""What of an error's text may leave a party."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl.engines.federated.client.redaction import MAX_CHARACTERS, redacted


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("loss() takes 1 argument; it is called with 2.", None),
        ("the parties' rows don't fit", None),
        ("could not convert to float: 'Ada Lovelace'", "could not convert to float: <text>"),
        ("KeyError: 'O'Brien, 1970'", "KeyError: <text>"),
        ("bytes b'\\x00secret' left", "bytes <text> left"),
        ('he said "yes, \\"really\\" yes" twice', "he said <text> twice"),
        ("an open 'quotation goes on and on", "an open <text>"),
        ("value `Ada` and “Grace”", "value <text> and <text>"),
        ("No such file: /data/ward 3/ada.csv", "No such file: <path> <path>"),
        ("see s3://bucket/key?token=1 now", "see <path> now"),
        ("C:\\data\\ada.csv is open", "<path> is open"),
        ("relative/dir/ada and ada.parquet", "<path> and <path>"),
        ("no ~/ada", "no <path>"),
        ("write to ada@example.org", "write to <address>"),
        ("row [37.2, 38.9, 36.6] is odd", "row <numbers> is odd"),
        ("array([[1, 2],\n       [3, 4]])", "array<numbers>"),
        ("tensor([[1.5, nan]], grad_fn=<Add>)", "tensor<numbers>"),
        ("expected shape (64, 10)", "expected shape <numbers>"),
        ("{'age': 37, 'name': 'Ada'}", "<numbers>"),
        ("values 1 2 3 and 4;5", "values <numbers> and <numbers>"),
        ("born 1970-01-02, id 123456", "born <number>, id <number>"),
        ("at 37.5 degrees or .5", "at <number> degrees or <number>"),
        ("line 7, step 1200", None),
        ("a\tb\x1b[31m", None),
        ("bad row:\nname  Ada\nage  37", "bad row:"),
        ("\n\n", ""),
    ],
)  # fmt: skip
def test_an_error_keeps_its_words_but_no_data(text, left):
    if left is None:
        left = " ".join(text.replace("\x1b", " ").split())

    assert redacted(text) == left


def test_a_long_text_is_truncated():
    shown = redacted("word " * 1000)

    assert len(shown) <= MAX_CHARACTERS
    assert shown.endswith(" …")


secrets = st.from_regex(r"[A-Z][a-z]{3,8}QX[a-z]{1,4}", fullmatch=True)
words = st.lists(st.sampled_from(["could", "not", "it's", "line 3", "(1)", "-"]), max_size=6)


@given(words, secrets, secrets, words, st.sampled_from([
    "'{} {}'", '"{} {}"', "`{} {}`", "b'{}\\'{}'", "/{}/{}.csv", "{}/{}", "file:///{}/{}",
    "{}@{}.org", "'{}, {}", "['{}', \"{}\"]", "{}.csv {}.npz", "C:\\{}\\{}", "«{} {}»",
]))  # fmt: skip
def test_quotations_paths_and_addresses_are_removed(before, one, other, after, form):
    text = " ".join([*before, form.format(one, other), *after])

    shown = redacted(text)

    assert one not in shown
    assert other not in shown


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=2, max_size=9),
       st.sampled_from(["{}", "array({})", "rows {} differ"]))  # fmt: skip
def test_lists_of_numbers_are_removed(numbers, form):
    shown = redacted(form.format(numbers))

    assert not any(character.isdigit() for character in shown)


@given(st.text())
def test_a_redacted_text_is_one_short_line(text):
    shown = redacted(text)

    assert len(shown) <= MAX_CHARACTERS
    assert shown.isprintable()


def test_truncation_leaves_no_part_of_a_name():
    # Cut within the ending, it would be no file's name any more.
    for padding in range(1980, 2001):
        assert "ada" not in redacted(f"'{'x' * padding}' ada.parquet")


def test_the_end_of_a_very_long_text_is_dropped():
    assert redacted(f"bad {'x' * 3000} word") == "bad"


@pytest.mark.timeout(10)
def test_adversarial_texts_are_redacted_quickly():
    # Nested brackets and quotation marks, where a careless pattern tries every split.
    for piece in ("[", "'a", '"\\', "1 ", "a/", "<numbers>", "1.", "b'"):
        redacted(piece * 20000)
