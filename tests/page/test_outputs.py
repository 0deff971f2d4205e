"""Outputs: where they are, and logs that grow, are cut, damaged or of a newer version."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import time

import pytest
from tests.page.conftest import (
    T0,
    as_log,
    elastic_events,
    elastic_job,
    finished_events,
    started,
    step,
    write_output,
)

from elasticdl.artifacts.folder import OutputFolder
from elasticdl.errors import OutputError
from elasticdl.page.log_reader import LogReader
from elasticdl.page.outputs import WatchedOutput, find_outputs
from elasticdl.page.view import view


def read(reader) -> list[tuple[bytes, int, bool]]:
    return [(piece.data, piece.offset, piece.is_new_log) for piece in reader.read()]


def test_only_appended_complete_lines_are_read(tmp_path) -> None:
    log = tmp_path / "events.jsonl"
    reader = LogReader(OutputFolder(tmp_path))

    assert read(reader) == []
    log.write_bytes(b"one\ntw")
    assert read(reader) == [(b"one\n", 0, False)]
    assert read(reader) == []
    log.write_bytes(b"one\ntwo\nthree\n")
    assert read(reader) == [(b"two\nthree\n", 4, False)]


@pytest.mark.parametrize("content", [b"other\nthings\nand more\n", b"one\n", b""])
def test_a_rewritten_log_is_read_from_its_start(tmp_path, content) -> None:
    log = tmp_path / "events.jsonl"
    log.write_bytes(b"one\ntwo\nthree\n")
    reader = LogReader(OutputFolder(tmp_path))
    read(reader)
    log.write_bytes(content)

    assert read(reader) == [(content, 0, True)]


def test_a_log_in_pieces_is_read_completely(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("elasticdl.page.log_reader._CHUNK_BYTES", 5)
    (tmp_path / "events.jsonl").write_bytes(b"one\nlonger than a piece\nthree\n")

    pieces = read(LogReader(OutputFolder(tmp_path)))

    assert b"".join(data for data, _, _ in pieces) == b"one\nlonger than a piece\nthree\n"
    assert [offset for _, offset, _ in pieces] == [0, 4, 24]


def test_a_pipe_is_refused_without_waiting(tmp_path) -> None:
    os.mkfifo(tmp_path / "events.jsonl")

    with pytest.raises(OutputError, match=r"events\.jsonl: .* it is a pipe"):
        read(LogReader(OutputFolder(tmp_path)))


def test_a_removed_log_is_reported_and_its_events_are_kept(tmp_path) -> None:
    output = write_output(tmp_path / "job", finished_events())
    watched = WatchedOutput(OutputFolder(output), "job")
    watched.refresh()
    shutil.rmtree(output)
    watched._looked_s = -1e9
    watched.refresh()
    shown = view(watched.history, watched.facts(), T0 + 30)

    assert shown["head"]["step"] == 15
    assert any("no longer there" in note for note in shown["head"]["notes"])


def test_a_compressed_log_is_reported_with_advice(tmp_path) -> None:
    (tmp_path / "events.jsonl").write_bytes(gzip.compress(as_log(finished_events())))

    with pytest.raises(OutputError, match="compressed with gzip. Decompress it with gunzip"):
        read(LogReader(OutputFolder(tmp_path)))


def test_an_overlong_line_is_named_and_earlier_events_are_read(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("elasticdl.page.log_reader._CHUNK_BYTES", 1000)
    monkeypatch.setattr("elasticdl.page.log_reader._LONGEST_LINE_BYTES", 50_000)
    output = write_output(tmp_path / "job", finished_events())
    with (output / "events.jsonl").open("ab") as log:
        size = log.tell()
        log.write(b"[" * 100_000)
    watched = WatchedOutput(OutputFolder(output), "job")
    watched.refresh()
    shown = view(watched.history, watched.facts(), T0 + 30)

    assert shown["head"]["step"] == 15
    assert any(f"the line at byte {size:,} is longer" in note for note in shown["head"]["notes"])


def test_a_costly_page_is_rendered_less_often(output, monkeypatch) -> None:
    made = []

    def costly(*_):
        made.append(1)
        until = time.thread_time() + 0.05
        while time.thread_time() < until:
            pass
        return {"head": len(made)}

    monkeypatch.setattr("elasticdl.page.outputs.view", costly)
    watched = WatchedOutput(OutputFolder(output), "job")
    until = time.monotonic() + 1.2
    while time.monotonic() < until:
        assert watched.sections() == {"head": 1}
        assert watched.texts() == {"head": "1"}

    assert len(made) == 1


def test_single_and_nested_outputs_are_found(tmp_path) -> None:
    write_output(tmp_path / "runs" / "a" / "training", finished_events())
    write_output(tmp_path / "runs" / "b", finished_events())
    (tmp_path / "runs" / "b" / "zoo").mkdir()
    (tmp_path / "runs" / "b" / "zoo" / "job.json").write_text("{}")
    (tmp_path / "notes.txt").write_text("a file")

    assert list(find_outputs(str(tmp_path / "runs" / "b"))) == ["b"]
    assert list(find_outputs(str(tmp_path))) == ["runs/a/training", "runs/b"]


@pytest.mark.parametrize("what", ["missing", "empty", "file"])
def test_a_place_without_a_job_is_refused_with_advice(tmp_path, what) -> None:
    place = tmp_path / what
    if what == "empty":
        place.mkdir()
    elif what == "file":
        place.write_text("x")

    with pytest.raises(OutputError, match="was passed as --output") as refused:
        find_outputs(str(place))
    assert str(place) in str(refused.value)


def test_an_object_store_is_read_like_a_disk(monkeypatch) -> None:
    monkeypatch.setattr("elasticdl.page.outputs._MIN_REMOTE_PAUSE_S", 0.0)
    folder = OutputFolder("memory://page/runs/one")
    folder.write_bytes("events.jsonl", as_log(finished_events()[:5]))
    folder.write_bytes("job.json", elastic_job("memory://page/runs/one").to_json().encode())
    (found,) = find_outputs("memory://page/runs").values()
    watched = WatchedOutput(found, "one")
    watched.refresh()
    before = watched.history.step
    folder.write_bytes("events.jsonl", as_log(finished_events()))
    watched.refresh()

    assert (before, watched.history.step) == (2, 15)
    assert "object store" in watched.facts().notes[0]


def test_a_manually_edited_log_shows_readable_events(tmp_path) -> None:
    output = write_output(tmp_path / "job", elastic_events())
    log = output / "events.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    lines[5] = b'{"event": "step_committed", "time": \n'
    lines[7] = b"\x00\x01\n"
    log.write_bytes(b"".join(lines)[:-20])
    watched = WatchedOutput(OutputFolder(output), "job")
    watched.refresh()
    shown = view(watched.history, watched.facts(), T0 + 30)

    assert shown["head"]["num_damaged"] == 2
    assert shown["head"]["step"] == 15


def test_a_job_of_a_newer_version_is_shown(tmp_path) -> None:
    output = write_output(tmp_path / "job", elastic_events())
    values = json.loads((output / "job.json").read_text())
    (output / "job.json").write_text(json.dumps({**values, "dreams": {"kind": "electric"}}))
    with (output / "events.jsonl").open("ab") as log:
        log.write(b'{"event": "worker_dreamt", "time": 1700000030.0, "rank": 1, "step": 15}\n')
        log.write(as_log([step(16, at=31)]))
    watched = WatchedOutput(OutputFolder(output), "job")
    watched.refresh()
    shown = view(watched.history, watched.facts(), T0 + 32)

    assert shown["head"]["num_unknown"] == 1
    assert shown["head"]["step"] == 16
    assert shown["about"]["definition"]["dreams"] == {"kind": "electric"}
    assert any("another version" in note for note in shown["head"]["notes"])


def test_a_damaged_definition_loses_only_the_definition(tmp_path) -> None:
    output = write_output(tmp_path / "job", finished_events())
    (output / "job.json").write_text("[1, 2")
    watched = WatchedOutput(OutputFolder(output), "job")
    watched.refresh()
    shown = view(watched.history, watched.facts(), T0 + 32)

    assert shown["about"]["definition"] == {}
    assert shown["head"]["state"] == "finished"
    assert "damaged" in shown["head"]["notes"][0]


def test_reports_of_a_job_and_of_its_session_are_found(tmp_path) -> None:
    output = write_output(tmp_path / "run" / "training", [started()])
    (output / "report").mkdir()
    (output / "report" / "report.html").write_text("<p>one</p>")
    (tmp_path / "run" / "reports").mkdir()
    (tmp_path / "run" / "reports" / "test.html").write_text("<p>two</p>")
    watched = WatchedOutput(OutputFolder(output), "training")

    assert set(watched.facts().reports) == {"report", "test"}
    assert watched.read_report("report") == b"<p>one</p>"
    assert watched.read_report("test") == b"<p>two</p>"
    with pytest.raises(OutputError, match="no report"):
        watched.read_report("../../job")
