"""Wire format of one tf.Example: encoding from arrays, and decoding without copying.

    example  := features                        each a tag, a length, and that many bytes
    features := entry*                          an entry for each field
    entry    := name, feature
    feature  := list of bytes | of floats | of int64
    list     := value*                          numbers are packed: one length, then all of them

`layout_of` reads the usual form, and returns the position of each payload. The rare forms that
protobuf also reads (unpacked numbers, a field that occurs twice) are re-encoded.

Callers: `example_groups.py`, `example.py`.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from elasticdl.data import example_pb2

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Array: TypeAlias = np.ndarray[Any, Any]

Kind: TypeAlias = Literal["bytes", "float", "int64"]

Features: TypeAlias = "Mapping[str, Array | Sequence[bytes]]"
"""The fields of an example: a float32 array, an int64 array, or bytes (a sequence, or an array of
objects)."""

FIRST, SECOND = b"\x0a", b"\x12"
"""Tags of the fields 1 and 2 of a message, length-delimited."""

TAGS: dict[Kind, bytes] = {"bytes": b"\x0a", "float": b"\x12", "int64": b"\x1a"}
"""Tags of a feature's three kinds."""

CONTINUES = 0x80
"""A varint continues in the next byte if this bit is set; the other seven are its value."""

LONGEST_VARINT = 10

_KINDS: dict[int, Kind] = {tag[0]: kind for kind, tag in TAGS.items()}
_TOO_LONG = re.compile(rb"[\x80-\xff]{%d}" % LONGEST_VARINT)


# --- writing -----------------------------------------------------------------------------------


def encode(features: Features) -> bytes:
    """Return the serialized example, fields in the order of their names.

    Args:
        features: Field name -> values: a float32 or an int64 array of any shape (written in row
            order), or bytes.

    Returns:
        The same bytes for equal examples.

    Raises:
        TypeError: Values have none of the three kinds.

    Example:
        >>> encode({"x": np.float32([1.0])}).hex(" ")
        '0a 0f 0a 0d 0a 01 78 12 08 12 06 0a 04 00 00 80 3f'
    """
    body = b"".join([_entry(name, features[name]) for name in sorted(features)])
    return _delimited(FIRST, body)


def _entry(name: str, values: Array | Sequence[bytes]) -> bytes:
    if not isinstance(values, np.ndarray) or values.dtype == object:
        items = values.ravel() if isinstance(values, np.ndarray) else values
        payload = b"".join([_delimited(FIRST, item) for item in items])
        return _entry_header(name, "bytes", len(payload)) + payload
    if values.dtype == np.float32:
        payload = values.astype("<f4", copy=False).tobytes()
        return _entry_header(name, "float", len(payload)) + payload
    if values.dtype == np.int64:
        payload = _write_varints(values)
        return _entry_header(name, "int64", len(payload)) + payload
    raise TypeError(f"Field {name!r} is {values.dtype}; an example holds float32, int64 or bytes.")


@functools.lru_cache(maxsize=4096)
def _entry_header(name: str, kind: Kind, num_bytes: int) -> bytes:
    """Return the bytes that precede the payload of a field in an example.

    These are the field's name, and the tags and lengths of all messages around the payload. They
    are cached, because a field of floats with a fixed count has the same ones in every record.

    Args:
        name: Name of the field.
        kind: Kind of its values.
        num_bytes: Size of the payload.
    """
    before = b""
    if kind != "bytes" and num_bytes:
        before = FIRST + write_varint(num_bytes)
    for tag in (TAGS[kind], SECOND):
        before = tag + write_varint(len(before) + num_bytes) + before
    before = _delimited(FIRST, name.encode()) + before
    return FIRST + write_varint(len(before) + num_bytes) + before


def _delimited(tag: bytes, payload: bytes) -> bytes:
    return tag + write_varint(len(payload)) + payload


def write_varint(value: int) -> bytes:
    """Return a number, 0 or more, as a varint."""
    if value < CONTINUES:
        return value.to_bytes()
    written = bytearray()
    while value >= CONTINUES:
        written.append(value & 0x7F | CONTINUES)
        value >>= 7
    written.append(value)
    return bytes(written)


def _write_varints(values: Array) -> bytes:
    if values.size == 1 and 0 <= (value := values.item()) < CONTINUES:
        return write_varint(value)
    if values.size and values.min() >= 0 and values.max() < CONTINUES:
        return values.astype(np.uint8).tobytes()
    # Negative numbers are written as their two's complement, ten bytes long.
    return b"".join([write_varint(value) for value in values.ravel().view(np.uint64).tolist()])


# --- positions in one record -------------------------------------------------------------------


class FeatureLayout(NamedTuple):
    """Position, in a serialized record, of the payload (the bytes of the values) of one field.

    Attributes:
        kind: Kind of its values.
        ranges: Start and end of each payload: one for numbers, one per value for bytes.
    """

    kind: Kind
    ranges: tuple[tuple[int, int], ...]


Layout: TypeAlias = dict[str, FeatureLayout]


class UnusualError(Exception):
    """A record is not encoded in the form that `encode` writes; protobuf has to decode it."""


def _length(data: bytes, at: int, limit: int) -> tuple[int, int]:
    """Read a length prefix; return the start and the end of the content that follows it.

    Args:
        data: A record, or the start of one.
        at: Position of the length prefix.
        limit: End of the enclosing message.

    Raises:
        UnusualError: The content would end after `limit`.
        IndexError: The record ends within the length prefix.
    """
    byte = data[at]
    at += 1
    size = byte & 0x7F
    shift = 7
    while byte & CONTINUES:
        byte = data[at]
        at += 1
        size |= (byte & 0x7F) << shift
        shift += 7
    end = at + size
    if end > limit:
        raise UnusualError
    return at, end


def _field(data: bytes, at: int, limit: int, tag: int) -> tuple[int, int]:
    """Return the start and the end of the content of the field at a position.

    Args:
        data: A record.
        at: Position of the field's tag.
        limit: End of the enclosing message.
        tag: The expected tag, that of a length-delimited field.

    Raises:
        UnusualError: Another tag or the end of the message is there, or the field is too long.
        IndexError: The record ends within the field's length.
    """
    if at >= limit or data[at] != tag:
        raise UnusualError
    return _length(data, at + 1, limit)


def layout_of(data: bytes) -> Layout:
    """Find the payloads (bytes of the values) in a record that is encoded as `encode` does it.

    Returns:
        Field name -> position of its payload; a field that has no list of values is left out.

    Raises:
        UnusualError: The record has another form, or is damaged.
    """
    if not data:
        return {}
    layout: Layout = {}
    seen = set()
    try:
        at, end = _field(data, 0, len(data), FIRST[0])
        if end != len(data):
            raise UnusualError
        while at < end:
            entry, at = _field(data, at, end, FIRST[0])
            key, key_end = _field(data, entry, at, FIRST[0])
            body, body_end = _field(data, key_end, at, SECOND[0])
            name = data[key:key_end].decode()
            if body_end != at or name in seen:
                raise UnusualError
            seen.add(name)
            if body != body_end:
                layout[name] = _feature_layout(data, body, body_end)
    except (IndexError, UnicodeDecodeError):
        raise UnusualError from None
    return layout


def _feature_layout(data: bytes, at: int, end: int) -> FeatureLayout:
    kind = _KINDS.get(data[at])
    start, stop = _length(data, at + 1, end)
    if kind is None or stop != end:
        raise UnusualError
    if kind == "bytes":
        ranges = []
        while start < stop:
            value, start = _field(data, start, stop, FIRST[0])
            ranges.append((value, start))
        return FeatureLayout(kind, tuple(ranges))
    if start == stop:
        return FeatureLayout(kind, ((start, stop),))
    payload, payload_end = _field(data, start, stop, FIRST[0])
    if payload_end != stop:
        raise UnusualError
    if kind == "float" and (payload_end - payload) % 4:
        raise UnusualError
    if kind == "int64" and not is_whole_varints(data[payload:payload_end]):
        raise UnusualError
    return FeatureLayout(kind, ((payload, payload_end),))


class ExpectedLayout:
    """Fast parser for records that have the same fields, in the same order, as a previous record.

    Records of one schema differ only in the lengths of strings and integers, and the length of an
    entry determines all other lengths in it. So entries of one field and length begin with the same
    bytes, up to the payload. Comparing these bytes is faster than decoding them.
    """

    def __init__(self, layout: Layout) -> None:
        # The bytes before the payload in an entry, by the entry's length; None if impossible.
        self._fields: list[tuple[str, Kind, dict[int, bytes | None]]] = [
            (name, feature.kind, {}) for name, feature in layout.items()
        ]

    @classmethod
    def of(cls, layout: Layout) -> ExpectedLayout | None:
        """Return a parser for records like the one with this layout.

        Returns None if one of the fields has no payload, or several: `layout_of` then has to find
        the payloads of every such record.
        """
        is_simple = all(len(feature.ranges) == 1 for feature in layout.values())
        return cls(layout) if is_simple else None

    def payloads(self, record: bytes) -> dict[str, list[bytes]] | None:
        """Return field name -> payload, as a list of one item, for a record.

        Returns None if the record does not have the expected fields in the expected order. The
        caller then has to try `layout_of`.
        """
        payloads = {}
        try:
            at, end = _field(record, 0, len(record), FIRST[0])
            if end != len(record):
                return None
            for name, kind, headers in self._fields:
                length = record[at + 1]
                start, stop = at + 2, at + 2 + length
                if length >= CONTINUES or record[at] != FIRST[0]:
                    start, stop = _field(record, at, end, FIRST[0])
                    length = stop - start
                header = headers.get(length)
                if header is None:
                    header = headers[length] = _payload_header(name, kind, length)
                if header is None or not record.startswith(header, start):
                    return None
                payload = record[start + len(header) : stop]
                if kind == "int64" and not is_whole_varints(payload):
                    return None
                payloads[name] = [payload]
                at = stop
        except (IndexError, UnusualError):
            return None
        return payloads if at == end else None


def _payload_header(name: str, kind: Kind, num_bytes: int) -> bytes | None:
    """Return the bytes that precede the payload in an entry, computed from the entry's size.

    `ExpectedLayout` compares them with a record, instead of decoding its lengths one by one.

    Args:
        name: Name of the field.
        kind: Kind of its values; the entry has a single payload.
        num_bytes: Size of the entry, without its own tag and length.

    Returns:
        The bytes; None if an entry with such a field cannot have this size.
    """
    key = _delimited(FIRST, name.encode())
    feature = _body_bytes(num_bytes - len(key))
    values = None if feature is None else _body_bytes(feature)
    if feature is None or values is None:
        return None
    header = key + SECOND + write_varint(feature) + TAGS[kind] + write_varint(values)
    if kind != "bytes" and values == 0:
        return header
    payload = _body_bytes(values)
    if payload is None or (kind == "float" and payload % 4):
        return None
    return header + FIRST + write_varint(payload)


def _body_bytes(num_bytes: int) -> int | None:
    """Return the size of the content of a length-delimited field whose total size is `num_bytes`.

    The total includes the tag and the length prefix. Returns None if no content gives this total.
    """
    for length_bytes in range(1, LONGEST_VARINT):
        body = num_bytes - 1 - length_bytes
        if body >= 0 and len(write_varint(body)) == length_bytes:
            return body
    return None


def is_whole_varints(payload: bytes) -> bool:
    """Return whether bytes are a sequence of complete varints of at most ten bytes each."""
    if payload[-1:] >= b"\x80":
        return False
    return len(payload) <= LONGEST_VARINT or not _TOO_LONG.search(payload)


def reencoded(data: bytes) -> bytes:
    """Re-encode a serialized `tf.Example`, so that `layout_of` can read it.

    For the rare forms that protobuf accepts but `layout_of` does not, such as a field that occurs
    twice. The result has the same values, in the form that `encode` writes.

    Raises:
        google.protobuf.message.DecodeError: It is not an example.
    """
    features: dict[str, Array | Sequence[bytes]] = {}
    for name, feature in example_pb2.Example.FromString(data).features.feature.items():
        kind = feature.WhichOneof("kind")
        if kind == "bytes_list":
            features[name] = list(feature.bytes_list.value)
        elif kind == "float_list":
            features[name] = np.array(feature.float_list.value, np.float32)
        elif kind == "int64_list":
            features[name] = np.array(feature.int64_list.value, np.int64)
    return encode(features)
