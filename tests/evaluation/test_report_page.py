"""The page: whole in itself, and of nobody's making but ours."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np

from elasticdl.evaluation.report_page import write_page

EVIL = "<script>alert(1)</script>\"'&"
VOID = {"meta", "br", "img"}


class Checked(HTMLParser):
    """Notes tags, and that each is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.addresses += [value for name, value in attrs if name in {"src", "href"}]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def page_of(result, folder, **options) -> tuple[str, Checked]:
    text = Path(write_page(result.path, folder, **options)).read_text()
    checked = Checked()
    checked.feed(text)
    assert checked.open == []
    return text, checked


def classified(write, num_classes=3, **more):
    rng = np.random.default_rng(0)
    outputs = rng.random((60, num_classes))
    outputs /= outputs.sum(axis=1, keepdims=True)
    labels = np.arange(60) % num_classes
    return write(labels, outputs, {"ce": lambda t, p: -np.log(p[t])}, **more)


def test_all_names_of_the_user_are_escaped(write, tmp_path) -> None:
    result = write(
        [0, 1], [0.2, 0.7], {EVIL: lambda t, p: p}, ids=[EVIL, EVIL], sources=[EVIL, None]
    )

    text, checked = page_of(
        result,
        tmp_path,
        title=EVIL,
        picture_of=lambda row, data_id: np.zeros((9, 9)),
        class_names=[EVIL, EVIL],
    )

    assert "script" not in checked.tags
    assert "<script" not in text
    assert "&lt;script&gt;" in text


def test_a_page_loads_no_external_resource(write, tmp_path) -> None:
    text, checked = page_of(
        classified(write), tmp_path, picture_of=lambda row, data_id: np.ones((9, 9, 3))
    )

    assert checked.addresses
    assert all(address.startswith("data:image/png;base64,") for address in checked.addresses)
    assert not re.search(r"https?://|@import|url\(", text)


def test_pictures_are_requested_only_for_the_worst_examples(write, tmp_path) -> None:
    asked = []
    result = classified(write)

    page_of(
        result, tmp_path, picture_of=lambda row, data_id: asked.append((row, data_id)), num_worst=4
    )

    assert len(asked) == 4
    assert all(data_id == f"id{row}" for row, data_id in asked)


def test_a_flat_vector_is_not_a_picture(write, tmp_path) -> None:
    _, checked = page_of(classified(write), tmp_path, picture_of=lambda row, i: np.zeros(784))

    assert "img" not in checked.tags


def test_many_classes_are_shown_as_the_most_confused_pairs(write, tmp_path) -> None:
    text, _ = page_of(classified(write, 40), tmp_path)

    assert "confused most often" in text
    assert 'class="matrix"' not in text


def test_cells_of_the_matrix_show_counts(write, tmp_path) -> None:
    text, _ = page_of(write([0, 0, 1], np.float32([[0.9, 0.1]] * 3)), tmp_path)

    matrix = text[text.index('<table class="matrix">') :]
    cells = re.findall(r"<td[^>]*>(.*?)</td>", matrix[: matrix.index("</table>")])
    assert [re.sub(r"<.*?>", "", cell) for cell in cells] == ["2", "0", "1", "0"]


def test_an_empty_report_gives_a_page(write, tmp_path) -> None:
    text, _ = page_of(write(np.zeros(0), np.zeros(0), {"v": lambda t, p: p}), tmp_path)

    assert "No example has a value." in text


def test_values_that_are_not_finite_are_accepted(write, tmp_path) -> None:
    page_of(
        write([1.5, 2.5, 3.5], [np.nan, np.inf, 1.0], {"v": lambda t, p: p}, sources=["a"] * 3),
        tmp_path,
    )
