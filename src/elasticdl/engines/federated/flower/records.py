"""Arrays and facts as Flower carries them: one buffer in an ArrayRecord, JSON in a ConfigRecord.

Flower stores an array as several objects and sends each by a request of its own, so a model of a
hundred small arrays would cost hundreds of requests. As one, they are cut into pieces of 5 MB.

Callers: `server_app.py` and `client_app.py`, the two ends of a message.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from elasticdl.engines.federated import wire
from elasticdl.engines.federated.wire import Arrays, Facts, WireError

if TYPE_CHECKING:
    import numpy as np

_ARRAYS, _FACTS, _JSON, _BYTES = "arrays", "facts", "json", "bytes"
# How an array's bytes are to be read: by us alone.
_FORMAT = "elasticdl"


class RecordError(ValueError):
    """What came in a message is not what `to_record` makes."""


def to_record(arrays: Arrays, facts: Facts) -> RecordDict:
    """Return the content of a message."""
    plan, pieces = wire.flatten(arrays)
    content = b"".join(pieces)
    return RecordDict(
        {
            _ARRAYS: ArrayRecord({_BYTES: Array("uint8", (len(content),), _FORMAT, content)}),
            _FACTS: ConfigRecord({_JSON: json.dumps([plan, dict(facts)])}),
        }
    )


def with_facts(record: RecordDict, facts: Facts) -> RecordDict:
    """Return a record with the arrays of another one, which are not copied, and other facts."""
    plan, _ = json.loads(str(record.config_records[_FACTS][_JSON]))
    return RecordDict(
        {
            _ARRAYS: record.array_records[_ARRAYS],
            _FACTS: ConfigRecord({_JSON: json.dumps([plan, dict(facts)])}),
        }
    )


def from_record(record: RecordDict) -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, Any]]:
    """Return the arrays and the facts of a message's content.

    Raises:
        RecordError: The other end is not ours, or is up to something.
    """
    try:
        content = record.array_records[_ARRAYS][_BYTES].data
        plan, facts = json.loads(str(record.config_records[_FACTS][_JSON]))
        arrays = wire.empty_arrays(plan, len(content))
    except (LookupError, AttributeError, TypeError, ValueError, RecursionError, WireError) as error:
        raise RecordError(f"it cannot be read ({type(error).__name__})") from error
    if not isinstance(facts, dict):
        raise RecordError("its facts are none")
    wire.fill(arrays, content)
    return arrays, facts
