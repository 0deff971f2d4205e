"""Encodes the column values of a result row as protocol buffers, and decodes them.

    NULL              Row.Null
    true, 1, 1.5      BoolValue, Int64Value (UInt64Value if larger), DoubleValue
    text, bytes       StringValue, BytesValue
    timestamp         Timestamp; without a time zone it is read as UTC
    date, time, decimal, list, struct, an integer beyond 64 bits
                      StringValue: ISO 8601, the exact digits, JSON

Used by `execution.py` and by `sql/client.py`.
"""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

from google.protobuf import any_pb2, timestamp_pb2, wrappers_pb2

from elasticdl.sql.rendering import plain
from elasticdl.sql.serving import sqlflow_pb2

RUN = "/proto.SQLFlow/Run"
FETCH = "/proto.SQLFlow/Fetch"
EXIT_CODE = "elasticdl-exit-code"

_WRAPPERS = (
    wrappers_pb2.BoolValue,
    wrappers_pb2.Int64Value,
    wrappers_pb2.DoubleValue,
    wrappers_pb2.StringValue,
    wrappers_pb2.BytesValue,
    wrappers_pb2.UInt64Value,
    # Only SQLFlow's own servers send these.
    wrappers_pb2.Int32Value,
    wrappers_pb2.UInt32Value,
    wrappers_pb2.FloatValue,
)
_INT64, _UINT64 = 1 << 63, 1 << 64


def packed(value: Any) -> any_pb2.Any:
    """Encode a value as `google.protobuf.Any`.

    Example:
        >>> packed(1).type_url
        'type.googleapis.com/google.protobuf.Int64Value'
    """
    message = any_pb2.Any()
    message.Pack(_message(value))
    return message


def _message(value: Any) -> Any:  # noqa: C901, PLR0911 - one for each type
    match value:
        case None:
            return sqlflow_pb2.Row.Null()
        case bool():
            return wrappers_pb2.BoolValue(value=value)
        case int() if -_INT64 <= value < _INT64:
            return wrappers_pb2.Int64Value(value=value)
        case int() if 0 <= value < _UINT64:
            return wrappers_pb2.UInt64Value(value=value)
        case float():
            return wrappers_pb2.DoubleValue(value=value)
        case str():
            return wrappers_pb2.StringValue(value=value)
        case bytes():
            return wrappers_pb2.BytesValue(value=value)
        case dt.datetime():
            time = timestamp_pb2.Timestamp()
            time.FromDatetime(value)
            return time
        case dt.date() | dt.time():
            return wrappers_pb2.StringValue(value=value.isoformat())
        case list() | dict():
            return wrappers_pb2.StringValue(value=json.dumps(plain(value), ensure_ascii=False))
    return wrappers_pb2.StringValue(value=str(value))


def unpacked(message: any_pb2.Any) -> Any:
    """Decode a value encoded by `packed`; dates, decimals and lists, for example, stay strings.

    Raises:
        ValueError: The value's type is not part of this protocol.

    Example:
        >>> [unpacked(packed(value)) for value in (None, True, 2**63, 1.5, "a", b"b")]
        [None, True, 9223372036854775808, 1.5, 'a', b'b']
    """
    if message.Is(sqlflow_pb2.Row.Null.DESCRIPTOR):
        return None
    if message.Is(timestamp_pb2.Timestamp.DESCRIPTOR):
        time = timestamp_pb2.Timestamp()
        message.Unpack(time)
        return time.ToDatetime()
    for wrapper in _WRAPPERS:
        if message.Is(wrapper.DESCRIPTOR):
            value: Any = wrapper()
            message.Unpack(value)
            return value.value
    raise ValueError(f"A value of type {message.type_url!r} is not part of this protocol.")
