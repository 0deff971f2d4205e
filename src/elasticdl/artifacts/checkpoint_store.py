"""Checkpoints of an output: the whole state of a run, published and restored atomically.

    checkpoints/
      step-0000000200/  one checkpoint (`checkpoint_files.py`)
      step-0000000300/  ...
      best.json         {"step": 200}

A checkpoint exists once its folder has a manifest, and is loaded only if its files have the sizes
and hashes listed there. The two newest checkpoints and the best one are never pruned, so that one
damaged file does not cost the run. Tensors and metadata are not interpreted here: the trainer
defines the meaning of the tensors, the engine that of the metadata.

Callers: the engines.
"""

from __future__ import annotations

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from elasticdl.artifacts.checkpoint_files import (
    Checkpoint,
    encode_metadata,
    read_checkpoint,
    write_files,
)
from elasticdl.artifacts.local_storage import output_errors
from elasticdl.artifacts.remote_storage import MANIFEST
from elasticdl.errors import CorruptCheckpointError, OutputError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future
    from types import TracebackType

    from elasticdl.artifacts.folder import OutputFolder

FOLDER = "checkpoints"
BEST = f"{FOLDER}/best.json"
MIN_KEPT = 2

__all__ = ["Checkpoint", "CheckpointStore", "Restored", "SavedCheckpoint"]

_STEP_FOLDER = re.compile(r"^step-(\d{10,})$")


@dataclass(frozen=True)
class SavedCheckpoint:
    """Result of saving a checkpoint.

    Attributes:
        step: The checkpoint's step.
        num_bytes: Size of its files.
        write_s: How long writing and publishing took, in seconds.
        blocked_s: How long the caller of `save` or `save_in_background` was blocked, in seconds.
    """

    step: int
    num_bytes: int
    write_s: float
    blocked_s: float


@dataclass(frozen=True, eq=False)
class Restored:
    """The newest intact checkpoint, loaded, and descriptions of the damaged newer ones.

    Attributes:
        checkpoint: The newest intact checkpoint.
        damaged: One sentence for each newer checkpoint that was skipped, newest first.
    """

    checkpoint: Checkpoint
    damaged: Sequence[str]


class CheckpointStore:
    """The checkpoints of one output folder, for the process that has claimed it (`claim.py`).

    Attributes:
        last_blocked_s: How long the last save blocked its caller, in seconds; 0 before the first.

    Args:
        folder: The job's output.
        keep_max: Number of newest checkpoints to keep, in addition to the best; at least 2.

    Raises:
        UsageError: `keep_max` is less than 2.

    Example:
        >>> import numpy as np
        >>> from elasticdl.artifacts.folder import OutputFolder
        >>> store = CheckpointStore(OutputFolder("memory://doc-checkpoints"))
        >>> saved = store.save(Checkpoint(7, {"w": np.float32([1.0, 2.0])}, {"epoch": 0}))
        >>> store.latest().checkpoint.state
        {'w': array([1., 2.], dtype=float32)}
    """

    def __init__(self, folder: OutputFolder, keep_max: int = 3) -> None:
        if keep_max < MIN_KEPT:
            raise UsageError(
                f"--keep_checkpoint_max={keep_max}: at least {MIN_KEPT} checkpoints must be kept, "
                "so that the run survives a damaged one. Use 2 or more."
            )
        self._folder = folder
        self._keep_max = keep_max
        self.last_blocked_s = 0.0
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._in_flight: Future[SavedCheckpoint] | None = None
        self._in_flight_blocked_s = 0.0
        self._saved: list[SavedCheckpoint] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Wait for the background write; raise its error unless the `with` block itself raised."""
        try:
            self.wait()
        except OutputError:
            if error is None:
                raise
        finally:
            self._writer.shutdown()

    # --- Saving -------------------------------------------------------------------------------

    def save(self, checkpoint: Checkpoint, *, best: bool = False) -> SavedCheckpoint:
        """Write and publish a checkpoint, then prune old ones; blocks until it is on disk.

        Checkpoints of later steps are removed: they are left over from an attempt before the run
        was resumed from an earlier step.

        Args:
            checkpoint: The checkpoint.
            best: Whether to mark it as the best checkpoint.

        Raises:
            OutputError: The checkpoint cannot be written, or contains a value that cannot be
                stored. The earlier checkpoints are kept.
        """
        self.wait()
        saved = self._write(checkpoint, encode_metadata(checkpoint), best=best)
        self.last_blocked_s = saved.write_s
        return replace(saved, blocked_s=saved.write_s)

    def save_in_background(self, checkpoint: Checkpoint, *, best: bool = False) -> None:
        """Write and publish a checkpoint in a background thread, one at a time.

        Waits for the previous checkpoint if it is still being written. `take_saved` returns the
        result.

        Args:
            checkpoint: The checkpoint; its arrays must not be changed afterwards.
            best: Whether to mark it as the best checkpoint.

        Raises:
            OutputError: The *previous* checkpoint could not be written; this write is not started.
        """
        self.wait()
        begin = time.perf_counter()
        # Encoded immediately: the caller continues and changes its counters.
        metadata = encode_metadata(checkpoint)
        self._in_flight = self._writer.submit(self._write, checkpoint, metadata, best=best)
        self._in_flight_blocked_s = time.perf_counter() - begin
        self.last_blocked_s += self._in_flight_blocked_s

    def wait(self) -> None:
        """Wait for the background write to finish; return immediately if there is none.

        Raises:
            OutputError: The pending checkpoint could not be written.
        """
        if self._in_flight is None:
            return
        begin = time.perf_counter()
        flight, self._in_flight = self._in_flight, None
        saved = flight.result()
        # Attributed to the checkpoint that was waited for, so that the sum over all of them is the
        # time for which training was blocked.
        blocked_s = self._in_flight_blocked_s + time.perf_counter() - begin
        self._saved.append(replace(saved, blocked_s=blocked_s))
        self.last_blocked_s = blocked_s

    def take_saved(self) -> list[SavedCheckpoint]:
        """Return the background saves that finished since the last call; does not wait.

        Raises:
            OutputError: A background save has failed since the last call.
        """
        if self._in_flight is not None and self._in_flight.done():
            self.wait()
        taken, self._saved = self._saved, []
        return taken

    def unmark_best(self) -> None:
        """Delete the mark that names the best checkpoint, after that checkpoint was found damaged.

        Raises:
            OutputError: The mark cannot be deleted.
        """
        self.wait()
        self._folder.delete(BEST)

    def _mark_best(self, step: int) -> None:
        self._folder.write_bytes(BEST, json.dumps({"step": step}).encode())

    def _write(self, checkpoint: Checkpoint, metadata: bytes, *, best: bool) -> SavedCheckpoint:
        begin = time.perf_counter()
        name = _name(checkpoint.step)
        with self._folder.staging(name) as staging, output_errors(self._folder.where(name)):
            num_bytes = write_files(staging, checkpoint.step, checkpoint.state, metadata)
        if best:
            self._mark_best(checkpoint.step)
        self._prune(checkpoint.step)
        return SavedCheckpoint(checkpoint.step, num_bytes, time.perf_counter() - begin, 0.0)

    def keep_newest(self) -> None:
        """Delete all checkpoints except the newest and the best, to save space after training.

        Raises:
            OutputError: A checkpoint cannot be deleted.
        """
        steps = self.steps()
        kept = {self.best_step(), *steps[-1:]}
        for step in steps:
            if step not in kept:
                self._folder.delete(_name(step))

    def _prune(self, newest: int) -> None:
        published = [step for step in self.steps() if step <= newest]
        kept = {self.best_step(), *published[-self._keep_max :]}
        for name in self._folder.list(FOLDER):
            # By name and not by `steps()`, so that unfinished uploads are deleted too.
            step = _step_of(name)
            if step is not None and step not in kept:
                self._folder.delete(f"{FOLDER}/{name}")

    # --- Finding ------------------------------------------------------------------------------

    def steps(self) -> list[int]:
        """Return the steps that have a published checkpoint, in ascending order."""
        found = [(_step_of(name), name) for name in self._folder.list(FOLDER)]
        return sorted(
            step
            for step, name in found
            if step is not None and self._folder.exists(f"{FOLDER}/{name}/{MANIFEST}")
        )

    def best_step(self) -> int | None:
        """Return the step of the best checkpoint; None if no checkpoint is marked as the best."""
        if not self._folder.exists(BEST):
            return None
        try:
            return int(json.loads(self._folder.read_bytes(BEST))["step"])
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptCheckpointError(
                f'{self._folder.where(BEST)}: expected {{"step": NUMBER}}. Delete the file; the '
                "next evaluation marks the best checkpoint again."
            ) from error

    def latest(self) -> Restored | None:
        """Load the newest intact checkpoint; None if there are no checkpoints.

        Raises:
            CorruptCheckpointError: There are checkpoints and all of them are damaged.
            OutputError: The folder cannot be read.
        """
        damaged: list[str] = []
        for step in reversed(self.steps()):
            try:
                return Restored(self.load(step), tuple(damaged))
            except CorruptCheckpointError as error:
                damaged.append(str(error))
        if damaged:
            raise CorruptCheckpointError(
                f"{self._folder.where(FOLDER)}: every checkpoint is damaged:\n"
                + "\n".join(f"  {line}" for line in damaged)
                + f"\nDelete {self._folder.where(FOLDER)} to start over, or restore a copy."
            )
        return None

    def best(self) -> Checkpoint | None:
        """Load the checkpoint that is marked as the best; None if there is none.

        Raises:
            CorruptCheckpointError: The checkpoint is damaged.
        """
        step = self.best_step()
        return None if step is None else self.load(step)

    def load(self, step: int) -> Checkpoint:
        """Load the checkpoint of a step.

        Raises:
            CorruptCheckpointError: There is no such checkpoint, or its files differ from those
                listed in its manifest.
        """
        return read_checkpoint(self._folder, _name(step), step)


def _name(step: int) -> str:
    return f"{FOLDER}/step-{step:010d}"


def _step_of(name: str) -> int | None:
    found = _STEP_FOLDER.match(name)
    return int(found[1]) if found else None
