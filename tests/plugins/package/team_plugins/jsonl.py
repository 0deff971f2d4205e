"""A format: files with a JSON object a line, each of which is a record."""

from __future__ import annotations

import json

import numpy as np

from elasticdl.data.example import decode_batch_schemaless, encode
from elasticdl.data.record_source import RecordFile
from elasticdl.data.stored_file import open_stored
from elasticdl.errors import CorruptDataError

EXTENSIONS = (".jsonl",)


def open_files(uris, index):
    """Return a reader of the files."""
    return JSONLinesSource(uris)


class JSONLinesSource:
    """A `RecordSource` that keeps all of its records in memory."""

    def __init__(self, uris):
        self.files, self._records = [], []
        for uri in uris:
            file = open_stored(uri)
            lines = file.read(0, file.size_bytes).splitlines()
            self.files.append(RecordFile(uri, len(lines)))
            self._records += [_record(uri, i, line) for i, line in enumerate(lines, 1)]

    @property
    def num_records(self):
        """Number of records in all files."""
        return len(self._records)

    def read_bytes(self, start, stop):
        """Return records as serialized `tf.Example`."""
        if not 0 <= start <= stop <= self.num_records:
            raise IndexError(f"{start} to {stop} of {self.num_records} records.")
        return self._records[start:stop]

    def read_records(self, start, stop, schema):
        """Return records, decoded."""
        raw = self.read_bytes(start, stop)
        decode = decode_batch_schemaless if schema is None else schema.decode_batch
        return list(decode(raw, lambda i: f"record {start + i}"))


def _record(uri, line_number, line):
    try:
        values = json.loads(line)
    except ValueError as error:
        raise CorruptDataError(f"{uri}:{line_number}: not a JSON object: {error}") from error
    return encode({name: np.atleast_1d(np.float32(value)) for name, value in values.items()})
