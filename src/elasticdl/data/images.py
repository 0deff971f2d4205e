"""Images as records: one file is one record, and the folder it is in may be its class.

A record has two fields, named by the schema: the field with two or three dimensions is the image,
the single number is the label, which is the index of the image's class among the sorted names of
all classes, as in Keras and torchvision. Without a schema, they are `image` (uint8 `[height, width,
3]`, at the image's own size) and `label`. As stored, a record is a `tf.Example` with the content of
the file in `image`.

Opening takes a listing: files are not read. JPEG files have no checksums, so only damage that the
decoder notices is detected.

`image_folders.py` finds images and their classes, `image_unit.py` decodes their fields. An index
stores the class of an image as the layout of its file.

Callers: `sources.py`.
"""

from __future__ import annotations

import copy
import functools
import json
import math
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from elasticdl.data.data_index import DataIndex, FileEntry, bad_entry, entries_by_index, entry_of
from elasticdl.data.file_ranges import Numbering
from elasticdl.data.formats import IMAGES
from elasticdl.data.image_decoding import image_size
from elasticdl.data.image_folders import classes_of
from elasticdl.data.image_unit import (
    UNIT_OVERHEAD_BYTES,
    ImageUnit,
    decode_images,
    no_class,
    roles_of,
)
from elasticdl.data.record_source import RecordFile
from elasticdl.data.stored_file import open_stored
from elasticdl.data.units import Units, is_remote, sample
from elasticdl.data.wording import counted, listed
from elasticdl.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from elasticdl.data.batch import Record
    from elasticdl.data.schema import Schema
    from elasticdl.data.stored_file import StoredFile

_CHANNELS = 3
_PARTS = {"train", "training", "val", "valid", "validation", "dev", "test", "testing", "eval"}
# Number of remote files that are read in parallel.
_PARALLEL_READS = 16


class ImageSource:
    """Image files as records; implements `RecordSource`.

    Args:
        uris: Images in reading order.
        index: An existing index of the files; it also contains their classes.
        roots: The folders that the user named, as URIs, which decide the classes. None: take the
            classes from the index.

    Raises:
        CorruptDataError: The index is invalid.
        DataError: A file cannot be accessed.
    """

    def __init__(
        self,
        uris: Sequence[str],
        index: DataIndex | None = None,
        roots: Iterable[str] | None = None,
    ) -> None:
        self._entries = entries_by_index(uris, index, _open)
        # Files that were not opened here may have changed since they were indexed.
        self._by_index = frozenset(() if index is None else index.uris)
        self._numbering = Numbering([RecordFile(entry.uri, 1) for entry in self._entries])
        if roots is None:
            self._class_of = [_class_in(entry) for entry in self._entries]
        else:
            self._class_of = classes_of(uris, roots)
        self._classes: tuple[str, ...] = ()
        # Message about an unknown class because of which the labels were removed.
        self.why_no_label = ""
        if None not in self._class_of:
            self._classes = tuple(sorted({name for name in self._class_of if name is not None}))

    @property
    def files(self) -> Sequence[RecordFile]:
        """The images in reading order."""
        return self._numbering.files

    @property
    def num_records(self) -> int:
        """Number of images."""
        return self._numbering.num_records

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in the order of their labels; empty if an image has no class."""
        return self._classes

    @property
    def num_by_class(self) -> dict[str, int]:
        """Number of images in each class; empty if an image has no class."""
        numbers = dict.fromkeys(self._classes, 0)
        for name in self._class_of if self._classes else ():
            assert name is not None  # noqa: S101 - else there are no classes
            numbers[name] += 1
        return numbers

    @property
    def unclassified(self) -> str | None:
        """URI of the first image that has no class; None if all images have one."""
        pairs = zip(self._entries, self._class_of, strict=True)
        return next((entry.uri for entry, name in pairs if name is None), None)

    def numbered_by(self, classes: Sequence[str]) -> ImageSource:
        """Return the same images, labelled as a trained model numbers the classes.

        The label of an image becomes the position of its class in `classes`. Labels do not change
        if the names are only descriptions: there are as many names as class folders, but no folder
        has one of them ("zero", "one" for the folders "0", "1"). They then belong to the folders in
        sorted order.

        Args:
            classes: Names of the model's classes, in the order of their labels from 0.

        Raises:
            DataError: The class of an image is not in the list, or is there in other letters (upper
                or lower case) at another position.
        """
        if not self._classes:
            return self
        folders = set(self._class_of)
        unknown = folders - set(classes)
        if len(unknown) == len(folders) == len(classes):
            # Names for people, such as "zero" for the folder "0".
            self._check_order(classes)
            return self
        if unknown:
            first = next(i for i, name in enumerate(self._class_of) if name in unknown)
            raise DataError(
                f"{self._entries[first].uri} is in the class folder {self._class_of[first]!r}, "
                f"which is not one of the model's {len(classes):,} classes {listed(classes)} "
                f"(there {'is' if len(folders) == 1 else 'are'} "
                f"{counted(len(folders), 'class folder')}). Rename or remove the folder, or pass "
                "the folder that contains those of the classes."
            )
        return self._with_classes(classes)

    def _check_order(self, classes: Sequence[str]) -> None:
        given, own = ([name.casefold() for name in names] for names in (classes, self._classes))
        if given != own and sorted(given) == sorted(own):
            i = next(i for i, name in enumerate(given) if name != own[i])
            raise DataError(
                f"The class folders are {listed(self._classes)}, but the model's classes are "
                f"{listed(classes)}. Because they differ from the folder names, they would be "
                f"taken as new names for the folders in sorted order, {self._classes[i]!r} to "
                f"{classes[i]!r}. Spell them exactly like the folders; then their order may differ."
            )

    def without_classes(self, reason: str) -> ImageSource:
        """Return the same images without labels, to predict for classes that the model lacks.

        Args:
            reason: Why they have no labels; stored as `why_no_label`, for the error if the user
                asks for the labels.
        """
        other = self._with_classes(())
        other.why_no_label = reason
        return other

    def check_classified(self, schema: Schema, option: str = "--data") -> None:
        """Check before an evaluation that each image has a class, if the schema has a label.

        Args:
            schema: The schema.
            option: The option that names the images.

        Raises:
            MissingFieldError: An image is in no class folder.
            SchemaError: The schema does not fit images.
        """
        label = roles_of(schema).label
        if label is not None and not self._classes:
            raise no_class(self.unclassified or self.files[0].uri, label.name, option)

    def check_labels(self, schema: Schema) -> None:
        """Check before training that the images have classes that a model can learn to distinguish.

        Raises:
            DataError: The schema has a label, and the images are all in one class folder, or
                their folders are named like parts of a data set (`train`, `val`, ...).
            MissingFieldError: The schema has a label, and an image is in no class folder.
            SchemaError: The schema does not fit images.
        """
        label = roles_of(schema).label
        if label is None:
            return
        self.check_classified(schema)
        names = listed(self._classes)
        first = self.files[0].uri
        if len(self._classes) == 1:
            raise DataError(
                f"{first} and all other images are in one class folder, {names}, so there is "
                "nothing to learn. Pass the folder that contains a folder for each class, such as "
                "--data=pictures for pictures/cat and pictures/dog. If the images have one class "
                f"here and others elsewhere, list all of them in the model file: classes = [...]"
            )
        if self.are_parts():
            raise DataError(
                f"{first}: the folders {names} would be classes, but are named like parts of a "
                "data set. Pass them separately, such as --data=pictures/train "
                "--validation_data=pictures/val. If they are classes, list them in the model "
                "file: classes = [...]"
            )

    def are_parts(self) -> bool:
        """Return whether the class folders seem to be parts of a data set (`train`, `val`).

        That is so if all of them have such names; or if at least two have, and images are in
        subfolders of one of these.
        """
        parts = {name for name in self._classes if name.lower() in _PARTS}
        if len(parts) == len(self._classes):
            return True
        pairs = zip(self._entries, self._class_of, strict=True)
        return len(parts) > 1 and any(
            name in parts and entry.uri.rsplit("/", 2)[-2] != name for entry, name in pairs
        )

    def _with_classes(self, classes: Sequence[str]) -> ImageSource:
        other = copy.copy(self)
        other._classes = tuple(classes)  # noqa: SLF001 - of its own class
        vars(other).pop("_numbers", None)
        return other

    def index(self) -> DataIndex:
        """Return an index with the class of each image; see `data_index.py`."""
        named = zip(self._entries, self._class_of, strict=True)
        return DataIndex(
            IMAGES, tuple(entry._replace(layout=_layout(name)) for entry, name in named)
        )

    def read_bytes(self, start: int, stop: int) -> list[bytes]:
        """Return images `start` to `stop` (exclusive) as serialized `tf.Example`s.

        The field `image` is the content of the file, `label` the number of its class.

        Raises:
            DataError: A file cannot be read.
            IndexError: The range is not within 0 .. num_records.
        """
        return [image.serialized_one() for image in self._read(start, stop)]

    def read_records(self, start: int, stop: int, schema: Schema | None) -> list[Record]:
        """Return images `start` to `stop` (exclusive), decoded.

        Raises:
            CorruptDataError: A file is not an image, or is damaged.
            SchemaError: The schema does not fit images, or has a label and the images have none.
            IndexError: The range is not within 0 .. num_records.
        """
        return decode_images(self._read(start, stop), schema)

    def units(self, schema: Schema | None) -> Units:
        """Return one unit per image; see `units.UnitSource`."""
        del schema
        memory_bytes = sum(entry.size_bytes + UNIT_OVERHEAD_BYTES for entry in self._entries)
        remote = is_remote([entry.uri for entry in self._entries])
        return Units(np.ones(self.num_records, np.int64), memory_bytes, remote)

    def decoded_bytes(self) -> int:
        """Return the estimated memory of a decoded image at its own size, in bytes.

        It is computed from the sizes in the headers of some images; see `units.HasDecodedSize`.

        Raises:
            CorruptDataError: One of these headers is damaged.
        """
        units = [self.read_unit(number, None) for number in sample(self.num_records)]
        sizes = [math.prod(image_size(unit.data, unit.uri)) for unit in units]
        return _CHANNELS * max(sizes, default=0)

    def read_unit(self, index: int, schema: Schema | None) -> ImageUnit:
        """Return one image, not decoded yet; see `units.UnitSource`.

        Raises:
            DataError: The file cannot be read.
        """
        del schema
        entry = self._entries[index]
        file: StoredFile = entry.stored_file()
        if entry.uri in self._by_index:
            file = entry.indexed_file()
        data = file.read(0, entry.size_bytes)
        if len(data) < entry.size_bytes:
            raise DataError(
                f"{entry.uri} has changed while it was read: it had {entry.size_bytes:,} bytes and "
                f"now has {len(data):,}. Run the command again when the data is complete."
            )
        return ImageUnit(data, entry.uri, self._numbers[index] if self._classes else None)

    @functools.cached_property
    def _numbers(self) -> list[int]:
        """Class number (label) of each image; to be used only if all images have a class."""
        number = {name: i for i, name in enumerate(self._classes)}
        return [number[name] for name in self._class_of if name is not None]

    def _read(self, start: int, stop: int) -> list[ImageUnit]:
        self._numbering.check(start, stop)
        if is_remote([entry.uri for entry in self._entries[start:stop]]):
            with ThreadPoolExecutor(_PARALLEL_READS) as threads:
                return [*threads.map(lambda i: self.read_unit(i, None), range(start, stop))]
        return [self.read_unit(number, None) for number in range(start, stop)]


# --- files -------------------------------------------------------------------------------------


def _open(uri: str) -> FileEntry:
    return entry_of(open_stored(uri), 1, _layout(None))


def _layout(name: str | None) -> bytes:
    return json.dumps(name).encode()


def _class_in(entry: FileEntry) -> str | None:
    """Return the class in an entry of an index.

    Raises:
        CorruptDataError: The entry is invalid.
    """
    try:
        name = json.loads(entry.layout)
    except ValueError as error:
        raise bad_entry(entry, str(error)) from error
    if entry.num_records != 1 or not isinstance(name, str | None):
        raise bad_entry(entry, f"{entry.num_records} records of the class {name!r}")
    return name
