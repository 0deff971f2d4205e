"""Data preparation (`elasticdl data prepare`): writes record files from input files, in parallel.

    input files --plan--> parts --if not up to date--> made by processes --> output and its index
                                                            |
                                     a function raised: all processes stop, finished parts stay

Every record file appears completely or not at all, and each finished part is listed in the
manifest: the same command again makes only the missing parts. Until all parts exist, the output is
marked as incomplete, so that it is not used for training by mistake.

The caller passes a function, `load`, that loads the user's function; it is called again in every
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
from elasticdl.data.prepare_part import PartPreparation, PrepareFailure, arguments_of, make_part
from elasticdl.data.prepare_plan import (
    MANIFEST,
    Input,
    PlanEntry,
    PlanOutput,
    PlanPart,
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

__all__ = ["PartPreparation", "PrepareProgress", "PreparedData", "prepare_data"]

Load: TypeAlias = Callable[[], PartPreparation]

DEFAULT_RECORDS_PER_FILE = 4096

_LOCK = f"{MANIFEST}/lock"
_POLL_S = 0.2


@dataclass(frozen=True)
class PrepareProgress:
    """Progress of a preparation.

    Attributes:
        num_done: Input files that are prepared.
        num_inputs: Number of all input files.
    """

    num_done: int
    num_inputs: int


@dataclass(frozen=True)
class PreparedData:
    """The content of the output after a preparation.

    Attributes:
        files: The record files, in order; names within the output.
        num_kept_parts: Parts (groups of input files) that were up to date and not prepared again.
        num_made_parts: Parts that were prepared in this run.
        num_kept_of_other_code: Number of those kept parts that an earlier version of the user's
            code prepared.
    """

    files: tuple[RecordFile, ...]
    num_kept_parts: int
    num_made_parts: int
    num_kept_of_other_code: int

    @property
    def num_records(self) -> int:
        """Number of records in all files."""
        return sum(file.num_records for file in self.files)


def _ignore(progress: PrepareProgress) -> None:
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
    on_progress: Callable[[PrepareProgress], None] = _ignore,
) -> PreparedData:
    """Run a user's function on files and write the records it returns as RecordIO files.

    Args:
        load: Function () -> the user's function and the schema. Called in every process, so it must
            be a function of a module, or a `functools.partial` of one.
        inputs: Names of files, folders (all files in them) or patterns.
        output: The folder to write.
        num_processes: Number of processes; None means one per core.
        records_per_file: Maximum number of records in a file.
        shuffle: Whether to shuffle twice: the order of the input files, which decides which of them
            go into one record file, and the order of records in each record file. Otherwise,
            records are in the order of the names of the input files.
        seed: Determines the order.
        compressor: Compressor of the record files: `none`, `snappy` or `gzip`.
        overwrite: Make all parts, including those that are up to date.
        on_progress: Called from time to time with the progress.

    Raises:
        UsageError: An option has an impossible value.
        NoDataError: There are no input files, or none of them gave a record.
        UserCodeError: The function raised, or its process died; the message names the file.
        DefinitionError: The function cannot be called, or returned something that is not a record.
        SchemaError: A record does not fit the schema; the message names the file.
        OutputTakenError: The output contains other files.
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
    target = PlanOutput(output)
    with _claimed(target):
        entries: dict[str, PlanEntry] = {}
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
            on_progress(PrepareProgress(num_kept_inputs + num_made, len(found)))

        advanced(0)
        work = _Work(load, preparation, settings, target, advanced)
        for part, entry in _made(todo, work, min(num_processes, len(todo))):
            write_entry(target, part, entry)
            entries[part.name] = entry
        files = tuple(file for part in parts for file in entries[part.name].files)
        if not any(file.num_records for file in files):
            raise NoDataError(
                f"{preparation.where}: prepare_data_for_a_single_file() returned no records for "
                f"any of the {len(found)} files ({found[0].uri}, ...)."
            )
        _write_index(target, files, changed=bool(todo or stale))
        target.remove(INCOMPLETE_MARK)
    other_code = sum(entry.code != preparation.code for entry in kept)
    return PreparedData(files, len(kept), len(todo), other_code)


def _write_index(target: PlanOutput, files: Sequence[RecordFile], *, changed: bool) -> None:
    """Write the index of the output, unless an up-to-date one exists already.

    Args:
        target: The output folder.
        files: Its record files.
        changed: Whether the output has changed since an existing index was written.
    """
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
        # Rejects pipes and devices, from which a user's function could read or wait forever.
        open_stored(uri)
        status = Path(path).stat()
        return Input(uri, f"{status.st_size} {status.st_mtime_ns}")
    system, path = filesystem(uri)
    info = system.info(path)
    tags = [info.get(key) for key in ("size", "ETag", "etag", "md5Hash", "mtime", "LastModified")]
    return Input(uri, " ".join(str(tag) for tag in tags))


@contextlib.contextmanager
def _claimed(output: PlanOutput) -> Iterator[None]:
    """Context manager that creates the output folder and locks it against other preparations.

    Object stores have no locks; there, only the content of the folder is checked.

    Raises:
        OutputTakenError: The folder contains files, and is not the output of a preparation.
        OutputBusyError: Another process prepares data there.
        OutputError: The folder cannot be created.
    """
    names = output.names()
    foreign = [name for name in names if not name.startswith(".")]
    if foreign and MANIFEST not in names:
        raise OutputTakenError(
            f"{output.uri} holds files that were not prepared by this command "
            f"({', '.join(foreign[:3])}). Choose another --output."
        )
    try:
        output.make_folder(MANIFEST)
    except OSError as error:
        raise OutputError(f"{output.uri} cannot be created: {error.strerror or error}.") from error
    if not output.is_local:
        # Object stores have no locks; files of two runs with equal inputs are equal anyway.
        yield
        return
    # Not removed afterwards: that could remove a lock file that another process holds.
    with Path(local_path(output.where(_LOCK)) or "").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise OutputBusyError(
                f"{output.uri}: another `elasticdl data prepare` is running there. Wait for it, or "
                "choose another --output."
            ) from error
        yield


# --- processes ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Work:
    """Everything that is needed to prepare parts, and a callback for progress.

    Attributes:
        load: Function () -> the user's function and the schema; called again in every process.
        preparation: The result of `load` in this process.
        settings: How record files are written.
        output: The output folder.
        advanced: Called with the number of input files that are prepared.
    """

    load: Load
    preparation: PartPreparation
    settings: Settings
    output: PlanOutput
    advanced: Callable[[int], None]


def _made(
    parts: Sequence[PlanPart], work: _Work, num_processes: int
) -> Iterator[tuple[PlanPart, PlanEntry]]:
    """Prepare parts in parallel processes.

    Args:
        parts: The parts to prepare.
        work: How to prepare them.
        num_processes: Number of processes; with 1, this process does it.

    Yields:
        Each part as it is finished, with its entry for the manifest.

    Raises:
        ElasticDLError: The first error of a part, once the processes have stopped and the finished
            parts have been yielded.
    """
    if num_processes <= 1:
        yield from _made_here(parts, work)
        return
    # Not fork: TensorFlow, imported by the user's file, does not survive a fork.
    context = multiprocessing.get_context("spawn")
    counter, stop = context.Value("q", 0), context.Event()
    failure: PrepareFailure | None = None
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
                if isinstance(result, PlanEntry):
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


def _made_here(parts: Sequence[PlanPart], work: _Work) -> Iterator[tuple[PlanPart, PlanEntry]]:
    num_done = 0

    def should_continue() -> bool:
        nonlocal num_done
        num_done += 1
        work.advanced(num_done)
        return True

    for part in parts:
        result = make_part(part, work.preparation, work.settings, work.output, should_continue)
        if isinstance(result, PrepareFailure):
            _raise(result)
        if result is not None:
            yield part, result


def _raise(failure: PrepareFailure) -> NoReturn:
    error = failure.kind.__new__(failure.kind)
    # Not its constructor: each class has a different one, and the message is complete.
    Exception.__init__(error, failure.message)
    raise error


def _result(
    task: concurrent.futures.Future[Any], part: PlanPart
) -> PlanEntry | PrepareFailure | None:
    try:
        result: PlanEntry | PrepareFailure | None = task.result()
    except concurrent.futures.CancelledError:
        return None
    except concurrent.futures.BrokenExecutor:
        return PrepareFailure(
            UserCodeError,
            "A process that prepares data died without an error message: it may have run out of "
            f"memory, or a library crashed. It was processing one of the {len(part.inputs)} files "
            f"from {part.inputs[0].uri} to {part.inputs[-1].uri}. Run with --num_processes=1 for a "
            "more detailed error.",
        )
    return result


@dataclass
class _Process:
    """State of a worker process of the preparation, set when it starts.

    Attributes:
        load: Function () -> the user's function and the schema.
        settings: How record files are written.
        output: URI of the output folder.
        counter: Number of input files prepared by all processes (shared memory).
        stop: Event that tells the processes to stop.
        preparation: The result of `load`; None until the first part.
    """

    load: Load
    settings: Settings
    output: str
    counter: Any
    stop: Any
    preparation: PartPreparation | None = None


_process: _Process | None = None


def _start(load: Load, settings: Settings, output: str, counter: Any, stop: Any) -> None:
    global _process  # noqa: PLW0603 - a process pool has no other place for it
    _process = _Process(load, settings, output, counter, stop)
    # Ctrl-C reaches every process of the terminal; the first process stops the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Wait until the parent process has ended, even if it was killed, then end this process.

    It runs in a thread of each worker process, which would otherwise remain.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _make(part: PlanPart) -> PlanEntry | PrepareFailure | None:
    assert _process is not None  # noqa: S101 - the pool has called _start
    process = _process
    if process.stop.is_set():
        return None
    if process.preparation is None:
        try:
            process.preparation = process.load()
        except Exception as error:  # noqa: BLE001 - it loaded in the first process, just before
            return PrepareFailure(UserCodeError, f"The model file cannot be loaded again: {error}")

    def should_continue() -> bool:
        with process.counter.get_lock():
            process.counter.value += 1
        return not process.stop.is_set()

    return make_part(
        part, process.preparation, process.settings, PlanOutput(process.output), should_continue
    )
