"""Saves and restores the state of hooks that callbacks register in `on_train_begin`.

The hooks are on the model or its parameters. What is saved here:

    self.model.fc.weight.register_hook(scale)        what `scale` remembers; see
                                                     `function_memory.py`
    self.model.register_forward_hook(self.record)    nothing: `callback_state.py` stores the
                                                     attributes of callbacks

Callers: `hooks.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import nn

from elasticdl.errors import DefinitionError
from elasticdl.training.torch.function_memory import FunctionMemory
from elasticdl.training.torch.hook_memory import gradient_hooks
from elasticdl.training.torch.value_codec import Codec, UnkeepableValueError
from elasticdl.training.trainer import CALLBACKS

if TYPE_CHECKING:
    import torch

    from elasticdl.definition import Origin
    from elasticdl.training.trainer import State

_PREFIX = f"{CALLBACKS}hooks/"


class CallbackHooks:
    """Saves and restores the state of the hooks that callbacks have registered.

    Args:
        model: The trained model.
        optimizer: Its optimizer.
        callbacks: The user's callbacks.
        where: Name of the user's function that creates the callbacks, for errors.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        callbacks: Sequence[Any],
        where: Origin,
    ) -> None:
        self._model, self._where = model, where
        self._known = [optimizer, *callbacks]
        self._of_file: set[int] = set()
        self._memory: FunctionMemory | None = None

    def begin(self) -> None:
        """Record the hooks that exist before `on_train_begin`.

        The model file has registered these, and `hook_memory.py` stores their state.
        """
        self._of_file = {id(hook) for hook in self._hooks().values()}

    def begun(self) -> None:
        """Find the hooks that callbacks have registered in `on_train_begin`.

        Raises:
            DefinitionError: A hook uses an iterator, whose position cannot be stored.
        """
        new = {name: hook for name, hook in self._hooks().items() if id(hook) not in self._of_file}
        codec = Codec(dict(nn.Module.named_parameters(self._model)))
        known = [*self._known, *self._model.modules()]
        self._memory = FunctionMemory(new, codec, known=known) if new else None
        self.arrays()

    def arrays(self) -> State:
        """Return the state of the hooks as arrays, by their names in a checkpoint.

        Raises:
            DefinitionError: A hook draws from an iterator, whose position cannot be stored.
        """
        if self._memory is None:
            return {}
        try:
            return {f"{_PREFIX}{name}": each for name, each in self._memory.state().items()}
        except UnkeepableValueError as error:
            raise DefinitionError(
                f"{self._where}: a hook that a callback registers keeps {error}, which no "
                "checkpoint can store, so a resumed training would continue differently. Keep "
                "numbers, strings and tensors, or lists and dicts of them."
            ) from error

    def load(self, arrays: State) -> None:
        """Restore the hooks' state that `arrays` returned; other arrays are ignored."""
        if self._memory is not None:
            found = {name: each for name, each in arrays.items() if name.startswith(_PREFIX)}
            self._memory.load({name.removeprefix(_PREFIX): each for name, each in found.items()})

    def _hooks(self) -> dict[str, Any]:
        """Return all hooks that the model and its parameters have: description -> function."""
        found = gradient_hooks(dict(nn.Module.named_parameters(self._model)), self._model)
        for name, module in self._model.named_modules():
            for hooks in (module._forward_pre_hooks, module._forward_hooks):  # noqa: SLF001 - no public name
                for hook in hooks.values():
                    found[f"forward hook of {name or 'the model'}, number {len(found)}"] = hook
        return found
