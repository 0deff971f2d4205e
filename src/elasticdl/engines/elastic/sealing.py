"""A state that only the workers of one run can read, and that nobody can change on its way.

AES-256-GCM (NIST SP 800-38D) with the run's key, in chunks, since the cipher takes at most 2 GiB at
once. Each chunk is tied to its step, its number and the number of chunks, so that none can be left
out, repeated or taken from another state.

    | prefix, 8 bytes | chunk 0 | tag, 16 bytes | chunk 1 | tag | ...

Callers: `transport.py`.
"""

from __future__ import annotations

import secrets
import struct

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES = 32

_CHUNK_BYTES = 64 * 2**20
_PREFIX_BYTES, _TAG_BYTES = 8, 16
_NUMBER = struct.Struct(">I")
_PLACE = struct.Struct(">QII")


class SealError(Exception):
    """The bytes were sealed with another key or for another step, or were changed."""


def seal(data: bytes, key: bytes, step: int, *, chunk_bytes: int = _CHUNK_BYTES) -> bytes:
    """Encrypt a state.

    Args:
        data: The state.
        key: Of the run, `KEY_BYTES` long.
        step: Which step it is the state of.
        chunk_bytes: How much is encrypted at once.
    """
    cipher, view = AESGCM(key), memoryview(data)
    # A prefix is never used twice: of 2^64, a run draws one for each state it hands out.
    prefix = secrets.token_bytes(_PREFIX_BYTES)
    starts = range(0, max(1, len(data)), chunk_bytes)
    sealed = [
        cipher.encrypt(
            prefix + _NUMBER.pack(number),
            view[start : start + chunk_bytes],
            _PLACE.pack(step, number, len(starts)),
        )
        for number, start in enumerate(starts)
    ]
    return b"".join((prefix, *sealed))


def unseal(sealed: bytes, key: bytes, step: int, *, chunk_bytes: int = _CHUNK_BYTES) -> bytes:
    """Return what `seal` encrypted.

    Args:
        sealed: What it returned.
        key: The same key.
        step: The same step.
        chunk_bytes: The same size.

    Raises:
        SealError: Key or step are others, or the bytes were changed.
    """
    cipher, view = AESGCM(key), memoryview(sealed)
    prefix = bytes(view[:_PREFIX_BYTES])
    starts = range(_PREFIX_BYTES, max(_PREFIX_BYTES + 1, len(sealed)), chunk_bytes + _TAG_BYTES)
    try:
        chunks = [
            cipher.decrypt(
                prefix + _NUMBER.pack(number),
                view[start : start + chunk_bytes + _TAG_BYTES],
                _PLACE.pack(step, number, len(starts)),
            )
            for number, start in enumerate(starts)
        ]
    except (InvalidTag, ValueError) as error:
        raise SealError("It is not a state of this run and this step.") from error
    return b"".join(chunks)
