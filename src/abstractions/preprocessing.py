"""An old module name; see `elasticdl.components`."""

from elasticdl.components import PreprocessorBase

__all__ = ["PreprocessorBase"]
