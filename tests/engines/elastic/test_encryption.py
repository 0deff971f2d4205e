"""A sealed state is read with its key and its step only, and in one piece."""

import numpy as np
import pytest

from elasticdl.engines.elastic.encryption import KEY_BYTES, DecryptionError, decrypt, encrypt

KEY = bytes(range(KEY_BYTES))
CHUNK = 10


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 5 * CHUNK])
def test_sealed_bytes_can_be_unsealed(size):
    data = np.random.default_rng(size).bytes(size)

    sealed = encrypt(data, KEY, 7, chunk_bytes=CHUNK)

    assert decrypt(sealed, KEY, 7, chunk_bytes=CHUNK) == data


def test_sealing_the_same_state_gives_different_bytes():
    one, other = (encrypt(b"weights" * 9, KEY, 7) for _ in "12")

    assert one != other
    assert b"weights" not in one


SEALED = encrypt(b"0123456789abcdefghij!", KEY, 7, chunk_bytes=CHUNK)
PREFIX, FIRST, SECOND, LAST = SEALED[:8], SEALED[8:34], SEALED[34:60], SEALED[60:]


@pytest.mark.parametrize(
    "changed",
    [
        PREFIX + SECOND + FIRST + LAST,
        PREFIX + FIRST + LAST,
        PREFIX + FIRST + SECOND,
        PREFIX + FIRST + FIRST + LAST,
        SEALED + b"x",
        SEALED[:-1],
        SEALED[:20] + bytes([SEALED[20] ^ 1]) + SEALED[21:],
        bytes(8) + SEALED[8:],
        PREFIX,
        b"",
    ],
    ids=[
        "other order", "one missing", "last missing", "one twice", "longer", "shorter",
        "another bit", "another prefix", "nothing but the prefix", "nothing",
    ],
)  # fmt: skip
def test_modified_bytes_are_refused(changed):
    with pytest.raises(DecryptionError):
        decrypt(changed, KEY, 7, chunk_bytes=CHUNK)


def test_another_key_or_step_is_refused():
    with pytest.raises(DecryptionError):
        decrypt(SEALED, bytes(KEY_BYTES), 7, chunk_bytes=CHUNK)
    with pytest.raises(DecryptionError):
        decrypt(SEALED, KEY, 8, chunk_bytes=CHUNK)
