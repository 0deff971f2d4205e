"""Rejects parameters, buffers and parameter groups that are changed or replaced in training.

    an optimizer's hook calls prune.l1_unstructured(layer, "weight", 0.3)   weight_orig is new
    `forward` assigns self.layer.weight = nn.Parameter(...)                  weight is replaced
    a hook appends to optimizer.param_groups[0]["params"]                    the group is changed

Checkpoints, workers and the trained model have the parameters and buffers of the model as the model
file creates it, so they would lack such a change. Changes that callbacks make are rejected by
`callback_changes.py`, with the name of the event.

Callers: `trainer.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from elasticdl.errors import DefinitionError
from elasticdl.training.torch.buffers import is_kept

if TYPE_CHECKING:
    from elasticdl.definition import ModelDefinition


class Structure:
    """Remembers the parameters, buffers and groups that there are, to compare with them later.

    Args:
        model: The model, as created.
        optimizer: Its optimizer, as created.
        definition: The model definition, for errors.
    """

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, definition: ModelDefinition
    ) -> None:
        self._model, self._optimizer, self._definition = model, optimizer, definition
        # The objects themselves: the id of one that is gone might be reused.
        self._tensors = self._named()
        self._groups = [list(group["params"]) for group in optimizer.param_groups]

    def check(self) -> None:
        """Check that the model and the optimizer still have what they were created with.

        Groups that a hook has added to the optimizer are permitted, because checkpoints store them.

        Raises:
            DefinitionError: A parameter or persistent buffer was added or removed, a parameter was
                replaced, or one of the first groups has other parameters.
        """
        now = self._named()
        changes = [
            *(f"{name} is gone" for name in self._tensors if name not in now),
            *(f"{name} is new" for name in now if name not in self._tensors),
            *(
                f"{name} is another object"
                for name, before in self._tensors.items()
                # A tensor in place of a parameter is computed again in each call.
                if isinstance(before, nn.Parameter) and isinstance(now.get(name), nn.Parameter)
                if now[name] is not before
            ),
        ]
        if changes:
            raise DefinitionError(
                f"{self._definition.where('model')}: the parameters or buffers of the model are no "
                "longer those with which it was created, because `forward`, the loss or a hook of "
                f"the optimizer changed them: {', '.join(changes[:3])}. Checkpoints and the "
                "trained model have those of the model as the model file creates it. Create all in "
                "the model file and change their values in place, under torch.no_grad(). For "
                "pruning, call torch.nn.utils.prune.identity(layer, 'weight') there, and change "
                "the mask (layer.weight_mask.mul_(...)) in training. A buffer that starts as None "
                "needs its shape from the start (torch.zeros(...)), or persistent=False if it "
                "depends on no batch."
            )
        groups = [group["params"] for group in self._optimizer.param_groups]
        for number, before in enumerate(self._groups):
            if number >= len(groups) or not _are_same(before, groups[number]):
                raise DefinitionError(
                    f"{self._definition.where('optimizer')}: group {number} of the optimizer no "
                    "longer has the parameters with which it was created, because a hook of the "
                    "optimizer or `forward` changed them. No checkpoint stores that, so a resumed "
                    "training would continue differently. Add parameters as a separate group, "
                    "optimizer.add_param_group(), or give the optimizer all parameters, and let "
                    "those that are not yet to be trained have requires_grad=False until a "
                    "callback unfreezes them."
                )

    def _named(self) -> dict[str, torch.Tensor]:
        parameters = nn.Module.named_parameters(self._model, remove_duplicate=False)
        buffers = {
            f"{prefix}.{leaf}".lstrip("."): buffer
            for prefix, module in self._model.named_modules()
            for leaf, buffer in module._buffers.items()  # noqa: SLF001 - see `is_kept`
            if buffer is not None and is_kept(module, leaf) and not is_lazy(buffer)
        }
        return {**dict(parameters), **buffers}


def _are_same(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    pairs = zip(some, others, strict=False)
    return len(some) == len(others) and all(one is other for one, other in pairs)
