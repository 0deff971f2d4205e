"""Curves for TensorBoard in the job's output, under the names Keras' own callback gives them.

    logs/train/        epoch_<metric> by epoch; batch_loss and records_per_s by step
    logs/validation/   epoch_<metric> by epoch; evaluation_<metric>_vs_iterations by step

So TensorBoard draws training and validation into one picture. An attempt writes the curves anew
from what it is told of the history: nothing an earlier attempt left, torn or taken back, is read.

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
from elasticdl.data.tfrecord import masked_crc32c
from elasticdl.errors import MissingExtraError, OutputError, TrackingError
from elasticdl.tracking.tracker import Attempt, Kind, Point, Status

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elasticdl.artifacts.folder import OutputFolder

_TRAIN, _VALIDATION = "train", "validation"
# TensorBoard looks for the first word; the last one says whose the file is.
_PREFIX, _SUFFIX = "events.out.tfevents.", ".elasticdl"
# An object store takes whole files only.
_PUT_INTERVAL_S = 30.0
_STEP_NAMES = {"loss": "batch_loss"}


class TensorBoardTracker:
    """Writes what TensorBoard draws; see `tracker.Tracker`.

    Args:
        folder: The job's output, held by a claim.

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
        self._told: dict[tuple[str, str], set[int]] = {}

    def start(self, attempt: Attempt) -> None:
        """Take away what earlier attempts wrote; it is told again.

        Raises:
            TrackingError: The folder cannot be written.
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

    def point(self, point: Point) -> None:
        """Write a point; see `tracker.Tracker`.

        Raises:
            TrackingError: There is no room.
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
                if point.step > max(self._told.get((_TRAIN, _STEP_NAMES["loss"]), ()), default=-1):
                    values = {_STEP_NAMES.get(n, n): value for n, value in point.training.items()}
                    self._write(_TRAIN, point.step, point.time, values)

    def tags(self, values: Mapping[str, str]) -> None:
        """Leave them out: curves have no tags."""

    def artifact(self, path: Path, folder: str = "") -> None:
        """Leave it out: it is in the output, or nobody's."""

    def end(self, status: Status, error: str = "") -> None:
        """Close the files; how it ended is not drawn.

        Raises:
            TrackingError: There is no room.
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
            if step not in self._told.get((part, tag), ())
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
                # A TensorBoard that watches forgets what it has read of earlier attempts.
                anew = self._Event(wall_time=time_s, step=0)
                anew.session_log.status = anew.session_log.START
                self._files[part].append(anew.SerializeToString())
            self._files[part].append(event.SerializeToString())
        except (OSError, OutputError) as error:
            raise self._unwritable(error) from error
        for tag in new:
            self._told.setdefault((part, tag), set()).add(step)

    def _unwritable(self, error: Exception) -> TrackingError:
        reason = getattr(error, "strerror", None) or error
        return TrackingError(f"{self.where} cannot be written: {reason}. Free some room.")


_numbers = itertools.count()


class _File:
    """A file of records in an output, wherever that lies; readers may watch it grow."""

    def __init__(self, folder: OutputFolder, name: str) -> None:
        # As TensorBoard's own: files are read in the order of their names.
        # TensorBoard reads files in the order of their names, and a second may have several.
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
        # Open for each: they come seconds apart, and a training that dies leaves nothing to close.
        with self._path.open("ab", buffering=0) as file:
            start = file.tell()
            try:
                while framed:
                    framed = framed[file.write(framed) :]
            except OSError:
                # A record that is torn would hide those behind it.
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
