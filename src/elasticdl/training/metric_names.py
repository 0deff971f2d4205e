"""Names of metrics: those that one cannot have, and the stage that a logged one begins with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from elasticdl.errors import DefinitionError

_VALIDATION = "val_"
# As modules of Lightning name what they log: train_acc, val/loss.
_STAGES = {
    "train": "",
    "training": "",
    "val": _VALIDATION,
    "valid": _VALIDATION,
    "validation": _VALIDATION,
    "test": _VALIDATION,
}


def check_names(names: Iterable[str], where: str, *, taken: Iterable[str] = ("loss",)) -> None:
    """Make sure that no metric takes the place of another, or of the loss.

    Args:
        names: As they are reported, of one mode.
        where: The user's `file:line`, for errors.
        taken: Names that are not the user's to give.

    Raises:
        DefinitionError: Two metrics have one name, or a name is taken.
    """
    names, taken = list(names), set(taken)
    for name in names:
        if name in taken:
            raise DefinitionError(
                f"{where}: a metric is named {name!r}, which is the name of the model's own loss. "
                "It would be reported in its place, and decide which checkpoint is the best. "
                "Give the metric another name."
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
            "Give each a name of its own, name=... for a Keras metric."
        )


def split_stage(logged: str) -> tuple[str, str]:
    """Return what a logged name is reported with, and the rest of it: `val/acc` -> `val_`, `acc`.

    Args:
        logged: As a step of Lightning's logs it: `acc`, `train_loss`, `val/acc`.

    Returns:
        `val_` for a stage that evaluates, else nothing; and the name without its stage.
    """
    for stage, prefix in _STAGES.items():
        rest = logged[len(stage) + 1 :]
        if rest and logged.startswith((f"{stage}_", f"{stage}/")):
            return prefix, rest
    return "", logged
