"""Trains a feature in all places, and compares what came out with the plain script.

    plain script     the user's own loop, on records in their order
    one process      `elasticdl.train`
    resumed          the output of that training as it was on disk in the middle of an epoch, and
                     `elasticdl.train` on it once more: what a `kill -9` at that step leaves
    one worker       the elastic engine, one worker (`workers.py`)
    two workers      two of them, which share each batch of the plain script by halves

Callers: `test_parity.py`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import random
import re
import shutil
import sys
import time
import warnings
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
from safetensors.numpy import load_file
from tests.parity import records
from tests.parity.features import Feature, Promise

from elasticdl import api, job_options
from elasticdl.artifacts.checkpoint_store import CheckpointStore
from elasticdl.artifacts.folder import OutputFolder
from elasticdl.engines import publish
from elasticdl.engines import run as training_run
from elasticdl.engines.in_process import InProcessCommitter
from elasticdl.engines.progress_bar import Silent
from elasticdl.errors import ElasticDLError
from elasticdl.event_file import read_events
from elasticdl.events import EpochFinished, Evaluated, JobStarted

if TYPE_CHECKING:
    from elasticdl.job import Job

_CHECKPOINT_STEPS = 2
_ABSOLUTE = 1e-7
# Their models are those of other features: exporting them again would take a third of the time.
_NOT_EXPORTED = {
    "Callbacks", "Gradients", "Learning rate schedules", "Losses", "Metrics", "Optimizers",
    "Sample and class weights",
}  # fmt: skip


class DifferenceError(AssertionError):
    """A place gave other numbers than it should have."""


@dataclass(frozen=True, eq=False)
class Numbers:
    """What a training came to.

    Attributes:
        history: For each epoch, name -> value: `loss`, `val_loss`, `val_mae`, ...
        weights: Path -> tensor.
        files: What callbacks wrote, as the feature reads it: name -> number, text or array.
    """

    history: list[Mapping[str, float]]
    weights: Mapping[str, np.ndarray[Any, Any]]
    files: Mapping[str, Any] = field(default_factory=dict)


class Trainings:
    """The trainings of one feature; each is made when it is first asked for.

    Args:
        feature: Which one.
        folder: An empty folder to work in.
        data: Files of `write_data`.
        exports: Whether the model trained in one process is exported, where it can differ from
            those of other features.
    """

    def __init__(
        self, feature: Feature, folder: Path, data: Path, *, exports: bool = False
    ) -> None:
        self.feature, self._folder, self._data = feature, folder, data
        self._exports = exports and feature.group not in _NOT_EXPORTED
        # A zoo is copied into each trained model: one of two files, not of all features.
        self._zoo = folder / "zoo"
        self._zoo.mkdir(parents=True, exist_ok=True)
        for file in (feature.path, feature.path.with_name("shared.py")):
            shutil.copy(file, self._zoo)
        self.kill_step = 3 + zlib.crc32(feature.name.encode()) % (records.STEPS - 4)

    @cached_property
    def plain(self) -> Numbers:
        """What the plain script gives."""
        with self._files_in("plain"), _fresh_frameworks(self.feature.framework):
            # Keras names layers from the top of the file.
            module = _import(self.feature)
            _seed(self.feature.framework)
            history, model = module.plain(records.make_data())
            weights = _weights_of(model)
        names = list(history)
        num_epochs = max(len(history[name]) for name in names)
        return Numbers(
            [{name: history[name][epoch] for name in names} for epoch in range(num_epochs)],
            weights,
            self._read_files("plain"),
        )

    @contextlib.contextmanager
    def _files_in(self, place: str) -> Iterator[None]:
        """Let callbacks write into a folder of a place."""
        folder = self._files(place)
        folder.mkdir(exist_ok=True)
        with mock.patch.dict(os.environ, {"PARITY_FILES": str(folder)}):
            yield

    def _files(self, place: str) -> Path:
        return self._folder / f"files_of_{place}"

    def _read_files(self, place: str) -> Mapping[str, Any]:
        with self._files_in(place):
            module = _import(self.feature)
        if not hasattr(module, "read_files"):
            return {}
        with _fresh_frameworks(self.feature.framework):
            read: Mapping[str, Any] = module.read_files(self._files(place))
        return read

    def numbers(self, place: str) -> Numbers:
        """Train in a place.

        Raises:
            ElasticDLError: The training was refused, or failed.
        """
        return {
            "one process": lambda: self._one_process,
            "resumed": lambda: self._resumed,
            "one worker": lambda: self._one_worker,
            "two workers": lambda: self._two_workers,
        }[place]()

    @cached_property
    def _one_process(self) -> Numbers:
        output = self._folder / "one_process"
        with (
            _fresh_frameworks(self.feature.framework),
            self._copied_at_kill_step(output),
            contextlib.nullcontext() if self._exports else _without_export(),
            self._files_in("one_process"),
        ):
            api.run(self.job(output), Silent())
        return self._numbers_in(output)

    @cached_property
    def _resumed(self) -> Numbers:
        assert self._one_process is not None
        numbers = self.killed()
        begun = _attempts(self._folder / "killed")
        assert begun[-1] > 0, "It was trained from the start: nothing was resumed"
        return numbers

    def killed(self) -> Numbers:
        """Train in the folder where a killed training left off, or is to be killed."""
        output = self._folder / "killed"
        with (
            _fresh_frameworks(self.feature.framework),
            _without_export(),
            self._files_in("killed"),
        ):
            api.run(self.job(output), Silent())
        return self._numbers_in(output)

    def _numbers_in(self, output: Path) -> Numbers:
        return replace(read_numbers(output), files=self._read_files(output.name))

    @cached_property
    def _one_worker(self) -> Numbers:
        return self._on_workers(1, "train", minibatch_size=records.BATCH_SIZE)

    @cached_property
    def _two_workers(self) -> Numbers:
        return self._on_workers(
            2,
            "train_by_halves",
            minibatch_size=records.BATCH_SIZE // 2,
        )

    def _on_workers(self, num_workers: int, data: str, **options: Any) -> Numbers:
        # It imports PyTorch, for sums over a network.
        from tests.parity.workers import train_on

        output = self._folder / f"workers{num_workers}"
        # The same in every update, however many workers there are.
        options["global_batch_size"] = records.BATCH_SIZE
        job = self.job(output, data=data, num_workers=num_workers, **options)
        engine = train_on(num_workers, -(-records.NUM_RECORDS // records.BATCH_SIZE))
        with (
            _fresh_frameworks(self.feature.framework),
            _without_export(),
            self._files_in(output.name),
        ):
            training_run.train(job, Silent(), engine)
        return self._numbers_in(output)

    def job(self, output: Path, *, data: str = "train", **options: Any) -> Job:
        """Return the job of a training that leaves its model in `output`."""
        return job_options.training_job(
            model_zoo=str(self._zoo),
            model_def=self.feature.name,
            data=str(self._data / f"{data}.recordio"),
            output=str(output),
            **{
                "validation_data": str(self._data / "validation.recordio"),
                "minibatch_size": records.BATCH_SIZE,
                "num_epochs": records.EPOCHS,
                "seed": records.SEED,
                "shuffle": False,
                "checkpoint_steps": _CHECKPOINT_STEPS,
                **self.feature.job,
                **options,
            },
        )

    @contextlib.contextmanager
    def _copied_at_kill_step(self, output: Path) -> Iterator[None]:
        """Copy the output when a step is about to be made, as a kill would leave it."""
        commit = InProcessCommitter.commit
        copy = self._folder / "killed"

        def commit_and_copy(committer: Any, *args: Any, **named: Any) -> Any:
            if committer.trainer.step >= self.kill_step and not copy.exists():
                _copy_what_is_there(output, copy)
                shutil.copytree(self._files("one_process"), self._files("killed"))
            return commit(committer, *args, **named)

        with mock.patch.object(InProcessCommitter, "commit", commit_and_copy):
            yield


def write_data(folder: Path) -> None:
    """Write the records that all features are trained on."""
    data = records.make_data()
    records.write(folder / "train.recordio", data.train)
    records.write(folder / "train_by_halves.recordio", records.for_two_workers(data.train))
    records.write(folder / "validation.recordio", data.validation)


def read_numbers(output: Path) -> Numbers:
    """Return what a finished training left in its output."""
    history: dict[int, dict[str, float]] = {}
    # Numbered by their steps: an epoch ends once, but a killed attempt may have told it too.
    measured: dict[str, float] = {}
    for event in read_events(output / "events.jsonl"):
        if isinstance(event, Evaluated):
            measured = {f"val_{name}": value for name, value in event.metrics.items()}
        if isinstance(event, EpochFinished):
            history[event.epoch] = {**measured, **event.metrics}
    return Numbers(
        [history[epoch] for epoch in sorted(history)], load_file(output / "params.safetensors")
    )


def check(feature: Feature, place: str, trainings: Trainings) -> None:
    """Hold a feature to what its file promises for a place.

    Raises:
        DifferenceError: It gave other numbers; says where first.
        ElasticDLError: It was refused and should not have been.
    """
    promise = feature.promises[place]
    if promise.kind == "refused":
        check_refused(feature, place, trainings)
        return
    numbers = trainings.numbers(place)
    if place == "resumed":
        # Wherever a feature trains at all, a kill changes no bit.
        compare(numbers, trainings.numbers("one process"), Promise("equal", tolerance=0.0))
    elif promise.kind == "differs":
        check_differs(numbers, trainings.plain, same_weights=feature.same_weights)
    else:
        compare(numbers, trainings.plain, promise)


def check_refused(feature: Feature, place: str, trainings: Trainings) -> None:
    """See that an error of ours names the feature."""
    try:
        trainings.numbers(place)
    except ElasticDLError as error:
        if re.search(feature.refusal, str(error)) is None:
            raise DifferenceError(
                f"refused with other words than {feature.refusal!r}: "
                f"{type(error).__name__}: {error}"
            ) from error
        return
    raise DifferenceError("trained without a word; it should have been refused")


def check_differs(numbers: Numbers, plain: Numbers, *, same_weights: bool = False) -> None:
    """See that a difference that the page states is there, and that the numbers are sound.

    Raises:
        DifferenceError: There is none, or weights differ that should not.
    """
    assert numbers.weights.keys() == plain.weights.keys()
    if same_weights:
        compare(Numbers([], numbers.weights), Numbers([], plain.weights), Promise("equal"))
    for path, array in numbers.weights.items():
        assert array.dtype.kind != "f" or np.isfinite(array).all(), path
    try:
        compare(numbers, plain, Promise("equal"))
    except DifferenceError:
        return
    raise DifferenceError("the numbers are those of the plain script: say so on the page")


def compare(numbers: Numbers, expected: Numbers, promise: Promise) -> None:
    """Find the first number that differs: an epoch's losses and metrics, then the weights.

    Raises:
        DifferenceError: There is one.
    """
    if len(numbers.history) != len(expected.history):
        raise DifferenceError(f"{len(numbers.history)} epochs, expected {len(expected.history)}")
    for epoch, (mine, other) in enumerate(zip(numbers.history, expected.history, strict=True)):
        missing = [name for name in other if name.startswith("val_") and name not in mine]
        if missing:
            raise DifferenceError(
                f"{', '.join(missing)} is not measured; there is {', '.join(mine)}"
            )
        for name in sorted(mine.keys() & other.keys()):
            _compare(f"{name} of epoch {epoch + 1}", mine[name], other[name], promise)
    differing = sorted(numbers.weights.keys() ^ expected.weights.keys())
    if differing:
        raise DifferenceError(f"weights that only one has: {', '.join(differing)}")
    for path, array in numbers.weights.items():
        _compare(path, array, expected.weights[path], promise)
    if numbers.files.keys() != expected.files.keys():
        names = [", ".join(sorted(each.files)) or "nothing" for each in (numbers, expected)]
        raise DifferenceError("files hold {}, expected {}".format(*names))
    for name, content in numbers.files.items():
        _compare(f"{name} in a file", content, expected.files[name], promise)


def _compare(what: str, mine: Any, expected: Any, promise: Promise) -> None:
    mine, expected = np.asarray(mine), np.asarray(expected)
    if mine.shape != expected.shape:
        raise DifferenceError(f"{what} has shape {mine.shape}, expected {expected.shape}")
    if mine.dtype.kind not in "fV" or mine.size == 0:
        same = np.array_equal(mine, expected)
    else:
        wide, other = mine.astype(np.float64), expected.astype(np.float64)
        if promise.tolerance == 0.0:
            same = wide.tobytes() == other.tobytes()
        else:
            scale = np.nanmax(np.abs(np.where(np.isfinite(other), other, 0.0)))
            same = np.allclose(
                wide, other, rtol=0.0, atol=promise.tolerance * scale + _ABSOLUTE, equal_nan=True
            )
    if not same:
        raise DifferenceError(
            f"{what} is {_shown(mine)}, expected {_shown(expected)}{_by(mine, expected)}"
        )


def _shown(array: np.ndarray[Any, Any]) -> str:
    text = ", ".join(f"{x:.8g}" if array.dtype.kind == "f" else str(x) for x in array.ravel()[:3])
    return text if array.size == 1 else f"[{text}{', ...' if array.size > 3 else ''}]"


def _by(mine: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> str:
    if mine.dtype.kind != "f":
        return ""
    return f" (off by at most {np.max(np.abs(mine.astype(float) - expected.astype(float))):.3g})"


# --- the plain side -------------------------------------------------------------------------------


def _import(feature: Feature) -> ModuleType:
    """Import a feature's file as a script's user would, with `shared.py` beside it."""
    folder = str(feature.path.parent)
    sys.modules.pop("shared", None)
    sys.path.insert(0, folder)
    try:
        spec = importlib.util.spec_from_file_location(f"plain_{feature.name}", feature.path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(folder)
        sys.modules.pop("shared", None)
    return module


@contextlib.contextmanager
def _fresh_frameworks(framework: str) -> Iterator[None]:
    """Begin with frameworks as a new process has them, and leave them so."""
    if framework == "torch":
        yield from _fresh_torch()
        return
    import keras
    from tensorflow.python.framework import config

    def refresh() -> None:
        keras.config.set_dtype_policy("float32")
        keras.config.set_floatx("float32")
        # Looking for garbage each time would cost more than the training.
        keras.utils.clear_session(free_memory=False)

    was_enabled = config.is_op_determinism_enabled()
    config.enable_op_determinism()
    refresh()
    _seed("keras")
    try:
        with warnings.catch_warnings():
            # `jit_compile=True` beside deterministic operations: Keras goes on without it.
            warnings.filterwarnings("ignore", "Model doesn't support `jit_compile=True`")
            yield
    finally:
        refresh()
        if not was_enabled:
            config.disable_op_determinism()


@contextlib.contextmanager
def _without_export() -> Iterator[None]:
    """Publish weights only: the same model is exported elsewhere."""
    with mock.patch.object(publish, "Exporter", _NoExporter):
        yield


class _NoExporter:
    """Nothing is an instance of it."""


def _fresh_torch() -> Iterator[None]:
    import torch

    before = torch.get_deterministic_debug_mode()
    torch.use_deterministic_algorithms(mode=True)
    _seed("torch")
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)


def _seed(framework: str) -> None:
    """Seed all generators, as scripts do."""
    if framework == "torch":
        import torch

        torch.manual_seed(records.SEED)
        random.seed(records.SEED)
        np.random.seed(records.SEED)  # noqa: NPY002 - as scripts do
    else:
        import keras

        keras.utils.set_random_seed(records.SEED)


def _weights_of(model: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Return the weights as the file of a trained model has them."""
    if hasattr(model, "state_dict"):
        # A tensor that has two names is kept once, and a buffer that is not persistent never.
        own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        own = {name: own[name] for name in own.keys() & model.state_dict().keys()}
        return {name: _as_array(tensor) for name, tensor in own.items()}
    weights: dict[str, np.ndarray[Any, Any]] = {}
    variables = [*model.trainable_variables, *model.non_trainable_variables]
    for variable in variables:
        if variable.path.endswith("seed_generator_state"):
            continue
        path, number = variable.path, 1
        while path in weights:
            number += 1
            path = f"{variable.path}#{number}"
        weights[path] = np.array(variable.numpy())
    return weights


def _as_array(tensor: Any) -> np.ndarray[Any, Any]:
    # NumPy has no sparse arrays, and no bfloat16 of its own; every one of them is a float32.
    dense = tensor.detach().to_dense()
    narrow = str(dense.dtype) == "torch.bfloat16"
    array: np.ndarray[Any, Any] = (dense.float() if narrow else dense).numpy().copy()
    return array


# --- files ----------------------------------------------------------------------------------------


def _copy_what_is_there(output: Path, copy: Path) -> None:
    """Copy an output while it is trained into, when its first checkpoint is there."""
    while True:
        # A checkpoint may be being written meanwhile: files come and go, as they may before a kill.
        with contextlib.suppress(shutil.Error, FileNotFoundError):
            shutil.copytree(output, copy)
        with CheckpointStore(OutputFolder(str(copy)), 3) as store:
            if store.steps():
                return
        shutil.rmtree(copy, ignore_errors=True)
        time.sleep(0.05)


def _attempts(output: Path) -> list[int]:
    """Return the step that each attempt started from."""
    found = [
        event for event in read_events(output / "events.jsonl") if isinstance(event, JobStarted)
    ]
    return [event.resumed_from_step for event in found]
