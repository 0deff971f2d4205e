"""Files become record files: in parallel, again only where something changed, never in halves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import fsspec
import numpy as np
import psutil
import pytest

from elasticdl.data import prepare_part, recordio
from elasticdl.data.find_files import find_files
from elasticdl.data.index_file import INDEX_FILE, find_index
from elasticdl.data.prepare import PartPreparation, prepare_data
from elasticdl.data.prepare_part import arguments_of
from elasticdl.data.prepare_plan import Input, Settings, plan_parts
from elasticdl.data.schema import Schema
from elasticdl.data.sources import open_source
from elasticdl.errors import (
    DataError,
    DefinitionError,
    NoDataError,
    OutputBusyError,
    OutputTakenError,
    SchemaError,
    UsageError,
    UserCodeError,
)

SCHEMA = Schema.from_user(
    [
        {"name": "value", "shape": [1], "dtype": "int64"},
        {"name": "folder", "shape": [1], "dtype": "string"},
    ]
)


def one_record(filename):
    """Return the number in a file, and its folder, which is how pictures say their label."""
    return int(Path(filename).read_text()), Path(filename).parent.name


def several_records(filename):
    for number in range(int(Path(filename).read_text())):
        yield number, "several"


def by_file_object(file_object, filename):
    return {"value": int(file_object.read()), "folder": filename.rpartition("/")[2]}


def by_file_object_turned_round(name, fileobj):
    return by_file_object(fileobj, name)


def serialized(filename):
    return [SCHEMA.encode((int(Path(filename).read_text()), "x"))] * 2


def none_at_all(filename):
    return []


def fails_at_seven(filename):
    if Path(filename).read_text() == "7":
        raise ValueError("Seven is not a number I like.")
    return one_record(filename)


def fails_late(filename):
    yield 1, "x"
    raise ValueError("Later.")


def first_fails_while_others_go_on(filename):
    path = Path(filename)
    if path.name == "00.txt":
        while not list(path.parent.parent.glob("*/*.seen")):
            time.sleep(0.01)
        raise ValueError("First.")
    path.with_suffix(".seen").touch()
    time.sleep(0.5)
    return one_record(filename)


def too_long_text(filename):
    return 1, ["a", "b"]


def nothing(filename):
    return None


def list_as_a_record(filename):
    return [1, "x"]


def dies(filename):
    os.kill(os.getpid(), signal.SIGKILL)


def slow(filename):
    time.sleep(0.05)
    return one_record(filename)


def preparation(function, code="1", model="model"):
    return PartPreparation(function, SCHEMA, "model.py:7", model, code)


@pytest.fixture
def numbers(tmp_path):
    """Return a folder with 40 files, each with its number in it."""
    for i in range(40):
        path = tmp_path / "in" / f"class{i % 2}" / f"{i:02}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(i))
    return tmp_path / "in"


def prepare(numbers, output, function=one_record, **options):
    options = {"num_processes": 1} | options
    code, model = options.pop("code", "1"), options.pop("model", "model")
    return prepare_data(
        partial(preparation, function, code, model), f"{numbers}/*/*.txt", str(output), **options
    )


def values(output):
    source = open_source(f"{output}/*.recordio")
    return [record["value"].item() for record in source.read_records(0, source.num_records, SCHEMA)]


def processes_of_session(session):
    return [
        other.pid for other in psutil.process_iter() if other.is_running() and sid(other) == session
    ]


def sid(process):
    try:
        return os.getsid(process.pid)
    except ProcessLookupError:
        return None


def content(output):
    return {path.name: path.read_bytes() for path in Path(output).glob("part-*")}


# --- what is made --------------------------------------------------------------------------------


def test_every_file_becomes_a_record(numbers, tmp_path):
    prepared = prepare(numbers, tmp_path / "out")

    source = open_source(str(tmp_path / "out"))
    records = source.read_records(0, 40, SCHEMA)
    assert prepared.num_records == 40
    assert {(record["value"].item(), record["folder"].item()) for record in records} == {
        (i, f"class{i % 2}".encode()) for i in range(40)
    }
    assert [file.uri for file in prepared.files] == sorted(content(tmp_path / "out"))


def test_processes_write_the_same_bytes_as_one(numbers, tmp_path):
    prepare(numbers, tmp_path / "one", num_processes=1)

    prepared = prepare(numbers, tmp_path / "two", num_processes=2)

    assert prepared.num_made_parts > 2
    assert content(tmp_path / "one") == content(tmp_path / "two")


def test_the_seed_determines_the_order_of_shuffled_records(numbers, tmp_path):
    for name, seed in {"a": 0, "b": 0, "c": 1}.items():
        prepare(numbers, tmp_path / name, seed=seed)

    orders = [values(tmp_path / name) for name in "abc"]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[2]) == list(range(40)) != orders[2]


def test_shuffling_changes_the_order_within_one_input(tmp_path):
    (tmp_path / "in" / "a").mkdir(parents=True)
    (tmp_path / "in" / "a" / "b.txt").write_text("100")

    prepare(tmp_path / "in", tmp_path / "out", several_records)

    assert sorted(values(tmp_path / "out")) == list(range(100)) != values(tmp_path / "out")


def test_unshuffled_records_are_in_the_order_of_the_file_names(numbers, tmp_path):
    prepare(numbers, tmp_path / "out", shuffle=False)

    assert values(tmp_path / "out") == [*range(0, 40, 2), *range(1, 40, 2)]


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_file_has_at_most_the_allowed_number_of_records(numbers, tmp_path, shuffle):
    prepared = prepare(
        numbers, tmp_path / "out", several_records, records_per_file=8, shuffle=shuffle
    )

    assert max(file.num_records for file in prepared.files) == 8
    assert sorted(values(tmp_path / "out")) == sorted(n for i in range(40) for n in range(i))
    if not shuffle:
        order = [*range(0, 40, 2), *range(1, 40, 2)]
        assert values(tmp_path / "out") == [n for i in order for n in range(i)]


def test_a_file_is_closed_before_its_records_fill_the_memory(numbers, tmp_path, monkeypatch):
    monkeypatch.setattr(prepare_part, "_MAX_FILE_BYTES", 200)

    prepared = prepare(numbers, tmp_path / "out", several_records)

    assert len(prepared.files) > 16
    assert len(values(tmp_path / "out")) == sum(range(40))


@pytest.mark.parametrize("function", [by_file_object, by_file_object_turned_round])
def test_a_function_can_receive_a_file_object(numbers, tmp_path, function):
    prepare(numbers, tmp_path / "out", function)

    assert sorted(values(tmp_path / "out")) == list(range(40))


def test_functions_may_return_serialized_records(numbers, tmp_path):
    prepare(numbers, tmp_path / "out", serialized)

    assert sorted(values(tmp_path / "out")) == sorted([*range(40), *range(40)])


@pytest.mark.parametrize("compressor", ["none", "snappy", "gzip"])
def test_files_are_compressed_as_requested(numbers, tmp_path, compressor):
    prepared = prepare(numbers, tmp_path / "out", compressor=compressor)

    source = open_source(str(tmp_path / "out"))
    chunks = [chunk for i in range(len(prepared.files)) for chunk in source.chunks(i)]
    assert {chunk.compressor for chunk in chunks} == {compressor}


def test_a_folder_stands_for_all_its_files(numbers, tmp_path):
    (numbers / ".hidden").write_text("41")

    prepare_data(partial(preparation, one_record), str(numbers), f"{tmp_path}/out", num_processes=1)

    assert sorted(values(tmp_path / "out")) == list(range(40))


def test_progress_counts_input_files(numbers, tmp_path):
    seen = []

    prepare(numbers, tmp_path / "out", num_processes=2, on_progress=seen.append)

    assert seen[0].num_done == 0
    assert seen[-1].num_done == seen[-1].num_inputs == 40
    assert [progress.num_done for progress in seen] == sorted(p.num_done for p in seen)


def test_a_remote_input_is_copied_into_folders_with_the_same_names(tmp_path):
    system = fsspec.filesystem("memory")
    for i in range(3):
        system.pipe(f"/bucket/in/class{i}/{i}.txt", str(i).encode())
    try:
        prepare_data(
            partial(preparation, one_record),
            "memory://bucket/in/*/*.txt",
            "memory://bucket/out",
            num_processes=1,
        )

        source = open_source("memory://bucket/out")
        records = source.read_records(0, 3, SCHEMA)
        again = prepare_data(
            partial(preparation, one_record),
            "memory://bucket/in/*/*.txt",
            "memory://bucket/out",
            num_processes=1,
        )
    finally:
        system.store.clear()
        system.pseudo_dirs[:] = [""]
    assert {(record["value"].item(), record["folder"].item()) for record in records} == {
        (i, f"class{i}".encode()) for i in range(3)
    }
    assert (again.num_kept_parts, again.num_made_parts) == (3, 0)


def test_prepared_files_are_opened_from_their_index(numbers, tmp_path, monkeypatch):
    prepare(numbers, tmp_path / "out")
    monkeypatch.setattr(recordio, "_open", None)

    assert sorted(values(tmp_path / "out")) == [*range(40)]


# --- again ---------------------------------------------------------------------------------------


def test_repeating_the_command_makes_nothing(numbers, tmp_path):
    first = prepare(numbers, tmp_path / "out")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("part-*")}

    again = prepare(numbers, tmp_path / "out", nothing)

    assert (again.num_kept_parts, again.num_made_parts) == (first.num_made_parts, 0)
    assert again.files == first.files
    assert before == {path: path.stat().st_mtime_ns for path in before}


def test_only_the_part_of_a_changed_input_is_rebuilt(numbers, tmp_path):
    prepare(numbers, tmp_path / "out")
    (numbers / "class1" / "07.txt").write_text("700")

    again = prepare(numbers, tmp_path / "out")

    assert again.num_made_parts == 1
    assert sorted(values(tmp_path / "out")) == sorted({*range(40), 700} - {7})
    assert find_index(find_files(str(tmp_path / "out"))).num_records == 40


def test_a_missing_index_is_written(numbers, tmp_path):
    prepare(numbers, tmp_path / "out")
    (tmp_path / "out" / INDEX_FILE).unlink()

    again = prepare(numbers, tmp_path / "out")

    assert again.num_made_parts == 0
    assert find_index(find_files(str(tmp_path / "out"))).num_records == 40


def test_a_missing_or_truncated_file_is_rebuilt(numbers, tmp_path):
    prepare(numbers, tmp_path / "out")
    before = content(tmp_path / "out")
    lost, short, *_ = sorted((tmp_path / "out").glob("part-*"))
    lost.unlink()
    short.write_bytes(b"")

    again = prepare(numbers, tmp_path / "out")

    assert again.num_made_parts == 2
    assert content(tmp_path / "out") == before


@pytest.mark.parametrize(
    "change", [{"seed": 1}, {"shuffle": False}, {"records_per_file": 2}, {"compressor": "none"}]
)
def test_another_setting_replaces_all_files(numbers, tmp_path, change):
    prepare(numbers, tmp_path / "out")
    prepare(numbers, tmp_path / "fresh", **change)

    prepare(numbers, tmp_path / "out", **change)

    assert content(tmp_path / "out") == content(tmp_path / "fresh")


def test_another_model_file_rebuilds_everything(numbers, tmp_path):
    prepare(numbers, tmp_path / "out")

    assert prepare(numbers, tmp_path / "out", model="other").num_kept_parts == 0


def test_files_of_deleted_inputs_are_removed(numbers, tmp_path):
    prepare(numbers, tmp_path / "out", records_per_file=1)
    for path in (numbers / "class0").iterdir():
        path.unlink()

    again = prepare(numbers, tmp_path / "out", records_per_file=1)

    assert sorted(values(tmp_path / "out")) == list(range(1, 40, 2))
    assert len(again.files) == len(content(tmp_path / "out")) == 20
    assert len(list((tmp_path / "out" / ".prepare").glob("part-*"))) == 20


def test_parts_of_other_code_are_kept_unless_overwritten(numbers, tmp_path):
    first = prepare(numbers, tmp_path / "out", code="1")

    kept = prepare(numbers, tmp_path / "out", code="2")
    made = prepare(numbers, tmp_path / "out", code="2", overwrite=True)

    assert kept.num_kept_of_other_code == first.num_made_parts
    assert (made.num_made_parts, made.num_kept_of_other_code) == (first.num_made_parts, 0)


# --- what goes wrong -----------------------------------------------------------------------------


@pytest.mark.parametrize("num_processes", [1, 2])
def test_an_error_names_its_file_and_keeps_finished_parts(numbers, tmp_path, num_processes):
    message = (
        r"(?s)^\S*test_prepare\.py:\d+: prepare_data_for_a_single_file\(\) raised for the file "
        r".*class1/07\.txt"
        r".*in fails_at_seven.*ValueError: Seven is not a number I like\."
    )
    with pytest.raises(UserCodeError, match=message) as caught:
        prepare(
            numbers, tmp_path / "out", fails_at_seven, shuffle=False, num_processes=num_processes
        )
    assert "prepare_part.py" not in str(caught.value)
    finished = content(tmp_path / "out")
    assert finished
    with pytest.raises(DataError, match="is not complete"):
        open_source(str(tmp_path / "out"))

    again = prepare(numbers, tmp_path / "out", one_record, shuffle=False)

    assert again.num_kept_parts == len(finished) >= 1
    assert sorted(values(tmp_path / "out")) == list(range(40))


def test_other_processes_stop_after_their_current_file(numbers, tmp_path):
    with pytest.raises(UserCodeError, match="ValueError: First"):
        prepare(
            numbers,
            tmp_path / "out",
            first_fails_while_others_go_on,
            shuffle=False,
            num_processes=2,
        )

    # The other one had three files to prepare, and many parts after that.
    assert len(list(numbers.glob("*/*.seen"))) < 3


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (fails_late, UserCodeError, "ValueError: Later"),
        (too_long_text, SchemaError, r"00\.txt, field 'folder': has shape \[2\]; data_schema"),
        (nothing, DefinitionError, "returned None for .*00.txt; expected one record, as a tuple"),
        (list_as_a_record, DefinitionError, "record 0 is 1; .* return a tuple"),
        (none_at_all, NoDataError, "returned no records for any of the 40 files"),
    ],
)
def test_an_invalid_record_is_refused_with_its_file(numbers, tmp_path, function, error, message):
    with pytest.raises(error, match=message):
        prepare(numbers, tmp_path / "out", function, shuffle=False)

    assert content(tmp_path / "out") == {} or function is none_at_all


def test_a_process_that_dies_raises_instead_of_hanging(numbers, tmp_path):
    with pytest.raises(UserCodeError, match="died without an error message: .*--num_processes=1"):
        prepare(numbers, tmp_path / "out", dies, num_processes=2)


def test_missing_input_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(NoDataError, match="there is no folder|has no 'nothing'"):
        prepare(tmp_path / "nothing", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_with_other_files_is_left_alone(numbers, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "part-00000-of-00001.recordio").write_text("mine")

    with pytest.raises(OutputTakenError, match=r"not prepared by this command \(part-00000"):
        prepare(numbers, tmp_path / "out")
    assert (tmp_path / "out" / "part-00000-of-00001.recordio").read_text() == "mine"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_processes": 0}, "--num_processes=0: expected 1 or more"),
        ({"records_per_file": 0}, "--records_per_file=0: expected 1 or more"),
        ({"seed": -1}, "--seed=-1: expected 0 or more"),
        ({"compressor": "zip"}, "--compressor=zip: expected one of none, snappy, gzip"),
    ],
)
def test_an_invalid_option_is_refused(numbers, tmp_path, options, message):
    with pytest.raises(UsageError, match=message):
        prepare(numbers, tmp_path / "out", **options)


def test_a_killed_run_leaves_only_complete_files_and_can_be_resumed(numbers, tmp_path):
    code = (
        "import sys; sys.path.insert(0, {!r})\n"
        "if __name__ == '__main__':\n"
        "    import test_prepare as t\n"
        "    t.prepare({!r}, {!r}, t.slow, num_processes=2, records_per_file=2)\n"
    ).format(str(Path(__file__).parent), str(numbers), str(tmp_path / "out"))
    script = tmp_path / "script.py"
    script.write_text(code)
    with subprocess.Popen([sys.executable, script], start_new_session=True) as process:
        deadline = time.monotonic() + 60
        while len(content(tmp_path / "out")) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        with pytest.raises(OutputBusyError, match="another `elasticdl data prepare` is running"):
            prepare(numbers, tmp_path / "out")
        process.kill()
    while (alive := processes_of_session(process.pid)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive
    left = content(tmp_path / "out")
    assert 3 <= len(left) < 20

    again = prepare(numbers, tmp_path / "out", records_per_file=2)

    assert again.num_kept_parts >= 2
    assert sorted(values(tmp_path / "out")) == list(range(40))
    assert not list((tmp_path / "out").glob(".part-*"))


# --- how functions are called, how files are dealt -----------------------------------------------


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda filename: 0, ("filename",)),
        (lambda anything: 0, ("filename",)),
        (lambda file_object: 0, ("file_object",)),
        (lambda file_object, filename: 0, ("file_object", "filename")),
        (lambda filename, file_object: 0, ("filename", "file_object")),
        (lambda filename, size=3, *, mode=1, **more: 0, ("filename",)),
    ],
)
def test_argument_names_determine_what_a_function_gets(function, expected):
    assert arguments_of(preparation(function)) == expected


@pytest.mark.parametrize(
    "function", [lambda: 0, lambda a, b: 0, lambda filename, label: 0, lambda a, b, c: 0]
)
def test_a_function_with_unknown_arguments_is_refused(function):
    with pytest.raises(
        DefinitionError, match=r"model\.py:7: .*expected \(filename\), or \(file_obj"
    ):
        arguments_of(preparation(function))


@pytest.mark.parametrize(
    ("num_inputs", "records_per_file", "sizes"),
    [(1, 4096, [1]), (5, 4096, [1] * 5), (40, 4096, [3] * 13 + [1]), (40, 2, [2] * 20)],
)
def test_parts_suit_many_processes_and_fit_into_a_file(num_inputs, records_per_file, sizes):
    inputs = [Input(str(i), "1") for i in range(num_inputs)]

    parts = plan_parts(inputs, Settings("", "f", records_per_file, True, 0, "none"))

    assert [len(part.inputs) for part in parts] == sizes
    assert sorted(file.uri for part in parts for file in part.inputs) == sorted(
        file.uri for file in inputs
    )


def test_a_million_files_are_planned_in_seconds():
    inputs = [Input(f"s3://bucket/{i}.png", "1") for i in range(200_000)]

    start = time.monotonic()
    parts = plan_parts(inputs, Settings("", "f", 4096, True, 0, "none"))

    assert len(parts) == 49
    assert time.monotonic() - start < 4
    assert np.mean([len(part.inputs) for part in parts]) > 4000
