"""Arrays of every dtype, shape and layout come back as they were."""

from __future__ import annotations

import json
import struct

import ml_dtypes
import numpy as np
import pytest

from elasticdl.artifacts.tensors import read_tensors, write_tensors
from elasticdl.errors import OutputError

NUMPY_DTYPES = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64"),
]


def there_and_back(tmp_path, array):
    write_tensors(tmp_path / "t", {"layer/kernel": array})
    return read_tensors((tmp_path / "t").read_bytes(), "t")["layer/kernel"]


def assert_same(found, expected) -> None:
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_every_numpy_dtype_survives_a_round_trip(tmp_path, dtype) -> None:
    array = np.array([[0, 1], [1, 0]], dtype)

    assert_same(there_and_back(tmp_path, array), array)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_short_floats_survive_a_round_trip(tmp_path, name) -> None:
    array = np.array([1.5, -2.0], getattr(ml_dtypes, name))

    assert_same(there_and_back(tmp_path, array), array)


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1, 1)])
def test_every_shape_survives_a_round_trip(tmp_path, shape) -> None:
    array = np.ones(shape, np.float32)

    assert_same(there_and_back(tmp_path, array), array)


@pytest.mark.parametrize(
    "array",
    [np.arange(6).reshape(2, 3).T, np.arange(8)[::2], np.arange(4)[::-1], np.float64(7)],
    ids=["transposed", "strided", "reversed", "scalar"],
)
def test_arrays_in_any_memory_order_keep_their_values(tmp_path, array) -> None:
    np.testing.assert_array_equal(there_and_back(tmp_path, array), array)


def test_big_endian_values_keep_their_values(tmp_path) -> None:
    np.testing.assert_array_equal(there_and_back(tmp_path, np.array([1, 2], ">i4")), [1, 2])


def test_nan_and_infinity_keep_their_bits(tmp_path) -> None:
    array = np.array([np.nan, np.inf, -0.0], np.float32)

    assert_same(there_and_back(tmp_path, array), array)


def test_loaded_arrays_are_writable(tmp_path) -> None:
    array = there_and_back(tmp_path, np.zeros(2))
    array += 1

    np.testing.assert_array_equal(array, [1, 1])


def test_an_empty_set_of_tensors_survives_a_round_trip(tmp_path) -> None:
    write_tensors(tmp_path / "t", {})

    assert read_tensors((tmp_path / "t").read_bytes(), "t") == {}


@pytest.mark.parametrize("array", [np.array(["a"]), np.array([None]), np.zeros(1, "complex128")])
def test_a_dtype_that_the_format_lacks_is_named(tmp_path, array) -> None:
    with pytest.raises(OutputError, match=r"'layer/kernel' has dtype .*Convert it"):
        there_and_back(tmp_path, array)


@pytest.mark.parametrize("data", [b"", b"\xff" * 100, b"\x08\0\0\0\0\0\0\0{}      x"])
def test_damaged_bytes_are_named(data) -> None:
    with pytest.raises(OutputError, match=r"here: not a complete safetensors file"):
        read_tensors(data, "here")


def test_an_unknown_dtype_in_a_file_is_named() -> None:
    header = b'{"a":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}}   '
    data = len(header).to_bytes(8, "little") + header + b"\0"

    with pytest.raises(OutputError, match=r"here: contains a tensor of dtype F4"):
        read_tensors(data, "here")


def test_a_full_disk_raises_os_error(tmp_path) -> None:
    with pytest.raises(FileNotFoundError):
        write_tensors(tmp_path / "gone" / "t", {"a": np.zeros(1)})


@pytest.mark.parametrize(
    ("shape", "offsets"),
    [
        ([4_000_000_000], [0, 4]),
        ([4_000_000_000], [0, 16_000_000_000]),
        ([2**62, 4], [0, 0]),
        ([2**62, 2**62], [0, 4]),
        ([1], [2**63, 2**63 + 4]),
    ],
)
def test_a_tensor_that_claims_more_than_its_bytes_is_refused(shape, offsets) -> None:
    header = {"kernel": {"dtype": "F32", "shape": shape, "data_offsets": offsets}}
    text = json.dumps(header).encode()

    with pytest.raises(OutputError, match="not a complete safetensors file"):
        read_tensors(struct.pack("<Q", len(text)) + text + bytes(4), "t")


def test_two_tensors_do_not_share_bytes() -> None:
    entry = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    text = json.dumps({"a": entry, "b": entry}).encode()

    with pytest.raises(OutputError, match="not a complete safetensors file"):
        read_tensors(struct.pack("<Q", len(text)) + text + bytes(4), "t")


def test_a_header_longer_than_the_file_is_refused() -> None:
    with pytest.raises(OutputError, match="not a complete safetensors file"):
        read_tensors(struct.pack("<Q", 2**62) + b"{}", "t")
