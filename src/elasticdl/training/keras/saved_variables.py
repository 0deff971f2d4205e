"""Names the variables that a checkpoint contains, and restores them.

    model/dense/kernel, model/batch_normalization/moving_mean, optimizer/adam/iteration, ...

Callers: `trainer.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from elasticdl.training.checkpoint_mismatch import check_matches
from elasticdl.training.keras import optimizers

if TYPE_CHECKING:
    from elasticdl.training.trainer import State


def by_path(of_model: Iterable[Any], of_optimizer: Iterable[Any]) -> dict[str, Any]:
    """Return path -> variable, the same paths in each process.

    Args:
        of_model: The trained weights and the statistics.
        of_optimizer: The variables of the optimizer.
    """
    variables: dict[str, Any] = {}
    for kind, members in (("model", of_model), ("optimizer", of_optimizer)):
        for variable in members:
            path = f"{kind}/{variable.path}"
            number = 1
            while path in variables:
                # Two variables of a subclass model may have the same path; their order is fixed.
                number += 1
                path = f"{kind}/{variable.path}#{number}"
            variables[path] = variable
    return variables


def load(variables: Mapping[str, Any], state: State) -> None:
    """Set variables to their values in a checkpoint.

    Args:
        variables: The result of `by_path`.
        state: The arrays of the checkpoint, by path. It has the number of the step as well.

    Raises:
        CheckpointMismatchError: The paths or shapes differ. No variable is set.
    """
    saved, mine = (optimizers.classes_in(each) for each in (state, variables))
    # Of another optimizer, all variables have other names.
    compared = sorted({*variables, *state} - {"step"})
    if saved != mine:
        compared = [path for path in compared if not path.startswith("optimizer/")]
    problems = [
        f"{path}: {_shape_of(state.get(path))} in the checkpoint, "
        f"{_shape_of(variables.get(path))} in the model"
        for path in compared
        if path not in variables
        or path not in state
        or tuple(variables[path].shape) != state[path].shape
    ]
    if saved != mine:
        problems.append(
            f"optimizer: {saved or 'none'} in the checkpoint, {mine or 'none'} in the model file"
        )
    check_matches(problems)
    for path, variable in variables.items():
        variable.assign(state[path])


def _shape_of(array: Any) -> str:
    return "missing" if array is None else f"{array.dtype}{list(array.shape)}"
