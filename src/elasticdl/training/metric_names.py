"""Checks the names of metrics, and removes the stage (`train_`, `val/`) from logged names.

Without the stage, a metric has one name in training and validation; reports prefix it with `val_`
for validation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from elasticdl.errors import DefinitionError

_VALIDATION = "val_"
# Prefixes in the names of values that Lightning modules log: train_acc, val/loss.
_STAGES = {
    "train": "",
    "training": "",
    "val": _VALIDATION,
    "valid": _VALIDATION,
    "validation": _VALIDATION,
    "test": _VALIDATION,
}


def check_names(names: Iterable[str], where: str, *, taken: Iterable[str] = ("loss",)) -> None:
    """Check that no metric has the name of another metric, or a reserved name.

    Args:
        names: The names of all metrics of the training, or of all metrics of the evaluation.
        where: The user's `file:line`, for errors.
        taken: Reserved names. Names that begin with `val_` are always reserved.

    Raises:
        DefinitionError: Two metrics have the same name, or a name is reserved.
    """
    names, taken = list(names), set(taken)
    for name in names:
        if name in taken:
            raise DefinitionError(
                f"{where}: a metric is named {name!r}, which is the name of the model's own loss. "
                "It would be reported instead of the loss, and would decide which checkpoint is "
                "the best. Give the metric another name."
            )
        if name.startswith(_VALIDATION):
            raise DefinitionError(
                f"{where}: a metric is named {name!r}. Names that begin with {_VALIDATION!r} are "
                "those of metrics on the validation data. Give the metric another name."
            )
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DefinitionError(
            f"{where}: two metrics are named {twice[0]!r}; only one of them would be reported. "
            "Give each a unique name, name=... for a Keras metric."
        )


def in_order(names: Iterable[str], of_file: Sequence[str]) -> list[str]:
    """Return names of metrics in the order of the model file, which all reports use.

    Args:
        names: The names. Those that the file does not list, such as `loss`, come first, unchanged.
        of_file: The names in the file's order.

    Example:
        >>> in_order(["loss", "auc", "f1"], ["f1", "auc"])
        ['loss', 'f1', 'auc']
    """
    place = {name: number for number, name in enumerate(of_file)}
    return sorted(names, key=lambda name: place.get(name, -1))


def split_stage(logged: str) -> tuple[str, str]:
    """Split a logged name into the prefix under which it is reported, and the rest.

    For example `val/acc` into `val_` and `acc`.

    Args:
        logged: Name as a Lightning step logs it: `acc`, `train_loss`, `val/acc`.

    Returns:
        `val_` for an evaluation stage, else the empty string; and the name without its stage.
    """
    for stage, prefix in _STAGES.items():
        rest = logged[len(stage) + 1 :]
        if rest and logged.startswith((f"{stage}_", f"{stage}/")):
            return prefix, rest
    return "", logged
