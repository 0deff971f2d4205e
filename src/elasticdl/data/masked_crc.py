"""Masked CRC-32C, the checksum in TFRecord files and in the logs of TensorBoard.

Source: https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details
"""

from __future__ import annotations

import google_crc32c


def masked_crc32c(data: bytes) -> int:
    """Return the CRC-32C of some bytes, masked: rotated right by 15 bits, plus a constant.

    Example:
        >>> hex(masked_crc32c(b"123456789"))
        '0xc78ab0e5'
    """
    crc: int = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
