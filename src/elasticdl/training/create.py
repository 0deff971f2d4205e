"""Creates the trainer for a definition's framework, and prepares the frameworks for use.

Within `training/`, frameworks are imported only here and in the folders named after them.
"""

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

from elasticdl.errors import DefinitionError, framework_needed
from elasticdl.training.import_seed import kept_state, seed_loaded

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
    rank: int = 0,
    deterministic: bool = True,
) -> Trainer:
    """Create a trainer for the definition's framework, built for batches like the example.

    Args:
        definition: The model definition.
        example: A representative batch.
        minibatch_size: Number of examples in a full batch.
        seed: Determines the initial weights and, with step and rank, all random numbers of steps.
        rank: This worker's rank.
        deterministic: Whether to use deterministic kernels, where the framework has them.

    Raises:
        DefinitionError: The model does not fit the batch, or no trainer supports its framework.
        MissingExtraError: The framework is not installed.
    """
    return _trainer_class(definition)(
        definition,
        example,
        minibatch_size=minibatch_size,
        seed=seed,
        rank=rank,
        deterministic=deterministic,
    )


def _trainer_class(definition: ModelDefinition) -> Callable[..., Trainer]:
    if definition.framework == "keras":
        with framework_needed(f"{definition.origin}: this Keras model"):
            from elasticdl.training.keras import KerasTrainer  # noqa: PLC0415 - imports TensorFlow
        return KerasTrainer
    if definition.framework == "torch":
        with framework_needed(f"{definition.origin}: this PyTorch model"):
            from elasticdl.training.torch import TorchTrainer  # noqa: PLC0415 - imports PyTorch
        return TorchTrainer
    raise DefinitionError(
        f"{definition.origin}: there is no trainer for {definition.framework!r}; expected keras or "
        "torch."
    )


def modules_of(framework: str) -> Sequence[str]:
    """Return the modules that training with a framework needs, by name, to import them early."""
    # PyTorch imports its compiler when an optimizer is created: 1.2 s.
    later = {"torch": ["torch._dynamo"]}
    return [f"elasticdl.training.{framework}", *later.get(framework, ())]


def quiet_frameworks() -> None:
    """Configure frameworks, without importing them, to print nothing when they are imported.

    Called before the user's file is imported. Only that file imports its framework, so a PyTorch
    model never waits for TensorFlow to load.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if not any(isinstance(finder, _QuietFrameworks) for finder in sys.meta_path):
        sys.meta_path.insert(0, _QuietFrameworks())


def limit_threads(count: int) -> None:
    """Limit frameworks to `count` threads, in a process that shares its machine with others.

    Called before any framework is imported.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        # PyTorch's threads spin while they wait for each other; libgomp reads the limit when it is
        # loaded. With another busy process on two cores, 138 steps took 17 s with its default and
        # 3 s with this value. Without other processes, the default is a fifth faster.
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    for name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS"):
        os.environ[name] = str(count)


def start_threads() -> None:
    """Start TensorFlow's computing threads, if it is imported.

    Otherwise TensorFlow would start them when it first runs a function, with the priority of the
    calling thread.
    """
    if "tensorflow" in sys.modules:
        tf = sys.modules["tensorflow"]
        tf.function(lambda number: number + 1)(tf.constant(0))


def prepare_to_fork(framework: str) -> bool:
    """Import the modules for training, so that processes forked from this one share them.

    Returns:
        Whether forked processes can train. They cannot with TensorFlow, for which nothing is
        imported: it starts threads at its first operation, which may be in the user's file, and
        threads do not survive a fork. Neither does CUDA, so with a GPU the result is False, too.
    """
    if framework != "torch":
        return False
    for module in modules_of(framework):
        importlib.import_module(module)
    return not sys.modules["torch"].cuda.is_available()


def use_this_thread_only() -> None:
    """Limit PyTorch, if it is imported, to the calling thread, as a forked process requires.

    Its other threads, if any, belonged to the parent and do not exist here.
    """
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


class _QuietFrameworks(MetaPathFinder):
    """Import hook that silences TensorFlow's native output during its import, and seeds frameworks.

    TensorFlow and PyTorch are seeded when a user's file imports them; see `import_seed.py`.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in ("tensorflow", "torch", "keras"):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_silently(module: ModuleType) -> None:
            with (
                kept_state(),
                _no_stderr() if fullname == "tensorflow" else contextlib.nullcontext(),
            ):
                execute(module)
            seed_loaded(fullname)

        spec.loader.exec_module = execute_silently  # type: ignore[method-assign]
        return spec


@contextlib.contextmanager
def _no_stderr() -> Iterator[None]:
    """Context manager that discards native code's output to standard error, but not Python's."""
    python_stream = sys.stderr
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        if _is_descriptor_2(python_stream):
            # `elasticdl train` prints the URL of its page meanwhile.
            python_stream.flush()
            # Its descriptor stays open, because another thread may still be writing to it
            # afterwards.
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
