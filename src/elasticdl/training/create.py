"""Picks the trainer a definition asks for; frameworks are imported only here and below."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any

from elasticdl.errors import DefinitionError, MissingExtraError

if TYPE_CHECKING:
    from elasticdl.data.batch import Batch
    from elasticdl.definition import ModelDefinition
    from elasticdl.training.trainer import Trainer


def create_trainer(
    definition: ModelDefinition,
    example: Batch,
    *,
    minibatch_size: int,
    seed: int,
    slot: int = 0,
    deterministic: bool = True,
) -> Trainer:
    """Return a trainer for the definition's framework, built for batches like the example.

    Raises:
        DefinitionError: The model does not fit the batch, or no trainer knows its framework.
        MissingExtraError: The framework is not installed.
    """
    return _trainer_class(definition)(
        definition,
        example,
        minibatch_size=minibatch_size,
        seed=seed,
        slot=slot,
        deterministic=deterministic,
    )


def _trainer_class(definition: ModelDefinition) -> Callable[..., Trainer]:
    if definition.framework == "keras":
        try:
            from elasticdl.training.keras import KerasTrainer  # noqa: PLC0415 - imports TensorFlow
        except ModuleNotFoundError as error:
            if error.name in {"keras", "tensorflow"}:
                raise MissingExtraError(
                    error.name, "tensorflow", "Training Keras models"
                ) from error
            raise
        return KerasTrainer
    if definition.framework == "torch":
        try:
            from elasticdl.training.torch import TorchTrainer  # noqa: PLC0415 - imports PyTorch
        except ModuleNotFoundError as error:
            if error.name == "torch":
                raise MissingExtraError("torch", "torch", "Training PyTorch models") from error
            raise
        return TorchTrainer
    raise DefinitionError(
        f"{definition.origin}: there is no trainer for {definition.framework!r}; have: keras, "
        "torch."
    )


def modules_of(framework: str) -> Sequence[str]:
    """Return the modules that training with a framework imports, sooner or later."""
    # PyTorch imports its compiler when an optimizer is made: 1.2 s.
    later = {"torch": ["torch._dynamo"]}
    return [f"elasticdl.training.{framework}", *later.get(framework, ())]


def quiet_frameworks() -> None:
    """Let frameworks be silent and leave the processors to others, once somebody imports them.

    Called before the user's file is imported: it imports what it computes with, and nothing else
    does, so that a PyTorch model never waits for TensorFlow to load.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        # PyTorch's threads wait for each other by spinning; how long, libgomp reads when loaded.
        # With another busy process on two cores, 138 steps took 17 s by its own default; so, 3 s.
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if not any(isinstance(finder, _SilentTensorFlow) for finder in sys.meta_path):
        sys.meta_path.insert(0, _SilentTensorFlow())


def limit_threads(count: int) -> None:
    """Let frameworks compute with so many threads; called before any of them is imported."""
    for name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS"):
        os.environ[name] = str(count)


def start_threads() -> None:
    """Let TensorFlow, where it is imported, start the threads that it computes with.

    It would at its first function, and they would have the priority of whoever calls that.
    """
    if "tensorflow" in sys.modules:
        tf = sys.modules["tensorflow"]
        tf.function(lambda number: number + 1)(tf.constant(0))


def prepare_to_fork(framework: str) -> bool:
    """Import what training imports, so that processes forked from this one have it.

    Returns:
        Whether they can train at all. TensorFlow has threads from its first operation on, which
        may be in the user's file, and threads are not in a process that is forked; nor is CUDA.
    """
    if framework != "torch":
        return False
    for module in modules_of(framework):
        importlib.import_module(module)
    return not sys.modules["torch"].cuda.is_available()


def use_this_thread_only() -> None:
    """Let PyTorch, where it is imported, compute in the thread that asks: a forked process must.

    Its other threads are those that the parent had made, if any, and are not there.
    """
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


class _SilentTensorFlow(MetaPathFinder):
    """Imports TensorFlow without what it writes past Python's own streams meanwhile."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "tensorflow":
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_silently(module: ModuleType) -> None:
            with _no_stderr():
                execute(module)

        spec.loader.exec_module = execute_silently  # type: ignore[method-assign]
        return spec


@contextlib.contextmanager
def _no_stderr() -> Iterator[None]:
    """Discard what native code writes to standard error; other threads' Python code still can."""
    python_stream = sys.stderr
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        if _is_descriptor_2(python_stream):
            # A training that starts prints the URL of its page meanwhile.
            python_stream.flush()
            # Its descriptor stays open: another thread may still be writing to it afterwards.
            sys.stderr = os.fdopen(
                os.dup(kept),
                "w",
                buffering=1,
                encoding=python_stream.encoding,
                errors="replace",
                closefd=False,
            )
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        sys.stderr = python_stream
        os.close(kept)
        os.close(nowhere)


def _is_descriptor_2(stream: Any) -> bool:
    try:
        return bool(stream.fileno() == 2)  # noqa: PLR2004 - standard error
    except (AttributeError, OSError, ValueError):
        return False
