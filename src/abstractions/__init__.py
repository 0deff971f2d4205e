"""The import name that repositories of training sessions use; everything is ElasticDL's.

from abstractions import DataLoaderBase, PreprocessorBase, ModelBuilderBase, EvaluatorBase
from abstractions.utils import ConfigStruct
"""

from elasticdl.components import (
    AugmentorBase,
    BaseClass,
    DataLoaderBase,
    EvaluatorBase,
    ModelBuilderBase,
    PreprocessorBase,
)

__all__ = [
    "AugmentorBase",
    "BaseClass",
    "DataLoaderBase",
    "EvaluatorBase",
    "ModelBuilderBase",
    "PreprocessorBase",
]
