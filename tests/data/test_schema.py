"""A schema encodes what fits, decodes what it encoded, and says what does not fit and where."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from elasticdl.data import example, example_pb2
from elasticdl.data.schema import STRING, Field, Schema
from elasticdl.errors import DefinitionError, SchemaError

NUMBERS = ["bool", "float16", "float32", "float64", "int8", "int16", "int32", "int64"]
NUMBERS += ["uint8", "uint16", "uint32", "uint64"]


def schema_of(**fields):
    return Schema.from_user(
        [{"name": name, "shape": shape, "dtype": dtype} for name, (shape, dtype) in fields.items()]
    )


def decode_one(schema, record, **options):
    (decoded,) = schema.decode_batch([record], lambda i: f"file a, record {i}", **options)
    return decoded


def stored_kind(record, name):
    return example_pb2.Example.FromString(record).features.feature[name].WhichOneof("kind")


# --- data_schema() -------------------------------------------------------------------------------


def test_a_schema_keeps_names_shapes_and_dtypes_in_order():
    schema = schema_of(image=([28, 28], "float32"), label=([1], np.int64), name=([], "string"))

    assert schema.fields == (
        Field("image", (28, 28), np.dtype("float32")),
        Field("label", (1,), np.dtype("int64")),
        Field("name", (), STRING),
    )


def test_a_tensorflow_dtype_is_accepted_without_importing_tensorflow():
    class DType:
        name = "int32"
        as_numpy_dtype = np.int32

    schema = schema_of(label=([1], DType()))

    assert schema.fields[0].dtype == np.int32
    assert "tensorflow" not in sys.modules or sys.modules["tensorflow"].__name__ == "tensorflow"


def test_tensorflow_dtypes_and_shapes_are_accepted():
    tf = pytest.importorskip("tensorflow")

    schema = schema_of(
        a=(tf.TensorShape([2]), tf.float32), b=((), tf.string), c=([1], tf.bool), d=([1], tf.uint8)
    )

    assert [str(field) for field in schema.fields] == [
        "a: float32[2]",
        "b: string[]",
        "c: bool[1]",
        "d: uint8[1]",
    ]
    with pytest.raises(DefinitionError, match=r"dtype is tf\.bfloat16; expected one of bool"):
        schema_of(a=([1], tf.bfloat16))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, r"data_schema\(\) returned None; expected a list with one dict for each field"),
        ([], r"returned \[\]; expected a list"),
        ({"name": "x"}, "returned {'name': 'x'}; expected a list"),
        (["x"], "entry 0 is 'x'; expected a dict such as"),
        ([{"name": "x", "shape": [1]}], "entry 0 has no 'dtype'"),
        (
            [{"name": "x", "shpae": [1], "dtype": "int64"}],
            "has no 'shape'; did you mean 'shpae'",
        ),
        ([{"name": "x", "shape": [1], "dtype": "int64", "mode": 1}], "has an entry 'mode'"),
        ([{"name": "", "shape": [1], "dtype": "int64"}], "name is ''; expected a non-empty string"),
        ([{"name": "x", "shape": [None, 2], "dtype": "int64"}], r"shape is \[None, 2\]; expected"),
        ([{"name": "x", "shape": [-1], "dtype": "int64"}], r"shape is \[-1\]; expected"),
        ([{"name": "x", "shape": [2.5], "dtype": "int64"}], r"shape is \[2.5\]; expected"),
        ([{"name": "x", "shape": "12", "dtype": "int64"}], "shape is '12'; expected"),
        ([{"name": "x", "shape": None, "dtype": "int64"}], "shape is None; expected"),
        (
            [{"name": "x", "shape": [1], "dtype": "int64", "nullable": True}],
            "it is nullable, but its dtype int64 cannot represent a missing value",
        ),
        (
            [{"name": "x", "shape": [1], "dtype": "float32", "nullable": "yes"}],
            "nullable is 'yes'; expected True or False",
        ),
        (
            [{"name": "x", "shape": [1], "dtype": "float32", "nulable": True}],
            r"has an entry 'nulable'; .* did you mean 'nullable'\?",
        ),
        (
            [{"name": "x", "shape": [1], "dtype": "float32", "time": True}],
            "it is a time, but its dtype is float32; expected float64 or int64",
        ),
        ([{"name": "x", "shape": [1], "dtype": "float31"}], "dtype is 'float31'; expected one of"),
        ([{"name": "x", "shape": [1], "dtype": None}], "dtype is None; expected one of"),
        ([{"name": "x", "shape": [1], "dtype": "complex64"}], "dtype is 'complex64'; expected"),
        (
            [{"name": "x", "shape": [1], "dtype": "int64"}] * 2,
            "has 2 fields named 'x'; each field",
        ),
    ],
)
def test_an_invalid_schema_is_reported_with_the_reason(value, message):
    with pytest.raises(DefinitionError, match=message):
        Schema.from_user(value)


def test_a_schema_error_names_its_origin():
    with pytest.raises(DefinitionError, match=r"^mnist\.py:4: data_schema\(\), entry 1 is 3;"):
        Schema.from_user(
            [{"name": "x", "shape": [], "dtype": "bool"}, 3], "mnist.py:4: data_schema()"
        )


@pytest.mark.parametrize("dtype", [*NUMBERS, "string"])
def test_a_schema_survives_json(dtype):
    schema = schema_of(x=([2, 3], dtype), y=((), dtype))

    assert Schema.from_json(schema.to_json()) == schema


def test_flags_and_lists_survive_json():
    schema = Schema.from_user(
        [
            {"name": "a", "shape": [2], "dtype": "float32", "nullable": True},
            {"name": "b", "shape": [None], "dtype": "string"},
            {"name": "c", "shape": [], "dtype": "float64", "time": True},
        ]
    )

    assert Schema.from_json(schema.to_json()) == schema


def test_an_old_schema_still_loads():
    (field,) = Schema.from_json('[{"name": "x", "shape": [2], "dtype": "float32"}]').fields

    assert (field.shape, field.nullable, field.time) == ((2,), False, False)


@pytest.mark.parametrize("dtype", ["float32", "float64", "string"])
def test_a_nullable_field_may_be_missing_in_an_example(dtype):
    schema = Schema.from_user([{"name": "x", "shape": [], "dtype": dtype, "nullable": True}])
    value = "a" if dtype == "string" else 1.5
    absent = example.encode({"y": np.float32([1])})
    empty = [example.encode({"x": np.zeros(0, kind)}) for kind in (np.float32, np.int64, object)]
    given = schema.encode({"x": value})

    records = schema.decode_batch([given, absent, *empty, schema.encode({"x": None})] * 2, str)

    missing = None if dtype == "string" else np.nan
    wanted = value.encode() if dtype == "string" else value
    np.testing.assert_equal(
        [record["x"].item() for record in records], [wanted, *[missing] * 5] * 2
    )
    assert all(record["x"].shape == () for record in records)


def test_an_integer_fits_a_nullable_field():
    schema = Schema.from_user([{"name": "x", "shape": [1], "dtype": "float64", "nullable": True}])

    (record,) = schema.decode_batch([example.encode({"x": np.int64([3])})], str)

    assert record["x"].tolist() == [3.0]


def test_none_in_a_list_is_a_missing_number():
    schema = Schema.from_user([{"name": "x", "shape": [2], "dtype": "float32", "nullable": True}])

    (record,) = schema.decode_batch([schema.encode({"x": [None, 2]})], str)

    np.testing.assert_equal(record["x"], np.float32([np.nan, 2]))


def test_a_partly_missing_string_field_cannot_be_stored():
    schema = Schema.from_user([{"name": "x", "shape": [2], "dtype": "string", "nullable": True}])

    with pytest.raises(SchemaError, match="field 'x': 1 of 2 strings are None"):
        schema.encode({"x": ["a", None]})


def test_a_damaged_stored_schema_is_refused():
    with pytest.raises(DefinitionError, match="stored data schema is not JSON"):
        Schema.from_json('[{"name"')


# --- there and back ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("shape", [(), (1,), (2, 3)])
@given(st.data())
@settings(max_examples=20)
def test_numbers_survive_a_round_trip(dtype, shape, data):
    # Hypothesis throws away most of the float16 it draws.
    halves = st.integers(-2048, 2048).map(lambda number: number / 16)
    elements = halves if dtype == "float16" else npst.from_dtype(np.dtype(dtype))
    values = st.lists(elements, min_size=6, max_size=6)
    batch = [
        np.array(data.draw(values)[: math.prod(shape)], dtype).reshape(shape)
        for _ in range(data.draw(st.integers(1, 6)))
    ]
    schema = schema_of(x=(shape, dtype))

    decoded = schema.decode_batch([schema.encode({"x": x}) for x in batch], str)

    for x, record in zip(batch, decoded, strict=True):
        assert record["x"].dtype == x.dtype
        assert record["x"].shape == x.shape
        np.testing.assert_array_equal(record["x"], x)


@pytest.mark.parametrize("count", [1, 8])
def test_text_is_decoded_as_bytes_of_the_given_shape(count):
    schema = schema_of(x=([2, 1], "string"), y=([], "string"))
    record = schema.encode({"x": [["ü"], [b"\xff\0"]], "y": "a"})

    for decoded in schema.decode_batch([record] * count, str):
        assert decoded["x"].tolist() == [["ü".encode()], [b"\xff\0"]]
        assert decoded["x"].shape == (2, 1)
        assert decoded["y"].shape == ()
        assert decoded["y"].item() == b"a"


def test_a_tuple_is_taken_in_the_order_of_the_schema():
    schema = schema_of(image=([2], "float32"), label=([1], "int64"))

    assert schema.encode(([1, 2], 3)) == schema.encode({"label": [3], "image": [1, 2]})


def test_decoded_fields_follow_the_schema():
    wide = schema_of(a=([1], "int64"), b=([1], "float32"), c=([1], "int64"))
    narrow = schema_of(c=([1], "int64"), a=([1], "int64"))

    decoded = decode_one(narrow, wide.encode((1, 2.0, 3)))

    assert list(decoded.items()) == [("c", np.array([3])), ("a", np.array([1]))]


@pytest.mark.parametrize("count", [1, 8])
def test_decoded_arrays_are_writable(count):
    schema = schema_of(a=([2], "float32"), b=([3], "uint8"), c=([], "int64"), d=([1], "int32"))
    record = schema.encode(([1, 2], [1, 2, 3], 4, 5))

    for decoded in schema.decode_batch([record] * count, str):
        for array in decoded.values():
            array[...] = array * 2
        assert [array.tolist() for array in decoded.values()] == [[2, 4], [2, 4, 6], 8, [10]]


@pytest.mark.parametrize(
    ("dtype", "shape", "kind"),
    [
        ("float32", [3], "float_list"),
        ("float16", [3], "float_list"),
        ("float64", [3], "bytes_list"),
        ("bool", [3], "int64_list"),
        ("int32", [3], "int64_list"),
        ("uint32", [3], "int64_list"),
        ("uint64", [3], "bytes_list"),
        ("uint8", [3], "bytes_list"),
        ("int8", [3], "bytes_list"),
        ("uint8", [1], "int64_list"),
        ("string", [3], "bytes_list"),
    ],
)
def test_a_field_is_stored_as_the_kind_of_its_dtype(dtype, shape, kind):
    value = ["a"] * 3 if dtype == "string" else np.ones(shape)

    assert stored_kind(schema_of(x=(shape, dtype)).encode((value,)), "x") == kind


def test_an_image_of_bytes_is_stored_byte_by_byte():
    record = schema_of(x=([2, 2], "uint8")).encode((np.uint8([[1, 2], [3, 255]]),))

    assert b"\x01\x02\x03\xff" in record


def test_tensorflow_parses_encoded_records():
    tf = pytest.importorskip("tensorflow")
    schema = schema_of(image=([2, 2], "float32"), label=([1], "int64"), raw=([2], "float64"))
    record = schema.encode(([[1, 2], [3, 4]], 5, [0.1, 0.2]))

    parsed = tf.io.parse_single_example(
        record,
        {
            "image": tf.io.FixedLenFeature([2, 2], tf.float32),
            "label": tf.io.FixedLenFeature([1], tf.int64),
            "raw": tf.io.FixedLenFeature([], tf.string),
        },
    )

    assert parsed["image"].numpy().tolist() == [[1, 2], [3, 4]]
    assert parsed["label"].numpy().tolist() == [5]
    assert tf.io.decode_raw(parsed["raw"], tf.float64).numpy().tolist() == [0.1, 0.2]


# --- what is read besides ------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 8])
def test_small_integers_stored_as_a_list_are_read_into_a_byte_field(count):
    record = example.encode({"x": np.int64([0, 255])})

    for decoded in schema_of(x=([2], "uint8")).decode_batch([record] * count, str):
        assert decoded["x"].dtype == np.uint8
        assert decoded["x"].tolist() == [0, 255]


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("count", [1, 8])
def test_raw_bytes_of_the_right_size_are_read_into_any_field_of_numbers(dtype, count):
    values = np.array([[0, 1], [1, 1]], np.dtype(dtype).newbyteorder("<"))
    record = example.encode({"x": [values.tobytes()]})

    for decoded in schema_of(x=([2, 2], dtype)).decode_batch([record] * count, str):
        assert decoded["x"].dtype == np.dtype(dtype)
        assert decoded["x"].tolist() == values.tolist()


@pytest.mark.parametrize("count", [1, 8])
def test_an_optional_label_may_be_missing(count):
    schema = schema_of(x=([1], "float32"), label=([1], "int64"))
    record = example.encode({"x": np.float32([1])})

    for decoded in schema.decode_batch([record] * count, str, optional=frozenset(["label"])):
        assert list(decoded) == ["x"]


def test_an_optional_label_is_read_if_present():
    schema = schema_of(x=([1], "float32"), label=([1], "int64"))
    without = example.encode({"x": np.float32([1])})

    decoded = schema.decode_batch(
        [without, schema.encode((1, 2)), without], str, optional=frozenset(["label"])
    )

    assert [sorted(record) for record in decoded] == [["x"], ["label", "x"], ["x"]]


def test_records_with_and_without_known_fields_keep_their_order():
    schema = schema_of(label=([1], "int64"))
    without = example.encode({"x": np.float32([1])})

    decoded = schema.decode_batch(
        [without, schema.encode((1,))], str, optional=frozenset(["label"])
    )

    assert [list(record) for record in decoded] == [[], ["label"]]


# --- what does not fit, writing ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "value", "message"),
    [
        ("int64", np.int32([7]), None),
        ("float32", 0.1, None),
        ("float32", np.float64([0.1]), None),
        ("float32", float("inf"), None),
        ("float32", float("nan"), None),
        ("int64", 3.0, None),
        ("bool", 1, None),
        ("uint8", True, None),
        ("int64", 3.5, r"holds 3.5, which an int64 cannot hold \(the value is float64\)"),
        ("int64", float("nan"), "holds nan, which an int64 cannot hold"),
        ("int32", 2**31, "holds 2147483648, which an int32 cannot hold"),
        ("uint8", -1, "holds -1, which a uint8 cannot hold"),
        ("uint64", np.int64([-1]), "holds -1, which a uint64 cannot hold"),
        ("int64", np.uint64([2**63]), "holds 9223372036854775808, which an int64 cannot hold"),
        ("bool", 2, "holds 2, which a bool cannot hold"),
        ("float32", 1e300, r"holds 1e\+300, which a float32 cannot hold"),
        ("float32", 16777217, "holds 16777217, which a float32 cannot hold"),
        ("float64", 2**53 + 1, "holds 9007199254740993, which a float64 cannot hold"),
        ("int64", 2**63 - 1.0, r"holds 9.2\d+e\+18, which an int64 cannot hold"),
        ("float32", "1.0", r"is text \('1.0'\); data_schema\(\) says float32"),
        ("float32", None, r"is no number \(None\); data_schema\(\) says float32"),
        ("string", 3, r"holds 3; data_schema\(\) says string"),
    ],
)
def test_a_value_is_encoded_only_if_it_is_preserved(dtype, value, message):
    schema = schema_of(x=([1], dtype))
    if message is None:
        assert np.isclose(
            float(decode_one(schema, schema.encode((value,)))["x"].item()),
            float(np.asarray(value).item()),
            equal_nan=True,
        )
        return

    with pytest.raises(SchemaError, match=f"^b.png, field 'x': {message}"):
        schema.encode((value,), "b.png")


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ((1, 2, 3), r"has 3 values; data_schema\(\) has 2 fields: 'image', 'label'"),
        ((1,), r"has 1 value; data_schema\(\) has 2 fields"),
        (7, r"is 7; expected a dict by field name, or a tuple with the values of 'image', 'label'"),
        (
            {"image": [1, 2], "lable": 1},
            "field 'label' is missing .*did you mean 'lable'",
        ),
        (
            {"image": [1, 2], "label": 1, "labels": 1},
            r"field 'labels' is not in data_schema\(\) .*; did you mean 'label'\?",
        ),
        (([1, 2, 3], 1), r"field 'image': has shape \[3\]; data_schema\(\) says \[2\]"),
        (([[1], [2]], 1), r"has shape \[2, 1\]; .* use reshape\(\[2\]\)"),
        (([[1], [2, 3]], 1), "field 'image': .*parts have different lengths"),
    ],
)
def test_an_unsuitable_record_is_not_encoded(record, message):
    schema = schema_of(image=([2], "float32"), label=([1], "int64"))

    with pytest.raises(SchemaError, match=message):
        schema.encode(record)


# --- what does not fit, reading ------------------------------------------------------------------

GOOD = {"image": np.float32([1, 2]), "label": np.int64([3])}


@pytest.mark.parametrize("count", [2, 8])
@pytest.mark.parametrize(
    ("change", "dtype", "message"),
    [
        ({"image": None}, "float32", r"field 'image' is missing \(it has 'label'\)"),
        ({"image": None, "imgae": [b""]}, "float32", "missing .*did you mean 'imgae'"),
        (
            {"image": np.float32([1])},
            "float32",
            r"field 'image' has 1 value; data_schema\(\) says shape \[2\], which is 2",
        ),
        ({"image": np.int64([1, 2])}, "float32", "stored as integers; .* float32"),
        ({"image": np.float32([1, 2])}, "int64", "stored as floating numbers; .* says int64"),
        ({"image": np.float32([1, 2])}, "string", "stored as floating numbers; .* says string"),
        ({"image": [b"1", b"2"]}, "float32", "stored as 2 byte strings; .* is 8 bytes"),
        ({"image": [b"1234567"]}, "float32", "stored as a byte string of 7 bytes; .* 8 bytes"),
        ({"image": [b"1"]}, "string", r"'image' has 1 value; .* says shape \[2\]"),
        ({"image": np.int64([1, 256])}, "uint8", "holds 256, which a uint8 cannot hold"),
        ({"image": np.int64([-1, 2])}, "uint64", "holds -1, which a uint64 cannot hold"),
        ({"image": [b"\0\2"]}, "bool", "holds the byte 2; a bool is 0 or 1"),
        ({"image": np.float32([1, 1e30])}, "float16", r"holds 1\.\d+e\+30, which a float16"),
    ],
)
def test_an_unsuitable_record_is_named_with_its_field(change, dtype, message, count):
    schema = schema_of(image=([2], dtype), label=([1], "int64"))
    good = {"string": [b"a", b"b"], "uint8": [b"\1\2"], "bool": [b"\0\1"]}.get(dtype)
    if good is None:
        numbers = np.array([1, 2], dtype)
        good = [numbers.tobytes()] if dtype not in ("float32", "float16") else np.float32([1, 2])
    features = {**GOOD, **change}
    bad = example.encode({name: values for name, values in features.items() if values is not None})
    records = [example.encode({**GOOD, "image": good})] * (count - 1) + [bad]

    with pytest.raises(SchemaError, match=f"^a.recordio, record {count - 1}: .*{message}"):
        schema.decode_batch(records, lambda i: f"a.recordio, record {i}")


@pytest.mark.parametrize("at", range(8))
def test_a_record_with_a_different_number_of_values_is_named(at):
    schema = schema_of(x=([2], "int64"))
    records = [example.encode({"x": np.int64([1, 2])})] * 8
    # As long as the others: three numbers of one byte instead of one byte and two.
    records = [example.encode({"x": np.int64([1, 300])})] * 8
    records[at] = example.encode({"x": np.int64([1, 2, 3])})

    with pytest.raises(SchemaError, match=f"record {at}: field 'x' has 3 values"):
        schema.decode_batch(records, lambda i: f"record {i}")


def test_a_file_with_predictions_is_recognised() -> None:
    schema = schema_of(image=([2], "float32"), label=([1], "int64"))
    row = {"key": np.int64([0]), "prediction": [b"cat"]}

    with pytest.raises(
        SchemaError,
        match=r"These look like the columns of a file that `elasticdl predict` wrote\. If so, pass "
        r"only .*=pictures\. data_schema\(\) names the fields",
    ):
        decode_one(schema, example.encode(row))
