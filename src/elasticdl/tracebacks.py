"""Describes exceptions of users' code: the user's own lines, without framework internals.

    the innermost line of the user's code                   -> `file:line` at a message's start
    the frames of the user's code, the exception's message  -> the indented part of a message

Frames of this package, of Python and of installed libraries are left out. TensorFlow raises far
from the faulty line, but its message contains that line's position, which is extracted from it.
TensorFlow's names of nodes, devices and internal functions are removed, because they mean nothing
to users.

Callers: all code that calls a user's code, through `errors.py`.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import sysconfig
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# This package, and the one installed beside it.
_OURS = tuple(
    str(Path(__file__).resolve().parent.with_name(name)) + os.sep
    for name in ("elasticdl", "abstractions")
)
_PYTHON = sysconfig.get_path("stdlib") + os.sep
_INSTALLED = ("site-packages", "dist-packages", "__autograph_generated_file")
# In TensorFlow's format, for a compiled step and for a pipeline's function.
_WRITTEN_FRAME = re.compile(
    r'^ +File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>\S+)', re.MULTILINE
)
# An exception's message may contain a whole table, which every event would repeat.
_MAX_TEXT = 20_000
# Before the traceback of a Python function that a TensorFlow operation called.
_CALLED = "\nTraceback (most recent call last):\n"
_COMPILED = ("Graph execution error:", "in user code:")
_OF_TENSORFLOW = ("{{", "[Op:", "root error(s) found", "\x1b[")
_HEADINGS = re.compile(
    r"(?:Graph execution error:|in user code:|Detected at node .*|<stack traces unavailable>)\s*"
)
_NOT_FOR_PEOPLE: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    (re.compile(pattern), by)
    for pattern, by in (
        # Terminal colours.
        (r"\x1b\[[0-9;]*m", ""),
        (r" for '\{\{node [^}]*\}\}[^']*'", ""),
        # Names of nodes, of internal functions and of operations.
        (r"\s*\[\[(?:\{\{.*?|[\w/]+)\]\]", ""),
        (r"\{\{(?:function_node|node) [^}]*\}\}\s*", ""),
        (r"\s*\[Op:\w+\](?: name:[ \t]*\S*)?", ""),
        (r" ?\((?:[\w.]+/)*[\w.]+:\d+\)", ""),
        # Several errors have one cause; the first is enough.
        (r"\d+ root error\(s\) found\.\s*", ""),
        (r"(?s)\n\s*\(1\) [A-Z_]+:.*", ""),
        (r"(?m)^\s*\(0\)\s+[A-Z_]+:\s*", ""),
        (r"\s*\d+ (?:successful operations|derived errors ignored)\.", ""),
        # Position in a pipeline, in the names of TensorFlow classes.
        (
            r"Error in user-defined function passed to (?:Parallel)?(\w+?)Dataset\S* [\w ]+: \S+: ",
            lambda match: f"in the function given to {match[1].lower()}(): ",
        ),
    )
]


def shown_path(path: str | Path) -> str:
    """Return a path as the user would type it: relative if it is below the current folder."""
    inside = os.path.relpath(path)
    return str(path) if inside.startswith(os.pardir) else inside


def raised_at(error: BaseException, otherwise: object) -> str:
    """Return `file:line` of the innermost line of the user's code that an exception passed through.

    Args:
        error: The exception.
        otherwise: Returned as a string if the exception passed through no line of the user's: for
            example the location of the user's function that was called.
    """
    frames = _users_frames(error)
    return f"{shown_path(frames[-1].filename)}:{frames[-1].lineno}" if frames else str(otherwise)


def running_at(thread: int) -> tuple[str, str] | None:
    """Return the user's function that a thread is executing, and `file:line` of its position.

    The error for a call that takes too long uses it to say where the user's code is.

    Args:
        thread: Identifier of the thread, from `threading.get_ident`.

    Returns:
        The user's outermost function, which ElasticDL called, and the innermost line of the user's
        code; None if the thread runs no user code.
    """
    # A private function, but the only way to inspect another thread's stack.
    frame = sys._current_frames().get(thread)  # noqa: SLF001
    frames = [each for each in traceback.extract_stack(frame) if is_of_the_user(each.filename)]
    if frame is None or not frames:
        return None
    return frames[0].name, f"{shown_path(frames[-1].filename)}:{frames[-1].lineno}"


def calling_at(otherwise: object) -> str:
    """Return `file:line` of the innermost line of the user's code on the current call stack.

    For use in functions that a user's model code calls. Frames that called ElasticDL, such as those
    of a script that called `train`, are ignored.

    Args:
        otherwise: Returned if no user code is on the stack.
    """
    frames = traceback.extract_stack()
    first = next((i for i, each in enumerate(frames) if each.filename.startswith(_OURS)), 0)
    theirs = [each for each in frames[first:] if is_of_the_user(each.filename)]
    return f"{shown_path(theirs[-1].filename)}:{theirs[-1].lineno}" if theirs else str(otherwise)


def users_traceback(error: BaseException) -> str:
    """Format an exception's traceback with only the frames of the user's own code.

    Frames of this package and of installed libraries are left out; they do not help to find the
    line to change.
    """
    text = plain(error)
    # Otherwise Python's own format: a syntax error has a position, and notes may have been added.
    own = traceback.format_exception_only(error)
    is_as_raised = text == _text(error) and not _lines_in_a_key(error)
    last = own if is_as_raised else [f"{type(error).__name__}: {text}"]
    return "".join([*traceback.format_list(_users_frames(error)), *last]).rstrip()


def plain(error: BaseException | str) -> str:
    """Return an exception's message without TensorFlow's internal names.

    Example:
        >>> plain("{{function_node f}} Input has 8 values, not 12 [Op:Reshape] name: ")
        'Input has 8 values, not 12'
    """
    text = _text(error)
    is_compiled = text.startswith(_COMPILED)
    if not is_compiled and not any(sign in text for sign in _OF_TENSORFLOW):
        return text
    if is_compiled:
        # A traceback comes first, then the failure.
        *_, after = _WRITTEN_FRAME.split(text)[-1:]
        lines = after.splitlines()[after is not text :]
        if after is not text and lines and lines[0].startswith(" "):
            # The source line of the last frame.
            del lines[0]
        lines = [line.removeprefix("    ") for line in lines if not _HEADINGS.fullmatch(line)]
        text = re.sub(r"\A\s*[A-Z]\w*(?:Error|Exception): ", "", "\n".join(lines))
    text = text.partition(_CALLED)[0]
    for pattern, by in _NOT_FOR_PEOPLE:
        text = pattern.sub(by, text)
    return "\n".join(line for line in text.splitlines() if line.strip()).strip()


def reason(error: Exception) -> str:
    """Return the first line of an exception's message that says what went wrong.

    Keras puts a headline, which is skipped, before the message of an exception in a layer.
    """
    lines = [line.strip() for line in plain(error).splitlines() if line.strip()]
    while len(lines) > 1 and (
        lines[0].startswith("Exception encountered when calling")
        or lines[0].endswith("Error encountered:")
    ):
        del lines[0]
    return lines[0] if lines else type(error).__name__


def _text(error: BaseException | str) -> str:
    """Return an exception's message, cut off if it is too long to read."""
    try:
        text = _lines_in_a_key(error) or str(error)
    except (Exception, SystemExit):  # noqa: BLE001 - the user's class may raise anything here, too
        return "(its __str__ raises, so its message is unknown)"
    if len(text) <= _MAX_TEXT:
        return text
    return f"{text[:_MAX_TEXT]} ... ({len(text) - _MAX_TEXT:,} more characters)"


def _lines_in_a_key(error: BaseException | str) -> str:
    """Return the message of a `KeyError` if it has several lines; otherwise an empty string.

    `str(error)` would escape its line breaks. A `KeyError` in a Keras layer has several lines,
    because Keras adds text around the key.
    """
    key = error.args[0] if isinstance(error, KeyError) and error.args else ""
    return key if isinstance(key, str) and "\n" in key else ""


def files_of(error: BaseException) -> list[str]:
    """Return the source files that an exception passed through, outermost first.

    They show which part of this package or of a framework called the code that raised.
    """
    return [frame.filename for frame in _frames(error)]


def _users_frames(error: BaseException) -> list[traceback.FrameSummary]:
    return [frame for frame in _frames(error) if is_of_the_user(frame.filename)]


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    text = _text(error)
    frames = list(traceback.extract_tb(error.__traceback__))
    of_tensorflow = any(sign in text for sign in _OF_TENSORFLOW)
    if text.startswith(_COMPILED) or (of_tensorflow and _CALLED in text):
        written = [
            traceback.FrameSummary(found["file"], int(found["line"]), found["name"])
            for found in _WRITTEN_FRAME.finditer(text)
        ]
        ours = [i for i, frame in enumerate(written) if frame.filename.startswith(_OURS)]
        # The earlier frames called us: the user's script, or the command.
        frames += written[ours[0] :] if ours else written
    return frames


def is_of_the_user(file: str) -> bool:
    """Return whether a source file is the user's, not this package's, Python's or a library's."""
    return not (
        file.startswith((*_OURS, _PYTHON, "<frozen"))
        # Cython names its files without their folder.
        or file.endswith((".pyx", ".pxd", ".pxi"))
        or any(name in file for name in _INSTALLED)
        or _is_of_a_package_in_a_folder(file)
    )


def _is_of_a_package_in_a_folder(file: str) -> bool:
    """Return whether a file belongs to a package that `pip install --target=FOLDER` installed."""
    for folder in filter(None, sys.path):
        if file.startswith(f"{folder}{os.sep}"):
            package = file[len(folder) + 1 :].partition(os.sep)[0].removesuffix(".py")
            if _is_installed_in(folder, package):
                return True
    return False


@functools.cache
def _is_installed_in(folder: str, package: str) -> bool:
    # The files of tensorflow are those of tensorflow_cpu.
    return any(Path(folder).glob(f"{package}[-_]*.dist-info"))
