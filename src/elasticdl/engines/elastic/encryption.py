"""Encryption of model states: only the workers of a run can read or create them.

Uses AES-256-GCM (NIST SP 800-38D) with the run's key, in chunks, because the cipher takes at most
2 GiB at once. Each chunk is authenticated together with its step, its number and the number of
chunks, so that no chunk can be omitted, repeated or taken from another state.

    | prefix, 8 bytes | chunk 0 | tag, 16 bytes | chunk 1 | tag | ...

Callers: `state_transfer.py`.
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


class DecryptionError(Exception):
    """Raised when bytes were encrypted with another key or for another step, or were changed."""


def encrypt(data: bytes, key: bytes, step: int, *, chunk_bytes: int = _CHUNK_BYTES) -> bytes:
    """Encrypt a model state; see the module docstring for the format.

    Args:
        data: The state.
        key: The run's key, `KEY_BYTES` long.
        step: The step of the state.
        chunk_bytes: Number of bytes of `data` that are encrypted as one chunk.

    Returns:
        The encrypted state, to be passed to `decrypt`.
    """
    cipher, view = AESGCM(key), memoryview(data)
    # A prefix must never be reused; each state that a run sends gets a random one of 2^64.
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


def decrypt(sealed: bytes, key: bytes, step: int, *, chunk_bytes: int = _CHUNK_BYTES) -> bytes:
    """Decrypt and authenticate a state that `encrypt` encrypted.

    Args:
        sealed: The encrypted state.
        key: The key that it was encrypted with.
        step: The step that it was encrypted for.
        chunk_bytes: The chunk size that it was encrypted with.

    Raises:
        DecryptionError: Key or step do not match, or the bytes were changed.
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
        raise DecryptionError("The data is not a state of this run and this step.") from error
    return b"".join(chunks)
