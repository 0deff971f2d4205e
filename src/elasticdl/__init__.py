"""ElasticDL: train a user's model, unchanged, wherever the data and the machines are.

    import elasticdl

    elasticdl.train(model_def="mnist", data="data/train/*.recordio", output="my_model")

Public names are imported on first use: `import elasticdl` imports no framework and takes a few
milliseconds.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elasticdl.api import evaluate, load, predict, train
    from elasticdl.definition import Mode
    from elasticdl.engines.engine import Outcome
    from elasticdl.errors import ElasticDLError
    from elasticdl.job import Job
    from elasticdl.spec import ElasticDLSpec

__version__ = "0.1.0.dev0"

_LAZY = {
    "train": "elasticdl.api",
    "evaluate": "elasticdl.api",
    "predict": "elasticdl.api",
    "load": "elasticdl.api",
    "ElasticDLError": "elasticdl.errors",
    "ElasticDLSpec": "elasticdl.spec",
    "Job": "elasticdl.job",
    "Mode": "elasticdl.definition",
    "Outcome": "elasticdl.engines.engine",
}

__all__ = [
    "ElasticDLError",
    "ElasticDLSpec",
    "Job",
    "Mode",
    "Outcome",
    "__version__",
    "evaluate",
    "load",
    "predict",
    "train",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'elasticdl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
