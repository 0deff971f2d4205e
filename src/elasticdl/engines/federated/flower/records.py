"""Encoding of arrays and JSON values (facts) in Flower's records.

All arrays are one buffer in an ArrayRecord; the JSON is in a ConfigRecord. Flower stores an array
as several objects and sends each in its own request, so a model of a hundred small arrays would
cost hundreds of requests. One buffer is instead cut into pieces of 5 MB.

Callers: `server_app.py` and `client_app.py`, the two ends of a message.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from elasticdl.engines.federated.protocol import wire
from elasticdl.engines.federated.protocol.wire import Arrays, Facts, WireError

if TYPE_CHECKING:
    import numpy as np

_ARRAYS, _FACTS, _JSON, _BYTES = "arrays", "facts", "json", "bytes"
# Name of the byte format, which only this module reads.
_FORMAT = "elasticdl"


class RecordError(ValueError):
    """Raised when the content of a message was not created by `to_record`."""


def to_record(arrays: Arrays, facts: Facts) -> RecordDict:
    """Encode arrays and facts (JSON values) as the content of a message."""
    plan, pieces = wire.flatten(arrays)
    content = b"".join(pieces)
    return RecordDict(
        {
            _ARRAYS: ArrayRecord({_BYTES: Array("uint8", (len(content),), _FORMAT, content)}),
            _FACTS: ConfigRecord({_JSON: json.dumps([plan, dict(facts)])}),
        }
    )


def with_facts(record: RecordDict, facts: Facts) -> RecordDict:
    """Return a record with the same arrays, which are not copied, and other facts (JSON values)."""
    plan, _ = json.loads(str(record.config_records[_FACTS][_JSON]))
    return RecordDict(
        {
            _ARRAYS: record.array_records[_ARRAYS],
            _FACTS: ConfigRecord({_JSON: json.dumps([plan, dict(facts)])}),
        }
    )


def from_record(record: RecordDict) -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, Any]]:
    """Decode the arrays and the facts from a message's content.

    Raises:
        RecordError: `to_record` did not create the content; the sender may be malicious.
    """
    try:
        content = record.array_records[_ARRAYS][_BYTES].data
        plan, facts = json.loads(str(record.config_records[_FACTS][_JSON]))
        arrays = wire.empty_arrays(plan, len(content))
    except (LookupError, AttributeError, TypeError, ValueError, RecursionError, WireError) as error:
        raise RecordError(f"it cannot be read ({type(error).__name__})") from error
    if not isinstance(facts, dict):
        raise RecordError("its facts are not a JSON object")
    wire.fill(arrays, content)
    return arrays, facts
