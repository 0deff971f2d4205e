"""Writes TensorBoard curves into a job's output, with the names that Keras' callback uses.

    logs/train/        epoch_<metric> by epoch; batch_loss and records_per_s by step
    logs/validation/   epoch_<metric> by epoch; evaluation_<metric>_vs_iterations by step

With these names, TensorBoard draws training and validation in one chart. Each attempt rewrites the
curves from the job's event log. It never reads files of an earlier attempt, which may be incomplete
or contain steps that were repeated later.

Callers: `create.py`. Neither TensorFlow nor PyTorch is needed, only the package `tensorboard`.
"""

from __future__ import annotations

import itertools
import os
import socket
import struct
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elasticdl import scratch
from elasticdl.artifacts.claim import LOGS_FOLDER
from elasticdl.data.masked_crc import masked_crc32c
from elasticdl.errors import MissingExtraError, OutputError, TrackingError
from elasticdl.tracking.tracker import Kind, MetricPoint, RunStatus, TrackedAttempt

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elasticdl.artifacts.folder import OutputFolder

_TRAIN, _VALIDATION = "train", "validation"
# TensorBoard requires the prefix; the suffix marks our own files.
_PREFIX, _SUFFIX = "events.out.tfevents.", ".elasticdl"
# An object store accepts only whole files.
_PUT_INTERVAL_S = 30.0
_STEP_NAMES = {"loss": "batch_loss"}


class TensorBoardTracker:
    """Tracker that writes files for TensorBoard; see `tracker.Tracker`.

    Args:
        folder: The job's output, which this process has locked.

    Raises:
        MissingExtraError: The package is not installed.
    """

    def __init__(self, folder: OutputFolder) -> None:
        try:
            from tensorboard.compat.proto import event_pb2  # noqa: PLC0415 - an extra
        except ModuleNotFoundError as error:
            raise MissingExtraError(str(error.name), "tracking", "--tensorboard") from error
        self._Event = event_pb2.Event
        self._folder = folder
        self.where = f"TensorBoard in {folder.where(LOGS_FOLDER)}"
        self._files: dict[str, _File] = {}
        self._logged: dict[tuple[str, str], set[int]] = {}

    def start(self, attempt: TrackedAttempt) -> None:
        """Delete the files of earlier attempts, because their points are sent again.

        Raises:
            TrackingError: The folder cannot be written to.
        """
        del attempt
        for part in (_TRAIN, _VALIDATION):
            name = f"{LOGS_FOLDER}/{part}"
            try:
                for file in self._folder.list(name):
                    if file.startswith(_PREFIX) and file.endswith(_SUFFIX):
                        self._folder.delete(f"{name}/{file}")
            except OutputError as error:
                raise TrackingError(str(error)) from error

    def point(self, point: MetricPoint) -> None:
        """Write the metrics of a point; see `tracker.Tracker`.

        Raises:
            TrackingError: The disk is full or cannot be written to.
        """
        match point.kind:
            case Kind.EPOCH:
                training = {f"epoch_{name}": value for name, value in point.training.items()}
                validation = {f"epoch_{name}": value for name, value in point.validation.items()}
                self._write(_TRAIN, point.epoch, point.time, training)
                self._write(_VALIDATION, point.epoch, point.time, validation)
            case Kind.EVALUATION:
                values = {
                    f"evaluation_{name}_vs_iterations": value
                    for name, value in point.validation.items()
                }
                self._write(_VALIDATION, point.step, point.time, values)
            case Kind.STEPS:
                if point.step > max(
                    self._logged.get((_TRAIN, _STEP_NAMES["loss"]), ()), default=-1
                ):
                    values = {_STEP_NAMES.get(n, n): value for n, value in point.training.items()}
                    self._write(_TRAIN, point.step, point.time, values)

    def tags(self, values: Mapping[str, str]) -> None:
        """Ignore tags: TensorBoard has none."""

    def artifact(self, path: Path, folder: str = "") -> None:
        """Ignore artifacts: those of the job are already in its output."""

    def end(self, status: RunStatus, error: str = "") -> None:
        """Close the files; the status is ignored, because TensorBoard does not show one.

        Raises:
            TrackingError: The disk is full or cannot be written to.
        """
        del status, error
        files, self._files = self._files, {}
        for file in files.values():
            try:
                file.close()
            except (OSError, OutputError) as trouble:
                raise self._unwritable(trouble) from trouble

    def _write(self, part: str, step: int, time_s: float, values: Mapping[str, float]) -> None:
        new = {
            tag: value
            for tag, value in values.items()
            if step not in self._logged.get((part, tag), ())
        }
        if not new:
            return
        event = self._Event(wall_time=time_s, step=step)
        for tag, value in new.items():
            event.summary.value.add(tag=tag, simple_value=value)
        try:
            if part not in self._files:
                self._files[part] = _File(self._folder, f"{LOGS_FOLDER}/{part}")
                version = self._Event(wall_time=time_s, file_version="brain.Event:2")
                self._files[part].append(version.SerializeToString())
                # Makes a running TensorBoard drop the data of earlier attempts.
                start = self._Event(wall_time=time_s, step=0)
                start.session_log.status = start.session_log.START
                self._files[part].append(start.SerializeToString())
            self._files[part].append(event.SerializeToString())
        except (OSError, OutputError) as error:
            raise self._unwritable(error) from error
        for tag in new:
            self._logged.setdefault((part, tag), set()).add(step)

    def _unwritable(self, error: Exception) -> TrackingError:
        reason = getattr(error, "strerror", None) or error
        return TrackingError(f"{self.where} cannot be written: {reason}. Free some space.")


_numbers = itertools.count()


class _File:
    """Appends records to a TensorBoard event file in a local or remote output.

    TensorBoard can show the file while it grows.
    """

    def __init__(self, folder: OutputFolder, name: str) -> None:
        # Named like TensorBoard's own files. TensorBoard reads files in the order of their names,
        # and several may be created within a second.
        machine = f"{socket.gethostname()}.{os.getpid()}.{next(_numbers):09d}"
        file = f"{_PREFIX}{int(time.time()):010d}.{machine}{_SUFFIX}"
        self._folder, self._name = folder, f"{name}/{file}"
        path = folder.local_path(self._name)
        self._is_local = path is not None
        self._staging: Any = None
        if path is None:
            self._staging = tempfile.TemporaryDirectory(dir=scratch.folder())
            path = Path(self._staging.name, file)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._put_s = time.monotonic()

    def append(self, record: bytes) -> None:
        length = struct.pack("<Q", len(record))
        framed = b"".join(
            [
                length,
                struct.pack("<I", masked_crc32c(length)),
                record,
                struct.pack("<I", masked_crc32c(record)),
            ]
        )
        # Opened for each record: they come seconds apart, and a dying process leaves no open file.
        with self._path.open("ab", buffering=0) as file:
            start = file.tell()
            try:
                while framed:
                    framed = framed[file.write(framed) :]
            except OSError:
                # A torn record would hide the records after it.
                file.truncate(start)
                raise
        if not self._is_local and time.monotonic() - self._put_s >= _PUT_INTERVAL_S:
            self._put()

    def close(self) -> None:
        if not self._is_local:
            self._put()
            self._staging.cleanup()

    def _put(self) -> None:
        self._folder.write_bytes(self._name, self._path.read_bytes())
        self._put_s = time.monotonic()
