"""Base classes for the components of training sessions, under the package name `abstractions`.

Code that was written for the separate package `abstractions` imports them from here, unchanged;
the classes themselves are defined in `elasticdl`.

    from abstractions import DataLoaderBase, PreprocessorBase, ModelBuilderBase, EvaluatorBase
    from abstractions.utils import ConfigStruct
"""

from typing import TYPE_CHECKING, Any

from elasticdl.components import (
    AugmentorBase,
    BaseClass,
    DataLoaderBase,
    EvaluatorBase,
    ModelBuilderBase,
    PreprocessorBase,
)

if TYPE_CHECKING:
    from elasticdl.sessions.orchestrator import Orchestrator
    from elasticdl.sessions.trainer import TFKerasTrainer, Trainer

__all__ = [
    "AugmentorBase",
    "BaseClass",
    "DataLoaderBase",
    "EvaluatorBase",
    "ModelBuilderBase",
    "Orchestrator",
    "PreprocessorBase",
    "TFKerasTrainer",
    "Trainer",
]


def __getattr__(name: str) -> Any:
    """Import `Orchestrator` or a trainer class only when it is first used.

    These classes run sessions, and importing them takes time. Files that only define components do
    not need them.
    """
    if name == "Orchestrator":
        from elasticdl.sessions.orchestrator import Orchestrator  # noqa: PLC0415

        return Orchestrator
    if name in {"TFKerasTrainer", "Trainer"}:
        from elasticdl.sessions.trainer import Trainer  # noqa: PLC0415

        return Trainer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
