"""Import name for the components of training sessions; re-exports classes of `elasticdl`.

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
    """Import the classes that run sessions at first use, because components do not need them."""
    if name == "Orchestrator":
        from elasticdl.sessions.orchestrator import Orchestrator  # noqa: PLC0415

        return Orchestrator
    if name in {"TFKerasTrainer", "Trainer"}:
        from elasticdl.sessions.trainer import Trainer  # noqa: PLC0415

        return Trainer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
