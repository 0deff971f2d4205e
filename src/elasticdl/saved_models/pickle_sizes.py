"""Simulates a PyTorch pickle without running it, to find the size of the objects it would create.

PyTorch's weights-only unpickler still calls functions that are allowed by name: a pickle of 100
bytes that calls `torch.nn.Linear(60000, 60000)` allocates 14 GB, and a tensor with stride 0 claims
4e9 numbers in a storage that holds one. Therefore the pickle is simulated here, with names in place
of objects. The stack machine uses the table of `pickletools`, which lists the items that each
opcode takes from the stack and leaves on it.

Callers: `torch_sizes.py`.
"""

from __future__ import annotations

import pickletools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

from elasticdl.errors import ModelFileError
from elasticdl.saved_models import built_in
from elasticdl.saved_models.bounds import num_values

_LAYER = re.compile(r"torch\.nn\.modules\.\w+\.\w+")
_PLAIN_CALL = re.compile(
    r"torch\._utils\._rebuild_(?:tensor|tensor_v2|tensor_v3|parameter|parameter_with_state)|"
    r"torch\.Size|torch\.device|torch\.serialization\._get_layout|"
    r"collections\.(?:OrderedDict|Counter|defaultdict)|(?:__builtin__|builtins)\.(?:set|frozenset)"
)
"""Functions that PyTorch pickles call. All other names in them are classes or values."""

_REBUILD_TENSOR = re.compile(r"torch\._utils\._rebuild_tensor(?:_v[23])?")
_V3 = "torch._utils._rebuild_tensor_v3"
_TENSOR_CLASS = re.compile(r"torch\.(?:Tensor|nn\.parameter\.\w+|\w*Storage|storage\.\w+)")

_ITEM_BYTES = {
    "Double": 8, "Float": 4, "Half": 2, "BFloat16": 2, "Long": 8, "Int": 4, "Short": 2, "Char": 1,
    "Byte": 1, "Bool": 1, "ComplexFloat": 8, "ComplexDouble": 16, "QInt8": 1, "QUInt8": 1,
    "QInt32": 4, "QUInt4x2": 1, "QUInt2x4": 1, "Untyped": 1,
    "float64": 8, "double": 8, "float32": 4, "float": 4, "float16": 2, "half": 2, "bfloat16": 2,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint64": 8, "uint32": 4, "uint16": 2,
    "uint8": 1, "bool": 1, "complex32": 4, "complex64": 8, "complex128": 16,
}  # fmt: skip
# Size of an item of an unknown type: that of the largest type.
_MAX_ITEM_BYTES = 16


@dataclass(frozen=True)
class Storage:
    """A storage (the memory behind one or more tensors) that a pickle refers to.

    Attributes:
        key: Name of the archive's member that contains the storage.
        num_bytes: Size declared in the pickle.
        item_bytes: Size of one number in it.
    """

    key: str
    num_bytes: int
    item_bytes: int


@dataclass(frozen=True)
class Tensor:
    """A tensor that a pickle creates.

    Attributes:
        name: Its name in the pickle, such as the key of a state_dict; empty if it has none.
        num_values: Number of values that the pickle declares.
        num_bytes: Size of these values in bytes.
        storage: Storage that holds them.
    """

    name: str
    num_values: int
    num_bytes: int
    storage: Storage


@dataclass(frozen=True)
class Contents:
    """Objects that a pickle creates.

    Attributes:
        storages: Key -> storage, with the largest size that the pickle declares for it.
        tensors: The tensors, in the order in which the pickle creates them.
    """

    storages: Mapping[str, Storage]
    tensors: Sequence[Tensor]


def follow(pickled: IO[bytes], where: str) -> Contents:
    """Return the objects a pickle would create; the stream is left at the pickle's end.

    Args:
        pickled: One pickle, and anything after it.
        where: The file, for errors.

    Raises:
        ModelFileError: The pickle is damaged, or calls a class to create a layer, tensor or storage
            of arbitrary size, which PyTorch never writes.
    """
    machine = _Machine(where)
    try:
        for opcode, argument, _ in pickletools.genops(pickled):
            machine.step(opcode, argument)
    except ModelFileError:
        raise
    except Exception as error:
        # Without the bytes that were read: this may be any file of this machine.
        raise ModelFileError(
            f"{where}: the objects in it are truncated or damaged ({type(error).__name__}). Save "
            "it again."
        ) from error
    return Contents(machine.storages, machine.tensors)


@dataclass(frozen=True, eq=False)
class _Global:
    name: str


@dataclass(frozen=True, eq=False)
class _Made:
    """Placeholder for what a function or class returns when the pickle calls it.

    Attributes:
        of: Dotted name of the function or class.
    """

    of: str


class _Object:
    """Placeholder for a value that has no influence on the sizes of tensors."""


_MARK = _Object()


class _Machine:
    def __init__(self, where: str) -> None:
        self.storages: dict[str, Storage] = {}
        self.tensors: list[Tensor] = []
        self._where = where
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._special: dict[str, Callable[[Any], None]] = {
            "MARK": lambda _: self._stack.append(_MARK),
            "GLOBAL": lambda name: self._stack.append(_Global(name.replace(" ", ".", 1))),
            "STACK_GLOBAL": self._stack_global,
            "REDUCE": self._reduce,
            "INST": self._inst,
            "OBJ": self._obj,
            "NEWOBJ": self._new,
            "NEWOBJ_EX": self._new_ex,
            "BUILD": self._build,
            "BINPERSID": lambda _: self._stack.append(self._persistent(self._stack.pop())),
            "APPEND": self._append,
            "APPENDS": self._appends,
            "EMPTY_TUPLE": lambda _: self._stack.append(()),
            "EMPTY_LIST": lambda _: self._stack.append([]),
            "TUPLE": lambda _: self._stack.append(tuple(self._to_mark())),
            "LIST": lambda _: self._stack.append(self._to_mark()),
            "TUPLE1": lambda _: self._tuple(1),
            "TUPLE2": lambda _: self._tuple(2),
            "TUPLE3": lambda _: self._tuple(3),
            "DUP": lambda _: self._stack.append(self._stack[-1]),
            "MEMOIZE": lambda _: self._memo.update({len(self._memo): self._stack[-1]}),
        }

    def step(self, opcode: pickletools.OpcodeInfo, argument: Any) -> None:
        name = opcode.name
        if name in self._special:
            self._special[name](argument)
        elif name in {"PUT", "BINPUT", "LONG_BINPUT"}:
            self._memo[int(argument)] = self._stack[-1]
        elif name in {"GET", "BINGET", "LONG_BINGET"}:
            self._stack.append(self._memo[int(argument)])
        elif not opcode.stack_before and len(opcode.stack_after) == 1:
            self._stack.append(argument if isinstance(argument, (int, str)) else _Object())
        else:
            self._generic(opcode)

    def _generic(self, opcode: pickletools.OpcodeInfo) -> None:
        """Simulate an opcode that has no method here: pop and push as `pickletools` specifies."""
        taken = list(opcode.stack_before)
        if pickletools.markobject in taken:
            self._to_mark()
            taken = taken[: taken.index(pickletools.markobject)]
        values = [self._stack.pop() for _ in taken][::-1]
        for number, _ in enumerate(opcode.stack_after):
            self._stack.append(values[number] if number < len(values) else _Object())

    def _to_mark(self) -> list[Any]:
        values: list[Any] = []
        while (value := self._stack.pop()) is not _MARK:
            values.append(value)
        return values[::-1]

    def _tuple(self, size: int) -> None:
        values = [self._stack.pop() for _ in range(size)]
        self._stack.append(tuple(reversed(values)))

    def _append(self, _: Any) -> None:
        value = self._stack.pop()
        if isinstance(self._stack[-1], list):
            self._stack[-1].append(value)

    def _appends(self, _: Any) -> None:
        values = self._to_mark()
        if isinstance(self._stack[-1], list):
            self._stack[-1].extend(values)

    def _stack_global(self, _: Any) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        self._stack.append(_Global(f"{module}.{name}"))

    # --- calls and the objects they create -------------------------------------------------------

    def _reduce(self, _: Any) -> None:
        arguments, function = self._stack.pop(), self._stack.pop()
        self._stack.append(self._called(function, arguments))

    def _inst(self, name: str) -> None:
        arguments = tuple(self._to_mark())
        self._stack.append(self._called(_Global(name.replace(" ", ".", 1)), arguments))

    def _obj(self, _: Any) -> None:
        function, *arguments = self._to_mark()
        self._stack.append(self._called(function, tuple(arguments)))

    def _new(self, _: Any) -> None:
        arguments, kind = self._stack.pop(), self._stack.pop()
        self._stack.append(self._object(kind, arguments))

    def _new_ex(self, _: Any) -> None:
        keywords = self._stack.pop()
        del keywords
        self._new(None)

    def _called(self, function: Any, arguments: Any) -> Any:
        name = _name(function)
        if _REBUILD_TENSOR.fullmatch(name):
            return self._tensor(name, arguments)
        if built_in.TORCH_GLOBAL.fullmatch(name) and not _PLAIN_CALL.fullmatch(name):
            raise ModelFileError(self._makes(name))
        return _Made(name)

    def _object(self, kind: Any, arguments: Any) -> Any:
        name = _name(kind)
        if _TENSOR_CLASS.fullmatch(name) or (_LAYER.fullmatch(name) and arguments != ()):
            raise ModelFileError(self._makes(name))
        return _Made(name)

    def _build(self, _: Any) -> None:
        self._stack.pop()
        made = self._stack[-1]
        if isinstance(made, Tensor):
            raise ModelFileError(self._makes("torch.Tensor.set_"))

    def _makes(self, name: str) -> str:
        return (
            f"{self._where}: its objects call {name} to create an object of any size, where "
            "PyTorch saves a layer with its weights. The file was built to exhaust memory; "
            "nothing was allocated."
        )

    def _tensor(self, name: str, arguments: Any) -> Tensor:
        if isinstance(arguments, tuple) and len(arguments) >= 4:  # noqa: PLR2004 - storage, offset, size, stride
            storage, _, size = arguments[:3]
            sizes = size if isinstance(size, (tuple, list)) else None
            if (
                isinstance(storage, Storage)
                and sizes is not None
                and all(type(each) is int for each in sizes)
            ):
                item_bytes = storage.item_bytes
                if name == _V3:
                    item_bytes = _item_bytes(_name(arguments[6]) if len(arguments) > 6 else "")  # noqa: PLR2004 - dtype
                numbers = num_values(sizes)
                tensor = Tensor(self._place(), numbers, numbers * item_bytes, storage)
                self.tensors.append(tensor)
                return tensor
        raise ModelFileError(
            f"{self._where}: a tensor in it does not have a storage and a size, as PyTorch writes "
            "them. The file is damaged or malicious. Save it again."
        )

    def _place(self) -> str:
        """Return a tensor's name for errors: the newest string on the stack; empty if none."""
        return next((each for each in reversed(self._stack) if isinstance(each, str)), "")

    def _persistent(self, given: Any) -> Any:
        """Return the storage that `("storage", type, key, location, num_values)` refers to."""
        if not isinstance(given, tuple) or len(given) < 5 or given[0] != "storage":  # noqa: PLR2004 - see above
            return _Object()
        _, kind, key, _, numbers = given[:5]
        if type(numbers) is not int or numbers < 0 or not isinstance(key, (str, int)):
            raise ModelFileError(
                f"{self._where}: a storage in it has no size. The file is damaged or malicious. "
                "Save it again."
            )
        item_bytes = _item_bytes(_name(kind).removesuffix("Storage"))
        storage = Storage(str(key), numbers * item_bytes, item_bytes)
        known = self.storages.get(storage.key)
        if known is None or known.num_bytes < storage.num_bytes:
            self.storages[storage.key] = storage
        return storage


def _name(value: Any) -> str:
    return value.name if isinstance(value, _Global) else ""


def _item_bytes(name: str) -> int:
    return _ITEM_BYTES.get(name.rpartition(".")[2], _MAX_ITEM_BYTES)
