"""Scan of model files: finds code that a file would run, before any loader opens the file.

    Keras config       Lambda and similar layers, undeclared classes and modules, at any depth;
                       unrealistic sizes
    SavedModel         the same in Keras' metadata, and operations outside an allow-list
    PyTorch objects    names other than layers and tensors; the loader checks them again
    torch.export       pickles, operations outside an allow-list, size expressions that do more
                       than arithmetic
    TorchScript        always code
    old pickles        always code

Everything is either allowed by name or rejected. Rejected content may be trusted (`trust.py`),
except for sizes and damage.

Callers: the loaders, and dialects that report problems early.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from elasticdl.errors import ModelFileError
from elasticdl.saved_models import archive, built_in, saved_model, torch_operations
from elasticdl.saved_models.trust import NONE, Trust, TrustUsed, check

if TYPE_CHECKING:
    from elasticdl.saved_models.file_format import ModelFile

MAX_LAYERS = 4000
MAX_DEPTH = 200
MAX_VALUES = 2**31
"""Limit of the numbers that one layer or shape may declare."""

_SHAPES = ("batch_input_shape", "batch_shape", "input_shape", "target_shape", "shape")
_SIZES = ("units", "filters", "input_dim", "output_dim", "num_heads", "key_dim", "value_dim", "n")
_SEEDS = ("seed", "salt", "shared_object_id")


def scan(
    file: ModelFile, *, known: Collection[str] = (), trust: Trust = NONE
) -> tuple[TrustUsed, ...]:
    """Reject a file that would run untrusted code; return the code that is trusted, if any.

    Args:
        file: The inspected file.
        known: Names of the custom objects that were declared for it.
        trust: Trust that the user declared for it.

    Raises:
        ModelFileError: It would run code that is not trusted, names an undeclared class, or
            declares unrealistic sizes.
    """
    if file.format in {"torchscript", "torch_pickle"}:
        what = {
            "torchscript": "it is TorchScript, a program",
            "torch_pickle": "PyTorch before 1.6 wrote it, in a form that cannot be read safely",
        }[file.format]
        return (check(file, trust, "allow_pickle", what),)
    if file.format == "torch_zip":
        return check_globals(file, known=known, trust=trust)
    if file.format == "torch_export":
        return check_export(file, trust=trust)
    if file.format == "saved_model":
        return check_graph(file, known=known, trust=trust)
    if file.architecture is None:
        return ()
    return check_architecture(file, file.architecture, known=known, trust=trust)


# --- Keras ---------------------------------------------------------------------------------------


def check_architecture(
    file: ModelFile, config: Mapping[str, Any], *, known: Collection[str] = (), trust: Trust = NONE
) -> tuple[TrustUsed, ...]:
    """Check all classes and sizes in a Keras config; return the code that is trusted, if any.

    Args:
        file: The inspected file, for errors.
        config: The config.
        known: Names of the custom objects that were declared for the file.
        trust: Trust that the user declared for the file.

    Raises:
        ModelFileError: The config needs code that is not trusted, names an undeclared class, or
            declares unrealistic sizes.
    """
    num_layers = 0
    findings: list[str] = []
    for place, value in _walk(file, config):
        if "class_name" not in value:
            continue
        num_layers += _is_layer(value)
        if num_layers > MAX_LAYERS:
            raise ModelFileError(
                f"{file.path}: the model has more than {MAX_LAYERS:,} layers, which no real model "
                "has. The file is damaged or was built to exhaust memory."
            )
        _check_sizes(file, place, value)
        runs = _runs(value)
        if runs:
            findings.append(f"{place} is {runs}")
        elif not _is_known(value, known):
            raise ModelFileError(_undeclared(file, place, value))
    return tuple(check(file, trust, "allow_lambda", finding) for finding in findings)


def _walk(file: ModelFile, config: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each mapping in a config, at any depth, with a description of its location for errors.

    Raises:
        ModelFileError: The config is nested too deeply.
    """
    stack: list[tuple[str, Any, int]] = [("the model", config, 0)]
    while stack:
        place, value, depth = stack.pop()
        if depth > MAX_DEPTH:
            raise ModelFileError(
                f"{file.path}: {place} is nested deeper than {MAX_DEPTH} levels, which no real "
                "model is."
            )
        if isinstance(value, Mapping):
            name = value.get("name") or (
                value["config"].get("name") if isinstance(value.get("config"), Mapping) else None
            )
            if "class_name" in value and name and depth:
                place = f"layer {name!r}" if _is_layer(value) else f"{place} ({name!r})"
            yield place, value
            stack += [(_within(place, str(key)), each, depth + 1) for key, each in value.items()]
        elif isinstance(value, (list, tuple)):
            stack += [(place, each, depth + 1) for each in value]
        elif isinstance(value, str) and value[:1] in "{[" and "class_name" in value:
            # Keras reads some nested configs from strings.
            try:
                stack.append((place, json.loads(value), depth + 1))
            except (ValueError, RecursionError):
                continue


def _within(place: str, key: str) -> str:
    return (
        place
        if key in {"config", "layers", "inbound_nodes", "args", "kwargs"}
        else (f"{key} of {place}")
    )


def _is_layer(value: Mapping[str, Any]) -> bool:
    name = str(value.get("class_name"))
    return name in built_in.LAYERS or name in built_in.EXECUTING or "inbound_nodes" in value


def _runs(value: Mapping[str, Any]) -> str | None:
    """Describe what an object in a Keras config would do beyond computing; None if nothing.

    It may run code from the file, call an operation of TensorFlow, or read a file of this machine.

    Args:
        value: The config of the object, with its `class_name`.
    """
    name = str(value["class_name"])
    config = value.get("config")
    config = config if isinstance(config, Mapping) else {}
    if name in built_in.EXECUTING:
        return built_in.EXECUTING[name]
    if str(value.get("registered_name")) in built_in.EXECUTING:
        return built_in.EXECUTING[str(value["registered_name"])]
    if name in built_in.FUNCTION_LAYERS:
        function = config.get("function")
        if not isinstance(function, str) or not built_in.HARMLESS_FUNCTION.fullmatch(function):
            return f"a {name}, which calls tf.{function}"
    for argument in built_in.FILE_ARGUMENTS.get(name, ()):
        if isinstance(config.get(argument), str):
            return f"a {name} that reads the file {config[argument]!r} on this machine"
    return None


def _is_known(value: Mapping[str, Any], known: Collection[str]) -> bool:
    """Return whether the class in a config belongs to Keras or is a declared custom object.

    Args:
        value: The config of an object.
        known: Names of the custom objects that were declared.
    """
    name, module = value["class_name"], value.get("module")
    if not isinstance(name, str):
        return False
    registered = value.get("registered_name")
    wanted = value.get("config") if name == "function" else registered or name
    if isinstance(wanted, str) and wanted in known:
        return True
    if name == "function":
        ours = module == "builtins" or _is_keras(module)
        return ours and isinstance(wanted, str) and wanted in built_in.FUNCTIONS
    if name in built_in.SPECIAL:
        return module in {None, "builtins"} or _is_keras(module)
    if isinstance(module, str) and built_in.KERAS_OPERATIONS.fullmatch(module):
        return True
    return (module is None or _is_keras(module)) and (
        name in built_in.CLASSES or name in built_in.FUNCTION_LAYERS
    )


def _is_keras(module: object) -> bool:
    return isinstance(module, str) and bool(built_in.KERAS_MODULE.fullmatch(module))


def _undeclared(file: ModelFile, place: str, value: Mapping[str, Any]) -> str:
    name, module = value["class_name"], value.get("module")
    is_function = name == "function"
    wanted = value.get("config") if is_function else value.get("registered_name") or name
    kind = "function" if is_function else "class"
    of = f" of the module {module!r}" if module not in {None, "builtins"} else ""
    return (
        f"{file.path}: {place} needs the {kind} {wanted!r}{of}, which is not part of Keras. "
        "Nothing is imported just because a file names it.\n"
        f"  Declare it: custom_objects: [{{key: {wanted!r}, value: {str(wanted).split('>')[-1]!r}, "
        "path: <your file>.py}]."
    )


def _check_sizes(file: ModelFile, place: str, value: Mapping[str, Any]) -> None:
    """Reject a layer of a Keras config with unrealistic sizes, or larger than all saved weights.

    Args:
        file: The inspected file.
        place: Description of the layer's location in the config, for the error.
        value: The config of the layer.
    """
    config = value.get("config")
    if not isinstance(config, Mapping):
        return
    for key in _SHAPES:
        shape = config.get(key)
        if isinstance(shape, (list, tuple)):
            whole = math.prod(size for size in shape if isinstance(size, int) and size > 0)
            if whole > MAX_VALUES:
                raise ModelFileError(_too_large(file, place, f"{key} {list(shape)}"))
    for key, size in config.items():
        if isinstance(size, int) and abs(size) > MAX_VALUES and not key.endswith(_SEEDS):
            raise ModelFileError(_too_large(file, place, f"{key}: {size:,}"))
    sizes = {key: config[key] for key in _SIZES if isinstance(config.get(key), int)}
    declared = ", ".join(f"{key}: {size:,}" for key, size in sizes.items())
    if math.prod(sizes.values()) > MAX_VALUES:
        raise ModelFileError(_too_large(file, place, declared))
    least = _num_weights(str(value["class_name"]), sizes)
    if file.num_values is not None and least > file.num_values:
        held = f"{declared}; the weights in the file have {file.num_values:,} numbers"
        raise ModelFileError(_too_large(file, place, held))


def _num_weights(name: str, sizes: Mapping[str, int]) -> int:
    """Return a lower bound for the number of weight values of a Keras layer, from its config.

    A layer with more values than the weights in its file is unrealistic, and is rejected.

    Args:
        name: Name of the layer's class.
        sizes: The sizes in its config by name, such as `units`.
    """
    if name == "Embedding":
        return sizes.get("input_dim", 0) * sizes.get("output_dim", 0)
    if name in {"Dense", "GRU", "LSTM", "SimpleRNN"}:
        return sizes.get("units", 0)
    return sizes.get("filters", 0) if name in built_in.LAYERS else 0


def _too_large(file: ModelFile, place: str, declared: str) -> str:
    return (
        f"{file.path}: {place} declares {declared}: more than {MAX_VALUES:,} numbers, or more than "
        "the file has. The file is damaged or was built to exhaust memory."
    )


# --- SavedModel ----------------------------------------------------------------------------------


def check_graph(
    file: ModelFile, *, known: Collection[str] = (), trust: Trust = NONE
) -> tuple[TrustUsed, ...]:
    """Check the operations and the Keras metadata of a SavedModel folder.

    An unknown class without a module is accepted: its code is not needed, because the graph defines
    what its layers compute. An undeclared class with a module is rejected, because Keras would
    import the module. This is a part of `scan`, which describes the arguments.

    Returns:
        The code that is trusted, if any.

    Raises:
        ModelFileError: The folder would run code that is not trusted.
    """
    model = saved_model.read(file.path)
    used: list[TrustUsed] = []
    operations = _foreign_operations(model)
    if operations:
        used.append(
            check(
                file,
                trust,
                "allow_lambda",
                f"its graph has the operation{'s' if len(operations) > 1 else ''} "
                f"{', '.join(operations)}, which may reach files, processes or the network",
            )
        )
    for noted in model.layers:
        for place, value in _walk(file, noted):
            if "class_name" not in value:
                continue
            _check_sizes(file, place, value)
            runs = _runs(value)
            if runs:
                used.append(check(file, trust, "allow_lambda", f"{place} is {runs}"))
            elif value.get("module") is not None and not _is_known(value, known):
                raise ModelFileError(_undeclared(file, place, value))
    return tuple(used)


def _foreign_operations(model: saved_model.SavedModel) -> list[str]:
    # A node of a function's name may call it; but such a name must not hide an operation.
    names = {each.name for each in model.functions if each.name.startswith("__")}
    called = set(model.callable)
    for function in model.functions:
        if function.name:
            called |= function.calls | (function.operations & names)
    foreign: set[str] = set()
    for function in model.functions:
        others = function.operations - built_in.OPERATIONS - names
        # Weights are saved and restored by functions that only the graph itself calls: in another
        # function, these operations would be a step that writes files.
        if function.name not in called:
            others -= built_in.CHECKPOINT_OPERATIONS
        foreign |= others
    return sorted(foreign)


# --- PyTorch -------------------------------------------------------------------------------------


def check_globals(
    file: ModelFile, *, known: Collection[str] = (), trust: Trust = NONE
) -> tuple[TrustUsed, ...]:
    """Check that a PyTorch file needs only layers, tensors and declared classes.

    This is a part of `scan`, which describes the arguments.

    Returns:
        The code that is trusted, if any.

    Raises:
        ModelFileError: The file needs other code that is not trusted.
    """
    foreign = [
        name
        for name in file.globals
        if not built_in.TORCH_GLOBAL.fullmatch(name) and name.rpartition(".")[2] not in known
    ]
    if not foreign:
        return ()
    return (
        check(
            file,
            trust,
            "allow_pickle",
            f"its objects need {', '.join(foreign)}, which {'are' if len(foreign) > 1 else 'is'} "
            "neither a layer of torch.nn nor a tensor. Declare a class of your own in "
            "custom_objects, or save a state_dict, which needs no classes",
        ),
    )


def check_export(file: ModelFile, *, trust: Trust = NONE) -> tuple[TrustUsed, ...]:
    """Check that a file of torch.export has no code that PyTorch's loader would run.

    This is a part of `scan`, which describes the arguments.

    Returns:
        The code that is trusted, if any.

    Raises:
        ModelFileError: The file has code that is not trusted.
    """
    findings: list[str] = []
    with archive.opened(file.path) as opened:
        for name in opened.namelist():
            if any(part in name for part in ("aotinductor", "executorch")):
                findings.append(f"{name} in it is a compiled program")
            # PyTorch reads all files there, whatever their names.
            if not name.endswith(".json") and "/models/" not in name:
                continue
            text = archive.member(opened, name, file.path)
            try:
                findings += _exported(name, json.loads(text))
            except (ValueError, RecursionError) as error:
                raise ModelFileError(
                    f"{file.path}: {name} in it is damaged: {error}. Export the model again."
                ) from error
    return tuple(check(file, trust, "allow_pickle", finding) for finding in findings[:1])


def _exported(name: str, content: Any) -> list[str]:
    """Describe the code that PyTorch would run from one JSON file in an exported program.

    Args:
        name: Name of the file, for the descriptions.
        content: The parsed JSON.
    """
    findings: list[str] = []
    stack: list[tuple[str, Any]] = [("", content)]
    while stack:
        key, value = stack.pop()
        if isinstance(value, Mapping):
            stack += [(str(inner), each) for inner, each in value.items()]
            if key == "range_constraints":
                stack += [("expr_str", str(inner)) for inner in value]
        elif isinstance(value, list):
            stack += [(key, each) for each in value]
        elif key == "use_pickle" and value:
            findings.append(f"weights in it are pickled ({name})")
        elif isinstance(value, str):
            found = _evaluated(key, value)
            if found:
                findings.append(found)
    return findings


def _evaluated(key: str, value: str) -> str | None:
    """Describe the code that PyTorch would run from a string; None if the string is harmless.

    Args:
        key: Key of the string in an exported program's JSON, which determines its meaning.
        value: The string.
    """
    if key in {"target", "as_operator"} and not _only_computes(value):
        return f"its graph calls {value}, which is not on the list of operations that only compute"
    if key == "expr_str" and not built_in.TORCH_EXPRESSION.fullmatch(value):
        return f"a size in it is computed as {value!r}, which PyTorch would evaluate"
    if key == "guards_code" and not built_in.TORCH_GUARD.fullmatch(value):
        return f"a guard in it is {value!r}, which PyTorch would evaluate"
    if key in _NAMES and not built_in.TORCH_NAME.fullmatch(value):
        return f"a {key} in it is {value!r:.100}, which PyTorch would write into code"
    if key in {"in_spec", "out_spec"} and not _is_plain_tree(value):
        return f"its inputs or outputs are described as {value!r:.100}, which PyTorch would import"
    if key == "path_name" and value.startswith(("custom_obj", "opaque_obj")):
        return f"it holds the object {value}, which PyTorch would unpickle"
    return None


def _only_computes(call: str) -> bool:
    """Return whether a function that an exported program calls is known only to compute.

    Args:
        call: Name of the function in the program's graph, such as that of an aten operation.
    """
    operation = _ATEN_OPERATION.fullmatch(call)
    if operation is None:
        return built_in.TORCH_CALL.fullmatch(call) is not None
    return operation["name"] in torch_operations.OPERATIONS


_ATEN_OPERATION = re.compile(r"torch\.ops\.aten\.(?P<name>\w+)(?:\.\w+)?")
_NAMES = frozenset(
    {
        "name", "as_name", "parameter_name", "buffer_name", "tensor_constant_name",
        "custom_obj_name", "user_input_name", "fqn", "forward_arg_names",
    }
)  # fmt: skip
_TREES = frozenset({"builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict"})


def _is_plain_tree(text: str) -> bool:
    if not text:
        return True
    if "__enum__" in text:
        return False
    try:
        stack = [json.loads(text)]
    except (ValueError, RecursionError):
        return False
    while stack:
        value = stack.pop()
        if isinstance(value, list):
            stack += value
        elif isinstance(value, Mapping):
            if value.get("type") is not None and value["type"] not in _TREES:
                return False
            stack += value.get("children_spec") or []
    return True
