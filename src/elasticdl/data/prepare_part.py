"""Preparation of one part: calls the user's function for each of its input files.

The accepted signatures and results of the function are defined here:

    prepare_data_for_a_single_file(filename)                 a path; remote files are copied
    prepare_data_for_a_single_file(file_object, filename)    distinguished by parameter names

    -> a tuple or a dict        one record
    -> bytes                    one record, serialized already
    -> a generator or a list    several records, each in one of these forms

This runs in a process of its own. Errors are returned, not raised, because an exception of the
user's code cannot always be sent to another process.

Callers: `prepare.py`.
"""

from __future__ import annotations

import contextlib
import inspect
import shutil
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl import scratch, user_files
from elasticdl.data.prepare_plan import PlanEntry, PlanOutput, PlanPart, Settings
from elasticdl.data.record_source import RecordFile
from elasticdl.data.recordio import Writer
from elasticdl.data.stored_file import filesystem, local_path
from elasticdl.data.wording import shown
from elasticdl.errors import (
    DataError,
    DefinitionError,
    ElasticDLError,
    UserCodeError,
    raised_at,
    users_traceback,
)

if TYPE_CHECKING:
    from typing import IO

    from elasticdl.data.schema import Schema

_FILE_NAMES = frozenset(["filename", "file_name", "name", "path", "file_path", "filepath"])
_FILE_OBJECTS = frozenset(["file_object", "fileobj", "file_obj", "file", "f", "stream"])
# Limit of a record file's size: its records are held in memory until it is written.
_MAX_FILE_BYTES = 256 << 20


@dataclass(frozen=True)
class PartPreparation:
    """The user's function that prepares data, and the schema of its records.

    Attributes:
        function: `prepare_data_for_a_single_file`.
        schema: Schema of a record.
        where: File and line of the function, for messages.
        model: The zoo and the name of the model file, as the user wrote them. They identify the
            file, whatever its content.
        code: Hash of the files with the user's code, to detect that it has changed.
    """

    function: Callable[..., Any]
    schema: Schema
    where: str
    model: str = ""
    code: str = ""


def arguments_of(preparation: PartPreparation) -> tuple[str, ...]:
    """Return what to pass to the user's function, in order: "filename", "file_object", or both.

    Raises:
        DefinitionError: It takes other arguments.
    """
    required = [
        parameter.name
        for parameter in inspect.signature(preparation.function).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    roles = tuple(_role(name) for name in required)
    if len(required) == 1:
        return ("file_object",) if roles == ("file_object",) else ("filename",)
    if sorted(roles) == ["file_object", "filename"]:
        return roles
    raise DefinitionError(
        f"{preparation.where}: prepare_data_for_a_single_file({', '.join(required)}) cannot be "
        "called: expected (filename), or (file_object, filename), with these parameter names."
    )


def _role(name: str) -> str:
    if name in _FILE_OBJECTS:
        return "file_object"
    return "filename" if name in _FILE_NAMES else ""


@dataclass(frozen=True)
class PrepareFailure:
    """An error in a form that can be sent to another process.

    Attributes:
        kind: The exception's class.
        message: Its message.
    """

    kind: type[ElasticDLError]
    message: str


def make_part(
    part: PlanPart,
    preparation: PartPreparation,
    settings: Settings,
    output: PlanOutput,
    should_continue: Callable[[], bool],
) -> PlanEntry | PrepareFailure | None:
    """Prepare the input files of a part and write its record files.

    Args:
        part: The part.
        preparation: The user's function and schema.
        settings: How record files are written.
        output: The output folder.
        should_continue: Function () -> whether to continue; called after each input file.

    Returns:
        The part's entry for the manifest; or the error; or None if it was stopped.
    """
    files: list[RecordFile] = []

    def write(records: list[bytes], *, is_only_one: bool) -> None:
        name = part.name if is_only_one else f"{part.name}-{len(files):03}"
        files.append(_write(output.where(f"{name}.recordio"), records, part.index, settings))

    try:
        batches = _batches(
            _all_records(part, preparation, should_continue), settings.records_per_file
        )
        held = next(batches, [])
        for following in batches:
            write(held, is_only_one=False)
            held = following
        write(held, is_only_one=not files)
    except _StoppedError:
        return None
    except ElasticDLError as error:
        return PrepareFailure(type(error), str(error))
    # Names within the output, so that it can be moved.
    names = [RecordFile(file.uri.rpartition("/")[2], file.num_records) for file in files]
    return PlanEntry(part.digest, preparation.code, tuple(names))


class _StoppedError(Exception):
    """Ends the preparation of a part early, because another process failed; never shown."""


def _all_records(
    part: PlanPart, preparation: PartPreparation, should_continue: Callable[[], bool]
) -> Iterator[bytes]:
    for file in part.inputs:
        yield from _records(file.uri, preparation)
        if not should_continue():
            raise _StoppedError


def _batches(records: Iterator[bytes], most_records: int) -> Iterator[list[bytes]]:
    """Group records into lists, one for each record file.

    Args:
        records: The serialized records.
        most_records: Maximum number of records in a file; its size is limited as well.
    """
    batch: list[bytes] = []
    size_bytes = 0
    for record in records:
        if batch and (len(batch) == most_records or size_bytes + len(record) > _MAX_FILE_BYTES):
            yield batch
            batch, size_bytes = [], 0
        batch.append(record)
        size_bytes += len(record)
    if batch:
        yield batch


def _write(uri: str, records: list[bytes], index: int, settings: Settings) -> RecordFile:
    if settings.shuffle:
        order = np.random.default_rng((settings.seed, index)).permutation(len(records))
        records = [records[i] for i in order]
    with Writer(uri, settings.compressor) as writer:
        for record in records:
            writer.write(record)
    return RecordFile(uri, len(records))


# --- calling the user's function ---------------------------------------------------------------


def _records(uri: str, preparation: PartPreparation) -> Iterator[bytes]:
    """Call the user's function for an input file, and yield the records it returns, serialized.

    Raises:
        UserCodeError: The function raised.
        DefinitionError: It returned something that is not a record.
        SchemaError: A record does not fit the schema.
        DataError: The file cannot be read.
    """
    with _opened(uri, arguments_of(preparation)) as arguments:
        returned = _guarded(preparation, uri, lambda: preparation.function(*arguments))
        if isinstance(returned, (tuple, Mapping, bytes)):
            yield _encoded(returned, preparation, uri)
            return
        if not isinstance(returned, (list, Iterator)):
            raise DefinitionError(
                f"{preparation.where}: prepare_data_for_a_single_file() returned "
                f"{shown(returned)} for {uri}; expected one record, as a tuple of values in the "
                "order of data_schema() or as a dict, or a generator or list of records."
            )
        items = iter(returned)
        number = 0
        while True:
            item = _guarded(preparation, uri, lambda: next(items, _END))
            if item is _END:
                return
            if not isinstance(item, (tuple, Mapping, bytes)):
                raise DefinitionError(
                    f"{preparation.where}: prepare_data_for_a_single_file() returned a "
                    f"{type(returned).__name__} for {uri}, which is read as several records, but "
                    f"record {number} is {shown(item)}; expected a tuple or a dict. To return one "
                    "record, return a tuple."
                )
            yield _encoded(item, preparation, f"{uri}, record {number}")
            number += 1


_END = object()


def _guarded(preparation: PartPreparation, uri: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except ElasticDLError:
        raise
    except Exception as error:
        raise UserCodeError(
            f"{raised_at(error, preparation.where)}: prepare_data_for_a_single_file() raised for "
            f"the file {uri}:\n"
            f"{textwrap.indent(users_traceback(error), '  ')}"
        ) from error


def _encoded(record: Any, preparation: PartPreparation, where: str) -> bytes:
    if not isinstance(record, bytes):
        return preparation.schema.encode(record, where)
    preparation.schema.decode_batch([record], lambda _: where)
    return record


@contextlib.contextmanager
def _opened(uri: str, roles: tuple[str, ...]) -> Iterator[list[Any]]:
    """Context manager that yields the arguments for the user's function, for one input file.

    Files that are opened or copied for the arguments are closed or deleted at the end.

    Args:
        uri: The input file.
        roles: The function's parameters, in order: "filename", "file_object". A remote file is
            copied if the function takes only its name.

    Raises:
        DataError: The file cannot be read.
    """
    with contextlib.ExitStack() as stack:
        try:
            path = local_path(uri)
            arguments: list[Any] = []
            for role in roles:
                if role == "file_object":
                    arguments.append(stack.enter_context(_file_object(uri)))
                elif path is not None or len(roles) > 1:
                    arguments.append(uri if path is None else path)
                else:
                    arguments.append(stack.enter_context(_local_copy(uri)))
        except OSError as error:
            raise DataError(f"{uri} cannot be read: {error.strerror or error}.") from error
        yield arguments


def _file_object(uri: str) -> IO[bytes]:
    path = local_path(uri)
    if path is not None:
        return user_files.open_regular(path)
    system, path = filesystem(uri)
    file: IO[bytes] = system.open(path, "rb")
    return file


@contextlib.contextmanager
def _local_copy(uri: str) -> Iterator[str]:
    """Context manager that yields the path of a temporary local copy of a remote file.

    The copy's folders keep their names, because a user's function may read the label from the path.
    """
    system, path = filesystem(uri)
    with tempfile.TemporaryDirectory(dir=scratch.folder()) as folder:
        parts = [part for part in PurePosixPath(path.lstrip("/")).parts if part != ".."]
        copy = Path(folder, *parts)
        copy.parent.mkdir(parents=True, exist_ok=True)
        with system.open(path, "rb") as source, copy.open("wb") as target:
            shutil.copyfileobj(source, target)
        yield str(copy)
