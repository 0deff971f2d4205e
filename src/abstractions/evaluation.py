"""An old module name; see `elasticdl.components`."""

from elasticdl.components import EvaluatorBase

__all__ = ["EvaluatorBase"]
