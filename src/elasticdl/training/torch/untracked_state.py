"""Detects state of a module outside its parameters and persistent buffers, by running it.

A copy of the module runs the same two examples twice in training mode, with the same seed and the
same parameters and buffers. A value that differs between the ends of the two runs is state that
checkpoints do not contain: a counter in an attribute or in an attribute's object, a hidden state, a
buffer that is not persistent, a random generator, the position of an iterator, an optimizer within
the module, values that a forward hook closes over. A resumed run would continue differently, so
the value is rejected by name. A value that is computed again from the same inputs (a cache) is the
same after both runs, and is permitted.

Then both this copy and a new copy run two other examples. A value that differs between the two
copies depends on the examples that only the first copy ran before: a mean of the first batch, or
weights initialized from it, if a plain attribute records that this was done. It is rejected too.
Last, a new copy takes over the parameters and buffers of the first copy after a step, as a resumed
training does. A value that only the first copy has is rejected if their outputs differ.

If the user's code registers hooks on tensors in `forward` (`h.register_hook(self.hook)`), gradients
of the squares of the outputs are computed as well. Hooks that were registered when the model was
created are left out, because `hook_memory.py` stores what they change.

A variable of the file or of a class, or the state of a loss, may be a mere log, such as a list of
losses. It is therefore rejected only if the second run returns other numbers than the
first; otherwise `engines/file_variables.py` warns of it.

Callers: `trainer.py`, when a trainer is created; `callback_changes.py` and others use `digest`.
"""

from __future__ import annotations

import copy
import dis
import functools
import hashlib
import itertools
import numbers
import random
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import date, time, timedelta
from io import IOBase
from types import (
    CodeType,
    FunctionType,
    GeneratorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from elasticdl.data.batch import leaves
from elasticdl.errors import DefinitionError
from elasticdl.training.iterators import CountingIterator, is_readable, position_of
from elasticdl.training.raw_memory import raw_memory
from elasticdl.training.torch.buffers import Buffers, is_kept
from elasticdl.training.torch.function_memory import OF_MODULES
from elasticdl.training.torch.outputs import as_plain_containers
from elasticdl.training.torch.tensors import parts_of, to_array

if TYPE_CHECKING:
    from elasticdl.definition import Origin

# Maximum depth of nested values that are compared.
_DEPTH = 4
# Deeper, because a loss is wrapped in functions of ElasticDL that order its arguments.
_DEPTH_OF_A_LOSS = 7
# Relative change of all parameters in a step that is tried, and differences due to rounding.
_STEP, _ROUNDING = 0.1, 1e-4
_DRAW = (random.Random, np.random.Generator, np.random.RandomState)
_LOGGED_METRICS = "elasticdl.training.torch.logged_metrics"
_READS = ("LOAD_GLOBAL", "LOAD_NAME")
# Values that `repr` shows completely. `Number` includes fractions and decimal numbers.
_SIMPLE = (
    bool, int, float, str, type(None), itertools.count, range, numbers.Number, np.generic, date,
    time, timedelta,
)  # fmt: skip


def check_no_untracked_state(
    model: nn.Module,
    run: Callable[[nn.Module], object],
    run_others: Callable[[nn.Module], object],
    origin: Origin,
) -> str:
    """Check that checkpoints contain all state that a model keeps during training.

    Args:
        model: The module; it is not changed.
        run: Function (module) -> its outputs for the same examples in training mode, with the same
            seed and with gradients.
        run_others: Function (module): the same as `run`, with other examples of the same shapes.
        origin: Prefix for error messages.

    Returns:
        Why the model could not be checked; empty if it was.

    Raises:
        DefinitionError: The model has other state, or `eval()` changes its weights.
    """
    try:
        with warnings.catch_warnings(action="ignore"):
            tried, without_history = _copied(model), _copied(model)
    except Exception as error:  # noqa: BLE001 - the user's classes may raise anything
        return f"the model cannot be copied ({type(error).__name__}: {error})"
    kept = {name: tensor.detach().clone() for name, tensor in _kept(tried)}
    try:
        tried.train()
        # A warning may concern the copy only: on a GPU, the weights of a copied RNN are not
        # contiguous.
        with warnings.catch_warnings(action="ignore"):
            outputs = _outcome(tried, run)[0]
            _restore(tried, kept)
            first, in_code = _digests(_remembered(tried)), _digests(_remembered_by_code(tried))
            again, of_forward = _outcome(tried, run)
            same = again == outputs
            _restore(tried, kept)
        values = dict(_remembered(tried))
        of_hooks = {name for name, seen in of_forward.items() if seen == first.get(name)}
        logs = {name for name in of_hooks if same and _is_log(values[name])}
        if not same:
            first |= in_code
            values |= dict(_remembered_by_code(tried))
        changed = [
            name
            for name, value in values.items()
            if name not in logs and first.get(name) != digest(value)
        ]
        earlier = [] if changed else _of_earlier_examples(tried, without_history, kept, run_others)
        earlier = [name for name in earlier if name not in logs]
        # Outputs that differ anyway, such as those of a clock, show nothing.
        if same and not changed and not earlier:
            del without_history
            _restore(tried, kept)
            earlier = _missing_after_a_resume(tried, model, run, run_others)
    except Exception as error:  # noqa: BLE001 - a user's model may raise anything
        return f"a trial run of the model raised {type(error).__name__}: {error}"
    if changed:
        raise DefinitionError(
            f"{origin}: {changed[0]} changes with every "
            f"{'backward pass' if changed[0] in of_hooks else 'call of `forward` in training'}, "
            "but no checkpoint stores it, so a resumed training would continue differently. "
            f"{_way_out(values[changed[0]])}"
        )
    if earlier:
        raise DefinitionError(
            f"{origin}: {earlier[0]} depends on an earlier call of `forward`, on its examples or "
            "on the weights then, through state that no checkpoint stores, so a resumed training "
            "would continue differently. Keep such values in buffers, and also the flag that marks "
            "them as set: "
            'self.register_buffer("is_set", torch.tensor(False)).'
        )
    _check_modes(tried, origin)
    return ""


def _outcome(
    tried: nn.Module, run: Callable[[nn.Module], object]
) -> tuple[tuple[str, str], dict[str, str]]:
    """Run a copy of the model, and return digests of what the run computes.

    If the code of the model registers hooks on tensors, gradients are computed as well, which calls
    these hooks. Other hooks of gradients are removed from the copy first: it shares their functions
    with the model, so calling them would change state of the model.

    Args:
        tried: The copy.
        run: Function (module) -> its outputs.

    Returns:
        A pair: the digests of the outputs and of the gradients; and the digests of all values
        outside the state dict after the forward pass, by description. With them, the caller can
        tell what the backward pass has changed. Without gradients, their digest is "" and the dict
        is empty.
    """
    if not _registers_hooks(tried):
        return (digest(run(tried)), ""), {}
    for module in tried.modules():
        module._backward_hooks.clear()  # noqa: SLF001 - no public name
        module._backward_pre_hooks.clear()  # noqa: SLF001
    outputs = run(tried)
    seen, remembered = digest(outputs), _digests(_remembered(tried))
    tensors = [t for t in leaves(as_plain_containers(outputs)) if isinstance(t, torch.Tensor)]
    squares = [t.square().sum() for t in tensors if t.requires_grad and not t.is_complex()]
    if not squares:
        return (seen, ""), {}
    torch.autograd.backward(squares)
    return (seen, digest([parameter.grad for parameter in tried.parameters()])), remembered


def _is_log(value: Any) -> bool:
    """Return whether a value looks like a log of numbers: a list, or a dict of lists.

    A log that hooks append to is permitted, although checkpoints do not store it.
    """
    if isinstance(value, Mapping):
        return all(isinstance(each, (list, deque)) for each in value.values())
    return isinstance(value, (list, deque))


def _registers_hooks(model: nn.Module) -> bool:
    """Return whether the code of a model's own classes registers a hook on a tensor."""
    kinds = {kind for module in model.modules() for kind in type(module).__mro__}
    functions = [
        each
        for kind in kinds
        if not _is_of_torch(kind)
        for each in vars(kind).values()
        if isinstance(each, FunctionType) and each.__name__ != "__init__"
    ]
    called = [f.__globals__[name] for f in functions for name in _globals_of(f)]
    functions += [each for each in called if isinstance(each, FunctionType)]
    return any("register_hook" in _names_in(each.__code__) for each in functions)


def _names_in(code: CodeType) -> set[str]:
    within = [_names_in(each) for each in code.co_consts if isinstance(each, CodeType)]
    return set(code.co_names).union(*within)


def _is_function(value: Any) -> bool:
    return isinstance(value, (FunctionType, MethodType, functools.partial))


def _of_earlier_examples(
    tried: nn.Module,
    without_history: nn.Module,
    kept: Mapping[str, torch.Tensor],
    run: Callable[[nn.Module], object],
) -> list[str]:
    """Return the names of values that depend on the examples that `tried` was run on before.

    Runs both copies of the model on the same new examples, and compares their values. Then
    restores `tried`.

    Args:
        tried: A copy of the model that has been run, with its initial parameters and buffers.
        without_history: A copy of the model that has not been run.
        kept: The initial parameters and buffers.
        run: Function (module): calls the module in training mode, on examples on which neither copy
            has been run.
    """
    found = []
    without_history.train()
    for module in (tried, without_history):
        with warnings.catch_warnings(action="ignore"):
            _outcome(module, run)
        # Functions may be compiled, separately for each copy.
        values = [(name, each) for name, each in _remembered(module) if not _is_function(each)]
        tensors = [
            (name, tensor.detach())
            for name, tensor in _kept(module)
            # Other errors are raised for a buffer that changes its shape, and for a new one.
            if name in kept and tensor.shape == kept[name].shape
        ]
        found.append(_digests([*values, *tensors]))
    _restore(tried, kept)
    with_history, alone = found
    return [name for name, value in alone.items() if with_history.get(name, value) != value]


def _missing_after_a_resume(
    tried: nn.Module,
    model: nn.Module,
    run: Callable[[nn.Module], object],
    run_others: Callable[[nn.Module], object],
) -> list[str]:
    """Return the names of values that a resumed training lacks, and without which outputs differ.

    `tried` makes a step, after which its parameters are changed as by an optimizer. Then a new copy
    gets its parameters and buffers, as a resumed training does, and both are run on other examples.
    This finds values that `forward` sets only in some steps, such as a target network.

    Args:
        tried: A copy of the model, with its initial parameters and buffers; both are changed.
        model: The model.
        run: Function (module) -> its outputs.
        run_others: The same, with other examples.

    Returns:
        The names; empty if the outputs are the same, or the changed model raises.
    """
    with warnings.catch_warnings(action="ignore"), suppress(Exception):
        run(tried)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in tried.parameters():
                # Unevenly, because some models do not depend on the scale of their weights.
                if parameter.requires_grad and parameter.is_floating_point():
                    change = torch.rand(parameter.shape, generator=generator)
                    parameter.mul_(1 - _STEP * change.to(parameter))
        resumed = _copied(model)
        resumed.train()
        _restore(resumed, dict(_kept(tried)))
        before = _digests(_remembered(tried))
        found = [
            (_is_log(value), name)
            for name, value in _remembered(resumed)
            # Functions may be compiled, separately for each copy.
            if not _is_function(value) and before.get(name) != digest(value)
        ]
        if found and not _are_near(run_others(tried), run_others(resumed)):
            # A list that differs may be a log, so the other values are more likely.
            return [name for _, name in sorted(found)]
    return []


def _are_near(one: object, other: object) -> bool:
    """Return whether nested outputs have the same values, except for rounding."""
    some, others = (
        [t for t in leaves(as_plain_containers(each)) if isinstance(t, torch.Tensor)]
        for each in (one, other)
    )
    return all(
        torch.allclose(a.double(), b.double(), rtol=_ROUNDING, atol=_ROUNDING, equal_nan=True)
        for a, b in zip(some, others, strict=True)
        if a.is_floating_point() and a.shape == b.shape
    )


def trial_copy(model: nn.Module) -> nn.Module:
    """Return a copy of a module for trial runs, or the module itself if it cannot be copied.

    A module with lazy parameters is not copied, because only a forward pass of the original
    initializes them.
    """
    if any(map(is_lazy, itertools.chain(model.parameters(), model.buffers()))):
        return model
    try:
        with warnings.catch_warnings(action="ignore"):
            return _copied(model)
    except Exception:  # noqa: BLE001 - some values cannot be copied, such as a tensor of a graph
        return model


def _copied(model: nn.Module) -> nn.Module:
    """Copy a module, with replacements for iterators and tensors that cannot be copied."""
    try:
        return copy.deepcopy(model)
    except Exception:  # noqa: BLE001 - the user's classes may raise anything
        stand_ins: dict[int, Any] = {}
        for module in model.modules():
            for name, value in vars(module).items():
                if name not in OF_MODULES:
                    _find_stand_ins(value, _DEPTH, stand_ins)
        return copy.deepcopy(model, stand_ins)


def _find_stand_ins(value: Any, depth: int, found: dict[int, Any]) -> None:
    """Find the objects within a value that `deepcopy` fails on, and replacements for them.

    For example, an iterator that cannot be copied is replaced by a `CountingIterator` around it. A
    lock or a log file is its own replacement.

    Args:
        value: The value to be copied.
        depth: Maximum depth of the nested values to search.
        found: Id of an object -> its replacement, to pass to `deepcopy` as `memo`; the objects that
            are found are added to it.
    """
    if depth == 0 or id(value) in found or isinstance(value, nn.Module):
        return
    try:
        copy.deepcopy(value, dict(found))
    except Exception:  # noqa: BLE001 - the user's classes may raise anything
        if isinstance(value, torch.Tensor):
            found[id(value)] = value.detach().clone()
        elif isinstance(value, GeneratorType):
            # It is shared: if it is advanced, the model is rejected, and otherwise it is unchanged.
            found[id(value)] = value
        elif isinstance(value, IOBase) and value.writable():
            found[id(value)] = value
        elif isinstance(value, Iterator) and not is_readable(value):
            found[id(value)] = CountingIterator(value)
        elif items := list(_held_by(value, hashlib.blake2b())):
            for item in items:
                _find_stand_ins(item, depth - 1, found)
        else:
            # A lock, or another object without values that a run could change.
            found[id(value)] = value


def _way_out(value: Any) -> str:
    """Return advice on how to keep a value that `forward` changes, for example in a buffer."""
    if any(_has_own_state(each) for each in _reached(value)):
        return (
            "`forward` can use no optimizer, scheduler or scaler that keeps state. If layers learn "
            "from losses of their own, detach() their inputs and add these losses up in `loss`: "
            "the `optimizer` of the model file then makes the same updates. Compute other values "
            "from a counter in a buffer."
        )
    if isinstance(value, (torch.Generator, *_DRAW)):
        return (
            "Draw from the functions of torch, np.random or random instead, which are seeded for "
            "each step."
        )
    if any(isinstance(each, Iterator) for each in _reached(value)):
        return (
            "Compute the next value from a counter in a buffer: "
            'self.register_buffer("calls", torch.tensor(0)). Random numbers of PyTorch, NumPy and '
            "Python's random need none; they are seeded for each step."
        )
    return "Keep it in a buffer: self.register_buffer(name, torch.tensor(value))."


def _check_modes(tried: nn.Module, origin: Origin) -> None:
    """Check that `eval()` does not change weights: checkpoints are taken in either mode.

    Args:
        tried: A copy of the model; its weights are overwritten.
        origin: Prefix for error messages.
    """
    # With initial values, adding a product with zeros to weights would not be noticed.
    generator = torch.Generator().manual_seed(0)
    tried.train()
    with torch.no_grad():
        for parameter in tried.parameters():
            if parameter.is_floating_point():
                parameter.copy_(torch.rand(parameter.shape, generator=generator))
    before = {name: parameter.detach().clone() for name, parameter in tried.named_parameters()}
    tried.eval()
    for name, parameter in tried.named_parameters():
        if name in before and not torch.equal(parameter, before[name]):
            raise DefinitionError(
                f"{origin}: eval() changes {name}, so the weights of a checkpoint, a worker or a "
                "trained model would depend on the mode it was in. Let train() and eval() "
                "change no weights (LoRA of loralib: merge_weights=False), and merge them after "
                "the training."
            )


def check_loss(compute: Callable[[], object], loss: object, where: object) -> bool:
    """Check that a loss keeps no state between calls, because checkpoints would not contain it.

    Args:
        compute: Function () -> loss of the same outputs and labels, computed with the same seed.
        loss: The user's function, module or object.
        where: `file:line` of the loss.

    Returns:
        Whether the loss could be computed.

    Raises:
        DefinitionError: The loss keeps state.
    """
    try:
        # PyTorch warns of label shapes, which are not determined yet.
        with warnings.catch_warnings(action="ignore"):
            before = digest(compute())
            first = digest(loss, _DEPTH_OF_A_LOSS)
            if digest(compute()) == before:
                return True
            second = digest(loss, _DEPTH_OF_A_LOSS)
    except Exception:  # noqa: BLE001 - the first step will report it, on a batch of the data
        return False
    if first != second:
        raise DefinitionError(
            f"{where}: the loss keeps state that changes with every call (an attribute, a buffer, "
            "or a variable that it uses), but no checkpoint stores it, so a resumed training "
            "would continue differently. Keep it in a buffer of the model, changed by `forward` "
            "in training, and return it with the outputs."
        )
    return True


def _restore(model: nn.Module, kept: Mapping[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for name, tensor in _kept(model):
            if name in kept and tensor.shape == kept[name].shape:
                tensor.copy_(kept[name])
    # As at the beginning of each step.
    for _, parameter in nn.Module.named_parameters(model):
        parameter.grad = None


def _kept(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the parameters and buffers that a checkpoint holds."""
    yield from nn.Module.named_parameters(model, remove_duplicate=False)
    yield from Buffers(model).tensors().items()


def _digests(remembered: Iterable[tuple[str, Any]]) -> dict[str, str]:
    return {name: digest(value) for name, value in remembered}


def _remembered(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield (description, value) for each value of a model that its state dict does not hold."""
    for prefix, module in model.named_modules():
        for name, buffer in module._buffers.items():  # noqa: SLF001 - see `buffers.is_kept`
            if buffer is not None and not is_kept(module, name):
                where = ".".join(part for part in (prefix, name) if part)
                yield f"the buffer {where}, which is not persistent, of the model", buffer
        for name, value in _attributes_of(module):
            where = ".".join(part for part in (prefix, name) if part)
            yield f"the attribute {where} of the model", value
        hooks = [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]  # noqa: SLF001 - no public name
        yield f"the state of the forward hooks of {prefix or 'the model'}", hooks


def _attributes_of(module: nn.Module) -> list[tuple[str, Any]]:
    found = [
        (name, value)
        for name, value in vars(module).items()
        # A metric of a LightningModule is wrapped in an object that records its batches.
        if name not in OF_MODULES and type(value).__module__ != _LOGGED_METRICS
    ]
    if isinstance(module, torch.jit.ScriptModule):
        # Attributes of compiled code are not those of Python.
        compiled = vars(vars(module).get("_actual_script_module", module)).get("_concrete_type")
        # A frozen module has none.
        attributes = compiled.get_attributes() if compiled is not None else ()
        names = [name for name in attributes if name not in OF_MODULES]
        found += [(name, getattr(module, name, None)) for name in names]
    return found


def attribute_digests(model: nn.Module, without: Iterable[Any]) -> dict[str, str]:
    """Return name -> digest of each attribute of a module and its submodules.

    Equal digests at two times show that an attribute has not changed. Parameters, buffers and
    submodules are left out.

    Args:
        model: The module.
        without: Objects to which attributes may refer, and whose changes do not count.
    """
    without = [*without, *model.modules()]
    return {
        ".".join(part for part in (prefix, name) if part): digest(value, without=without)
        for prefix, module in model.named_modules()
        for name, value in _attributes_of(module)
    }


def _remembered_by_code(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield (description, value) for each value outside the model that its classes' code may keep.

    These are the class attributes of the model's own classes, and what their methods use: global
    variables, those of a function around the class, and default values of arguments.
    """
    for kind in dict.fromkeys(kind for module in model.modules() for kind in type(module).__mro__):
        if _is_of_torch(kind):
            continue
        for name, each in vars(kind).items():
            value = getattr(each, "__func__", each)
            if isinstance(value, FunctionType):
                # Its file is not that of the model, if another file defines the class.
                code = value.__code__
                user = f"{kind.__name__}.{name} ({code.co_filename}:{code.co_firstlineno})"
                for variable in _globals_of(value):
                    described = f"the variable {variable}, which {user} uses,"
                    yield described, value.__globals__[variable]
                cells = zip(code.co_freevars, value.__closure__ or (), strict=True)
                for variable, cell in cells:
                    described = f"the variable {variable} of a function, which {user} uses,"
                    yield described, getattr(cell, "cell_contents", None)
                defaults = value.__defaults__, value.__kwdefaults__
                yield f"a default value of an argument of {user}", defaults
            elif not name.startswith("__"):
                yield f"the class attribute {kind.__name__}.{name}", value


def digest(value: Any, depth: int = _DEPTH, without: Iterable[Any] = ()) -> str:
    """Return a digest of a value's contents, to find out later whether they have changed.

    The contents are numbers, strings and tensors, those in containers, attributes and closures, and
    the positions of iterators and random generators.

    Args:
        value: Anything.
        depth: Maximum depth of nested values.
        without: Objects within the value whose contents are left out.
    """
    hasher = hashlib.blake2b(digest_size=16)
    _feed(hasher, value, depth, {id(each): (max(depth, _DEPTH), each) for each in without})
    return hasher.hexdigest()


def _feed(hasher: Any, value: Any, depth: int, seen: dict[int, tuple[int, Any]]) -> None:
    """Add a value and the values within it to a hash.

    Args:
        hasher: The hash.
        value: The value to add.
        depth: Maximum depth of the nested values to add.
        seen: Id of an object -> (depth with which it was added, the object). The object is kept so
            that its id is not reused. Receives the objects that are added now.
    """
    if isinstance(value, _SIMPLE):
        hasher.update(repr(value).encode())
    elif isinstance(value, torch.Tensor):
        hasher.update(repr((value.dtype, tuple(value.shape))).encode())
        # On the device "meta", such as the base of an ensemble (vmap), tensors have no values.
        if not value.is_quantized and not value.is_meta:
            for part in parts_of(value.detach().cpu()):
                hasher.update(to_array(part).tobytes())
    elif isinstance(value, (np.ndarray, torch.Generator, *_DRAW)):
        hasher.update(_bytes_of(value))
    elif (memory := raw_memory(value)) is not None:
        hasher.update(memory)
    # What an optimizer keeps is several levels within it.
    elif (depth := max(depth, _DEPTH if _has_own_state(value) else 0)) > (
        seen.get(id(value), (0, None))[0]
    ):
        seen[id(value)] = depth, value
        for item in _held_by(value, hasher):
            _feed(hasher, item, depth - 1, seen)


def _held_by(value: Any, hasher: Any) -> Iterator[Any]:
    """Yield the values that a value refers to: items, attributes, closure and global variables.

    Args:
        value: Any object; Python modules and classes count as referring to nothing.
        hasher: If the value is a mapping, its keys are added to this hash; they are not yielded. A
            caller that needs no hash passes a new one.
    """
    if isinstance(value, (ModuleType, type)):
        return
    yield from _items_of(value, hasher)
    if _is_internal(type(value)) and not isinstance(value, nn.Module):
        return
    if isinstance(value, MethodType):
        yield value.__self__
        value = value.__func__
    if isinstance(value, FunctionType) and not _is_of_torch(value):
        for cell in value.__closure__ or ():
            # Empty if the variable has not been assigned yet.
            yield getattr(cell, "cell_contents", None)
        yield from [value.__globals__[name] for name in _globals_of(value)]
        yield from (value.__defaults__, value.__kwdefaults__)
        return
    # Names are left out: an object is only compared with itself at another time.
    if isinstance(vars_of := getattr(value, "__dict__", None), dict):
        yield from list(vars_of.values())
    yield from _in_slots(value)


def _in_slots(value: Any) -> Iterator[Any]:
    for kind in type(value).__mro__:
        # Python's own classes keep caches in slots.
        is_of_python = kind.__module__.partition(".")[0] in sys.stdlib_module_names
        if is_of_python or "__slots__" not in vars(kind):
            continue
        for member in vars(kind).values():
            # A slot may have no value yet.
            with suppress(AttributeError):
                if isinstance(member, MemberDescriptorType):
                    yield member.__get__(value)


def _items_of(value: Any, hasher: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            hasher.update(repr(key).encode() if isinstance(key, (str, int)) else b"?")
            yield item
    elif isinstance(value, Iterator):
        yield from position_of(value)
    elif hasattr(value, "__iter__") and hasattr(value, "__len__"):
        yield from value


def _reached(value: Any, depth: int = _DEPTH) -> Iterator[Any]:
    """Yield a value and all values that it refers to, except modules and arrays.

    Args:
        value: The value to start from.
        depth: Maximum number of references to follow.
    """
    if depth and not isinstance(value, (nn.Module, torch.Tensor, np.ndarray, str, bytes, range)):
        yield value
        for item in _held_by(value, hashlib.blake2b()):
            yield from _reached(item, depth - 1)


def _has_own_state(value: Any) -> bool:
    """Return whether a value is stateful as an optimizer or a scheduler is, but not a module.

    That is, its class has `state_dict()` and `load_state_dict()`.
    """
    methods = (getattr(type(value), name, None) for name in ("state_dict", "load_state_dict"))
    return all(map(callable, methods)) and not isinstance(value, nn.Module)


def _globals_of(function: FunctionType) -> list[str]:
    return sorted(names_read_by(function.__code__) & function.__globals__.keys())


@functools.cache
def names_read_by(code: CodeType) -> frozenset[str]:
    """Return the global names that a function, and functions nested in it, look up."""
    reads = {each.argval for each in dis.get_instructions(code) if each.opname in _READS}
    within = [each for each in code.co_consts if isinstance(each, CodeType)]
    return frozenset(reads).union(*map(names_read_by, within))


def _is_of_torch(what: Any) -> bool:
    return str(getattr(what, "__module__", "")).partition(".")[0] == "torch"


def _is_internal(kind: type[Any]) -> bool:
    """Return whether a class is internal to PyTorch, so that its objects hold no training state."""
    parts = kind.__module__.split(".")
    return parts[0] == "torch" and any(part.startswith("_") for part in parts)


def _bytes_of(value: Any) -> bytes:
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, torch.Generator):
        return value.get_state().numpy().tobytes()
    if isinstance(value, random.Random):
        return repr(value.getstate()).encode()
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state).encode()
    return repr(value.get_state(legacy=False)).encode()
