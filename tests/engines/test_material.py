"""What a process finds of its data, beside what a checkpoint says of them."""

from __future__ import annotations

import pytest

from elasticdl.engines.material import changed_files

BEFORE = [("a", 1), ("b", 2), ("c", 3)]


@pytest.mark.parametrize(
    ("now", "changed"),
    [
        (BEFORE, []),
        ([("a", 1), ("b", 9), ("c", 3)], ["b"]),
        ([("a", 1), ("b", 2), ("c", 3), ("d", 4)], ["d"]),
        ([("a", 1), ("c", 3)], ["b"]),
        ([("z", 1), ("b", 2), ("c", 3)], ["z", "a"]),
    ],
)
def test_files_that_came_went_or_grew_have_changed(now, changed) -> None:
    assert changed_files(now, BEFORE) == changed


@pytest.mark.timeout(30)
def test_a_hundred_thousand_files_are_compared_at_once() -> None:
    before = [(f"part-{i}", 1) for i in range(100_000)]
    now = [(f"part-{i}", 2) for i in range(100_000)]

    assert len(changed_files(now, before)) == 100_000
