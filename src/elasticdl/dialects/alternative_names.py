"""Notes unused names in a model file that probably stand for a name that ElasticDL looks for.

    def scheduler(optimizer): ...     probably lr_scheduler
    grad_clip = 1.0                   probably gradient_clipping

A fixed table lists such alternative names; spelling is not compared. A helper may have such a name,
so this is a note and not an error. There is no note if other code of the file uses the name, if the
right name also exists, or if the value is of the wrong kind.

For a required part that is missing, misspelled names are found as well (`los`, `optimiser`):
there is an error anyway.

Callers: `elasticdl_module.py`, and `__init__.py` of this package.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from elasticdl.dialects.model_code import (
    CONTRACT_FUNCTIONS,
    DEFAULTS,
    INPUT_FUNCTIONS,
    LOADER,
    function_of,
    symbol_of,
)
from elasticdl.dialects.source_lines import names_imported, names_used
from elasticdl.did_you_mean import nearest

if TYPE_CHECKING:
    from elasticdl.dialects.dialect_reader import DialectReader
    from elasticdl.dialects.model_code import ModelCode

# The names whose alternatives are noted in a Keras model file.
_OF_KERAS = ("callbacks", "eval_metrics_fn")
_FUNCTION_OF_ONE = ("lr_scheduler", "averaged_model", "train_dataloader", "val_dataloader")
# A name that ElasticDL looks for -> alternative names, which it does not read.
_ALTERNATIVES: Mapping[str, Sequence[str]] = {
    "lr_scheduler": (
        "lr_schedulers",
        "lr_schedule",
        "learning_rate_scheduler",
        "learning_rate_schedule",
        "scheduler",
        "schedulers",
        "configure_schedulers",
    ),
    "gradient_clipping": (
        "gradient_clip",
        "grad_clip",
        "grad_clipping",
        "clip_gradient",
        "clip_gradients",
        "clip_grad",
        "clip_grad_norm",
        "gradient_clip_val",
        "max_grad_norm",
    ),
    "averaged_model": (
        "average_model",
        "averaged_models",
        "ema",
        "ema_model",
        "model_ema",
        "swa",
        "swa_model",
    ),
    "train_dataloader": (
        "training_dataloader",
        "train_data_loader",
        "train_loader",
        "training_loader",
        "train_dataloaders",
        "dataloader",
        "data_loader",
    ),
    "val_dataloader": (
        "validation_dataloader",
        "valid_dataloader",
        "eval_dataloader",
        "val_loader",
        "valid_loader",
        "validation_loader",
    ),
    "callbacks": ("callback", "get_callbacks", "custom_callbacks"),
    "eval_metrics_fn": ("eval_metrics", "metrics_fn", "eval_metric_fn", "metrics", "get_metrics"),
}


# Names that ElasticDL reads.
_PARTS = {*CONTRACT_FUNCTIONS, *DEFAULTS, *_ALTERNATIVES, "model", "custom_model", "CustomModel"}
# A required part -> names by which other tools call it.
_OTHER_REQUIRED = {
    "loss": ("loss_fn", "loss_func", "loss_function", "criterion"),
    "optimizer": ("optim", "optimizer_fn", "get_optimizer", "make_optimizer"),
    "custom_model": ("build_model", "create_model", "get_model", "make_model", "model_fn"),
}


def misspelled(model_code: ModelCode, missing: Iterable[str]) -> str:
    """Return questions about unused names of a model file that may mean its missing parts.

    Args:
        model_code: The code of the model.
        missing: Names of the missing parts, such as `loss`.

    Returns:
        " The file has `los` (line 7); did you mean `loss`?" for each; empty if there is none.
    """
    wanted = [*missing]
    text = ""
    for module in model_code.modules:
        file = Path(module.__file__ or "")
        used, imported = names_used(file), names_imported(file)
        for name, value in vars(module).items():
            if name in used or name in imported or name in _PARTS or name.startswith("_"):
                continue
            meant = nearest(name, wanted, is_label=True) or next(
                (each for each in wanted if name in _OTHER_REQUIRED.get(each, ())), None
            )
            # Only a loss may be a text, the name of a loss of Keras.
            is_setting = value is None or isinstance(value, (str, int, float))
            if meant is not None and (meant == "loss" or not is_setting):
                line = symbol_of(name, value, module).line
                text += f" The file has `{name}` (line {line}); did you mean `{meant}`?"
    return text


def alternative_name_notes(reading: DialectReader) -> list[str]:
    """Return a note for each unused name in a model file that probably means another one."""
    is_torch = reading.framework == "torch"
    alternatives = _ALTERNATIVES if is_torch else {name: _ALTERNATIVES[name] for name in _OF_KERAS}
    notes = []
    for module in reading.model_code.modules:
        used = names_used(Path(module.__file__ or ""))
        for meant, names in alternatives.items():
            if reading.model_code.find(meant) is not None:
                continue
            if meant == LOADER and any(map(reading.model_code.find, INPUT_FUNCTIONS)):
                continue
            for name in names:
                value = getattr(module, name, None)
                if name in used or not _may_mean(meant, value, module):
                    continue
                where = symbol_of(name, value, module)
                notes.append(
                    f"{where}: {name} is not used: nothing in the file uses it, and ElasticDL "
                    f"looks for {meant}. If you meant that, rename it."
                )
    return notes


def _may_mean(meant: str, value: Any, module: ModuleType) -> bool:
    """Return whether a value is of the kind expected under the name `meant`, and not imported.

    Args:
        meant: A name that ElasticDL looks for, such as `lr_scheduler`.
        value: The value of an alternative name in the file.
        module: The file.
    """
    if isinstance(value, type) or value is None:
        return False
    if callable(value):
        function = function_of(value)
        if getattr(function, "__module__", module.__name__) != module.__name__:
            # It is imported.
            return False
        needed = _num_needed(function)
        if meant in _FUNCTION_OF_ONE:
            return needed == 1
        return {"callbacks": needed == 0, "gradient_clipping": needed == 1}.get(meant, needed <= 2)  # noqa: PLR2004
    if meant == "gradient_clipping":
        return isinstance(value, (int, float, dict)) and not isinstance(value, bool)
    # A list of callbacks or a dict of metrics in the file.
    return meant in {"callbacks", "eval_metrics_fn"} and isinstance(value, (list, tuple, dict))


def _num_needed(function: Callable[..., Any]) -> int:
    """Return the number of arguments that a function requires; -1 if it has no signature."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return -1
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in positional and p.default is p.empty for p in parameters)
