"""An image file in memory, decoded to the fields of a schema.

In the schema, the field with two or three dimensions is the image, and the field of a single number
is the label. `images.py` describes the records that are returned without a schema, or as stored.

Callers: `images.py`.
"""

from __future__ import annotations

import functools
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from elasticdl.data import example
from elasticdl.data.image_decoding import AS_STORED, decode_image, pixels_of
from elasticdl.data.image_folders import is_image
from elasticdl.data.schema import Field, MissingFieldError, Schema
from elasticdl.data.stored_file import local_path
from elasticdl.data.wording import listed
from elasticdl.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elasticdl.data.batch import Record
    from elasticdl.data.units import Selection

IMAGE, LABEL = "image", "label"
"""Names of the fields without a schema, and of records as stored."""

UNIT_OVERHEAD_BYTES = 200
"""Memory of the objects of a unit, beside the content of its file."""

_IMAGE_DIMENSIONS = (2, 3)
# Most of the time is spent in the decoders, which release the GIL.
_MAX_THREADS = 16
_FEW = 4


class ImageUnit:
    """An image file in memory, decoded on demand; see `units.Unit`.

    Args:
        data: Content of the file.
        uri: Name of the file.
        label: Number of its class; None if it has none.
    """

    def __init__(self, data: bytes, uri: str, label: int | None) -> None:
        self.data = data
        self.uri = uri
        self.label = label

    @property
    def memory_bytes(self) -> int:
        """Memory of the file, in bytes."""
        return len(self.data) + UNIT_OVERHEAD_BYTES

    @staticmethod
    def records(picked: Selection, schema: Schema | None) -> list[Record]:
        """Decode the images and their labels; see `units.Unit.records`."""
        return decode_images([picked.units[index] for index in picked.which.tolist()], schema)

    @staticmethod
    def serialized(picked: Selection) -> list[bytes]:
        """Return images as serialized `tf.Example`s; see `units.Unit.serialized`."""
        return [picked.units[index].serialized_one() for index in picked.which.tolist()]

    def serialized_one(self) -> bytes:
        """Return the image as a serialized `tf.Example`."""
        label = {} if self.label is None else {LABEL: np.array([self.label], np.int64)}
        return example.encode({IMAGE: [self.data], **label})


class Roles(NamedTuple):
    """The image field and the label field of a schema; None if the schema has no such field."""

    image: Field | None
    label: Field | None


@functools.lru_cache(maxsize=64)
def roles_of(schema: Schema) -> Roles:
    """Return which field of a schema is the image and which is the label; it may lack either.

    Raises:
        SchemaError: Several fields may be the image, or the label.
        MissingFieldError: The schema has a further field that is neither. A record of a folder of
            images has no value for it.
    """
    numbers = [field for field in schema.fields if field.dtype.kind in "biuf"]
    images = [field for field in numbers if len(field.shape) in _IMAGE_DIMENSIONS]
    labels = [field for field in numbers if field.size == 1 and field not in images]
    whole = [field for field in labels if field.dtype.kind != "f"]
    for found, what in ((images, "an image (two or three dimensions)"), (whole, "a whole number")):
        if len(found) > 1:
            raise SchemaError(
                f"data_schema(): {len(found)} fields are {what}: "
                f"{listed(field.name for field in found)}. A record of a folder of images has one "
                "image and one label."
            )
    # Some losses need the label as a floating-point number.
    label = next(iter(whole or labels), None)
    image = next(iter(images), None)
    others = [field for field in schema.fields if field not in (image, label)]
    if others:
        raise MissingFieldError(
            f"data_schema(): the field {others[0]} is neither an image nor a label; expected an "
            'image such as {"name": "image", "shape": [224, 224, 3], "dtype": "float32"} and a '
            'label such as {"name": "label", "shape": [], "dtype": "int64"}. A record of a folder '
            "of images has nothing else."
        )
    return Roles(image, label)


def decode_images(images: Sequence[ImageUnit], schema: Schema | None) -> list[Record]:
    """Return images as records, several decoded at a time.

    Raises:
        CorruptDataError: A file is not an image, or is damaged.
        SchemaError: The schema does not fit images, or has a label and an image has none.
    """
    if len(images) <= _FEW:
        return [_record(image, schema) for image in images]
    with ThreadPoolExecutor(min(_MAX_THREADS, os.cpu_count() or 1)) as threads:
        return [*threads.map(lambda image: _record(image, schema), images)]


def _record(image: ImageUnit, schema: Schema | None) -> Record:
    if schema is None:
        record = {IMAGE: decode_image(image.data, image.uri, AS_STORED)}
        if image.label is not None:
            record[LABEL] = np.array([image.label], np.int64)
        return record
    roles = roles_of(schema)
    record = {}
    for field in schema.fields:
        if field == roles.image:
            record[field.name] = decode_image(image.data, image.uri, pixels_of(field))
        else:
            record[field.name] = _label(image, field)
    return record


def _label(image: ImageUnit, field: Field) -> np.ndarray[Any, Any]:
    if image.label is None:
        raise no_class(image.uri, field.name)
    where = f"{image.uri}, field {field.name!r}"
    label = field.values(np.array(image.label, np.int64), where)
    return np.array(label, field.dtype).reshape(field.shape)


def no_class(uri: str, label: str, option: str = "--data") -> MissingFieldError:
    """Return the error for an image without a class, though it should have a label.

    Args:
        uri: URI of the image.
        label: Name of the field or column that would have the class.
        option: The option that names the images.
    """
    path = local_path(uri)
    folder = None if path is None else Path(path).parent
    if folder is not None and _looks_like_a_class(folder):
        return MissingFieldError(
            f"{uri} has no class, so the field {label!r} is missing: classes are the folders "
            f"directly in the one that {option} names. If {folder.name!r} is a class, pass the "
            f"folder above it, which contains all class folders: {option}={folder.parent}"
        )
    return MissingFieldError(
        f"{uri} is in no class folder, so the field {label!r} is missing. Put the images into "
        "a folder for each class, and pass the folder that contains these folders: "
        f"{option}=pictures for pictures/cat/1.jpg."
    )


def _looks_like_a_class(folder: Path) -> bool:
    """Return whether a folder of images may be a class folder, for the advice in an error.

    That is so if there is another folder of images beside it, and no image.
    """
    others = 0
    try:
        for each in folder.parent.iterdir():
            if is_image(each.name):
                return False
            if others or each.name == folder.name or each.name.startswith(".") or not each.is_dir():
                continue
            others += any(is_image(file.name) for file in each.iterdir())
    except OSError:
        return False
    return others > 0
