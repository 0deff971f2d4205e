"""What callbacks change of a model beside its weights, so that a resumed training has it too.

    which parameters train        requires_grad, as in unfreezing at an epoch
    attributes of modules         dropout.p = 0.2, model.temperature = 3.0
    modules in evaluation mode    layer.eval() of a BatchNorm; as in a plain loop, `model.train()`
                                  before an epoch, and after an evaluation, ends it
    parameters and modules        that are replaced or added: refused

In which mode the model is, is a function of the moment: training mode from `on_train_begin` to the
end of an epoch's batches, else evaluation mode.

Callers: `hooks.py`; `trainer.py` for the mode.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import nn

from elasticdl.errors import DefinitionError
from elasticdl.training.callback_state import CannotKeepError
from elasticdl.training.torch.outside import digest
from elasticdl.training.trainer import CALLBACKS

if TYPE_CHECKING:
    import numpy as np
    import torch

    from elasticdl.definition import Origin
    from elasticdl.training.torch.callback_state import TorchValues
    from elasticdl.training.trainer import State

_OF_MODULES = vars(nn.Module()).keys()
_PLAIN = (bool, int, float, str, type(None))
# Not a matter of the model's: the loop asks for it.
_STOPS = ("", "stop_training")


class Modes:
    """Whether a model is in training or evaluation mode, and which of its modules is not.

    Args:
        model: What is trained.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.differing: dict[str, bool] = {}
        self._is_set = False

    def train(self) -> None:
        """Put the model into training mode, but for modules that a callback put into another."""
        if self._is_set and self._model.training is self.differing.get("", True):
            return
        self._model.train()
        for name, module in self._model.named_modules():
            if name in self.differing:
                module.training = self.differing[name]
        self._is_set = True

    def eval(self) -> None:
        """Put the model into evaluation mode."""
        if self._is_set or self._model.training:
            self._model.eval()
        self._is_set = False

    def forget(self) -> None:
        """Take the mode of no module for another than the model's: an epoch begins."""
        self.differing, self._is_set = {}, False

    def look(self) -> None:
        """Remember which modules a callback has put into another mode, in training mode."""
        now = {name: module.training for name, module in self._model.named_modules()}
        self.forget()
        self.train()
        plain = {name: module.training for name, module in self._model.named_modules()}
        self.differing = {name: mode for name, mode in now.items() if mode is not plain.get(name)}
        self._is_set = not self.differing


class Touched:
    """What the callbacks of a training change; see the module.

    Args:
        model: What is trained.
        optimizer: Of it.
        modes: Of the model.
        values: Turns attributes into arrays.
        where: The user's `callbacks`, for errors.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        modes: Modes,
        values: TorchValues,
        where: Origin,
    ) -> None:
        self._model, self._optimizer, self._modes = model, optimizer, modes
        self._values, self._where = values, where
        self._attributes: set[tuple[str, str]] = set()
        self._num_groups = len(optimizer.param_groups)

    def begin(self) -> None:
        """Have the parameter groups that the model file makes: a callback may add its own again."""
        del self._optimizer.param_groups[self._num_groups :]

    @contextmanager
    def watched(self, moment: str, *, in_training: bool) -> Iterator[None]:
        """Let callbacks do what they do in a moment.

        Args:
            moment: Its name.
            in_training: In which mode the model is.

        Raises:
            DefinitionError: They have changed what no checkpoint holds.
        """
        if in_training:
            self._modes.train()
        else:
            self._modes.eval()
        parts, attributes = self._parts(), self._look()
        yield
        changed = [
            what
            for what, ids in self._parts().items()
            if ids != parts[what] and not (what == "forward hooks" and moment == "on_train_begin")
        ]
        if changed:
            raise DefinitionError(
                f"{self._where}: a callback changed the {changed[0]} of what is trained in "
                f"{moment}(). No checkpoint holds that, so a resumed training would go on "
                f"differently. {_WAYS_OUT[changed[0]]}"
            )
        now = self._look()
        self._attributes |= {key for key, seen in now.items() if attributes.get(key) != seen}
        self._attributes &= now.keys()
        if in_training:
            self._modes.look()

    def keep(self) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
        """Return what was changed as JSON and arrays.

        Raises:
            DefinitionError: A callback has put something into an attribute that cannot be kept.
        """
        arrays: dict[str, np.ndarray[Any, Any]] = {}
        kept = []
        for number, (prefix, name) in enumerate(sorted(self._attributes)):
            value = vars(self._model.get_submodule(prefix)).get(name)
            try:
                kept.append(
                    [prefix, name, self._values.encode(value, f"{CALLBACKS}model/{number}", arrays)]
                )
            except CannotKeepError as error:
                raise DefinitionError(
                    f"{self._where}: a callback put {error} into the attribute "
                    f"{f'{prefix}.{name}'.lstrip('.')} of the model, which no checkpoint can hold. "
                    "Keep numbers, texts and tensors there."
                ) from error
        trained = [n for n, p in nn.Module.named_parameters(self._model) if p.requires_grad]
        state = {"trained": trained, "attributes": kept, "modes": dict(self._modes.differing)}
        return state, arrays

    def load(self, state: Mapping[str, Any], arrays: State) -> None:
        """Change what was changed when a state was kept."""
        if not state:
            return
        trained = set(state["trained"])
        for name, parameter in nn.Module.named_parameters(self._model):
            if parameter.requires_grad is not (name in trained):
                parameter.requires_grad_(name in trained)
                parameter.grad = None
        self._attributes = set()
        for prefix, name, kept in state["attributes"]:
            module = self._model.get_submodule(prefix)
            vars(module)[name] = self._values.decode(kept, vars(module).get(name), arrays)
            self._attributes.add((prefix, name))
        self._modes.forget()
        self._modes.differing = dict(state["modes"])

    def _parts(self) -> dict[str, Any]:
        """Return what stays the same objects: what is kept is kept by the names of these."""
        modules = dict(self._model.named_modules())
        parameters = dict(nn.Module.named_parameters(self._model))
        groups = self._optimizer.param_groups
        optimizer_hooks = (
            self._optimizer._optimizer_step_pre_hooks,  # noqa: SLF001 - no public name
            self._optimizer._optimizer_step_post_hooks,  # noqa: SLF001
        )
        return {
            "modules": {name: id(module) for name, module in modules.items()},
            "parameters": {name: id(parameter) for name, parameter in parameters.items()},
            "buffers": {name for name, _ in self._model.named_buffers()},
            "first parameter groups": [
                [id(p) for p in group["params"]] for group in groups[: self._num_groups]
            ],
            "hooks of the optimizer": [list(hooks) for hooks in optimizer_hooks],
            "forward hooks": [
                (list(m._forward_hooks), list(m._forward_pre_hooks), list(m._backward_hooks))  # noqa: SLF001 - no public name
                for m in modules.values()
            ],
        }

    def _look(self) -> dict[tuple[str, str], Any]:
        """Return what attributes of modules hold, or something that is another if they change."""
        return {
            (prefix, name): value if isinstance(value, _PLAIN) else (id(value), digest(value))
            for prefix, module in self._model.named_modules()
            for name, value in vars(module).items()
            if name not in _OF_MODULES and (prefix, name) != _STOPS
        }


_WAYS_OUT = {
    "modules": "Make all modules in custom_model(), and choose in forward which are used.",
    "parameters": "Change their numbers in place, under torch.no_grad().",
    "buffers": "Register them in the model.",
    "first parameter groups": "Add parameters as a group of their own: add_param_group().",
    "hooks of the optimizer": "Register them in optimizer(parameters).",
    "forward hooks": "Register them in on_train_begin().",
}
