"""Sample data sets: real data that comes with scikit-learn, written as record files.

    OUTPUT/train/part-00000-of-00004.recordio ...    four fifths of the records, shuffled
    OUTPUT/test/part-00000-of-00002.recordio ...     the remaining fifth
    OUTPUT/.sample.json                              which sample it is, and its seed

This module defines the meaning of the records; the schema and the writers define their storage.

Callers: `cli/data.py`.
"""

from __future__ import annotations

import io
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np

from elasticdl.data import recordio, tfrecord
from elasticdl.data.atomic_file import AtomicFile
from elasticdl.data.field import Field
from elasticdl.data.index_file import INDEX_FILE
from elasticdl.data.schema import Schema
from elasticdl.did_you_mean import did_you_mean
from elasticdl.errors import MissingExtraError, OutputError, OutputTakenError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    Array: TypeAlias = np.ndarray[Any, Any]
    Columns: TypeAlias = Mapping[str, Array]

SampleFormat: TypeAlias = Literal["recordio", "tfrecord", "csv", "parquet"]
FORMATS: tuple[SampleFormat, ...] = get_args(SampleFormat)

_NUM_FILES = {"train": 4, "test": 2}
_TEST_SHARE = 0.2
_MARKER = ".sample.json"


@dataclass(frozen=True)
class Sample:
    """A data set that `elasticdl data sample` can write.

    Attributes:
        title: Its description, in one line.
        split: Function (random number generator) -> training records and test records, as two dicts
            of field name -> array.
        trains: Command line options of `elasticdl train` that select a prebuilt model suited to
            this data set; shown to the user as an example.
    """

    title: str
    split: Callable[[np.random.Generator], tuple[Columns, Columns]]
    trains: str


@dataclass(frozen=True)
class WrittenSample:
    """The files that `write_sample` wrote, and the schema of their records.

    Attributes:
        sample: The data set.
        schema: Schema of its records.
        num_records: Folder (`train`, `test`) -> number of records in it.
        files: All files, in order.
    """

    sample: Sample
    schema: Schema
    num_records: Mapping[str, int]
    files: tuple[str, ...]


def write_sample(
    name: str, output: str, sample_format: SampleFormat = "recordio", seed: int = 0
) -> WrittenSample:
    """Write a data set into `train/` and `test/` of a folder.

    Args:
        name: The data set; one of `SAMPLES`.
        output: The folder; created if it does not exist. The same call again writes the same files.
        sample_format: Format of the files.
        seed: Determines which records are in the test set, and their order.

    Raises:
        UsageError: The data set does not exist, or the format cannot store it.
        MissingExtraError: scikit-learn is not installed.
        OutputTakenError: Other files are in the folders, or another sample.
        OutputError: The folder cannot be written.
    """
    if name not in SAMPLES:
        raise UsageError(
            f"There is no sample {name!r}{did_you_mean(name, SAMPLES)} There are "
            f"{', '.join(SAMPLES)}."
        )
    sample = SAMPLES[name]
    train, test = sample.split(np.random.default_rng(seed))
    fields = tuple(Field(key, array.shape[1:], array.dtype) for key, array in train.items())
    if sample_format == "csv" and any(field.size > 1 for field in fields):
        raise UsageError(
            f"The records of {name} contain images, which CSV cannot hold. Choose one of recordio, "
            "tfrecord, parquet."
        )
    schema = Schema(fields)
    pieces = [
        (Path(output) / split / f"part-{i:05}-of-{num_files:05}.{sample_format}", columns, rows)
        for (split, num_files), columns in zip(_NUM_FILES.items(), (train, test), strict=True)
        for i, rows in enumerate(np.array_split(np.arange(len(columns["label"])), num_files))
    ]
    _make_folders([path for path, _, _ in pieces])
    _mark(Path(output), {"name": name, "seed": seed}, [path for path, _, _ in pieces])
    for path, columns, rows in pieces:
        part = {key: array[rows] for key, array in columns.items()}
        _WRITERS[sample_format](str(path), schema, part)
    return WrittenSample(
        sample,
        schema,
        {"train": len(train["label"]), "test": len(test["label"])},
        tuple(str(path) for path, _, _ in pieces),
    )


def _make_folders(files: Sequence[Path]) -> None:
    for folder in sorted({path.parent for path in files}):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            known = {path.name for path in files} | {INDEX_FILE}
            others = sorted({path.name for path in folder.iterdir()} - known)
        except OSError as error:
            raise OutputError(f"{folder} cannot be written: {error.strerror}.") from error
        if others:
            raise OutputTakenError(
                f"{folder} holds other files ({', '.join(others[:3])}), which would be read "
                "together with the sample. Choose another --output, or delete them."
            )


def _mark(output: Path, wanted: Mapping[str, Any], files: Sequence[Path]) -> None:
    """Write the marker file, which says which sample a folder contains.

    Args:
        output: The folder.
        wanted: Name and seed of the sample.
        files: Files of the sample, about to be written.

    Raises:
        OutputTakenError: One of the files exists, and belongs to another sample or seed.
        OutputError: The marker file cannot be written.
    """
    marker = output / _MARKER
    there = [path for path in files if path.exists()]
    try:
        found = json.loads(marker.read_text()) if marker.exists() else None
    except (OSError, ValueError):
        found = None
    if there and found != wanted:
        what = "files that are not known to be a sample"
        if isinstance(found, dict):
            what = " ".join(f"{key} {value}" for key, value in found.items())
        raise OutputTakenError(
            f"{output} contains {what}; {there[0].name} is not overwritten with "
            f"{' '.join(f'{key} {value}' for key, value in wanted.items())}. Use another --output, "
            "or delete it."
        )
    try:
        marker.write_text(json.dumps(wanted))
    except OSError as error:
        raise OutputError(f"{marker} cannot be written: {error.strerror}.") from error


# --- the data sets -----------------------------------------------------------------------------


def _datasets() -> Any:
    try:
        from sklearn import datasets  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise MissingExtraError("scikit-learn", "samples", "`elasticdl data sample`") from error
    return datasets


def _shuffled_split(
    columns: Columns, random: np.random.Generator, is_test: Array | None = None
) -> tuple[Columns, Columns]:
    """Return the training records and the test records, each in random order.

    Args:
        columns: Field name -> array with the values of all records.
        random: Determines the order, and the test records unless `is_test` is given.
        is_test: For each record, whether it belongs to the test set.
    """
    order = random.permutation(len(columns["label"]))
    if is_test is None:
        num_test = round(len(order) * _TEST_SHARE)
        test, train = order[:num_test], order[num_test:]
    else:
        test, train = order[is_test[order]], order[~is_test[order]]
    return (
        {key: array[train] for key, array in columns.items()},
        {key: array[test] for key, array in columns.items()},
    )


def _digits(random: np.random.Generator) -> tuple[Columns, Columns]:
    digits = _datasets().load_digits()
    images = _stretched(digits.images / 16 * 255, 28)
    columns = {"image": images.astype(np.float32), "label": _labels(digits.target)}
    return _shuffled_split(columns, random)


def _stretched(images: Array, side: int) -> Array:
    """Enlarge square images `[n, s, s]` to `[n, side, side]` by linear interpolation.

    The images of digits in scikit-learn have 8 by 8 pixels; models for MNIST need 28 by 28.
    """
    old = images.shape[1]
    # Positions of the centers of the new pixels among those of the old ones.
    places = np.clip((np.arange(side) + 0.5) * old / side - 0.5, 0, old - 1)
    weights = np.maximum(0, 1 - np.abs(places[:, np.newaxis] - np.arange(old)))
    return np.asarray(weights @ images @ weights.T)


def _labels(target: Array) -> Array:
    return target.astype(np.int64)[:, np.newaxis]


def _table(loader: str) -> Callable[[np.random.Generator], tuple[Columns, Columns]]:
    def split(random: np.random.Generator) -> tuple[Columns, Columns]:
        table = getattr(_datasets(), loader)()
        columns = {
            re.sub(r"[^0-9a-z]+", "_", name.lower()).strip("_"): values[:, np.newaxis]
            for name, values in zip(
                table.feature_names, table.data.astype(np.float32).T, strict=True
            )
        }
        is_class = table.target.dtype.kind == "i"
        label = table.target.astype(np.int64 if is_class else np.float32)
        return _shuffled_split({**columns, "label": label[:, np.newaxis]}, random)

    return split


# Class of each square of 64 pixels of the two photographs; `.` excludes a square that shows parts
# of two things.
_SQUARE, _PATCH, _STEP = 64, 32, 8
_KINDS = (
    "blue sky",
    "white sky",
    "pagoda",
    "lake",
    "bushes",
    "tree",
    "petals",
    "heart of a flower",
    "leaf in the light",
    "leaf in the dark",
)
_MAPS = (
    """
    000.011111
    0.22.11111
    0.222111.5
    ..222333.5
    ..222....5
    4....44445
    """,
    """
    .9999.....
    88.....999
    88.6776999
    88.6776999
    88.666.999
    .......999
    """,
)


def _patches(random: np.random.Generator) -> tuple[Columns, Columns]:
    try:
        photographs = _datasets().load_sample_images().images
    except ImportError as error:
        raise MissingExtraError("pillow", "samples", "`elasticdl data sample patches`") from error
    squares = [
        (kind, photograph[top : top + _SQUARE, left : left + _SQUARE])
        for photograph, kinds in zip(photographs, _MAPS, strict=True)
        for top, left, kind in _squares(kinds)
    ]
    kinds = np.array([kind for kind, _ in squares])
    # Whole squares go into the test set, so that no pixel is in both training and test.
    test_squares = np.zeros(len(squares), bool)
    for kind in range(len(_KINDS)):
        of_kind = random.permutation(np.flatnonzero(kinds == kind))
        test_squares[of_kind[: max(1, round(len(of_kind) * _TEST_SHARE))]] = True
    places = range(0, _SQUARE - _PATCH + 1, _STEP)
    images = [
        square[top : top + _PATCH, left : left + _PATCH]
        for _, square in squares
        for top in places
        for left in places
    ]
    per_square = len(places) ** 2
    columns = {
        "image": np.array(images, np.float32),
        "label": _labels(np.repeat(kinds, per_square)),
    }
    return _shuffled_split(columns, random, np.repeat(test_squares, per_square))


def _squares(kinds: str) -> Iterator[tuple[int, int, int]]:
    for row, line in enumerate(kinds.split()):
        for column, kind in enumerate(line):
            if kind != ".":
                yield row * _SQUARE, column * _SQUARE, int(kind)


SAMPLES: dict[str, Sample] = {
    "digits": Sample(
        "1,797 handwritten digits: 28 x 28 grey values from 0 to 255, labelled with the digit",
        _digits,
        "--model_def=mnist --num_epochs=3",
    ),
    "patches": Sample(
        "2,000 colour images of 32 x 32 pixels, cut from two photographs, in ten classes",
        _patches,
        "--model_def=cifar10 --num_epochs=10",
    ),
    "iris": Sample(
        "150 iris flowers, four measurements each, in three species",
        _table("load_iris"),
        '--model_def=classifier.DNN --params="num_classes=3, learning_rate=0.01" --num_epochs=20',
    ),
    "wine": Sample(
        "178 wines, 13 measurements each, from three growers",
        _table("load_wine"),
        '--model_def=classifier.DNN --params="num_classes=3, learning_rate=0.01" --num_epochs=20',
    ),
    "breast_cancer": Sample(
        "569 tumours, 30 measurements each, malignant (0) or benign (1)",
        _table("load_breast_cancer"),
        '--model_def=classifier.DNN --params="num_classes=2, learning_rate=0.01" --num_epochs=20',
    ),
    "diabetes": Sample(
        "442 patients, ten measurements each, and the disease progression after one year",
        _table("load_diabetes"),
        "--model_def=regressor.DNN "
        '--params="label_mean=150, label_scale=80, learning_rate=0.01" --num_epochs=20',
    ),
}
"""The data sets, by name."""


# --- writing -----------------------------------------------------------------------------------


def _records(schema: Schema, columns: Columns) -> Iterator[bytes]:
    for i in range(len(columns["label"])):
        yield schema.encode({name: array[i] for name, array in columns.items()})


def _write_recordio(path: str, schema: Schema, columns: Columns) -> None:
    with recordio.Writer(path) as writer:
        for record in _records(schema, columns):
            writer.write(record)


def _write_tfrecord(path: str, schema: Schema, columns: Columns) -> None:
    with tfrecord.TFRecordWriter(path) as writer:
        for record in _records(schema, columns):
            writer.write(record)


def _write_csv(path: str, schema: Schema, columns: Columns) -> None:
    del schema
    lines = [",".join(columns)]
    lines += [
        ",".join(str(value) for value in row)
        for row in zip(*(array.ravel() for array in columns.values()), strict=True)
    ]
    _write_file(path, ("\n".join(lines) + "\n").encode())


def _write_parquet(path: str, schema: Schema, columns: Columns) -> None:
    import pyarrow as pa  # noqa: PLC0415 - not for the other formats
    import pyarrow.parquet as pq  # noqa: PLC0415

    arrays = [
        pa.array(array.ravel())
        if field.size == 1
        else pa.FixedSizeListArray.from_arrays(pa.array(array.ravel()), field.size)
        for field, array in zip(schema.fields, columns.values(), strict=True)
    ]
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_arrays(arrays, list(columns)), buffer, write_page_checksum=True)
    _write_file(path, buffer.getvalue())


def _write_file(path: str, content: bytes) -> None:
    file = AtomicFile(path)
    file.write(content)
    file.publish()


_WRITERS: dict[SampleFormat, Callable[[str, Schema, Columns], None]] = {
    "recordio": _write_recordio,
    "tfrecord": _write_tfrecord,
    "csv": _write_csv,
    "parquet": _write_parquet,
}
