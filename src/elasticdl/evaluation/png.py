"""Encodes small pictures as PNG, so that a page can embed them.

It also decides which arrays of numbers are pictures and how numbers become colours: a picture has a
height, a width and one, three or four channels. The encoder is our own, because a base install has
no image library, and a PNG without line filters is just a signature and three chunks.

Callers: `report_page.py`.
"""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

import numpy as np

# Grey, RGB, RGBA: the colour types of the format.
_COLOUR_TYPES = {1: 0, 3: 2, 4: 6}
_MAX_BYTE = 255
_PLANE, _CHANNELS = 2, 3


def as_picture(array: Any) -> np.ndarray[Any, Any] | None:
    """Convert an array to pixels that can be encoded; return None if its shape is not a picture's.

    How numbers become levels of brightness, 0 (black) to 255:

    * Integers from 0 to 255 are such levels already, and so are floats if one is greater than 1.
    * Floats and booleans that are all from 0 to 1 are multiplied by 255.
    * If a number is negative or greater than 255, all are shifted and scaled, so that the smallest
      becomes 0 and the largest 255. This makes normalised inputs visible.

    NaN and infinities count as 0.

    Args:
        array: (H, W) or (H, W, C), with 1, 3 or 4 channels. A 1-D array is not a picture, because
            its width is unknown.

    Returns:
        uint8 (height, width, channels).
    """
    picture = np.asarray(array)
    if picture.ndim == _PLANE:
        picture = picture[:, :, np.newaxis]
    if picture.ndim != _CHANNELS or picture.shape[2] not in _COLOUR_TYPES or not picture.size:
        return None
    if picture.dtype.kind not in "fiub":
        return None
    if picture.dtype == np.uint8:
        return picture
    levels = np.nan_to_num(picture.astype(np.float64), posinf=0.0, neginf=0.0)
    least, most = float(levels.min()), float(levels.max())
    if least < 0 or most > _MAX_BYTE:
        levels = (levels - least) * (_MAX_BYTE / max(most - least, 1e-12))
    elif picture.dtype.kind in "fb" and most <= 1:
        levels *= _MAX_BYTE
    return np.round(levels).astype(np.uint8)


def smaller(picture: np.ndarray[Any, Any], max_side: int) -> np.ndarray[Any, Any]:
    """Shrink a picture to at most `max_side` pixels per side, by averaging blocks of pixels."""
    step = -(-max(picture.shape[:2]) // max_side)
    if step == 1:
        return picture
    height, width = (max(1, size // step) for size in picture.shape[:2])
    # A side shorter than a step is kept whole.
    rows, columns = min(step, picture.shape[0]), min(step, picture.shape[1])
    cut = picture[: height * rows, : width * columns].astype(np.float64)
    mean = cut.reshape(height, rows, width, columns, -1).mean(axis=(1, 3))
    rounded: np.ndarray[Any, Any] = np.round(mean).astype(np.uint8)
    return rounded


def encode(picture: np.ndarray[Any, Any]) -> bytes:
    """Return a picture as PNG (ISO/IEC 15948).

    Args:
        picture: uint8 (height, width, channels).
    """
    height, width, channels = picture.shape
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOUR_TYPES[channels], 0, 0, 0)
    # Each line begins with its filter type: 0 is none.
    lines = np.zeros((height, 1 + width * channels), np.uint8)
    lines[:, 1:] = picture.reshape(height, width * channels)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def data_uri(picture: np.ndarray[Any, Any]) -> str:
    """Return a picture as a data URI."""
    return f"data:image/png;base64,{base64.b64encode(encode(picture)).decode()}"
