"""tf.Example without TensorFlow: the bytes are TensorFlow's, whichever way they are read."""

from __future__ import annotations

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticdl.data import example, example_pb2
from elasticdl.errors import SchemaError

INT64 = st.integers(-(2**63), 2**63 - 1)
FLOAT32 = st.floats(width=32, allow_nan=False)


def values_of_one_kind(max_size=4):
    return st.one_of(
        st.lists(FLOAT32, max_size=max_size).map(lambda values: np.array(values, np.float32)),
        st.lists(INT64, max_size=max_size).map(lambda values: np.array(values, np.int64)),
        st.lists(st.integers(0, 200), max_size=max_size).map(
            lambda values: np.array(values, np.int64)
        ),
        st.lists(st.binary(max_size=5), max_size=max_size),
    )


examples = st.dictionaries(st.text(max_size=4), values_of_one_kind(), max_size=4)


@st.composite
def batches_of_one_layout(draw):
    """Records as one schema makes them: equal names, kinds and counts, other values."""
    template = draw(st.dictionaries(st.text("ab", max_size=2), values_of_one_kind(3), max_size=3))
    records = []
    for _ in range(draw(st.integers(1, 12))):
        record = {}
        for name, values in template.items():
            if isinstance(values, list):
                record[name] = [draw(st.binary(max_size=2)) for _ in values]
            elif values.dtype == np.float32:
                record[name] = np.array([draw(FLOAT32) for _ in values], np.float32)
            else:
                number = st.one_of(st.integers(0, 300), INT64)
                record[name] = np.array([draw(number) for _ in values], np.int64)
        records.append(record)
    return records


def as_message(features):
    message = example_pb2.Example()
    message.features.SetInParent()
    for name, values in features.items():
        feature = message.features.feature[name]
        if isinstance(values, list):
            feature.bytes_list.value.extend(values)
        elif values.dtype == np.float32:
            feature.float_list.value.extend(values.tolist())
        else:
            feature.int64_list.value.extend(values.tolist())
        # An empty list is a kind, too.
        kind = {"f": "float_list", "i": "int64_list"}.get(
            getattr(getattr(values, "dtype", None), "kind", ""), "bytes_list"
        )
        getattr(feature, kind).SetInParent()
    return message


def read_by_protobuf(data):
    """Return what protobuf alone makes of a record."""
    read = {}
    for name, feature in example_pb2.Example.FromString(data).features.feature.items():
        kind = feature.WhichOneof("kind")
        if kind is not None:
            values = list(getattr(feature, kind).value)
            dtype = {"float_list": np.float32, "int64_list": np.int64, "bytes_list": object}[kind]
            array = np.empty(len(values), dtype)
            array[:] = values
            read[name] = array
    return read


def assert_same(decoded, expected):
    assert list(decoded) == sorted(expected)
    for name, values in expected.items():
        assert decoded[name].dtype == values.dtype
        np.testing.assert_array_equal(decoded[name], values)


# Implementations of protobuf disagree where one name starts with another.
@given(st.dictionaries(st.text(min_size=2, max_size=2), values_of_one_kind(), max_size=4))
def test_encoding_matches_deterministic_protobuf_serialization(features):
    assert example.encode(features) == as_message(features).SerializeToString(deterministic=True)


@given(st.lists(examples, max_size=8))
def test_a_batch_of_varied_records_is_read_as_by_protobuf(batch):
    records = [example.encode(features) for features in batch]

    decoded = example.decode_batch_schemaless(records, str)

    for one, record in zip(decoded, records, strict=True):
        assert_same(one, read_by_protobuf(record))


@given(batches_of_one_layout())
def test_a_batch_of_similar_records_is_read_as_by_protobuf(batch):
    records = [example.encode(features) for features in batch]

    decoded = example.decode_batch_schemaless(records, str)

    for one, record in zip(decoded, records, strict=True):
        assert_same(one, read_by_protobuf(record))


# Four of one length are read as one array, two record by record.
@pytest.mark.parametrize("num_whole", [4, 2])
@given(examples, st.data())
@settings(max_examples=200)
def test_a_damaged_record_is_read_or_refused_as_by_protobuf(num_whole, features, data):
    original = example.encode(features)
    damaged = bytearray(original)
    for _ in range(data.draw(st.integers(1, 3))):
        if damaged:
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    # Among whole ones of the same length, so that it could pass for one of them.
    records = [*[original] * (num_whole - 1), bytes(damaged), original]
    try:
        expected = read_by_protobuf(bytes(damaged))
    except DecodeError:
        with pytest.raises(SchemaError, match=f"record {num_whole - 1}"):
            example.decode_batch_schemaless(records, lambda i: f"record {i}")
        return

    decoded = example.decode_batch_schemaless(records, str)

    assert_same(decoded[-2], expected)
    assert_same(decoded[-1], read_by_protobuf(original))


def test_unpacked_numbers_are_read():
    # Features{ x: float 1.0, 2.0 }, each number with a tag of its own (0x0d), as old writers do.
    numbers = b"\x0d\x00\x00\x80\x3f\x0d\x00\x00\x00\x40"
    feature = b"\x12" + bytes([len(numbers)]) + numbers
    entry = b"\x0a\x01x\x12" + bytes([len(feature)]) + feature
    features = b"\x0a" + bytes([len(entry)]) + entry
    record = b"\x0a" + bytes([len(features)]) + features

    (decoded,) = example.decode_batch_schemaless([record], str)

    np.testing.assert_array_equal(decoded["x"], np.float32([1, 2]))


def test_the_last_of_two_fields_with_one_name_wins():
    first = example.encode({"x": np.int64([1])})
    second = example.encode({"x": np.int64([2])})
    # Two serialized messages, joined, are one message with all their fields.
    (decoded,) = example.decode_batch_schemaless([first + second], str)

    np.testing.assert_array_equal(decoded["x"], [2])


def test_a_field_repeated_without_values_is_missing():
    with_values = example.encode({"x": np.int64([1])})[2:]
    without = b"\x0a\x05\x0a\x01x\x12\x00"
    record = b"\x0a" + bytes([len(with_values + without)]) + with_values + without
    assert "x" not in read_by_protobuf(record)

    assert example.decode_batch_schemaless([record], str) == [{}]


def test_a_truncated_number_is_found_among_complete_ones():
    records = [example.encode({"x": np.int64([1, 2])}) for _ in range(8)]
    records[5] = records[5][:-1] + b"\x82"

    with pytest.raises(SchemaError, match="record 5"):
        example.decode_batch_schemaless(records, lambda i: f"record {i}")


def test_records_with_different_field_orders_are_read_in_one_batch():
    one_way = example_pb2.Example()
    entries = [example.encode({name: np.float32([i])})[2:] for i, name in enumerate("ab")]
    records = []
    for i in range(12):
        body = b"".join(entries if i % 2 else reversed(entries))
        records.append(b"\x0a" + bytes([len(body)]) + body)
    assert one_way.FromString(records[0]) == one_way.FromString(records[1])

    decoded = example.decode_batch_schemaless(records, str)

    assert [(record["a"].item(), record["b"].item()) for record in decoded] == [(0, 1)] * 12


def test_decoded_arrays_are_writable_and_independent():
    records = [example.encode({"x": np.float32([i])}) for i in range(8)]
    first = example.decode_batch_schemaless(records, str)

    for record in first:
        record["x"] /= 2
    second = example.decode_batch_schemaless(records, str)

    np.testing.assert_array_equal([record["x"][0] for record in second], np.arange(8))
    np.testing.assert_array_equal([record["x"][0] for record in first], np.arange(8) / 2)


def test_bytes_keep_trailing_zeros():
    records = [example.encode({"x": [b"a\0"]})] * 8

    decoded = example.decode_batch_schemaless(records, str)

    assert [record["x"].tolist() for record in decoded] == [[b"a\0"]] * 8


def test_a_record_that_is_not_an_example_is_refused_with_its_place():
    with pytest.raises(SchemaError, match=r"file a, record 1: its 4 bytes \(ff ff ff ff\) are not"):
        example.decode_batch_schemaless([b"", b"\xff" * 4], lambda i: f"file a, record {i}")


def test_an_unsupported_dtype_is_refused():
    with pytest.raises(TypeError, match="'x' is float64"):
        example.encode({"x": np.zeros(1)})


def test_similar_records_are_decoded_together():
    records = [
        example.encode({"x": np.full(64, i, np.float32), "label": np.int64([i])}) for i in range(64)
    ]

    (group,) = example.groups(records, str)

    assert list(group.rows) == list(range(64))


def test_records_are_exchanged_with_tensorflow():
    tf = pytest.importorskip("tensorflow")
    features = {
        "image": np.arange(6, dtype=np.float32),
        "label": np.int64([-5, 300]),
        "name": [b"a", b"\xff\0"],
        "none": np.float32([]),
    }
    written = example.encode(features)

    parsed = tf.train.Example.FromString(written)
    (ours,) = example.decode_batch_schemaless([parsed.SerializeToString()], str)
    theirs = tf.io.parse_single_example(
        written,
        {
            "image": tf.io.FixedLenFeature([2, 3], tf.float32),
            "label": tf.io.FixedLenFeature([2], tf.int64),
            "name": tf.io.FixedLenFeature([2], tf.string),
        },
    )

    np.testing.assert_array_equal(theirs["image"].numpy().ravel(), ours["image"])
    np.testing.assert_array_equal(theirs["label"].numpy(), ours["label"])
    assert theirs["name"].numpy().tolist() == ours["name"].tolist() == [b"a", b"\xff\0"]
    assert ours["none"].size == 0
