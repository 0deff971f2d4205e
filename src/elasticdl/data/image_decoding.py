"""Image decoding: the bytes of a file become pixels in the shape and dtype of a field.

    bytes --Pillow--> uint8 [height, width, channels] --bilinear--> the field's size, dtype, layout

The result is that of `keras.utils.image_dataset_from_directory`: bilinear interpolation without
antialiasing (pixels are sampled at half-pixel centres), whatever the aspect ratio; pixels 0 .. 255,
also as floating-point numbers; transparency is dropped. As in Keras and torchvision, the
orientation in EXIF metadata is ignored, and of an animation only the first frame is read. For an
integer dtype, interpolated values are rounded.

Pillow is imported here only. `formats.py` decides which files are images.

Callers: `image_unit.py`; `images.py` for sizes.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from elasticdl.errors import CorruptDataError, DataError, MissingExtraError, SchemaError

if TYPE_CHECKING:
    from types import ModuleType

    from elasticdl.data.field import Field

    Array: TypeAlias = np.ndarray[Any, Any]

# Pillow's names of the formats. It finds the format of a file by its content.
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
_STARTS = (b"\x89PNG", b"\xff\xd8\xff", b"RIFF", b"GIF8")
_ADVICE = "Replace or remove the file."
_EXPECTED = "a PNG, JPEG, WebP, GIF or BMP image"
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_SHAPES = (2, 3)
_BRIGHTEST = 255


class Pixels(NamedTuple):
    """Requested size, layout and dtype of an image's pixels.

    Attributes:
        mode: Pillow's name of the channels: `L` (grey), `RGB` or `RGBA`.
        height: Height. None: that of the image.
        width: Width. None: that of the image.
        channels_first: Whether the shape is `[channels, height, width]`.
        shape: Shape of the array; None means `[height, width, channels]`.
        dtype: Dtype of the array.
    """

    mode: str
    height: int | None = None
    width: int | None = None
    channels_first: bool = False
    shape: tuple[int, ...] | None = None
    dtype: np.dtype[Any] = np.dtype(np.uint8)


AS_STORED = Pixels("RGB")
"""RGB at the image's own size, used without a schema."""


def pixels_of(field: Field) -> Pixels:
    """Return the image size, layout and dtype that a field requires.

    Args:
        field: A field of numbers with the shape `[height, width]`, `[height, width, channels]`, or
            PyTorch's `[channels, height, width]`.

    Raises:
        SchemaError: The shape or the dtype does not fit an image.

    Example:
        >>> from elasticdl.data.field import Field
        >>> pixels_of(Field("image", (3, 32, 48), np.dtype("float32")))[:4]
        ('RGB', 32, 48, True)
    """
    shape = field.shape
    first = len(shape) == max(_SHAPES) and shape[-1] not in _MODES and shape[0] in _MODES
    height, width = shape[1:] if first else shape[:2]
    channels = 1 if len(shape) == min(_SHAPES) else shape[0 if first else -1]
    if channels not in _MODES:
        raise SchemaError(
            f"data_schema(): {field.name!r} is an image with the shape {list(shape)}; expected "
            "[height, width] or [height, width, 1] (grey), [height, width, 3] (RGB), [height, "
            "width, 4] (RGB and transparency), or the channels first: [3, height, width]."
        )
    if field.dtype.kind not in "iuf" or field.dtype == np.int8:
        raise SchemaError(
            f"data_schema(): {field.name!r} is an image with the dtype {field.dtype_name}, which "
            f"cannot hold pixels from 0 to {_BRIGHTEST}. Use uint8 or float32."
        )
    return Pixels(_MODES[channels], height, width, first, shape, field.dtype)


def decode_image(data: bytes, uri: str, wanted: Pixels) -> Array:
    """Return the pixels of an image.

    Args:
        data: Content of the file.
        uri: Name of the file, for errors.
        wanted: The form of the pixels.

    Raises:
        CorruptDataError: The file is not an image of a known format, or is damaged.
        DataError: The image has more pixels than Pillow's limit against decompression bombs.
        MissingExtraError: Pillow is not installed.
    """
    pixels = _decoded(data, uri, wanted.mode)
    if wanted.height is not None and wanted.width is not None:
        pixels = _resized(pixels, wanted.height, wanted.width)
    if pixels.dtype != wanted.dtype:
        is_rounded = pixels.dtype.kind == "f" and wanted.dtype.kind != "f"
        pixels = (np.rint(pixels) if is_rounded else pixels).astype(wanted.dtype)
    if wanted.channels_first:
        pixels = np.ascontiguousarray(pixels.transpose(2, 0, 1))
    if wanted.shape is not None:
        pixels = pixels.reshape(wanted.shape)
    # Arrays of Pillow are read-only, and the caller may change them.
    return pixels if pixels.flags.writeable else pixels.copy()


def image_size(data: bytes, uri: str) -> tuple[int, int]:
    """Return height and width of an image from its header.

    Raises:
        CorruptDataError: The file is not an image of a known format.
        DataError: The image has more pixels than Pillow's limit against decompression bombs.
        MissingExtraError: Pillow is not installed.
    """
    with _opened(data, uri) as image:
        width, height = image.size
    return height, width


def _decoded(data: bytes, uri: str, mode: str) -> Array:
    """Decode an image at its own size.

    Args:
        data: Content of the file.
        uri: Name of the file, for errors.
        mode: Pillow's name of the channels to return: `L`, `RGB` or `RGBA`.

    Returns:
        uint8 `[height, width, channels]`.

    Raises:
        CorruptDataError: The file is not an image of a known format, or is damaged.
        DataError: The image has more pixels than Pillow's limit against decompression bombs.
        MissingExtraError: Pillow is not installed.
    """
    try:
        with _opened(data, uri) as image:
            image.load()
            pixels = np.asarray(_converted(image, mode))
    except (DataError, MissingExtraError, MemoryError):
        raise
    except Exception as error:  # decoders raise errors of any kind for damaged files
        raise _undecodable(uri, f" ({str(error).rstrip('.')})") from error
    return pixels if pixels.ndim == max(_SHAPES) else pixels[..., np.newaxis]


def _opened(data: bytes, uri: str) -> Any:
    image = _pillow()
    if not data:
        raise _damaged(uri, "an empty file")
    try:
        return image.open(io.BytesIO(data), formats=_FORMATS)
    except image.DecompressionBombError as error:
        raise DataError(
            f"{uri} cannot be decoded: {str(error).rstrip('.')}. If the file is trustworthy, "
            "write it again at a smaller size."
        ) from error
    except MemoryError:
        raise
    except Exception as error:  # as above
        # Pillow knows a file by its header, which may be incomplete.
        if data.startswith(_STARTS):
            raise _undecodable(uri) from error
        raise _damaged(uri, "something else") from error


def _damaged(uri: str, found: str) -> CorruptDataError:
    return CorruptDataError(uri, 0, _EXPECTED, found, _ADVICE)


def _undecodable(uri: str, reason: str = "") -> CorruptDataError:
    return CorruptDataError(
        uri, 0, None, f"damaged or cut off: it cannot be decoded{reason}", _ADVICE
    )


def _converted(image: Any, mode: str) -> Any:
    if image.mode.startswith("I"):
        # 16 bits of grey: Pillow would cut brightness off at 255 instead of scaling it.
        grey = (np.asarray(image) >> 8).clip(0, _BRIGHTEST).astype(np.uint8)
        return _pillow().fromarray(grey).convert(mode)
    if "transparency" in image.info and image.mode != mode:
        # Directly, Pillow warns that the transparency of a palette is lost.
        image = image.convert("RGBA")
    if image.mode not in ("1", "L", "LA", "RGB", "RGBA"):
        image = image.convert("RGB")
    return image.convert(mode)


def _pillow() -> ModuleType:
    try:
        from PIL import Image  # noqa: PLC0415 - of an extra
    except ImportError as error:
        raise MissingExtraError("pillow", "images", needed_for="A folder of images") from error
    module: ModuleType = Image
    return module


def _resized(pixels: Array, height: int, width: int) -> Array:
    """Resize an image by bilinear interpolation, with the same result as `tf.image.resize`.

    Args:
        pixels: uint8 `[height, width, channels]`.
        height: Requested height.
        width: Requested width.

    Returns:
        float32 `[height, width, channels]`; or `pixels`, if they have the requested size.
    """
    if pixels.shape[:2] == (height, width):
        return pixels
    above, below, down = _neighbours(pixels.shape[0], height)
    left, right, across = _neighbours(pixels.shape[1], width)
    across, down = across[:, np.newaxis], down[:, np.newaxis, np.newaxis]

    def row(which: Array) -> Array:
        rows = pixels[which]
        first = rows.take(left, axis=1).astype(np.float32)
        return first + (rows.take(right, axis=1) - first) * across

    top = row(above)
    return np.asarray(top + (row(below) - top) * down)


def _neighbours(size: int, wanted: int) -> tuple[Array, Array, Array]:
    """Return the input pixels and the weights for linear interpolation along one axis of an image.

    Args:
        size: Number of input pixels on the axis.
        wanted: Number of output pixels.

    Returns:
        Three arrays `[wanted]`: for each output pixel, the indices of the two input pixels beside
        it, and the weight of the second of them.
    """
    scale = np.float32(size) / np.float32(wanted)
    at = (np.arange(wanted, dtype=np.float32) + np.float32(0.5)) * scale - np.float32(0.5)
    lower = np.floor(at)
    first = np.maximum(lower, 0).astype(np.intp)
    second = np.minimum(np.ceil(at), size - 1).astype(np.intp)
    return first, second, at - lower
