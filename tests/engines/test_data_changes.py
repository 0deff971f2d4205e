"""A job does not resume on data that has changed; a finished job says that it has."""

from __future__ import annotations

import gzip
import os
from types import SimpleNamespace

import pytest
from tests.notes import Notes

import elasticdl
from elasticdl.data import content_marks
from elasticdl.data.content_marks import changed_marks
from elasticdl.data.content_marks import content_marks as marks_of
from elasticdl.engines.data_changes import changed_files
from elasticdl.errors import DataError

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
def test_added_removed_and_grown_files_are_changes(now, changed) -> None:
    assert changed_files(now, BEFORE) == changed


@pytest.mark.timeout(30)
def test_a_hundred_thousand_files_are_compared_quickly() -> None:
    before = [(f"part-{i}", 1) for i in range(100_000)]
    now = [(f"part-{i}", 2) for i in range(100_000)]

    assert len(changed_files(now, before)) == 100_000


@pytest.fixture
def train(zoo, tmp_path):
    """Return a function that trains on `data.csv`: -> step, notes about changed data."""
    folder = zoo(FROM_CSV)

    def train(**options):
        notes = Notes()
        outcome = elasticdl.train(
            model_zoo=str(folder), model_def="small", data=str(tmp_path / "data.csv"),
            output=str(tmp_path / "out"), minibatch_size=4, reporter=notes, **options,
        )  # fmt: skip
        changed = [note for note in notes.texts if "changed since then" in note]
        return SimpleNamespace(step=outcome.step, notes=changed)

    return train


FROM_CSV = """
    def data_schema():
        names = ["a", "b", "c", "d"]
        numbers = [{"name": name, "shape": [], "dtype": "float32"} for name in names]
        return [*numbers, {"name": "label", "shape": [], "dtype": "int64"}]


    def input_fn(records):
        x = np.stack([[r[name] for name in ("a", "b", "c", "d")] for r in records])
        return x, np.stack([r["label"] for r in records])
"""


def write_rows(path, label="1"):
    rows = "\n".join(f"{i % 7},{i % 5},{i % 3},1,{i % 3}" for i in range(20))
    path.write_text(f"a,b,c,d,label\n{rows}\n5,4,3,2,{label}\n")


def test_a_resume_on_edited_data_is_refused(train, tmp_path):
    """A corrected label changes neither the number of records nor the size of the file."""
    write_rows(tmp_path / "data.csv")
    train(num_epochs=1)
    write_rows(tmp_path / "data.csv", label="2")

    with pytest.raises(DataError) as caught:
        train(num_epochs=2)

    assert str(caught.value) == (
        f"The data differs from the data of the first 6 steps: {tmp_path / 'data.csv'} has other "
        "contents. To train on the changed data, use another output=."
    )


def test_added_and_removed_columns_are_named(train, tmp_path):
    test = tmp_path / "test.csv"
    write_rows(tmp_path / "data.csv")
    rows = "1,2,1,1,1,0\n" * 20
    test.write_text(f"a,b,c,d,label,old\n{rows}")
    options = {"validation_data": str(test)}
    train(**options, num_epochs=1)
    test.write_text(f"a,b,c,d,label,new\n{rows}")

    with pytest.raises(DataError) as caught:
        train(**options, num_epochs=2)

    assert f"{test} has other contents (columns added: 'new'; removed: 'old')." in str(caught.value)


def test_a_resume_on_rewritten_data_is_not_refused(train, tmp_path):
    data = tmp_path / "data.csv"
    write_rows(data)
    train(num_epochs=1)
    data.unlink()
    write_rows(data)
    os.utime(data, (0, 0))

    assert train(num_epochs=2).notes == []


def test_a_finished_training_reports_edited_data(train, tmp_path):
    data = tmp_path / "data.csv"
    write_rows(data)
    assert train().notes == []
    assert train().notes == []
    write_rows(data, label="0")

    (note,) = train().notes
    assert note == (
        f"{data} has changed since then: the model was trained on the old contents. To train on "
        "the new ones, use another output=."
    )
    data.unlink()
    assert train().notes == []


def test_a_resume_on_data_with_fewer_records_names_their_number(train, tmp_path):
    data = tmp_path / "data.csv"
    write_rows(data)
    train(num_epochs=1)
    data.write_text("".join(data.read_text().splitlines(keepends=True)[:11]))

    with pytest.raises(DataError, match=r"data\.csv has 10 records instead of 21\. To train on"):
        train(num_epochs=2)


@pytest.mark.parametrize(
    ("first", "then"), [({"max_steps": 3}, {}), ({"num_epochs": 1}, {"num_epochs": 2})]
)
def test_a_resume_on_edited_validation_data_is_refused(train, tmp_path, first, then):
    test = tmp_path / "test.csv"
    write_rows(tmp_path / "data.csv")
    write_rows(test)
    step = train(validation_data=str(test), **first).step
    begin = f"The validation data differs from the validation data of the first {step} steps: "
    end = " To validate on the changed data, use another output=."

    write_rows(test, label="2")
    with pytest.raises(DataError) as caught:
        train(validation_data=str(test), **then)
    assert str(caught.value) == f"{begin}{test} has other contents.{end}"

    test.write_text("".join(test.read_text().splitlines(keepends=True)[:11]))
    with pytest.raises(DataError) as caught:
        train(validation_data=str(test), **then)
    assert str(caught.value) == f"{begin}{test} has 10 records instead of 21.{end}"

    write_rows(test)
    os.utime(test, (0, 0))
    assert train(validation_data=str(test), **then).notes == []


def test_workers_do_not_resume_on_edited_validation_data(train, tmp_path):
    test = tmp_path / "test.csv"
    write_rows(tmp_path / "data.csv")
    write_rows(test)
    train(validation_data=str(test), num_epochs=1)
    write_rows(test, label="2")

    with pytest.raises(DataError, match=r"The validation data differs .*test\.csv has other"):
        train(validation_data=str(test), num_epochs=2, num_workers=2)


def test_a_file_that_was_added_to_the_validation_data_is_named(train, tmp_path):
    write_rows(tmp_path / "data.csv")
    folder = tmp_path / "test"
    folder.mkdir()
    write_rows(folder / "a.csv")
    train(validation_data=str(folder), num_epochs=1)
    write_rows(folder / "b.csv")

    with pytest.raises(DataError, match=r"1 file was added .*\(.*b\.csv\)"):
        train(validation_data=str(folder), num_epochs=2)


def test_a_finished_training_reports_edited_validation_data(train, tmp_path):
    test = tmp_path / "test.csv"
    write_rows(tmp_path / "data.csv")
    write_rows(test)
    assert train(validation_data=str(test)).notes == []
    write_rows(test, label="0")

    (note,) = train(validation_data=str(test)).notes
    assert note == (
        f"{test} has changed since then: the model was validated on the old contents. To validate "
        "on the new ones, use another output=."
    )


def test_a_gzip_file_is_identified_by_its_content(tmp_path):
    path = tmp_path / "a.csv.gz"
    marks = []
    for text, time in [(b"1,2\n", 1), (b"1,2\n", 2), (b"1,3\n", 2)]:
        path.write_bytes(gzip.compress(text, mtime=time))
        marks += marks_of([str(path)])

    assert marks[0] == marks[1] != marks[2]


@pytest.mark.parametrize("at", [0, 46_000, 99_999])
def test_the_start_the_middle_and_the_end_of_a_large_file_are_compared(tmp_path, monkeypatch, at):
    monkeypatch.setattr(content_marks, "_BUDGET_BYTES", 40_000)
    path = tmp_path / "large"
    contents = bytearray(100_000)
    path.write_bytes(contents)
    before = marks_of([str(path)])
    contents[at] = 1
    path.write_bytes(contents)

    assert changed_marks(marks_of([str(path)]), before) == [0]


def test_only_sizes_of_very_many_files_are_compared(tmp_path, monkeypatch):
    monkeypatch.setattr(content_marks, "MAX_FILES", 2)
    paths = [tmp_path / name for name in "abc"]
    for path in paths:
        path.write_bytes(b"same")
    before = marks_of(list(map(str, paths)))
    assert len(before) == 1
    assert changed_marks(marks_of(list(map(str, paths))), before) == []
    paths[1].write_bytes(b"other")

    assert changed_marks(marks_of(list(map(str, paths))), before) == [0]


def test_a_missing_file_equals_anything(tmp_path):
    path = tmp_path / "a"
    missing = marks_of([str(path)])
    path.write_bytes(b"there now")

    assert missing == [""]
    assert changed_marks(marks_of([str(path)]), missing) == []
    assert changed_marks(missing, marks_of([str(path)])) == []
