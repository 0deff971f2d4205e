"""Facts about data in memory stay in an output and serve messages only."""

import pytest

from elasticdl.artifacts.folder import OutputFolder
from elasticdl.artifacts.in_memory_facts import (
    FACTS_FILE,
    InMemoryFacts,
    add_facts,
    difference,
    difference_of,
    remove_facts,
)

FEW, MANY = InMemoryFacts(10, {"a": "int64"}), InMemoryFacts(1000, {"a": "int64"})


@pytest.fixture
def folder(tmp_path) -> OutputFolder:
    return OutputFolder(str(tmp_path / "out"))


def test_facts_of_other_files_stay(folder) -> None:
    assert add_facts(folder, {"x/1": MANY}) == {"x/1"}
    assert add_facts(folder, {"x/1": MANY, "x/2": FEW}) == {"x/2"}
    assert difference_of(folder, "x/1", "x/2") == "10 rows instead of 1,000"

    remove_facts(folder, ["x/2"])
    assert difference_of(folder, "x/1", "x/2") == ""
    remove_facts(folder, ["x/1"])
    assert folder.list() == []


@pytest.mark.parametrize("damaged", [b"", b"[]", b"\xff", b'{"1": 3, "2": {"rows": 1}}'])
def test_a_damaged_file_is_the_same_as_no_facts(folder, damaged) -> None:
    folder.write_bytes(FACTS_FILE, damaged)
    assert difference_of(folder, "x/1", "x/2") == ""

    add_facts(folder, {"x/8": MANY, "x/9": FEW})
    assert difference_of(folder, "x/8", "x/9") == "10 rows instead of 1,000"


def test_only_the_first_of_many_columns_are_named() -> None:
    wide = InMemoryFacts(10, {"a": "text", **{f"c{i}": "int64" for i in range(9)}})
    typed = InMemoryFacts(10, dict.fromkeys(wide.columns, "float32"))

    assert (
        difference(FEW, wide)
        == "it has new columns 'c0', 'c1', 'c2', ...; 'a' is text instead of int64"
    )
    assert difference(wide, FEW).startswith(
        "it lacks the columns 'c0', 'c1', 'c2', ...; 'a' is int64"
    )
    assert difference(wide, typed).endswith("'c1' is float32 instead of int64; ...")
