"""Trust: the user's permission that one file, identified by its digest, may run its code.

This is the only way to load a file that `scan.py` rejects. A flag without a digest is rejected: it
would also apply to a file that replaces this one later. Each use of the permission is returned, so
that the run can record it, and is logged once per process, however often the file is loaded.

Callers: `scan.py` and the loaders; dialects read it from `model.trust`.
"""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from elasticdl.errors import DefinitionError, ModelFileError
from elasticdl.saved_models.file_format import ModelFile, sha256_of

_log = logging.getLogger("elasticdl")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_KEYS = ("allow_pickle", "allow_lambda", "sha256")
_logged: set[TrustUsed] = set()

Flag: TypeAlias = Literal["allow_pickle", "allow_lambda"]


@dataclass(frozen=True)
class Trust:
    """Permission to run code of one file.

    Attributes:
        allow_pickle: Allow objects of PyTorch files: any name in them is imported and called.
        allow_lambda: Allow code in Keras files: Lambda layers, operations outside the allow-list.
        sha256: Digest of the one file that is trusted (for a folder: `file_format.sha256_of`).
    """

    allow_pickle: bool = False
    allow_lambda: bool = False
    sha256: str | None = None


NONE = Trust()
"""No code of a file may run."""


@dataclass(frozen=True)
class TrustUsed:
    """Code of a model file that was allowed by a `Trust`, for the log of a run.

    Attributes:
        file: Path of the file.
        sha256: Digest of the file when it was compared with the trusted one.
        flag: The attribute of `Trust` that allowed it, such as `allow_pickle`.
        finding: Description of the code that would have been rejected without trust.
    """

    file: str
    sha256: str
    flag: Flag
    finding: str


def of(values: Mapping[str, Any] | None, where: object) -> Trust:
    """Return the trust that a config declares.

    Args:
        values: The section `model.trust`; None if there is none.
        where: Location of the section, for errors.

    Raises:
        DefinitionError: A key is unknown, a value has the wrong type, or something is allowed
            without a digest.

    Example:
        >>> of(None, "party.yml:7")
        Trust(allow_pickle=False, allow_lambda=False, sha256=None)
    """
    if values is None:
        return NONE
    for key, value in values.items():
        if key not in _KEYS:
            near = difflib.get_close_matches(str(key), _KEYS, n=1)
            meant = f"Did you mean {near[0]}?" if near else f"It takes {', '.join(_KEYS)}."
            raise DefinitionError(f"{where}: model.trust has no key {key!r}. {meant}")
        if key != "sha256" and not isinstance(value, bool):
            raise DefinitionError(
                f"{where}: model.trust.{key} is {value!r}; expected true or false, without quotes."
            )
    digest = values.get("sha256")
    if digest is not None and not (
        isinstance(digest, str) and _DIGEST.fullmatch(digest.strip().lower())
    ):
        raise DefinitionError(
            f"{where}: model.trust.sha256 is {digest!r}; expected the 64 hexadecimal digits that "
            "`sha256sum FILE` prints."
        )
    allowed = [key for key in _KEYS[:2] if values.get(key)]
    if allowed and digest is None:
        raise DefinitionError(
            f"{where}: model.trust has {allowed[0]}: true and no sha256. Trust applies to one "
            "file: add its digest, as published by the author of the file."
        )
    return Trust(
        allow_pickle=bool(values.get("allow_pickle")),
        allow_lambda=bool(values.get("allow_lambda")),
        sha256=digest.strip().lower() if digest else None,
    )


def check(file: ModelFile, trust: Trust, flag: Flag, finding: str) -> TrustUsed:
    """Reject code in a file unless the declared trust allows it; return a record of the use.

    The use of trust is logged once per process.

    Args:
        file: The file that contains the code.
        trust: Trust that the user declared.
        flag: The attribute of `Trust` that would allow the code, such as `allow_pickle`.
        finding: Description of the code that would run, such as "layer 'a' is a Lambda layer".

    Raises:
        ModelFileError: The code is not allowed, or the file is not the one that is trusted.
    """
    if not getattr(trust, flag):
        raise ModelFileError(
            f"{file.path}: {finding}. That is code that would run when the model is loaded or "
            "trained; none of it has run.\n"
            f"  If you trust the author of this file, set `model.trust: {{{flag}: true, sha256: "
            "<digest of the file>}`; compare the digest with theirs first."
        )
    digest = sha256_of(file.path)
    if digest != trust.sha256:
        raise ModelFileError(
            f"{file.path}: {finding}. The trusted file has the sha256 {trust.sha256}, but this one "
            f"has {digest}. It is a different file or was changed; none of it has run.\n"
            "  Get the file again from its author, or correct model.trust.sha256."
        )
    used = TrustUsed(str(file.path), digest, flag, finding)
    if used not in _logged:
        _logged.add(used)
        _log.warning("%s (sha256 %s) is trusted by %s: %s.", file.path, digest, flag, finding)
    return used
