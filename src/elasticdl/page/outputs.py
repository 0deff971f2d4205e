"""Watched outputs of jobs: finds them, reads their files, and follows their growing logs.

Reading does not affect a running job: nothing is written and no lock is taken. Files may come from
another version, be edited by hand or be incomplete; unreadable files become notes on the page.

Callers: `web_app.py`, `elasticdl job list|show|logs`.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from elasticdl.artifacts.checkpoint_store import FOLDER as CHECKPOINTS
from elasticdl.artifacts.claim import JOB_FILE, LOCK_FILE
from elasticdl.artifacts.event_log import EVENTS_FILE
from elasticdl.artifacts.folder import OutputFolder
from elasticdl.artifacts.holder import is_here, name_of, parse_holder
from elasticdl.artifacts.lock import is_held
from elasticdl.errors import OutputError
from elasticdl.job import Job
from elasticdl.page.facts import Facts
from elasticdl.page.history import JobHistory
from elasticdl.page.log_reader import LogReader
from elasticdl.page.parse import parse
from elasticdl.page.view import loss_curve, summary, view

_MAX_JOBS = 200
_DEPTH = 3
_MAX_NAMES = 2_000
_SKIPPED = {"checkpoints", "zoo", "saved_model", "logs", "report", "reports", "node_modules"}
_STEP_FOLDER = re.compile(r"^step-(\d+)$")
_REPORT_FOLDERS = ("", "report", "reports")
_MIN_PAUSE_S = 0.4
# Minimum pause between two views, as a multiple of the time for one: the page of a long log is
# computed less often, so that it uses at most a thirtieth of a core, for any number of viewers.
_TIMES_LONGER = 30.0
# Each read downloads the whole log.
_MIN_REMOTE_PAUSE_S = 10.0
_FACTS_PAUSE_S = 2.0


class WatchedOutput:
    """The output of one job, read repeatedly. Its methods are thread-safe.

    Args:
        folder: The output.
        name: Name of the job on the page.
        written: Local file to which the running job writes its log; see `LogReader`.

    Attributes:
        history: The history computed from the job's log.
        version: Number that increases whenever `history` is updated.
    """

    def __init__(self, folder: OutputFolder, name: str, written: Path | None = None) -> None:
        self.history = JobHistory()
        self.version = 0
        self._folder, self._name = folder, name
        self._reader = LogReader(folder, written)
        # One thread may fold the log while another one reads the result.
        self._lock = threading.RLock()
        self._sections: dict[str, Any] = {}
        self._texts: dict[str, str] = {}
        self._next_s = -1e9
        self._looked_s = self._facts_s = -1e9
        self._facts = Facts(name, folder.uri)
        self._error = ""

    def refresh(self) -> None:
        """Read new events from the log, unless that was done a moment ago."""
        pause_s = _MIN_PAUSE_S if self._reader.is_local else _MIN_REMOTE_PAUSE_S
        with self._lock:
            if time.monotonic() - self._looked_s < pause_s:
                return
            self._read()
            self._looked_s = time.monotonic()

    def sections(self) -> dict[str, Any]:
        """Return the current sections of the page; see `view.view`.

        The sections are cached for a short time, so that many viewers cost no more than one.
        """
        with self._lock:
            if time.monotonic() >= self._next_s:
                self.refresh()
                began_s = time.thread_time()
                self._sections = view(self.history, self.facts(), time.time())
                self._texts = {name: json.dumps(each) for name, each in self._sections.items()}
                cost_s = time.thread_time() - began_s
                self._next_s = time.monotonic() + max(_MIN_PAUSE_S, _TIMES_LONGER * cost_s)
            return self._sections

    def texts(self) -> dict[str, str]:
        """Return the same sections as `sections`, each as JSON text."""
        with self._lock:
            self.sections()
            return self._texts

    def row(self) -> dict[str, Any]:
        """Return the row of the job in a list of jobs, with its loss curve."""
        with self._lock:
            self.refresh()
            row = summary(self.history, self.facts(), time.time())
            return {**row, "loss_curve": loss_curve(self.history)}

    def facts(self) -> Facts:
        """Return what the output contains besides the log; a few seconds old at most."""
        pause_s = _FACTS_PAUSE_S if self._folder.is_local else _MIN_REMOTE_PAUSE_S
        with self._lock:
            if time.monotonic() - self._facts_s > pause_s:
                self._facts = self._read_facts()
                self._facts_s = time.monotonic()
            return self._facts

    def read_report(self, name: str) -> bytes:
        """Return the HTML page of an evaluation report.

        Raises:
            OutputError: There is no report of this name.
        """
        path = self.facts().reports.get(name)
        if path is None:
            raise OutputError(f"{self._folder.uri} has no report {name!r}.")
        return _folder_of(self._folder, path).read_bytes(path.removeprefix("../"))

    def _read(self) -> None:
        before = self.version, self._error
        try:
            for piece in self._reader.read():
                if piece.is_new_log:
                    self.history = JobHistory()
                self.history.add(parse(piece.data, piece.offset))
                self.version += 1
            self._error = ""
        except OutputError as error:
            self._error = str(error)
        is_followed = self._folder.is_local or not self._reader.is_local
        if (self.version, self._error) != before and is_followed:
            # The events may contain a checkpoint or the end of the job.
            self._facts_s = -1e9

    def _read_facts(self) -> Facts:
        notes = [self._error] if self._error else []
        definition, job = self._definition(notes)
        held = is_held(self._folder, LOCK_FILE)
        holder = self._holder() if held else {}
        if not self._reader.is_local:
            notes.append(
                "The output is on an object store. Its log is uploaded with each checkpoint, so "
                "later events are not shown yet."
            )
        return Facts(
            name=self._name,
            output=self._folder.uri,
            definition=definition,
            job=job,
            is_held=held,
            is_elsewhere=held and not is_here(holder),
            holder=name_of(holder) if held else "",
            is_local=self._folder.is_local,
            kept_steps=self._kept_steps(),
            reports=self._reports(),
            notes=notes,
        )

    def _definition(self, notes: list[str]) -> tuple[dict[str, Any], Job | None]:
        try:
            text = self._folder.read_bytes(JOB_FILE).decode()
        except (OutputError, UnicodeDecodeError):
            if self.history.starts:
                notes.append(
                    f"{JOB_FILE} is missing or unreadable: the definition cannot be shown."
                )
            return {}, None
        try:
            values = dict(json.loads(text))
        except (ValueError, TypeError, RecursionError):
            notes.append(f"{JOB_FILE} is damaged: the definition of the job cannot be shown.")
            return {}, None
        try:
            return values, Job.from_json(text)
        except (ValueError, KeyError, TypeError, AttributeError):
            notes.append(
                f"{JOB_FILE} was written by another version of elasticdl. It is shown unchanged; "
                "values derived from it, such as the number of workers, are missing."
            )
            return values, None

    def _holder(self) -> dict[str, Any]:
        try:
            return parse_holder(self._folder.read_bytes(LOCK_FILE))
        except OutputError:
            return {}

    def _kept_steps(self) -> list[int]:
        try:
            found = map(_STEP_FOLDER.match, self._folder.list(CHECKPOINTS))
        except OutputError:
            return []
        return sorted(int(each[1]) for each in found if each is not None)

    def _reports(self) -> dict[str, str]:
        reports = {}
        places = [*_REPORT_FOLDERS]
        if PurePosixPath(self._folder.uri).name == "training":
            # A session stores its reports next to the output of its training.
            places.append("../reports")
        for place in places:
            folder = _folder_of(self._folder, place)
            try:
                names = folder.list(place.removeprefix("../"))
            except OutputError:
                continue
            for name in names:
                if name.endswith(".html") and "/" not in name:
                    path = f"{place}/{name}" if place else name
                    reports[name.removesuffix(".html")] = path
        return reports


def _folder_of(folder: OutputFolder, path: str) -> OutputFolder:
    if not path.startswith("../"):
        return folder
    return OutputFolder(folder.uri.rstrip("/").rpartition("/")[0] or ".")


def find_outputs(uri: str) -> dict[str, OutputFolder]:
    """Find the outputs at a URI, which is an output itself or a folder of outputs.

    Args:
        uri: A folder on this machine or an object store.

    Returns:
        Name -> output, sorted by name. A single output has the name of its folder.

    Raises:
        OutputError: There is no output.
    """
    root = OutputFolder(uri)
    path = root.local_path()
    if path is not None and path.exists() and not path.is_dir():
        raise OutputError(f"{uri} is not a folder. Pass the folder that was passed as --output.")
    if is_output(root.list()):
        return {_name_of(uri): root}
    found: dict[str, OutputFolder] = {}
    _walk(root, "", found, [_MAX_NAMES])
    if not found:
        what = "does not exist" if not root.exists() else "is not a job's output and contains none"
        raise OutputError(
            f"{uri} {what}: expected {EVENTS_FILE} or {JOB_FILE} in it or in a subfolder. Pass the "
            "folder that was passed as --output, or a folder of such outputs."
        )
    return dict(sorted(found.items()))


def is_output(names: Sequence[str]) -> bool:
    """Return whether a folder with these entries is the output of a job."""
    return EVENTS_FILE in names or JOB_FILE in names


def _walk(root: OutputFolder, name: str, found: dict[str, OutputFolder], left: list[int]) -> None:
    """Find outputs below a folder and add them to `found`; check only a limited number of entries.

    Args:
        root: The folder that the user named.
        name: Folder in `root` to search.
        found: Receives the outputs: path relative to `root` -> output.
        left: A list that holds one number: how many more entries may be checked. The number is
            decreased in place.
    """
    depth = len(PurePosixPath(name).parts)
    for child in root.list(name):
        if left[0] <= 0 or len(found) >= _MAX_JOBS:
            return
        if child.startswith(".") or child in _SKIPPED or "\\" in child:
            continue
        left[0] -= 1
        path = f"{name}/{child}" if name else child
        try:
            names = root.list(path)
        except OutputError:
            # A file, or a folder of another user.
            continue
        if is_output(names):
            found[path] = OutputFolder(f"{root.uri.rstrip('/')}/{path}")
        elif names and depth + 1 < _DEPTH:
            _walk(root, path, found, left)


def _name_of(uri: str) -> str:
    parts = [part for part in PurePosixPath(uri.rstrip("/")).parts if part not in {".", ".."}]
    return parts[-1] if parts else uri
