"""Claim on an output folder: only one process at a time may write, and only for one job.

    claim --> is it a job folder? --> lock --> tidy up --> same job? --> generation + 1
                     |                 |                      |
              OutputTakenError  OutputBusyError        OutputTakenError

Nothing is created in a folder that contains files other than a job's. `lock.py` describes how
reliable the lock is. The lock is checked before each write into the folder, until it is released.
Every claim increments the folder's generation, the number of times that a job was started in it.
Events contain it, and the lineage of the workers' commits depends on it, so that the starts of a
job can be distinguished.

Callers: `OutputFolder.claim`, `engines/data_changes.py`.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from elasticdl.artifacts.event_log import EVENTS_FILE
from elasticdl.artifacts.in_memory_facts import FACTS_FILE, difference_of
from elasticdl.artifacts.lock import hold
from elasticdl.artifacts.output_lease import ignore_note
from elasticdl.errors import OutputError, OutputTakenError
from elasticdl.job import Job

if TYPE_CHECKING:
    from elasticdl.artifacts.folder import OutputFolder
    from elasticdl.artifacts.lock import Lock
    from elasticdl.artifacts.output_lease import Note

JOB_FILE = "job.json"
LOCK_FILE = ".lock"
GENERATION_FILE = ".generation"
# Written by trackers beside the event log: a job that never began does not remove them.
TRACKING_FILE = "tracking.json"
LOGS_FOLDER = "logs"
IN_MEMORY_FOLDER = "in_memory_data"
# Written by Flower's aggregator: the parties it knows.
FLOWER_FOLDER = "flower"


@dataclass
class Claim:
    """The right to write into an output, until `release` or the end of the `with` block.

    Attributes:
        resumed: Whether the same job was started in this folder before, and not abandoned since.
        generation: How often the job has been started in this folder, counting this start.
    """

    resumed: bool
    generation: int
    _lock: Lock = field(repr=False)
    _folder: OutputFolder = field(repr=False)
    _released: bool = field(default=False, init=False, repr=False)
    _refused: bool = field(default=False, init=False, repr=False)

    def abandon(self, *, refused: bool = False) -> None:
        """Delete `job.json`, so that another job can use the output.

        Call this if the run has saved nothing from which it could be resumed. The event log is
        kept.

        Args:
            refused: Whether the job was rejected before it began. If this was its first start,
                `release` then also deletes the event log, so that the job leaves nothing behind.
        """
        self._folder.delete(JOB_FILE)
        self._refused = refused and self.generation == 1

    def release(self) -> None:
        """Release the output, so that others can claim it; calling it twice is harmless."""
        if not self._released:
            self._released = True
            if self._refused:
                with contextlib.suppress(OutputError):
                    self._folder.delete(EVENTS_FILE)
                    self._folder.delete(GENERATION_FILE)
            self._folder.fence(None)
            self._lock.release()
            if self._refused and (path := self._folder.local_path()) is not None:
                # It may have other files, such as data in memory.
                with contextlib.suppress(OSError):
                    path.rmdir()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.release()


def claim(folder: OutputFolder, job: Job, note: Note = ignore_note) -> Claim:
    """Claim an output for one run of a job.

    Args:
        folder: The output; it is created if it does not exist.
        job: The job to run. `job.json` in the folder is written, or compared by
            `Job.identity()` and then overwritten (a job may be resumed with more epochs).
        note: Called with a notice for the user if this function has to wait until the lease of a
            process on another machine may have expired.

    Raises:
        OutputBusyError: Another process is using the folder; the message names its process id
            and host.
        OutputTakenError: The folder contains another job, or files that do not belong to a job.
        OutputError: The folder cannot be written, or its `job.json` cannot be read.
    """
    _refuse_foreign(folder)
    lock = hold(folder, LOCK_FILE, note=note)
    try:
        folder.fence(lock)
        _refuse_foreign(folder)
        folder.remove_stale()
        resumed = folder.exists(JOB_FILE)
        if resumed:
            _refuse_another_job(folder, job)
        generation = _read_generation(folder) + 1
        folder.write_bytes(GENERATION_FILE, str(generation).encode())
        folder.write_bytes(JOB_FILE, job.to_json().encode())
    except BaseException:
        folder.fence(None)
        lock.release()
        raise
    return Claim(resumed, generation, lock, folder)


def _refuse_foreign(folder: OutputFolder) -> None:
    left = {EVENTS_FILE, TRACKING_FILE, LOGS_FOLDER, FLOWER_FOLDER, IN_MEMORY_FOLDER, FACTS_FILE}
    ours = {LOCK_FILE, GENERATION_FILE, *left}
    names = [name for name in folder.list() if name not in ours]
    if names and JOB_FILE not in names:
        shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")  # noqa: PLR2004 - enough to recognise a folder by
        raise OutputTakenError(
            f"{folder.uri} is not empty and contains no {JOB_FILE} (it contains {shown}), so it is "
            "not the output of a job. Use an empty or new folder as --output."
        )


def _refuse_another_job(folder: OutputFolder, job: Job) -> None:
    where = folder.where(JOB_FILE)
    try:
        there = Job.from_json(folder.read_bytes(JOB_FILE).decode()).identity()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise OutputError(
            f"{where}: cannot be read as a job ({type(error).__name__}: {error}). It is damaged, "
            "or another version of elasticdl wrote it. Use another --output, or delete "
            f"{folder.uri} to start over."
        ) from error
    # Through JSON, like the stored job, so that tuples and lists compare equal.
    there, asked = (json.loads(json.dumps(each)) for each in (there, job.identity()))
    differing = _differences(there, asked, folder)
    if differing:
        lines = "\n".join(f"  {line}" for line in differing)
        advice = _other_name(there, asked) if len(differing) == 1 else ""
        raise OutputTakenError(
            f"{folder.uri} belongs to another job. Differences:\n{lines}\n{advice}"
            f"Use another --output, or delete {folder.uri} to start over."
        )


def _other_name(there: Any, asked: Any) -> str:
    """Return advice if one job's `model_def` names a file and the other's a class in that file."""
    before, now = ((job.get("model") or {}).get("model_def") or "" for job in (there, asked))
    if not (now.startswith(f"{before}.") or before.startswith(f"{now}.")):
        return ""
    return f"If both names mean the same model, give --model_def={before} to resume. "


_ABSENT = object()


def _differences(there: Any, asked: Any, folder: OutputFolder, name: str = "") -> list[str]:
    """Describe in which fields the requested job differs from the one in the folder.

    Args:
        there: The job in the folder as a JSON value, or one of its fields.
        asked: The requested job, or the same field of it.
        folder: The output. It records the rows and columns of data passed in memory, from which a
            difference between two such data sets is described.
        name: Dotted name of the field; empty for the whole jobs.

    Returns:
        One line per field for an error message: its dotted name and both values.
    """
    if isinstance(there, dict) and isinstance(asked, dict):
        return [
            line
            for key in sorted({*there, *asked})
            for line in _differences(
                there.get(key, _ABSENT),
                asked.get(key, _ABSENT),
                folder,
                f"{name}.{key}" if name else key,
            )
        ]
    if there == asked and type(there) is type(asked):
        return []
    if _is_in_memory(there) and _is_in_memory(asked):
        # The folder may have been moved. The name of the file is a hash of the content.
        if within_output(there) == within_output(asked):
            return []
        what = difference_of(folder, there, asked)
        line = f"{name}: in memory, and its content is not that of the job in the folder"
        return [f"{line}: {what}" if what else line]
    if _is_in_memory(there) or _is_in_memory(asked):
        # The user does not know the file that the data is stored in.
        shown = [
            "data in memory" if _is_in_memory(value) else "none" if value is None else repr(value)
            for value in (there, asked)
        ]
        return [f"{name}: {shown[0]} in the folder, {shown[1]} in this call"]
    return [f"{name}: {_shown(there)} in the folder, {_shown(asked)} in this command"]


def _is_in_memory(value: Any) -> bool:
    return isinstance(value, str) and f"/{IN_MEMORY_FOLDER}/" in value


def within_output(uri: str) -> str:
    """Return the part of a data URI that stays the same when the output is moved or copied.

    Two URIs are compared by this part to decide whether they name the same data. Data passed in
    memory is stored in the output: for it, the part is the path within that folder. Any other URI
    is returned unchanged.

    Example:
        >>> within_output("/a/out/in_memory_data/0f3a.parquet"), within_output("/a/train.csv")
        ('in_memory_data/0f3a.parquet', '/a/train.csv')
    """
    _, folder, name = uri.rpartition(f"/{IN_MEMORY_FOLDER}/")
    return f"{IN_MEMORY_FOLDER}/{name}" if folder else uri


def _shown(value: Any) -> str:
    return "nothing" if value is _ABSENT else repr(value)


def _read_generation(folder: OutputFolder) -> int:
    if not folder.exists(GENERATION_FILE):
        return 0
    text = folder.read_bytes(GENERATION_FILE)
    try:
        return int(text)
    except ValueError as error:
        raise OutputError(
            f"{folder.where(GENERATION_FILE)}: expected an integer, found {len(text)} bytes that "
            "are not one. Write the number of times this job was started into it, or delete the "
            "folder."
        ) from error
