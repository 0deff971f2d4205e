"""`elasticdl data prepare`: many input files become record files, in parallel processes.

    input files --plan--> parts --kept if up to date--> made by processes --> output, its index
                                                            |
                                     a function raised: the others stop, finished parts stay

Every record file appears whole or not at all, and each finished part is put into the manifest:
the same command again makes only what is missing. Until all parts are there, the output is
marked as not complete, and nobody trains on it by mistake.

How the user's function is found is not known here: `load` is given, and called again in every
process.

Callers: `cli/data.py`.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import fcntl
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from elasticdl.data.find_files import find_any_files
from elasticdl.data.index_file import INDEX_FILE, write_index_files
from elasticdl.data.prepare_part import Failure, Preparation, arguments_of, make_part
from elasticdl.data.prepare_plan import (
    MANIFEST,
    Entry,
    Input,
    Output,
    Part,
    Settings,
    leftovers,
    plan_parts,
    read_entry,
    write_entry,
)
from elasticdl.data.recordio import COMPRESSORS, Compressor, RecordIOSource
from elasticdl.data.sources import INCOMPLETE_MARK
from elasticdl.data.stored_file import filesystem, local_path, open_each, open_stored
from elasticdl.errors import (
    NoDataError,
    OutputBusyError,
    OutputError,
    OutputTakenError,
    UsageError,
    UserCodeError,
)

if TYPE_CHECKING:
    from elasticdl.data.record_source import RecordFile

__all__ = ["Preparation", "PreparedData", "Progress", "prepare_data"]

Load: TypeAlias = Callable[[], Preparation]

DEFAULT_RECORDS_PER_FILE = 4096

_LOCK = f"{MANIFEST}/lock"
_POLL_S = 0.2


@dataclass(frozen=True)
class Progress:
    """How far it is.

    Attributes:
        num_done: Input files that are prepared.
        num_inputs: Input files in all.
    """

    num_done: int
    num_inputs: int


@dataclass(frozen=True)
class PreparedData:
    """What is in the output now.

    Attributes:
        files: The record files, in order; names within the output.
        num_kept_parts: Parts that were up to date and were kept.
        num_made_parts: Parts that were made.
        num_kept_of_other_code: Of those that were kept, how many an earlier version of the
            user's file made.
    """

    files: tuple[RecordFile, ...]
    num_kept_parts: int
    num_made_parts: int
    num_kept_of_other_code: int

    @property
    def num_records(self) -> int:
        """How many records there are in all files."""
        return sum(file.num_records for file in self.files)


def _ignore(progress: Progress) -> None:
    del progress


def prepare_data(
    load: Load,
    inputs: str,
    output: str,
    *,
    num_processes: int | None = None,
    records_per_file: int = DEFAULT_RECORDS_PER_FILE,
    shuffle: bool = True,
    seed: int = 0,
    compressor: Compressor = "snappy",
    overwrite: bool = False,
    on_progress: Callable[[Progress], None] = _ignore,
) -> PreparedData:
    """Run a user's function over files and write what it returns as RecordIO files.

    Args:
        load: Returns the function and the schema. Called in every process, so it must be a
            function of a module, or a `functools.partial` of one.
        inputs: Names of files, folders (all files in them) or patterns.
        output: The folder to write.
        num_processes: How many processes; None is one for each core.
        records_per_file: At most so many records in a file.
        shuffle: Put the records in random order: the input files first, then the records of
            each record file. Without, they are in the order of the files' names.
        seed: Decides the order.
        compressor: Of the record files: `none`, `snappy` or `gzip`.
        overwrite: Make all parts, also those that are up to date.
        on_progress: Called now and then with how far it is.

    Raises:
        UsageError: An option has an impossible value.
        NoDataError: No input file, or none of them gave a record.
        UserCodeError: The function raised, or its process died; names the file.
        DefinitionError: The function cannot be called, or returned no record.
        SchemaError: A record does not fit the schema; names the file.
        OutputTakenError: The output holds other files.
        OutputBusyError: Another process prepares data there.
        OutputError: The output cannot be written.
    """
    if num_processes is None:
        num_processes = len(os.sched_getaffinity(0))
    _check_options(num_processes, records_per_file, seed, compressor)
    found = open_each(find_any_files(inputs), _versioned)
    preparation = load()
    arguments_of(preparation)
    settings = Settings(
        preparation.schema.to_json(),
        preparation.model,
        records_per_file,
        shuffle,
        seed,
        compressor,
    )
    parts = plan_parts(found, settings)
    target = Output(output)
    with _claimed(target):
        entries: dict[str, Entry] = {}
        if not overwrite:
            for part in parts:
                if (entry := read_entry(target, part)) is not None:
                    entries[part.name] = entry
        kept = list(entries.values())
        todo = [part for part in parts if part.name not in entries]
        stale = list(leftovers(target, parts, kept))
        if todo or stale:
            target.write(INCOMPLETE_MARK, b"`elasticdl data prepare` has not finished here.\n")
        for name in stale:
            target.remove(name)
        num_kept_inputs = len(found) - sum(len(part.inputs) for part in todo)

        def advanced(num_made: int) -> None:
            on_progress(Progress(num_kept_inputs + num_made, len(found)))

        advanced(0)
        work = _Work(load, preparation, settings, target, advanced)
        for part, entry in _made(todo, work, min(num_processes, len(todo))):
            write_entry(target, part, entry)
            entries[part.name] = entry
        files = tuple(file for part in parts for file in entries[part.name].files)
        if not any(file.num_records for file in files):
            raise NoDataError(
                f"{preparation.where}: prepare_data_for_a_single_file() gave no record for any "
                f"of the {len(found)} files ({found[0].uri}, ...)."
            )
        _write_index(target, files, changed=bool(todo or stale))
        target.remove(INCOMPLETE_MARK)
    other_code = sum(entry.code != preparation.code for entry in kept)
    return PreparedData(files, len(kept), len(todo), other_code)


def _write_index(target: Output, files: Sequence[RecordFile], *, changed: bool) -> None:
    """Write where the records of the output lie, unless that is there already."""
    if changed or INDEX_FILE not in target.names():
        source = RecordIOSource([target.where(file.uri) for file in files])
        write_index_files(source.index())


def _check_options(
    num_processes: int, records_per_file: int, seed: int, compressor: Compressor
) -> None:
    for name, value, least in (
        ("num_processes", num_processes, 1),
        ("records_per_file", records_per_file, 1),
        ("seed", seed, 0),
    ):
        if value < least:
            raise UsageError(f"--{name}={value}: expected {least} or more.")
    if compressor not in COMPRESSORS:
        raise UsageError(f"--compressor={compressor}: expected one of {', '.join(COMPRESSORS)}.")


def _versioned(uri: str) -> Input:
    path = local_path(uri)
    if path is not None:
        # A function of the user's will open it, and might wait for ever, or read without end.
        open_stored(uri)
        status = Path(path).stat()
        return Input(uri, f"{status.st_size} {status.st_mtime_ns}")
    system, path = filesystem(uri)
    info = system.info(path)
    tags = [info.get(key) for key in ("size", "ETag", "etag", "md5Hash", "mtime", "LastModified")]
    return Input(uri, " ".join(str(tag) for tag in tags))


@contextlib.contextmanager
def _claimed(output: Output) -> Iterator[None]:
    """Hold the output, which must be empty or have been prepared before.

    Raises:
        OutputTakenError: Something else is there.
        OutputBusyError: Another process holds it.
        OutputError: It cannot be made.
    """
    names = output.names()
    foreign = [name for name in names if not name.startswith(".")]
    if foreign and MANIFEST not in names:
        raise OutputTakenError(
            f"{output.uri} holds files that were not prepared by this command "
            f"({', '.join(foreign[:3])}). Name another --output."
        )
    try:
        output.make_folder(MANIFEST)
    except OSError as error:
        raise OutputError(f"{output.uri} cannot be made: {error.strerror or error}.") from error
    if not output.is_local:
        # Object stores know no locks; files of two runs with equal inputs are equal anyway.
        yield
        return
    # Kept in place: who removed it could remove one that another process holds.
    with Path(local_path(output.where(_LOCK)) or "").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise OutputBusyError(
                f"{output.uri}: another `elasticdl data prepare` is at work there. Wait for it, "
                "or name another --output."
            ) from error
        yield


# --- processes ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Work:
    """How parts are made, and who is told."""

    load: Load
    preparation: Preparation
    settings: Settings
    output: Output
    advanced: Callable[[int], None]


def _made(parts: Sequence[Part], work: _Work, num_processes: int) -> Iterator[tuple[Part, Entry]]:
    """Yield parts as they are finished, and raise what went wrong first after them."""
    if num_processes <= 1:
        yield from _made_here(parts, work)
        return
    # Not fork: TensorFlow, imported by the user's file, does not survive it.
    context = multiprocessing.get_context("spawn")
    counter, stop = context.Value("q", 0), context.Event()
    failure: Failure | None = None
    pool = concurrent.futures.ProcessPoolExecutor(
        num_processes, context, _start, (work.load, work.settings, work.output.uri, counter, stop)
    )
    try:
        tasks = {pool.submit(_make, part): part for part in parts}
        waiting = set(tasks)
        while waiting:
            done, waiting = concurrent.futures.wait(
                waiting, _POLL_S, concurrent.futures.FIRST_COMPLETED
            )
            work.advanced(counter.value)
            for task in done:
                result = _result(task, tasks[task])
                if isinstance(result, Entry):
                    yield tasks[task], result
                elif result is not None and failure is None:
                    failure = result
                    stop.set()
                    for other in waiting:
                        other.cancel()
    finally:
        stop.set()
        pool.shutdown(wait=True, cancel_futures=True)
    if failure is not None:
        _raise(failure)


def _made_here(parts: Sequence[Part], work: _Work) -> Iterator[tuple[Part, Entry]]:
    num_done = 0

    def went_on() -> bool:
        nonlocal num_done
        num_done += 1
        work.advanced(num_done)
        return True

    for part in parts:
        result = make_part(part, work.preparation, work.settings, work.output, went_on)
        if isinstance(result, Failure):
            _raise(result)
        if result is not None:
            yield part, result


def _raise(failure: Failure) -> NoReturn:
    error = failure.kind.__new__(failure.kind)
    # Not its constructor: each class has another one, and the message is complete.
    Exception.__init__(error, failure.message)
    raise error


def _result(task: concurrent.futures.Future[Any], part: Part) -> Entry | Failure | None:
    try:
        result: Entry | Failure | None = task.result()
    except concurrent.futures.CancelledError:
        return None
    except concurrent.futures.BrokenExecutor:
        return Failure(
            UserCodeError,
            "A process that prepares data died without a word: it ran out of memory, or a library "
            f"it uses crashed. It may have been at one of the {len(part.inputs)} files from "
            f"{part.inputs[0].uri} to {part.inputs[-1].uri}. With --num_processes=1 it crashes "
            "here and says more.",
        )
    return result


@dataclass
class _Process:
    """What a process that prepares data was told when it was started."""

    load: Load
    settings: Settings
    output: str
    counter: Any
    stop: Any
    preparation: Preparation | None = None


_process: _Process | None = None


def _start(load: Load, settings: Settings, output: str, counter: Any, stop: Any) -> None:
    global _process  # noqa: PLW0603 - a process pool has no other place for it
    _process = _Process(load, settings, output, counter, stop)
    # Ctrl-C reaches every process of the terminal; the first one stops the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process when the one that started it is gone, however it went."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _make(part: Part) -> Entry | Failure | None:
    assert _process is not None  # noqa: S101 - the pool has called _start
    process = _process
    if process.stop.is_set():
        return None
    if process.preparation is None:
        try:
            process.preparation = process.load()
        except Exception as error:  # noqa: BLE001 - it loaded in the first process, just before
            return Failure(UserCodeError, f"The model file cannot be loaded again: {error}")

    def went_on() -> bool:
        with process.counter.get_lock():
            process.counter.value += 1
        return not process.stop.is_set()

    return make_part(part, process.preparation, process.settings, Output(process.output), went_on)
