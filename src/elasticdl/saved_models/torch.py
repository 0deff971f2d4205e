"""Loads files written by PyTorch, and finds PyTorch optimizers and losses by name.

    content of the file          how it is loaded
    whole nn.Sequential (.pt)    `torch.load(weights_only=True)`; layers of torch.nn are allowed
    model of a user's class      the same; the class is allowed too, if the user declared it
    state_dict                   the same, into a new model of a class that the user declared
    torch.export (.pt2)          after `scan.py` has checked all code that PyTorch would evaluate
    TorchScript                  only if the user trusts the file
    any other pickle             only if the user trusts the file

Callers: dialects, in the process that trains.
"""

from __future__ import annotations

import difflib
import inspect
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from elasticdl.errors import DefinitionError, ModelFileError
from elasticdl.saved_models import archive
from elasticdl.saved_models.finite_weights import Weight, complex_error
from elasticdl.saved_models.scan import scan
from elasticdl.saved_models.trust import NONE, Trust

if TYPE_CHECKING:
    from elasticdl.saved_models.file_format import ModelFile

_NAME = re.compile(r"(optim|nn)\.[A-Z]\w*")
_SINGLE_BYTES = 4
# Keys under which checkpoints store the state_dict.
_STATE_KEYS = ("state_dict", "model_state_dict", "model")


class Program(nn.Module):
    """An ordinary module that runs a PyTorch program: TorchScript, or one from torch.export.

    An exported program is one fixed graph: layers that differ in training behave as they did at
    export, and its own `train()` and `eval()` raise. So they are not called here.

    Args:
        program: A `torch.jit.ScriptModule`, or `ExportedProgram.module()`.
    """

    def __init__(self, program: nn.Module) -> None:
        super().__init__()
        self.program = program

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program."""
        return self.program(*args, **kwargs)

    def train(self, mode: bool = True) -> Program:
        """Set training or evaluation mode, as for any module.

        An exported program has only one mode: only the attribute `training` changes.
        """
        if isinstance(self.program, torch.jit.ScriptModule):
            return super().train(mode)
        self.training = mode
        return self


def _program(program: nn.Module) -> Program:
    """Wrap an exported program in a module whose `forward` has the program's parameter names.

    `torch.export.export` identifies inputs by these names. With `*args` instead, the model could
    not be exported again with a variable number of examples.
    """

    class Exported(Program):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            """Run the program."""
            return self.program(*args, **kwargs)

    taken = inspect.signature(program.forward)
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    names = [p.replace(kind=p.POSITIONAL_OR_KEYWORD) for p in taken.parameters.values()]
    Exported.forward.__signature__ = taken.replace(parameters=[own, *names])  # type: ignore[attr-defined]
    return Exported(program)


def load(
    file: ModelFile,
    *,
    custom_objects: Mapping[str, Any] | None = None,
    trust: Trust = NONE,
) -> nn.Module:
    """Return the model of a PyTorch file.

    Args:
        file: The inspected file.
        custom_objects: The user's own classes that the file needs; for a state_dict, the class (or
            the function without arguments) that creates its model.
        trust: Code that may run.

    Raises:
        ModelFileError: The file would run untrusted code, cannot be loaded, or is not a model.
    """
    objects = dict(custom_objects or {})
    used = scan(file, known=objects, trust=trust)
    with _naming_errors(file):
        if file.format == "torchscript":
            loaded: Any = _script(file)
        elif file.format == "torch_export":
            loaded = _exported(file, trust)
        elif used:
            loaded = torch.load(file.path, map_location="cpu", weights_only=False)
        else:
            with torch.serialization.safe_globals(_allowed(file, objects)):
                loaded = torch.load(file.path, map_location="cpu", weights_only=True)
    if isinstance(loaded, Mapping):
        return _with_state(file, loaded, objects)
    if not isinstance(loaded, nn.Module):
        raise ModelFileError(
            f"{file.path} holds a {type(loaded).__name__}; expected a torch.nn.Module, saved by "
            "torch.save(model, path), or a state_dict."
        )
    if not any(parameter.requires_grad for parameter in loaded.parameters()):
        raise ModelFileError(
            f"{file.path}: the model has no parameter that can be trained. It may have been frozen "
            "for serving: save the model itself."
        )
    return loaded


def _allowed(file: ModelFile, objects: Mapping[str, Any]) -> list[Any]:
    """Return the types that a file may unpickle: layers of torch.nn, and declared classes."""
    allowed: list[Any] = [set]
    for name in file.globals:
        module, _, last = name.rpartition(".")
        if module == "torch.nn.functional" or module.startswith("torch.nn.modules."):
            # Either torch.nn has loaded its module, or it is not a layer of torch.nn.
            found = getattr(sys.modules.get(module), last, None)
            is_layer = inspect.isclass(found) and issubclass(found, nn.Module)
            if is_layer or (inspect.isroutine(found) and module == "torch.nn.functional"):
                allowed.append((found, name))
        elif last in objects and not module.startswith("torch"):
            allowed.append((objects[last], name))
    return allowed


def _script(file: ModelFile) -> nn.Module:
    with warnings.catch_warnings():
        # PyTorch warns that exported programs replace TorchScript; existing files must still load.
        warnings.simplefilter("ignore")
        return Program(torch.jit.load(os.fspath(file.path), map_location="cpu"))  # type: ignore[no-untyped-call]


def _exported(file: ModelFile, trust: Trust) -> nn.Module:
    if not trust.allow_pickle:
        _check_pickles(file)
    with file.path.open("rb") as opened, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.load(opened)
    return _program(program.module())


def _check_pickles(file: ModelFile) -> None:
    """Reject objects in an exported program that PyTorch would unpickle without restrictions."""
    with archive.opened(file.path) as opened:
        for info in opened.infolist():
            if not info.filename.endswith(".pt") or info.file_size == 0:
                continue
            try:
                with opened.open(info) as member:
                    torch.load(member, map_location="cpu", weights_only=True)
            except Exception as error:
                raise ModelFileError(
                    f"{file.path}: {info.filename} in it holds objects other than tensors, which "
                    "PyTorch would create by running code that they name. None of it has run.\n"
                    "  Export the model again with tensors as its example inputs."
                ) from error


def _with_state(
    file: ModelFile, loaded: Mapping[str, Any], objects: Mapping[str, Any]
) -> nn.Module:
    """Create a model of the declared class, and load the weights of a state_dict into it.

    Args:
        file: The model file, for errors.
        loaded: Content of the file: a state_dict, or a checkpoint that contains one.
        objects: The declared custom objects, one of which must create the model.

    Raises:
        ModelFileError: There is no state_dict, no such object, or the weights do not fit the model.
    """
    state = next(
        (loaded[key] for key in _STATE_KEYS if isinstance(loaded.get(key), Mapping)), loaded
    )
    others = [key for key, value in state.items() if not isinstance(value, torch.Tensor)]
    if others:
        raise ModelFileError(
            f"{file.path} holds a dict with {', '.join(map(str, others[:5]))}, which are not "
            f"tensors; expected a state_dict, alone or under one of {', '.join(_STATE_KEYS)}."
        )
    makers = {
        name: value
        for name, value in objects.items()
        if (inspect.isclass(value) and issubclass(value, nn.Module)) or inspect.isfunction(value)
    }
    if len(makers) != 1:
        text = f"declared are {', '.join(makers)}" if makers else "none is declared"
        raise ModelFileError(
            f"{file.path} is a state_dict, which has weights but no model. Expected one class or "
            f"function that creates the model; {text}.\n"
            "  Declare it: custom_objects: [{key: Net, value: Net, path: net.py}]."
        )
    name, maker = next(iter(makers.items()))
    model = maker()
    if not isinstance(model, nn.Module):
        raise ModelFileError(
            f"{file.path}: {name}() returned a {type(model).__name__}; expected a torch.nn.Module."
        )
    real = {name for name, value in model.state_dict().items() if not _is_complex(value)}
    for key, value in state.items():
        if value.is_complex() and key in real:
            raise complex_error(file.path, key, value.numel())
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        text = " ".join(str(error).split())
        raise ModelFileError(
            f"{file.path} holds weights that do not fit the model of {name}(): {text[:500]}"
        ) from error
    return model


def _is_complex(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_complex()


def weights_of(model: nn.Module) -> Iterator[Weight]:
    """Yield the weights and buffers of a model that was loaded from a file, one by one.

    Infinities are allowed in a user class's buffers, which may be masks, but not in those of
    PyTorch's own layers, which are statistics such as the running mean of BatchNorm.
    """
    buffers = {
        f"{prefix}.{name}".removeprefix("."): type(module).__module__
        for prefix, module in model.named_modules()
        for name, _ in module.named_buffers(recurse=False)
    }
    for name, value in model.state_dict().items():
        if not isinstance(value, torch.Tensor) or value.is_quantized:
            continue
        if value.layout is not torch.strided:
            continue
        values = value.detach()
        if values.is_floating_point() and values.element_size() < _SINGLE_BYTES:
            # NumPy has no bfloat16.
            values = values.float()
        is_torchs = buffers.get(name, "torch.nn.").startswith("torch.nn.")
        yield Weight(name, values.numpy(), may_be_infinite=not is_torchs)


@contextmanager
def _naming_errors(file: ModelFile) -> Iterator[None]:
    try:
        yield
    except ModelFileError:
        raise
    except Exception as error:
        text = " ".join(str(error).split()) or type(error).__name__
        raise ModelFileError(f"{file} cannot be loaded: {text[:500]}") from error


# --- names of a spec -----------------------------------------------------------------------------


@dataclass(frozen=True)
class TorchOptimizer:
    """A PyTorch optimizer that a spec names, such as `optim.Adam`.

    Attributes:
        create: Function (parameters, model) -> optimizer; the model is ignored.
        description: For the log, such as `Adam, learning rate 0.001 (PyTorch's default)`.
    """

    create: Callable[[Sequence[Any], Any], torch.optim.Optimizer]
    description: str


def optimizer(
    name: str, arguments: Mapping[str, Any] | None = None, *, where: object
) -> TorchOptimizer:
    """Find the PyTorch optimizer that a spec (the YAML file that describes a saved model) names.

    Args:
        name: Dotted name without `torch.`, such as `optim.Adam`.
        arguments: Arguments of its class: `{"lr": 0.01}`.
        where: Location in the spec, for errors.

    Raises:
        DefinitionError: There is no such optimizer, or it does not take these arguments.
    """
    found = _named(name, "optim", torch.optim, torch.optim.Optimizer, where)
    given = dict(arguments or {})
    parameters = list(inspect.signature(found).parameters.values())[1:]
    takes = {p.name: p for p in parameters if p.kind is not p.VAR_KEYWORD}
    for key in given:
        if key not in takes:
            near = difflib.get_close_matches(key, takes, n=1)
            meant = f"Did you mean {near[0]}?" if near else f"It takes {', '.join(takes)}."
            raise DefinitionError(f"{where}: {name} takes no {key!r}. {meant}")
    missing = [p.name for p in takes.values() if p.default is p.empty and p.name not in given]
    if missing:
        raise DefinitionError(f"{where}: {name} needs {', '.join(missing)}. Add it.")

    def create(model_parameters: Sequence[Any], model: object) -> torch.optim.Optimizer:
        del model
        made: torch.optim.Optimizer = found(model_parameters, **given)
        return made

    try:
        create([nn.Parameter(torch.zeros(1))], None)
    except (TypeError, ValueError) as error:
        raise DefinitionError(f"{where}: {name} with {given} cannot be created: {error}") from error
    rate = given.get("lr", takes["lr"].default if "lr" in takes else None)
    text = "as given" if "lr" in given else "PyTorch's default"
    return TorchOptimizer(create, f"{found.__name__}, learning rate {rate} ({text})")


def loss(
    name: str, arguments: Mapping[str, Any] | None = None, *, where: object
) -> Callable[[Any, Any], Any]:
    """Create the PyTorch loss that a spec names; it is called with `(outputs, labels)`.

    Args:
        name: Dotted name without `torch.`, such as `nn.NLLLoss`.
        arguments: Arguments of its class.
        where: Location in the spec, for errors.

    Raises:
        DefinitionError: There is no such loss, or it does not take these arguments.
    """
    found = _named(name, "nn", nn, nn.modules.loss._Loss, where)  # noqa: SLF001 - there is no public name
    try:
        made: Callable[[Any, Any], Any] = found(**(arguments or {}))
    except (TypeError, ValueError) as error:
        raise DefinitionError(f"{where}: {name} cannot be created: {error}") from error
    return made


def _named(name: object, prefix: str, module: Any, kind: type, where: object) -> Any:
    """Return the optimizer or loss class that a spec names, without evaluating the name.

    Args:
        name: The dotted name, such as `optim.Adam`.
        prefix: First part of valid names: `optim` or `nn`.
        module: The module that the prefix stands for.
        kind: Base class of valid classes.
        where: Location in the spec, for errors.

    Raises:
        DefinitionError: There is no such class.
    """
    known = {
        f"{prefix}.{each}": value
        for each, value in vars(module).items()
        if _NAME.fullmatch(f"{prefix}.{each}")
        and inspect.isclass(value)
        and issubclass(value, kind)
        and value is not kind
    }
    if name in known:
        return known[str(name)]
    noun = {"optim": "an optimizer", "nn": "a loss"}[prefix]
    folded = {each.lower(): each for each in known}
    near = difflib.get_close_matches(str(name).lower(), folded, n=1, cutoff=0.5)
    meant = f" Did you mean {folded[near[0]]!r}?" if near else ""
    raise DefinitionError(
        f"{where}: {name!r} is not {noun} of PyTorch; expected a name like "
        f"{prefix}.{'Adam' if prefix == 'optim' else 'CrossEntropyLoss'}.{meant}"
    )
