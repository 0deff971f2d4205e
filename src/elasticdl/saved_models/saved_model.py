"""Reads the operations of a SavedModel folder, and Keras' metadata of its layers.

The protobuf messages are parsed here, because TensorFlow's classes for them require all of
TensorFlow, and a file is inspected before that is imported. Only these fields are read:

    saved_model.pb       SavedModel.meta_graphs(2) -> graph_def(2) -> node(1), library(2)
                                                   -> object_graph_def(7) -> nodes(1)
                                                      and concrete_functions(2)
    keras_metadata.pb    SavedMetadata.nodes(1) -> identifier(4), metadata(5)

Callers: `file_format.py`, `scan.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elasticdl import user_files
from elasticdl.errors import ModelFileError
from elasticdl.saved_models import bounds

GRAPH_FILE, METADATA_FILE = "saved_model.pb", "keras_metadata.pb"
MAX_GRAPH_BYTES = 512 * 2**20
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED = {_FIXED64: 8, _FIXED32: 4}
_MAX_SHIFT = 63
_CONSTANT_ITEM_BYTES = 8


@dataclass
class Function:
    """Content of a TensorFlow function in a SavedModel's graph, or of the graph itself.

    Attributes:
        name: Name of the function; empty for the graph itself.
        operations: Types of its nodes.
        calls: Names of the functions that its nodes refer to.
        constant_bytes: Declared size of its constants, with 64 bits for each number.
    """

    name: str
    operations: set[str] = field(default_factory=set)
    calls: set[str] = field(default_factory=set)
    constant_bytes: int = 0


@dataclass(frozen=True)
class SavedModel:
    """Content of a SavedModel folder.

    Attributes:
        functions: Functions, with the graphs themselves first.
        layers: Keras' metadata of each Keras object in the folder, the model first.
        callable: Names of the functions that can be called through the loaded objects.
    """

    functions: tuple[Function, ...]
    layers: tuple[dict[str, Any], ...] = ()
    callable: frozenset[str] = frozenset()


def read(folder: Path) -> SavedModel:
    """Return the content of a SavedModel folder.

    Raises:
        ModelFileError: A file of it is missing, truncated or damaged, or is a link to something
            outside the folder.
    """
    _check_links(folder)
    place = folder / GRAPH_FILE
    try:
        graph = _bytes_of(place)
        functions: list[Function] = []
        noted: list[bytes] = []
        callables: set[str] = set()
        for meta in _submessages(graph, 2):
            for graph_def in _submessages(meta, 2):
                functions += _functions(graph_def)
            for objects in _submessages(meta, 7):
                for entry in _submessages(objects, 2):
                    callables.update(_text(name) for name in _submessages(entry, 1))
                for node in _submessages(objects, 1):
                    # TensorFlow 2.1 to 2.4 stored Keras' metadata here.
                    for user_object in _submessages(node, 4):
                        noted += [bytes(text) for text in _submessages(user_object, 3)]
        place = folder / METADATA_FILE
        if place.is_file():
            noted = [
                bytes(text)
                for node in _submessages(_bytes_of(place), 1)
                for text in _submessages(node, 5)
            ]
        layers = [json.loads(text) for text in noted if text]
    except (ValueError, IndexError, RecursionError) as error:
        raise ModelFileError(
            f"{place}: truncated or damaged ({error}). Save the model again, or copy the whole "
            "folder again."
        ) from error
    return SavedModel(
        tuple(functions),
        tuple(each for each in layers if isinstance(each, dict) and each),
        frozenset(callables),
    )


def _check_links(folder: Path) -> None:
    """Reject links out of the folder, which is copied into the trained model and may be shared."""
    inside = folder.resolve()
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() and not path.resolve().is_relative_to(inside):
            raise ModelFileError(
                f"{path} is a link to something outside the folder; a SavedModel consists of its "
                f"own files. If you trust its target, copy the files: cp -rL {folder} COPY"
            )


def _bytes_of(path: Path) -> memoryview:
    if (kind := user_files.special_kind(path)) is not None:
        raise ModelFileError(f"{path} is {kind}; expected a file of a SavedModel.")
    size = path.stat().st_size
    if not 0 < size <= MAX_GRAPH_BYTES:
        raise ModelFileError(
            f"{path} has {size:,} bytes; expected a graph of 1 to {MAX_GRAPH_BYTES:,} bytes. Save "
            "the model again."
        )
    return memoryview(path.read_bytes())


def _functions(graph_def: memoryview) -> list[Function]:
    whole = Function("")
    found = [whole]
    for number, value in _fields(graph_def):
        if number == 1:
            _add_node(whole, value)
        elif number == 2:  # noqa: PLR2004 - GraphDef.library
            for function_def in _submessages(value, 1):
                names = [
                    _text(name)
                    for signature in _submessages(function_def, 1)
                    for name in _submessages(signature, 1)
                ]
                function = Function(names[0] if names else "?")
                for node in _submessages(function_def, 3):
                    _add_node(function, node)
                found.append(function)
    return found


def _add_node(function: Function, node: memoryview) -> None:
    for number, value in _fields(node):
        if number == 2:  # noqa: PLR2004 - NodeDef.op
            function.operations.add(_text(value))
        elif number == 5:  # noqa: PLR2004 - NodeDef.attr, an entry of a map
            for attribute in _submessages(value, 2):
                _add_calls(function, attribute)


def _add_calls(function: Function, attribute: memoryview) -> None:
    """Add the functions and constants in an attribute of a node to the content of a function.

    The attribute is an AttrValue message: one value or a list of values.
    """
    for number, value in _fields(attribute):
        if number == 8:  # noqa: PLR2004 - AttrValue.tensor
            function.constant_bytes += _tensor_bytes(value)
        elif number == 10:  # noqa: PLR2004 - AttrValue.func
            function.calls.update(_text(name) for name in _submessages(value, 1))
        elif number == 1:
            for named in _submessages(value, 9):
                function.calls.update(_text(name) for name in _submessages(named, 1))
            for tensor in _submessages(value, 8):
                function.constant_bytes += _tensor_bytes(tensor)


def _tensor_bytes(tensor: memoryview) -> int:
    """Return the size of a constant from its declared shape, with 64 bits for each number.

    The stored values do not show it: a single one can represent a constant of any size. Fields of
    the TensorProto that are read: tensor_shape(2) -> dim(2) -> size(1).
    """
    sizes: list[int] = []
    for shape in _submessages(tensor, 2):
        for dim in _submessages(shape, 2):
            sizes += [size for number, size in _varints(dim) if number == 1]
    return bounds.num_values(sizes) * _CONSTANT_ITEM_BYTES


def _submessages(message: memoryview, number: int) -> Iterator[memoryview]:
    return (value for found, value in _fields(message) if found == number)


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield a message's length-delimited fields with their numbers; skip the others."""
    return ((number, value) for number, value in _all(message) if isinstance(value, memoryview))


def _varints(message: memoryview) -> Iterator[tuple[int, int]]:
    """Yield a message's integer fields with their numbers."""
    return ((number, value) for number, value in _all(message) if isinstance(value, int))


def _all(message: memoryview) -> Iterator[tuple[int, memoryview | int]]:
    at, end = 0, len(message)
    while at < end:
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield tag >> 3, value
        elif kind in _FIXED:
            at += _FIXED[kind]
        elif kind == _BYTES:
            length, at = _varint(message, at)
            if at + length > end:
                raise ValueError("a field is longer than the remaining data")
            yield tag >> 3, message[at : at + length]
            at += length
        else:
            raise ValueError(f"a field of kind {kind}")
    if at != end:
        raise ValueError("the last field is truncated")


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004 - the bit that says that another byte follows
            return value, at
        shift += 7
        if shift > _MAX_SHIFT:
            raise ValueError("a number of more than 64 bits")


def _text(value: memoryview) -> str:
    return bytes(value).decode("utf-8", "replace")
