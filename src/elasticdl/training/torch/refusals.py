"""Rejects features of a module that training here would ignore, lose or sum wrongly.

Each function, and what it rejects:

    check_has_modes        modules without train() and eval(), as those of exported programs
    check_class(model)     training steps, hooks and extra state in the model's class; with a
                           warning only: code that runs when a state dict is made or loaded
    parameters_of(model)   objects from parameters() that are not parameters of the model
    Refusals.check_sums    if gradients are summed: hooks that see gradients of one minibatch only
    check_plain_updates    if another process applies gradients: clipping and schedulers
    check_unmoved          if gradients are summed: parameters that forward changes
    check_unchanged        in evaluation: parameters and buffers that forward changes
    check_still_trainable  in a step: parameters that were frozen or unfrozen
    check_shapes           in a step: parameters and buffers whose shape or dtype has changed
    changed_shape          nothing: it finds such a change for callers that raise their own error

Callers: `trainer.py`; `callback_changes.py`.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from elasticdl.errors import DefinitionError
from elasticdl.tracebacks import is_of_the_user

if TYPE_CHECKING:
    from elasticdl.definition import ModelDefinition, Origin

    Shapes = Mapping[str, tuple[torch.Size, torch.dtype]]

_log = logging.getLogger("elasticdl")
# Methods that train a LightningModule; they would not be called here.
_STEPS = (
    "training_step",
    "validation_step",
    "test_step",
    "predict_step",
    "configure_optimizers",
    "optimizer_step",
    "manual_backward",
    "configure_gradient_clipping",
    "training_epoch_end",
    "validation_epoch_end",
    "on_train_start",
    "on_train_end",
    "on_train_epoch_start",
    "on_train_epoch_end",
    "on_train_batch_start",
    "on_train_batch_end",
    "on_validation_epoch_end",
    "on_before_optimizer_step",
    "on_before_zero_grad",
    "on_after_backward",
    "on_save_checkpoint",
    "on_load_checkpoint",
)
# A row of these is scaled to max_norm before each use, whether or not it was before.
_SCALED_WHEN_USED = (nn.Embedding, nn.EmbeddingBag)
KEEP_THE_SHAPE = (
    "Checkpoints and the trained model are loaded into the model as the model file creates it, so "
    "shapes and dtypes must stay the same. Create the tensor with its final dtype, and with its "
    "largest shape, of which only a part is used at first (weight[:n]); or train a second model, "
    "of the larger shape, that starts from the weights of the first."
)
"""Ends the errors for a tensor that changes its shape or dtype: why not, and what to do instead."""

# Methods and hooks of a module that make or load a state dict, which is not used here.
_STATE_DICT_METHODS = (
    "state_dict",
    "load_state_dict",
    "_save_to_state_dict",
    "_load_from_state_dict",
)
_STATE_DICT_HOOKS = {
    "_state_dict_pre_hooks": "state_dict_pre_hook",
    "_state_dict_hooks": "state_dict_post_hook",
    "_load_state_dict_pre_hooks": "load_state_dict_pre_hook",
    "_load_state_dict_post_hooks": "load_state_dict_post_hook",
}

_ALONE = "Such a model can only be trained in a single process and without --global_batch_size."


def check_has_modes(model: nn.Module, origin: Origin) -> None:
    """Check that a model can be put into training mode, if it is a graph of `torch.fx`.

    Args:
        model: The module.
        origin: Prefix for error messages.

    Raises:
        DefinitionError: The model has no such mode, like the module of a `torch.export` program.
    """
    if not isinstance(model, torch.fx.GraphModule):
        return
    try:
        model.train(model.training)
    except NotImplementedError as error:
        raise DefinitionError(
            f"{origin}: the model, a {type(model).__name__}, has no training and evaluation mode "
            f"({error}) Return the module that was exported, not the module of the exported "
            "program. To train that one in the mode of its export, add: "
            "model.train = model.eval = lambda *_: model"
        ) from None


def check_has_values(model: nn.Module, origin: Origin) -> None:
    """Check that no parameter or buffer of a model is on the device `meta`, without values.

    Args:
        model: The module.
        origin: Prefix for error messages.

    Raises:
        DefinitionError: A parameter or buffer is on the device `meta`.
    """
    for name, tensor in itertools.chain(model.named_parameters(), model.named_buffers()):
        if tensor.is_meta:
            raise DefinitionError(
                f"{origin}: {name} of the model is on the device 'meta', where tensors have no "
                "values. In custom_model(), call model.to_empty(device='cpu') and initialize all "
                "parameters and buffers, or do not create the model on this device."
            )


def check_class(model: nn.Module, origin: Origin, *, own_steps: bool = False) -> None:
    """Check that a model's class has no training logic or state that would be ignored.

    Args:
        model: The module.
        origin: Prefix for error messages.
        own_steps: Whether the module's own training steps and hooks are used, as those of a
            LightningModule are.

    Raises:
        DefinitionError: The model has training steps or hooks that are not used, keeps state
            outside parameters and buffers, or is a wrapper that sums gradients itself.
    """
    for kind in type(model).__mro__:
        mine = [name for name in _STEPS if callable(vars(kind).get(name))]
        if mine and not own_steps and not kind.__module__.startswith("torch."):
            raise DefinitionError(
                f"{place_of(vars(kind)[mine[0]], origin)}: {kind.__name__} has {_counted(mine)}, "
                "which would be ignored: a step here consists of the model's `forward`, the "
                "`loss` and the `optimizer` of the model file. Move their code there and remove "
                "them."
            )
    for name, module in model.named_modules():
        if isinstance(module, nn.parallel.DistributedDataParallel):
            raise DefinitionError(
                f"{origin}: the model is wrapped in DistributedDataParallel, which sums gradients "
                "with processes that do not belong to this job. Return the module itself; "
                "--num_workers=N trains it on several workers."
            )
        if any(kind.__module__ == "torchmetrics.metric" for kind in type(module).__mro__):
            # The metrics of a LightningModule are no longer modules, unless they are in a container
            # with others.
            instead = (
                "Make it a separate attribute, or use a list or dict that contains only metrics."
                if own_steps
                else "Return it from eval_metrics_fn()."
            )
            raise DefinitionError(
                f"{origin}: {name} of the model is a metric of TorchMetrics, whose states are not "
                f"stored in checkpoints and not shared by workers. {instead}"
            )
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            raise DefinitionError(
                f"{place_of(type(module).get_extra_state, origin)}: {type(module).__name__} "
                f"({name or 'the model'}) keeps extra state, which checkpoints here cannot store. "
                "Keep it in buffers: self.register_buffer(name, tensor)."
            )
    if ignored := list(dict.fromkeys(_state_dict_code(model))):
        _log.warning(
            "%s: the model changes what its state dict contains, or does something when it is "
            "loaded (%s). This code is not called here: checkpoints and the trained model contain "
            "all parameters and persistent buffers as they are, and these are loaded as they are. "
            "If your numbers depend on it, move it to forward() or to a callback.",
            origin,
            ", ".join(ignored),
        )


def _state_dict_code(model: nn.Module) -> Iterator[str]:
    """Yield names of a user's hooks and methods that make or load the state dict of a module."""
    for module in model.modules():
        kind = type(module)
        for name in _STATE_DICT_METHODS:
            owner = next(each for each in kind.__mro__ if name in vars(each))
            if is_of_users_file(owner):
                yield f"{owner.__name__}.{name}()"
        for attribute, name in _STATE_DICT_HOOKS.items():
            for hook in getattr(module, attribute).values():
                if is_of_users_file(hook):
                    yield f"a {name} of {kind.__name__}"


def is_of_users_file(code: Any) -> bool:
    """Return whether the user's files define a class, a function or the class of an object.

    Libraries rename entries of old checkpoints in this way.
    """
    while isinstance(code, functools.partial):
        code = code.func
    name = getattr(code, "__module__", None) or ""
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    return name.partition(".")[0] != "torch" and is_of_the_user(file)


def parameters_of(
    model: nn.Module, origin: Origin
) -> tuple[dict[str, nn.Parameter], list[nn.Parameter]]:
    """Return all parameters of a model by name, and those that a plain loop passes to an optimizer.

    The two differ if the model overrides `parameters()`, to train only some of them.

    Raises:
        DefinitionError: `parameters()` yields an object that is not a parameter of the model, or
            a parameter twice.
    """
    kept = dict(nn.Module.named_parameters(model))
    given = list(model.parameters())
    known = {id(parameter) for parameter in kept.values()}
    strangers = [each for each in given if id(each) not in known]
    if strangers or len({id(each) for each in given}) != len(given):
        what = (
            f"a {type(strangers[0]).__name__} that is not a parameter of it"
            if strangers
            else "a parameter twice"
        )
        kind = type(model)
        is_own = kind.parameters is not nn.Module.parameters
        method = kind.parameters if is_own else kind.named_parameters
        raise DefinitionError(
            f"{place_of(method, origin)}: parameters() of {type(model).__name__} "
            f"yields {what}. Yield each parameter that is trained once, and make groups in the "
            "model file's optimizer(parameters)."
        )
    return kept, given


class Refusals:
    """Rejects a model's hooks, and changes to the model during training, that are not supported.

    Args:
        model: The model, as created.
        parameters: All parameters of the model, by name.
        origin: Prefix for error messages.
        kept: The parameters and buffers that checkpoints contain, by name.
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: Mapping[str, nn.Parameter],
        origin: Origin,
        *,
        kept: Mapping[str, torch.Tensor],
    ) -> None:
        self._model, self._origin = model, origin
        self._trainable = [p.requires_grad for p in parameters.values()]
        self._shapes = shapes_of(kept)

    def check_sums(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Check that nothing uses the gradients of one minibatch before they are summed.

        Args:
            parameters: The parameters, by name.

        Raises:
            DefinitionError: A hook would see gradients of one minibatch instead of the whole
                update's, or an embedding scales gradients by the frequency of ids in a minibatch.
        """
        for name, parameter in parameters.items():
            hooks = parameter._backward_hooks or parameter._post_accumulate_grad_hooks  # noqa: SLF001
            if hooks:
                where = place_of(next(iter(hooks.values())), self._origin)
                raise DefinitionError(
                    f"{where}: the parameter {name} has a hook on its gradient, which "
                    f"would see the gradient of one minibatch instead of the whole update's. "
                    f"{_ALONE} Or use a hook of the optimizer (register_step_pre_hook), which sees "
                    "the sum."
                )
        for name, module in self._model.named_modules():
            hooks = module._backward_hooks or module._backward_pre_hooks  # noqa: SLF001 - no public name
            if hooks:
                where = place_of(next(iter(hooks.values())), self._origin)
                raise DefinitionError(
                    f"{where}: {name or 'the model'} has a backward hook, which would see "
                    f"the gradients of one minibatch instead of the whole update's. {_ALONE}"
                )
            if getattr(module, "scale_grad_by_freq", False):
                raise DefinitionError(
                    f"{self._origin}: {name or 'the model'} ({type(module).__name__}) has "
                    "scale_grad_by_freq=True, which scales gradients by each id's frequency in the "
                    f"minibatch instead of in the whole update. {_ALONE}"
                )

    def check_plain_updates(self, definition: ModelDefinition) -> None:
        """Check that an update consists of the optimizer's step only.

        A federation's party sends gradients to a process that only applies them: it neither clips
        them nor steps schedulers.

        Raises:
            DefinitionError: The model file clips gradients, or schedules learning rates.
        """
        given = {
            "gradient_clipping": definition.gradient_clipping,
            "lr_scheduler": definition.create_lr_schedulers,
        }
        for name, value in given.items():
            if value is not None:
                raise DefinitionError(
                    f"{definition.where(name)}: {name} is part of an update, but here only "
                    "gradients are sent to the aggregator, which makes the update. Remove it, or "
                    "use another fusion, such as fedavg."
                )

    def check_unmoved(self, moved: Sequence[str]) -> None:
        """Reject parameters that changed while gradients were computed.

        Args:
            moved: Names of the parameters that have changed.

        Raises:
            DefinitionError: `moved` is not empty.
        """
        for name in moved:
            raise DefinitionError(
                f"{self._origin}: the model's `forward` changes its parameter {name} (as an "
                "average of weights or an embedding with max_norm does), and each worker would "
                f"change it differently. {_ALONE} Or keep averages in buffers. To keep a parameter "
                "within bounds (.data.clamp_()), clamp it when the model is created and after each "
                "update, with optimizer.register_step_post_hook or in a callback."
            )

    def check_unchanged(self, changed: Sequence[str]) -> None:
        """Reject a model that changes a parameter or buffer in evaluation mode.

        Args:
            changed: Names of the parameters and buffers that a call in evaluation mode has changed.

        Raises:
            DefinitionError: `changed` is not empty. (For running averages of a BatchNorm that is
                always in training mode, a warning is logged instead.)
        """
        owners = {name: self._model.get_submodule(name.rpartition(".")[0]) for name in changed}
        changed = [name for name in changed if not isinstance(owners[name], _SCALED_WHEN_USED)]
        others = [name for name in changed if not isinstance(owners[name], _NormBase)]
        if changed and not others:
            _log.warning(
                "%s: %s normalizes by the batch in evaluation mode too, so in a plain training "
                "script, validation changes %s. Here only training does; outputs do not depend on "
                "it.",
                self._origin,
                type(owners[changed[0]]).__name__,
                changed[0],
            )
        if not others:
            return
        path, _, leaf = others[0].rpartition(".")
        module = owners[others[0]]
        is_of_user = not type(module).__module__.startswith("torch.")
        place = place_of(type(module).forward, self._origin) if is_of_user else self._origin
        raise DefinitionError(
            f"{place}: {type(module).__name__} ({path or 'the model'}) changes its {leaf} where it "
            "is called in evaluation mode. In a plain script validation and prediction change it "
            "too, from batch to batch, and training continues with the changed value. Here they "
            "do not change it, because workers share them. Compute with a masked or projected "
            "weight (weight * mask) and assign nothing; change a statistic in training only: if "
            "self.training: ... (or disable the observers of quantization in eval()); or train "
            "without validation data, and evaluate and predict with a module that changes nothing."
        )

    def record_trainable(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Record which parameters are trainable now: callbacks may freeze and unfreeze them.

        `check_still_trainable` compares with this record.
        """
        self._trainable = [p.requires_grad for p in parameters.values()]

    def check_still_trainable(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Check that the same parameters are trainable as after the last callbacks.

        Raises:
            DefinitionError: A step has changed `requires_grad` of a parameter.
        """
        if [p.requires_grad for p in parameters.values()] == self._trainable:
            return
        name, parameter = next(
            (name, p)
            for (name, p), before in zip(parameters.items(), self._trainable, strict=True)
            if p.requires_grad is not before
        )
        raise DefinitionError(
            f"{self._origin}: requires_grad of {name} became {parameter.requires_grad} in a step. "
            "No checkpoint stores that, so a resumed training would continue differently. Set it "
            "when the model is created, or in a callback (callbacks()), where it is stored."
        )

    def check_shapes(self, tensors: Mapping[str, torch.Tensor], where: str) -> None:
        """Check that parameters and buffers still have the shapes and dtypes of the created model.

        Args:
            tensors: The parameters and buffers that checkpoints contain, by name.
            where: What may have changed them, such as "a step of the optimizer".

        Raises:
            DefinitionError: One of them has another shape or dtype.
        """
        if (found := changed_shape(self._shapes, tensors)) is not None:
            raise DefinitionError(f"{self._origin}: {where} changed {found}. {KEEP_THE_SHAPE}")


def shapes_of(tensors: Mapping[str, torch.Tensor]) -> Shapes:
    """Return the shape and dtype of each tensor by name, to compare with later."""
    return {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}


def changed_shape(before: Shapes, tensors: Mapping[str, torch.Tensor]) -> str | None:
    """Return a description of the first tensor whose shape or dtype has changed; None if none.

    Args:
        before: Shapes and dtypes, as returned by `shapes_of`.
        tensors: The tensors by name. Those that are not in `before` are not compared.
    """
    for name, tensor in tensors.items():
        shape, dtype = before.get(name, (tensor.shape, tensor.dtype))
        if (tensor.shape, tensor.dtype) != (shape, dtype):
            kind = "parameter" if isinstance(tensor, nn.Parameter) else "buffer"
            return (
                f"the model's {kind} {name} from {_typed(dtype, shape)} to "
                f"{_typed(tensor.dtype, tensor.shape)}"
            )
    return None


def _typed(dtype: torch.dtype, shape: torch.Size) -> str:
    return f"{str(dtype).removeprefix('torch.')}{list(shape)}"


def place_of(function: Any, origin: Origin) -> str:
    """Return file:line of a user's function; `origin` if it has no code, such as a partial."""
    plain = inspect.unwrap(getattr(function, "__func__", function))
    code = getattr(plain, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else str(origin)


def _counted(names: list[str]) -> str:
    shown = ", ".join(f"{name}()" for name in names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"  # noqa: PLR2004
