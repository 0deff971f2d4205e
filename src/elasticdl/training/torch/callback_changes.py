"""Stores what callbacks change besides the weights, so that a resumed run has the same changes.

    which parameters train        requires_grad, as in unfreezing at an epoch
    attributes of modules         dropout.p = 0.2, model.temperature = 3.0
    attributes of the loss        loss.weight = torch.tensor([1.0, 5.0]), and of objects that it
                                  uses
    variables of the file         rejected, if the model, the loss or the input function uses them
    modules in evaluation mode    layer.eval() of a BatchNorm; lasts until `model.train()` is
                                  called, before an epoch and after an evaluation, as in a plain
                                  loop
    parameters and modules        rejected, if a callback replaces or adds one
    shapes and dtypes             rejected for parameters and buffers, as in weight.data = larger

The mode of the model depends on the event: training mode from `on_train_begin` to the end of an
epoch's batches, else evaluation mode.

Callers: `hooks.py`; `trainer.py` for the mode.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import nn

from elasticdl.errors import DefinitionError
from elasticdl.training.callback_state import CannotKeepError, ContainerRestorer
from elasticdl.training.torch.buffers import is_kept
from elasticdl.training.torch.function_memory import OF_MODULES
from elasticdl.training.torch.refusals import KEEP_THE_SHAPE, changed_shape, shapes_of
from elasticdl.training.torch.untracked_state import digest
from elasticdl.training.torch.used_objects import (
    UsedObjects,
    attributes_of,
    put_attribute,
)
from elasticdl.training.trainer import CALLBACKS

if TYPE_CHECKING:
    import numpy as np
    import torch

    from elasticdl.definition import ModelDefinition
    from elasticdl.training.torch.callback_state import TorchValues
    from elasticdl.training.torch.callbacks import Callbacks
    from elasticdl.training.trainer import State

_PLAIN = (bool, int, float, str, type(None))
# Not state of the model: the training loop reads this attribute.
_STOPS = ("", "stop_training")
_END = "on_train_end"
_HOOKS = ("forward hooks", "hooks of gradients")
# Prefix of the names of loss objects; the names of modules contain no slash.
_LOSS = "loss"


class Modes:
    """Switches a model between training and evaluation, but keeps the modes that user code sets.

    A callback, a hook of the optimizer or `forward` may set a module's mode, such as `layer.eval()`
    for a frozen BatchNorm. A plain loop resets these modes by `model.train()` at the start of each
    epoch; Lightning's `Trainer` never does.

    Args:
        model: The module.
        keeps: Whether to behave as Lightning: modules keep, in all epochs, the mode that user code
            has set or in which they were created.

    Attributes:
        differing: Name of a module -> its mode in training (`module.training`). Contains only
            modules for which this is not the mode that `model.train()` sets. Those that a step
            has set are added when the model leaves training mode; see `present`.
    """

    def __init__(self, model: nn.Module, *, keeps: bool = False) -> None:
        self._model, self._keeps = model, keeps
        self.differing: dict[str, bool] = {}
        # The modes that `model.train()` has set.
        self._plain: dict[str, bool] = {}
        self._is_set = False
        if keeps:
            self.record()

    def train(self) -> None:
        """Put the model into training mode; the modules in `differing` get their own mode."""
        if self._is_training():
            return
        self._model.train()
        self._plain = self._now()
        for name, module in self._model.named_modules():
            if name in self.differing:
                module.training = self.differing[name]
        self._is_set = True

    def eval(self) -> None:
        """Put the model into evaluation mode."""
        self.differing = self.present()
        if self._is_set or self._model.training:
            self._model.eval()
        self._is_set = False

    def present(self) -> dict[str, bool]:
        """Return `differing`, together with the modes that steps have set since."""
        if not self._is_training():
            return self.differing
        return {n: mode for n, mode in self._now().items() if self._plain.get(n) is not mode}

    def restore(self, modes: Mapping[str, bool]) -> None:
        """Let modules have the modes that `present` returned, from the next step on."""
        self.differing, self._is_set = dict(modes), False

    def forget(self) -> None:
        """Forget the modes that user code has set, unless `keeps`; called when an epoch begins."""
        if not self._keeps:
            self.differing, self._is_set = {}, False

    def record(self) -> None:
        """Fill `differing` with the modules whose present mode `model.train()` would change.

        Called after callbacks, so that `train` can restore the modes that they have set.
        """
        now = self._now()
        self.differing, self._is_set = {}, False
        self.train()
        self.differing = {n: mode for n, mode in now.items() if mode is not self._plain.get(n)}
        self._is_set = not self.differing

    def _is_training(self) -> bool:
        return self._is_set and self._model.training is self.differing.get("", True)

    def _now(self) -> dict[str, bool]:
        return {name: module.training for name, module in self._model.named_modules()}


class CallbackChanges:
    """Detects, stores and restores what callbacks change besides weights, such as `dropout.p`.

    Args:
        model: The trained model.
        optimizer: The optimizer of the model.
        modes: The modes of the model.
        values: Converts attributes to arrays.
        callbacks: The user's callbacks.
        definition: The model definition, for its loss and input function.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        modes: Modes,
        values: TorchValues,
        *,
        callbacks: Callbacks,
        definition: ModelDefinition,
    ) -> None:
        self._model, self._optimizer, self._modes = model, optimizer, modes
        self._values, self._where = values, callbacks.where
        self._attributes: set[tuple[str, str]] = set()
        self._containers = ContainerRestorer({})
        self._num_groups = len(optimizer.param_groups)
        kinds = dict.fromkeys(kind for module in model.modules() for kind in type(module).__mro__)
        known = [*model.modules(), optimizer, *callbacks.objects]
        self._used = UsedObjects([definition.loss, *kinds] if callbacks else (), known)
        self._of_loss = {f"{_LOSS}/{n}": each for n, each in enumerate(self._used.objects)}
        # Objects of a loader or a data set are created again, and seeded, for each epoch.
        self._first_hooks: dict[str, Any] = {}
        self._used_by_input = UsedObjects([definition.input] if callbacks else (), known)

    def begin(self) -> None:
        """Record which hooks and containers exist; call it before `on_train_begin`.

        Also removes parameter groups that callbacks have added to the optimizer earlier: they add
        them again in `on_train_begin`.
        """
        del self._optimizer.param_groups[self._num_groups :]
        self._first_hooks = {what: ids for what, ids in self._parts().items() if what in _HOOKS}
        self._containers = ContainerRestorer(
            {
                (prefix, name): value
                for prefix, owner in self._owners().items()
                for name, value in attributes_of(owner).items()
            }
        )

    @contextmanager
    def watched(self, moment: str, *, in_training: bool) -> Iterator[None]:
        """Context manager that records what callbacks change in its block.

        The block calls the callbacks for one event. Before it, the model is put into the mode that
        the event has.

        Args:
            moment: Name of the event, such as `on_epoch_end`.
            in_training: Whether the event's mode is training mode; otherwise evaluation mode.

        Raises:
            DefinitionError: A callback has changed state that checkpoints do not contain.
        """
        if in_training:
            self._modes.train()
        else:
            self._modes.eval()
        parts, attributes, variables = (
            self._parts(),
            self._values_of_attributes(),
            self._variables(),
        )
        shapes = shapes_of(self._tensors_kept())
        yield
        changed = [
            what
            for what, ids in self._parts().items()
            if ids != parts[what] and not self._may_add_or_remove(what, ids, moment)
        ]
        if changed:
            is_end = moment == _END
            raise DefinitionError(
                f"{self._where}: a callback changed the {changed[0]} of the trained model in "
                f"{moment}(). {_AT_THE_END if is_end else _NOT_STORED + _WAYS_OUT[changed[0]]}"
            )
        if (found := changed_shape(shapes, self._tensors_kept())) is not None:
            raise DefinitionError(
                f"{self._where}: a callback changed {found} in {moment}(). "
                f"{_AT_THE_END if moment == _END else KEEP_THE_SHAPE}"
            )
        for variable, seen in self._variables().items():
            if seen != variables.get(variable, seen):
                raise DefinitionError(
                    f"{self._where}: a callback changed {variable}, in {moment}(). No checkpoint "
                    "stores that, so a resumed training would continue differently. Change an "
                    "attribute instead: of the model, or of an object that is the loss or that "
                    "the loss uses."
                )
        now = self._values_of_attributes()
        self._attributes |= {key for key, seen in now.items() if attributes.get(key) != seen}
        self._attributes &= now.keys()
        if in_training:
            self._modes.record()

    def keep(self) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
        """Return the changes that callbacks have made, as JSON and arrays for a checkpoint.

        Raises:
            DefinitionError: A callback has set an attribute to a value that cannot be stored.
        """
        arrays: dict[str, np.ndarray[Any, Any]] = {}
        kept = []
        for number, (prefix, name) in enumerate(sorted(self._attributes)):
            value = attributes_of(self._owners()[prefix]).get(name)
            try:
                encoded = self._values.encode(value, f"{CALLBACKS}model/{number}", arrays)
                kept.append([prefix, name, self._containers.mark((prefix, name), value, encoded)])
            except CannotKeepError as error:
                raise DefinitionError(
                    f"{self._where}: a callback put {error} into the attribute "
                    f"{self._described(prefix, name)}, which no checkpoint can store. Keep "
                    "numbers, strings and tensors there."
                ) from error
        trained = [n for n, p in nn.Module.named_parameters(self._model) if p.requires_grad]
        state = {"trained": trained, "attributes": kept, "modes": self._modes.present()}
        return state, arrays

    def load(self, state: Mapping[str, Any], arrays: State) -> None:
        """Apply the changes that callbacks had made when the state was saved.

        Args:
            state: The JSON that `keep` returned.
            arrays: The arrays that `keep` returned, possibly among others.
        """
        if not state:
            return
        trained = set(state["trained"])
        for name, parameter in nn.Module.named_parameters(self._model):
            if parameter.requires_grad is not (name in trained):
                parameter.requires_grad_(name in trained)
                parameter.grad = None
        self._attributes = set()
        for prefix, name, kept in state["attributes"]:
            owner = self._owners()[prefix]
            current = attributes_of(owner).get(name)
            decode = functools.partial(self._values.decode, current=current, arrays=arrays)
            value = self._containers.restored((prefix, name), kept, decode)
            if value is not current:
                put_attribute(owner, name, value)
            self._attributes.add((prefix, name))
        self._modes.restore(state["modes"])

    def _may_add_or_remove(self, what: str, now: Any, moment: str) -> bool:
        """Return whether callbacks may add or remove objects of this kind in an event.

        They may register hooks in `on_train_begin`, because a resumed run does so again, and remove
        these hooks when training ends.

        Args:
            what: Kind of object, as in `_parts`.
            now: Ids of the objects of this kind that exist now.
            moment: Name of the event.
        """
        is_begin = moment == "on_train_begin"
        # A callback may remove at the end what it has registered.
        is_end = moment == _END and now == self._first_hooks.get(what)
        return what in _HOOKS and (is_begin or is_end)

    def _parts(self) -> dict[str, Any]:
        """Return the objects that callbacks must not add, remove or replace: kind -> their ids.

        Checkpoints refer to these objects (modules, parameters, hooks) by name or by position.
        """
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
            "hooks of gradients": [
                *(
                    (list(p._backward_hooks or ()), list(p._post_accumulate_grad_hooks or ()))  # noqa: SLF001
                    for p in parameters.values()
                ),
                *(list(m._backward_pre_hooks) for m in modules.values()),  # noqa: SLF001
            ],
            "forward hooks": [
                (list(m._forward_hooks), list(m._forward_pre_hooks), list(m._backward_hooks))  # noqa: SLF001 - no public name
                for m in modules.values()
            ],
        }

    def _tensors_kept(self) -> dict[str, torch.Tensor]:
        """Return the parameters and persistent buffers that the model has now, by name."""
        tensors: dict[str, torch.Tensor] = dict(nn.Module.named_parameters(self._model))
        for prefix, module in self._model.named_modules():
            for leaf, buffer in module._buffers.items():  # noqa: SLF001 - see `is_kept`
                if buffer is not None and is_kept(module, leaf):
                    tensors[f"{prefix}.{leaf}".lstrip(".")] = buffer
        return tensors

    def _described(self, prefix: str, name: str) -> str:
        if prefix in self._of_loss:
            return f"{name} of a {type(self._of_loss[prefix]).__name__} that the loss uses"
        return f"{prefix}.{name}".lstrip(".") + " of the model"

    def _owners(self) -> dict[str, Any]:
        """Return objects whose attributes checkpoints contain, by their names in checkpoints."""
        return {**dict(self._model.named_modules()), **self._of_loss}

    def _values_of_attributes(self) -> dict[tuple[str, str], Any]:
        """Return the attributes that a callback may change: (owner, attribute) -> value.

        The owners are the model's modules and the objects that the loss uses. A value that is not
        plain data is represented by its id and a digest.
        """
        of_model = [
            (prefix, name, value)
            for prefix, module in self._model.named_modules()
            for name, value in vars(module).items()
            if name not in OF_MODULES and (prefix, name) != _STOPS
        ]
        of_loss = [
            (prefix, name, value)
            for prefix, each in self._of_loss.items()
            for name, value in attributes_of(each).items()
        ]
        return {
            (prefix, name): value if isinstance(value, _PLAIN) else (id(value), digest(value))
            for prefix, name, value in [*of_model, *of_loss]
        }

    def _variables(self) -> dict[str, str]:
        return {
            **dict(self._used.variables()),
            **dict(self._used_by_input.variables(values_only=True)),
        }


_NOT_STORED = "No checkpoint stores that, so a resumed training would continue differently. "
_AT_THE_END = (
    "The trained model would not have this change, or could not be loaded, because loading creates "
    "the model from the model file and calls no callbacks. Remove it from the callback, and make "
    "it after elasticdl.load(...), or where you export the model. What was trained is kept in a "
    "checkpoint of the end, from which the same command resumes: nothing is trained again."
)
_WAYS_OUT = {
    "modules": "Create all modules in custom_model(), and choose in forward which are used.",
    "parameters": "Change their numbers in place, under torch.no_grad().",
    "buffers": "Register them in the model.",
    "first parameter groups": "Add parameters as a separate group: add_param_group().",
    "hooks of the optimizer": "Register them in optimizer(parameters).",
    "forward hooks": "Register them in on_train_begin().",
    "hooks of gradients": (
        "Register them in on_train_begin(), and let them return None to change nothing."
    ),
}
