"""A zoo's requirements.txt: finds the files it includes, and rejects lines unfit for an image.

The requirements are installed before the zoo is copied, so that an edit of the zoo does not
reinstall packages. Lines that name a path are therefore rejected; they are not needed, since the
files of the zoo can be imported directly. Lines with a password are rejected too, because everyone
who can pull the image could read it.

Format: https://pip.pypa.io/en/stable/reference/requirements-file-format/
Callers: `build.py`, `build_errors.py`.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from elasticdl.errors import UsageError

NAME = "requirements.txt"
_INCLUDED = re.compile(r"(?:-r|-c|--requirement|--constraint)[\s=]*(\S+)")
_PATH = re.compile(r"(?:(?:-e|--editable)[\s=]+|file:|\.{1,2}/|/)")
_FIND_LINKS = re.compile(r"(?:-f|--find-links)[\s=]*(?!https?://)")
_URL = re.compile(r"[\w+]+://\S+")
_COMMENT = re.compile(r"(^|\s+)#.*$")
_OWN_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True)
class Line:
    """One line of a requirements file: a requirement or an option.

    Attributes:
        file: Path in the zoo.
        number: Line number, from 1.
        text: The line without its comment.
    """

    file: str
    number: int
    text: str

    @property
    def where(self) -> str:
        """`FILE:NUMBER` of the line, for messages."""
        return f"{self.file}:{self.number}"


def requirement_files(files: Mapping[str, str]) -> dict[str, str]:
    """Check requirements.txt and the files it includes; return their contents, empty if none.

    Args:
        files: Text files of the zoo: path -> content.

    Raises:
        UsageError: A line is not allowed; the message names its file and number.

    Example:
        >>> requirement_files({"requirements.txt": "-r more.txt", "more.txt": "six"})
        {'requirements.txt': '-r more.txt', 'more.txt': 'six'}
    """
    chosen: dict[str, str] = {}
    todo = [NAME] if NAME in files else []
    while todo:
        name = todo.pop()
        if name in chosen:
            continue
        chosen[name] = files[name]
        check_lines(name, files[name])
        for line in lines(name, files[name]):
            included = _INCLUDED.match(line.text)
            if included is None or "://" in included[1]:
                continue
            path = posixpath.normpath(posixpath.join(posixpath.dirname(name), included[1]))
            if path not in files:
                raise UsageError(
                    f"{line.where}: {line.text}: the model zoo has no file {path}, or it is "
                    "ignored."
                )
            todo.append(path)
    return chosen


def check_lines(file: str, text: str) -> None:
    """Check that every line of a requirements or constraints file may be part of an image.

    Raises:
        UsageError: A line contains a password or names a path.
    """
    for line in lines(file, text):
        _check(line)


def lines(file: str, text: str) -> Iterator[Line]:
    """Yield the lines of a requirements file, with continued lines joined."""
    begun, parts = 0, ""
    for number, raw in enumerate(text.splitlines(), 1):
        begun = begun or number
        part = _COMMENT.sub("", raw).strip()
        if part.endswith("\\"):
            parts += part[:-1]
            continue
        found = (parts + part).strip()
        if found:
            yield Line(file, begun, found)
        begun, parts = 0, ""
    if parts.strip():
        yield Line(file, begun, parts.strip())


def line_of(files: Mapping[str, str], requirement: str) -> Line | None:
    """Find the line that requires a package, to name it in an error about the package.

    Args:
        files: The result of `requirement_files`: path -> content.
        requirement: The whole text of a line, or the name of a package, with or without a version.

    Returns:
        The first such line; None if no line requires the package.
    """
    name = _OWN_NAME.match(requirement)
    for file, text in files.items():
        for line in lines(file, text):
            own = _OWN_NAME.match(line.text)
            if line.text == requirement:
                return line
            if name and own and _same(name[0], own[0]):
                return line
    return None


def has_credentials(url: str) -> bool:
    """Return whether a URL contains a password or a token.

    Example:
        >>> has_credentials("https://me:pw@host/simple"), has_credentials("git+ssh://git@host/a")
        (True, False)
    """
    parts = urlsplit(url)
    user, at, _ = parts.netloc.rpartition("@")
    return bool(at) and (":" in user or not parts.scheme.endswith("ssh"))


def _check(line: Line) -> None:
    for url in _URL.findall(line.text):
        # `${TOKEN}` is expanded by pip and reveals nothing.
        if has_credentials(url) and "${" not in url.partition("@")[0]:
            raise UsageError(
                f"{line.where}: the URL contains a password or token, which everyone who can pull "
                "the image could read. Use a mirror that needs none (--index_url), or a base image "
                "that has the package (--base_image)."
            )
    if _PATH.match(line.text) or _FIND_LINKS.match(line.text):
        raise UsageError(
            f"{line.where}: {line.text}: a path cannot be installed in an image. Files of the "
            "model zoo can be imported as they are; remove the line."
        )


def _same(one: str, other: str) -> bool:
    return _canonical(one) == _canonical(other)


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
