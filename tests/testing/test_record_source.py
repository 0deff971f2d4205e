"""The checks of readers find each broken law; a reader in memory is broken on purpose."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from elasticdl.data.example import decode_batch_schemaless, encode
from elasticdl.data.file_ranges import Numbering
from elasticdl.data.record_source import RecordFile
from elasticdl.errors import CorruptDataError
from elasticdl.testing.record_source import (
    check_damage_is_found,
    check_decoding,
    check_record_source,
)

RECORDS = [encode({"x": np.int64([i])}) for i in range(5)]
FILES = [RecordFile("a", 2), RecordFile("b", 3)]


class InMemory:
    """A reader that follows the laws."""

    files: Sequence[RecordFile] = FILES
    num_records = 5

    def read_bytes(self, start: int, stop: int) -> list[bytes]:
        Numbering(self.files).split(start, stop)
        return RECORDS[start:stop]

    def read_records(self, start: int, stop: int, schema):
        return decode_batch_schemaless(self.read_bytes(start, stop), str)


class WithoutAMethod:
    files = FILES
    num_records = 5


class Unsorted(InMemory):
    files = FILES[::-1]


class Miscounting(InMemory):
    num_records = 6


class ShorteningAtAFile(InMemory):
    def read_bytes(self, start, stop):
        return super().read_bytes(start, stop)[: 2 if start == 0 else None]


class Forgetful(InMemory):
    """Returns nothing the second time."""

    last = None

    def read_bytes(self, start, stop):
        again, self.last = self.last == (start, stop), (start, stop)
        return [] if again else super().read_bytes(start, stop)


class OfOtherBytes(InMemory):
    def read_bytes(self, start, stop):
        return [bytearray(record) for record in super().read_bytes(start, stop)]


class Slicing(InMemory):
    """Takes a range outside of the records for the part of it that is inside."""

    def read_bytes(self, start, stop):
        return RECORDS[start:stop]


class SharingItsPosition(InMemory):
    def read_bytes(self, start, stop):
        self.position = start
        # Long enough for the other threads to be started meanwhile.
        time.sleep(1e-3)
        super().read_bytes(start, stop)
        return RECORDS[self.position :][: stop - start]


class ForgettingItsFiles(InMemory):
    def __getstate__(self):
        return {"files": []}


class Unpicklable(InMemory):
    def __getstate__(self):
        raise TypeError("cannot pickle")


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (WithoutAMethod, "lacks a method"),
        (Unsorted, "sorted by URI"),
        (Miscounting, "num_records is 6; 5 were expected"),
        (ShorteningAtAFile, r"read_bytes\(0, 3\) returned"),
        (Forgetful, r"returned \[\]; expected"),
        (OfOtherBytes, "is not bytes"),
        (Slicing, "an IndexError was expected"),
        (SharingItsPosition, "Read by 4 threads at once"),
        (ForgettingItsFiles, "After pickling"),
    ],
)
def test_every_violation_of_the_contract_is_detected(broken: type, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_record_source(broken(), RECORDS)


def test_source_that_cannot_be_pickled_is_detected() -> None:
    with pytest.raises(TypeError, match="cannot pickle"):
        check_record_source(Unpicklable(), RECORDS)


def test_good_source_passes() -> None:
    check_record_source(InMemory(), RECORDS)
    check_decoding(InMemory())


class Decoding(InMemory):
    """Decodes what `change` makes of the records."""

    def __init__(self, change) -> None:
        self.change = change

    def read_records(self, start, stop, schema):
        return self.change(super().read_records(start, stop, schema))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda records: records[:1], r"read_records\(0, 2\) returned 1"),
        (lambda records: [{"y": record["x"]} for record in records], "has the fields"),
        (lambda records: [{"x": record["x"] + 1} for record in records], "field 'x' is"),
        (lambda records: [{"x": record["x"].astype("int32")} for record in records], "int32"),
        (lambda records: [{"x": record["x"].reshape(())} for record in records], "field 'x' is"),
    ],
)
def test_differently_decoded_records_are_detected(change, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_decoding(Decoding(change))


class OneRecord(InMemory):
    """Reads a file of one record, of which the first byte says whether it is damaged."""

    num_records = 1

    def __init__(self, uris: Sequence[str]) -> None:
        self.uri = uris[0]
        self.files = [RecordFile(self.uri, 1)]

    def read_bytes(self, start, stop):
        content = Path(self.uri).read_bytes()
        if content[0]:
            raise CorruptDataError(self.uri, 0, "0", str(content[0]))
        return [content[1:]]


def test_unnoticed_damage_is_detected(tmp_path: Path) -> None:
    check_damage_is_found(OneRecord, b"\0abc", [b"abc"], tmp_path, offsets=[0])

    with pytest.raises(AssertionError, match="Byte 2 was damaged by 0x01, and no Corrupt"):
        check_damage_is_found(OneRecord, b"\0abc", [b"abc"], tmp_path, offsets=[0, 2])


def test_error_that_names_another_file_is_detected(tmp_path: Path) -> None:
    class Misnaming(OneRecord):
        def read_bytes(self, start, stop):
            raise CorruptDataError("elsewhere", 0, "a", "b")

    with pytest.raises(AssertionError, match="the error names elsewhere"):
        check_damage_is_found(Misnaming, b"\0", [b""], tmp_path)
