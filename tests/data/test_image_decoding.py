"""Images are decoded as Keras and torchvision decode them, and resized as Keras resizes them."""

import io

import numpy as np
import pytest
from PIL import Image

from elasticdl.data.field import Field
from elasticdl.data.image_decoding import AS_STORED, decode_image, image_size, pixels_of
from elasticdl.errors import CorruptDataError, DataError, MissingExtraError, SchemaError

RAMP = np.arange(6 * 4 * 3, dtype=np.uint8).reshape(6, 4, 3) * 3


def encoded(picture, kind="PNG", **options):
    if not isinstance(picture, Image.Image):
        picture = Image.fromarray(picture)
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def decoded(data, shape=None, dtype="uint8"):
    wanted = AS_STORED if shape is None else pixels_of(Field("image", shape, np.dtype(dtype)))
    return decode_image(data, "a.png", wanted)


@pytest.mark.parametrize(
    ("kind", "options"), [("PNG", {}), ("BMP", {}), ("WEBP", {"lossless": True})]
)
def test_without_a_schema_an_image_has_its_own_size_and_colours(kind, options):
    pixels = decoded(encoded(RAMP, kind, **options))

    np.testing.assert_array_equal(pixels, RAMP)
    assert pixels.dtype == np.uint8
    assert pixels.flags.writeable


def test_image_format_is_detected_from_content():
    assert decoded(encoded(RAMP, "JPEG")).shape == (6, 4, 3)


def test_an_animation_is_read_as_its_first_frame():
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]

    pixels = decoded(encoded(frames[0], "GIF", save_all=True, append_images=frames[1:]))

    assert pixels[0, 0].tolist() == [255, 0, 0]


@pytest.mark.parametrize("shape", [(9, 7, 3), (3, 2, 3), (6, 2, 3), (13, 4, 3), (6, 4, 3)])
def test_an_image_is_resized_as_in_tensorflow(shape):
    import tensorflow as tf

    pixels = decoded(encoded(RAMP), shape, "float32")

    expected = tf.image.resize(RAMP, shape[:2], method="bilinear").numpy()
    np.testing.assert_array_equal(pixels, expected)


def test_whole_numbers_are_rounded():
    row = np.uint8([[0, 1, 2]])

    assert decoded(encoded(row), (1, 2), "float32").tolist() == [[0.25, 1.75]]
    assert decoded(encoded(row), (1, 2), "uint8").tolist() == [[0, 2]]


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((1, 1), [[76]]),
        ((1, 1, 1), [[[76]]]),
        ((1, 1, 3), [[[255, 0, 0]]]),
        ((1, 1, 4), [[[255, 0, 0, 9]]]),
        ((3, 1, 2), [[[255, 255]], [[0, 0]], [[0, 0]]]),
    ],
)
def test_the_shape_determines_channels_and_their_axis(shape, expected):
    red = Image.new("RGBA", (1, 1), (255, 0, 0, 9))

    assert decoded(encoded(red), shape).tolist() == expected


def test_palettes_and_transparency_are_resolved():
    picture = Image.new("P", (1, 1))
    picture.putpalette([10, 20, 30])

    data = encoded(picture, transparency=b"\x07")

    assert decoded(data).tolist() == [[[10, 20, 30]]]
    assert decoded(data, (1, 1, 4)).tolist() == [[[10, 20, 30, 7]]]


def test_sixteen_bit_grey_is_scaled():
    deep = np.uint16([[0, 256, 65535]])

    assert decoded(encoded(deep), (1, 3)).tolist() == [[0, 1, 255]]


def test_cmyk_colours_are_converted():
    white = Image.new("CMYK", (8, 8), (0, 0, 0, 0))

    assert decoded(encoded(white, "JPEG"), (8, 8)).min() > 250


def test_orientation_metadata_is_ignored_as_in_keras_and_torchvision():
    exif = Image.Exif()
    exif[0x0112] = 6

    assert decoded(encoded(Image.fromarray(RAMP), exif=exif)).shape == (6, 4, 3)


def test_the_size_is_read_from_the_header():
    assert image_size(encoded(RAMP)[:45], "a.png") == (6, 4)


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (lambda _: b"", "found an empty file"),
        (lambda _: b"hello", "found something else"),
        (lambda data: data[:50], "cut off: it cannot be decoded"),
        (lambda data: data[:45] + b"\xff" + data[46:], "damaged or cut off: it cannot"),
    ],
)
def test_a_file_that_is_not_an_image_is_named(damage, found):
    with pytest.raises(CorruptDataError, match=rf"^a\.png: .*{found}.* Replace or remove"):
        decoded(damage(encoded(RAMP)))


def test_a_decompression_bomb_is_refused(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 11)

    with pytest.raises(DataError, match=r"^a\.png cannot be decoded: Image size \(24 pixels\)"):
        decoded(encoded(RAMP))


@pytest.mark.parametrize(
    ("shape", "dtype", "message"),
    [
        ((5, 4, 2), "uint8", r"'image' is an image with the shape \[5, 4, 2\]; expected"),
        ((5, 4), "int8", "the dtype int8, which cannot hold pixels from 0 to 255"),
        ((5, 4), "bool", "the dtype bool"),
    ],
)
def test_a_field_that_cannot_hold_an_image_is_refused(shape, dtype, message):
    with pytest.raises(SchemaError, match=message):
        decoded(encoded(RAMP), shape, dtype)


def test_without_pillow_the_error_has_the_command_that_installs_it(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "PIL", None)

    with pytest.raises(MissingExtraError, match=r"'pillow'.*pip install 'elasticdl\[images\]'"):
        decoded(b"x")
