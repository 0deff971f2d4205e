"""Writes files of callbacks once, however many workers call the callbacks.

Callbacks are called on every worker, because they have state. Only one worker writes:

    the lowest rank   writes to the final path, as `fit` does
    another worker    holds back its files until the next commit. If the lowest rank took part
                      in that commit, it has written the same files, and those held back are
                      dropped. If it has died, the next worker moves its own to the final path.

    commit -> callbacks write -> commit: who leads?  -- another worker --> drop
                                                       -- this worker -----> move to the final path

Whole models are held back in a temporary folder (`model.save`, `save_weights`, `export`, so also
those of `ModelCheckpoint` and users' own callbacks), and so are TensorBoard's event files. The rows
of a `CSVLogger` are held in memory. Files that a user's callback opens itself are not handled.

Callers: `hooks.py`, `callback_checkpoint.py`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from elasticdl.scratch import TemporaryFolder

_WRITING_METHODS = ("save", "save_weights", "export")


class CallbackFiles:
    """Decides whether callbacks write to their final paths or to temporary ones.

    Args:
        callbacks: The user's callbacks.
        model: Their model.

    Attributes:
        leads: Whether this process writes to the final paths: it is a single process, or the
            worker with the lowest rank.
    """

    def __init__(self, callbacks: Sequence[keras.callbacks.Callback], model: keras.Model) -> None:
        self._model = model
        self._loggers = [each for each in callbacks if isinstance(each, keras.callbacks.CSVLogger)]
        self._boards = [
            TensorBoardFiles(each, self._new_folder)
            for each in callbacks
            if isinstance(each, keras.callbacks.TensorBoard)
        ]
        self.leads = True
        self._folder: TemporaryFolder | None = None
        # Pairs of temporary path and final path.
        self._held: list[tuple[Path, str]] = []
        self._num_folders = 0
        self._has_begun = self._is_shared = False

    def set_model(self, callbacks: keras.callbacks.CallbackList) -> None:
        """Pass the model to the callbacks.

        `TensorBoard` then writes the model's graph: to a temporary folder unless `leads`.
        """
        with contextlib.ExitStack() as aside:
            for board in self._boards:
                if not self.leads:
                    aside.enter_context(board.aside())
            callbacks.set_model(self._model)
        self._has_begun = True

    def begin(self, callbacks: keras.callbacks.CallbackList) -> None:
        """Call `on_train_begin`, then make each `CSVLogger` write to a `LoggedRows` object.

        A `CSVLogger`'s file is therefore opened or emptied only by the process that `leads`.
        """
        arguments = [(each.filename, each.append) for each in self._loggers]
        for each in self._loggers:
            each.filename, each.append = os.devnull, False
        try:
            callbacks.on_train_begin()
        finally:
            for each, (filename, append) in zip(self._loggers, arguments, strict=True):
                each.filename, each.append = filename, append
        for each in self._loggers:
            if each.csv_file is not None:
                each.csv_file.close()
            each.csv_file = LoggedRows(each.filename, append=each.append)
            each.append_header = each.csv_file.is_empty
            each.csv_file.leads = self.leads
            each.csv_file.flush()

    def redirected(self) -> dict[str, Callable[..., Any]]:
        """Return functions that replace the model's save methods and write to a temporary folder.

        Returns:
            Name of the method -> replacement; empty if this process writes to the final paths
            (`leads`).
        """
        if self.leads:
            return {}
        return {
            name: self._aside(getattr(self._model, name))
            for name in _WRITING_METHODS
            if hasattr(self._model, name)
        }

    def committed(self, *, leads: bool) -> None:
        """Release or delete the held-back files after a commit of all workers.

        Args:
            leads: Whether this process now writes to the final paths. If so, its held-back files
                are moved there; else they are deleted, because another worker has written them.
        """
        self.leads = leads
        if not leads:
            self._is_shared = True
        if not self._has_begun:
            return
        for board in self._boards:
            board.committed(leads=leads)
        for each in self._loggers:
            if isinstance(each.csv_file, LoggedRows):
                each.csv_file.leads = leads
                each.csv_file.flush()
        if leads:
            for private, target in self._held:
                _put(private, target)
        self._drop()

    def forget(self) -> None:
        """Delete the held-back files; called after a training state has been loaded.

        If this process `leads`, also rewrite each `CSVLogger`'s file as of that state.
        """
        self._drop()
        for board in self._boards:
            board.drop()
        if self.leads:
            self.committed(leads=True)

    def flush(self) -> None:
        """Write buffered TensorBoard events to disk.

        Called before each checkpoint, because checkpoints do not contain events.
        """
        for board in self._boards:
            board.flush()

    def flush_for_others(self) -> None:
        """Call `flush` if this process `leads` and the job has had more than one worker.

        Every worker keeps what its TensorBoard callbacks write, in case it becomes the leader, and
        deletes this copy after a commit. The leader's files must be on disk by then.
        """
        if self._is_shared and self.leads:
            self.flush()

    def _drop(self) -> None:
        for private, _ in self._held:
            _remove(private.parent)
        self._held = []

    def _aside(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def write(filepath: Any, *args: Any, **named: Any) -> Any:
            if not isinstance(filepath, (str, os.PathLike)):
                return method(filepath, *args, **named)
            target = os.fspath(filepath)
            # The file name extension determines the format.
            private = self._new_folder() / Path(target).name
            if "://" not in target:
                # A callback may change the working directory before the file is moved.
                target = os.path.abspath(target)  # noqa: PTH100 - `..` of a link as `save` does it
            written = method(str(private), *args, **named)
            self._held.append((private, target))
            return written

        return write

    def _new_folder(self) -> Path:
        if self._folder is None:
            self._folder = TemporaryFolder()
        self._num_folders += 1
        folder = self._folder.path / str(self._num_folders)
        folder.mkdir()
        return folder


class LoggedRows:
    """File-like object that a `CSVLogger` writes to; holds all rows logged since the job began.

    After a restart, the file can therefore be rewritten as of the checkpoint, by any process, even
    if a killed process had written more rows.

    Args:
        path: Path of the file; may be a URL of cloud storage.
        append: Whether rows are appended to those already in the file.

    Attributes:
        leads: Whether this process writes the file; False until set.
        closed: Whether the file is closed, as for a file object.
    """

    def __init__(self, path: str, *, append: bool) -> None:
        self._path = path
        self._before = _read(path) if append else b""
        self._rows = b""
        # Length of the rows already in the file; None if unknown.
        self._num_written: int | None = None
        self.leads = self.closed = False

    @property
    def is_empty(self) -> bool:
        """Whether the file and the rows are empty, so that `CSVLogger` must write a header."""
        return not self._before and not self._rows

    def write(self, text: str) -> int:
        """Add text to the rows in memory; `flush` writes them. Return the number of characters."""
        self._rows += text.encode()
        return len(text)

    def flush(self) -> None:
        """Write the rows that are not yet in the file, if this process leads.

        Raises:
            OSError: The folder does not exist, or the disk is full.
        """
        if not self.leads:
            self._num_written = None
            return
        if self._num_written == len(self._rows):
            return
        if self._num_written is None or "://" in self._path:
            with tf.io.gfile.GFile(self._path, "wb") as file:
                file.write(self._before + self._rows)
        else:
            with open(self._path, "ab") as file:  # noqa: PTH123 - the path is as the user gave it
                file.write(self._rows[self._num_written :])
        self._num_written = len(self._rows)

    def close(self) -> None:
        """Write the rows that are not yet in the file, and mark it as closed."""
        if not self.closed:
            self.flush()
            self.closed = True

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint.

        It consists of the rows and of the length, in bytes, of what the file held before them.
        """
        return {"before": len(self._before), "rows": self._rows.decode()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the rows that had been logged when a checkpoint was written; drop later ones.

        This changes rows in memory only. The file is rewritten at the next `flush` at which this
        process is the one that writes it (`leads`).

        Args:
            state: The result of `state` in the checkpoint.
        """
        self._before = (self._before or _read(self._path))[: state["before"]]
        self._rows, self._num_written = state["rows"].encode(), None


class TensorBoardFiles:
    """Makes a `TensorBoard` callback write to its own folder on the leading worker only.

    On the other workers it writes to a temporary folder until the next commit. A worker that leads
    by then moves these events to the callback's folder; the others delete them.

    Args:
        callback: The callback.
        private: Function () -> new temporary folder, for events that are held back.
    """

    def __init__(self, callback: Any, private: Callable[[], Path]) -> None:
        self._callback, self._private = callback, private
        # Folder of the events held back; None while the callback writes to its own folder.
        self._folder: Path | None = None

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Context manager that sets the callback's `log_dir` to a new temporary folder.

        Set the callback's model in the block: `TensorBoard` reads `log_dir` only then. Its events
        go to the temporary folder until `committed`, although `log_dir` is restored on exit.
        """
        log_dir = self._callback.log_dir
        self._folder = self._private()
        self._callback.log_dir = str(self._folder)
        try:
            yield
        finally:
            self._callback.log_dir = log_dir

    def committed(self, *, leads: bool) -> None:
        """Release or delete the held-back events after a commit of all workers.

        Args:
            leads: Whether this process now writes to the callback's own folder. If so, held-back
                events are moved there; else they are deleted, and later ones are held back.
        """
        held = self._folder
        if not leads:
            self.drop()
            if held is None:
                # A worker with a lower rank has joined, and writes them from now on.
                self._folder = self._private()
                self._write_to(str(self._folder))
        elif held is not None:
            self._folder = None
            self._write_to(self._callback.log_dir)
            shutil.copytree(held, self._callback.log_dir, dirs_exist_ok=True)
            _remove(held)

    def drop(self) -> None:
        """Delete the events held back so far, if any; later ones go to a new temporary folder."""
        if self._folder is not None and any(self._folder.iterdir()):
            before, self._folder = self._folder, self._private()
            self._write_to(str(self._folder))
            _remove(before)

    def flush(self) -> None:
        """Write buffered TensorBoard events to disk."""
        for writer in self._callback._writers.values():  # noqa: SLF001 - no public name
            writer.flush()

    def _write_to(self, folder: str) -> None:
        """Close the callback's files and make it open new ones in a folder."""
        callback = self._callback
        # Writers of a training batch, and of an evaluation batch within it.
        stack = len(callback._prev_summary_state)  # noqa: SLF001
        for _ in range(stack):
            callback._pop_writer()  # noqa: SLF001
        callback._close_writers()  # noqa: SLF001
        callback._writers = {}  # noqa: SLF001
        callback._log_write_dir = folder  # noqa: SLF001
        callback._train_dir = os.path.join(folder, "train")  # noqa: SLF001, PTH118 - as Keras does
        callback._val_dir = os.path.join(folder, "validation")  # noqa: SLF001, PTH118
        if stack > 0:
            callback._push_writer(callback._train_writer, callback._global_train_batch)  # noqa: SLF001
        if stack > 1:
            callback._push_writer(callback._val_writer, callback._global_test_batch)  # noqa: SLF001


def _put(private: Path, target: str) -> None:
    """Copy a file or a folder to its final path, which may be a URL of cloud storage."""
    if private.is_dir():
        shutil.copytree(private, target, dirs_exist_ok=True)
    else:
        tf.io.gfile.makedirs(os.path.dirname(target))  # noqa: PTH120 - in a store maybe
        tf.io.gfile.copy(str(private), target, overwrite=True)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _read(path: str) -> bytes:
    if not tf.io.gfile.exists(path):
        return b""
    with tf.io.gfile.GFile(path, "rb") as file:
        content: bytes = file.read()
    return content
