"""`elasticdl data`: generates sample data, prepares and indexes data, shows the content of files.

The commands only parse and print. The work is done in `data/`, which is imported only when it is
needed, so that `--help` is fast.
"""

from __future__ import annotations

import functools
import hashlib
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from elasticdl.cli.data_split import split
from elasticdl.cli.options import check_place
from elasticdl.cli.printable import echo
from elasticdl.data.wording import counted
from elasticdl.errors import DefinitionError, UsageError

if TYPE_CHECKING:
    from elasticdl.data.prepare import PreparedData, PrepareProgress
    from elasticdl.data.prepare_part import PartPreparation
    from elasticdl.data.samples import WrittenSample
    from elasticdl.data.schema import Schema
    from elasticdl.dialects.model_code import ModelCode

_FUNCTION = "prepare_data_for_a_single_file"
_MAX_FILES_NAMED = 5


@click.group()
def data() -> None:
    """Create, prepare and show record files.

    \b
    No data yet?
      elasticdl data sample digits --output=digits
    Texts, logs, anything that your own function can read?
      elasticdl data prepare --model_zoo=my_zoo --model_def=my_model \\
          --input='texts/*.txt' --output=my_data
    What is in a file?
      elasticdl data show my_data
    Some of the records for testing?
      elasticdl data split my_data --output=parts --parts=train=0.8,test=0.2
    Many files, or files on an object store?
      elasticdl data index my_data

    RecordIO, TFRecord, CSV and Parquet files, and images in a folder for each class, need no
    preparation: `elasticdl train --data` reads them directly.
    """


data.add_command(split)


# --- sample ------------------------------------------------------------------------------------


@data.command(short_help="Write a real sample data set; nothing is downloaded.")
@click.argument("name")
@click.option(
    "--output",
    required=True,
    metavar="DIR",
    callback=check_place,
    help="Folder in which train/ and test/ are created.",
)
@click.option(
    "--format",
    "sample_format",
    type=click.Choice(["recordio", "tfrecord", "csv", "parquet"]),
    default="recordio",
    show_default=True,
    help="File format; csv only for tables.",
)
@click.option("--seed", default=0, show_default=True, help="Random seed of the train/test split.")
def sample(name: str, output: str, sample_format: Any, seed: int) -> None:
    """Write a real sample data set: 80% of the records for training, the others for testing.

    \b
    NAME is one of
      digits          handwritten digits, 28 x 28, for models made for MNIST
      patches         colour pictures, 32 x 32, for models made for CIFAR-10
      iris            species of a flower, from four measurements
      wine            grower of a wine, from 13 measurements
      breast_cancer   whether a tumour is benign, from 30 measurements
      diabetes        progression of a disease, a number, from ten measurements

    They are part of scikit-learn: nothing is downloaded.

    \b
    Example:
      elasticdl data sample digits --output=digits
    """
    from elasticdl.data.samples import write_sample  # noqa: PLC0415 - not for `--help`

    _print_sample(output, write_sample(name, output, sample_format, seed))


def _print_sample(output: str, written: WrittenSample) -> None:
    echo(f"{written.sample.title}.\n")
    folders = {folder: str(Path(output, folder)) for folder in written.num_records}
    width = max(map(len, folders.values()))
    for folder, num_records in written.num_records.items():
        num_files = sum(Path(file).parent.name == folder for file in written.files)
        echo(f"  {folders[folder]:<{width}}  {num_records:,} records in {num_files} files")
    fields = [str(field) for field in written.schema.fields]
    shown = fields if len(fields) <= 6 else [*fields[:3], "...", fields[-1]]  # noqa: PLR2004
    echo(f"\nA record is  {', '.join(shown)}\n\nTry:")
    train, test = (shlex.quote(f"{folders[name]}/*") for name in ("train", "test"))
    echo(f"  elasticdl data show {shlex.quote(folders['test'])}")
    echo(f"  elasticdl train {written.sample.trains} \\")
    echo(f"      --data={train} --validation_data={test} --output=my_model")


# --- prepare -----------------------------------------------------------------------------------


@data.command(short_help="Convert your files to record files with your own function.")
@click.option("--model_zoo", required=True, metavar="DIR|URL", help="Folder with your model file.")
@click.option(
    "--model_def",
    required=True,
    metavar="NAME",
    help=f"Dotted name of the model file that has {_FUNCTION} and data_schema.",
)
@click.option(
    "--input",
    "inputs",
    required=True,
    metavar="GLOB",
    help="The files to prepare: names, patterns or folders, separated by commas; URIs, too.",
)
@click.option(
    "--output",
    required=True,
    metavar="DIR",
    callback=check_place,
    help="Folder for the record files.",
)
@click.option(
    "--num_processes",
    type=int,
    metavar="N",
    help="Number of processes. [default: one per core]",
)
@click.option(
    "--records_per_file",
    default=4096,
    show_default=True,
    metavar="N",
    help="Maximum number of records in one file; a file is also closed at 256 MB.",
)
@click.option(
    "--shuffle/--no-shuffle",
    default=True,
    show_default=True,
    help="Shuffle the records, or keep them in the order of the file names.",
)
@click.option("--seed", default=0, show_default=True, help="Random seed of the order.")
@click.option(
    "--compressor",
    type=click.Choice(["none", "snappy", "gzip"]),
    default="snappy",
    show_default=True,
    help="Compression of the record files.",
)
@click.option(
    "--overwrite", is_flag=True, help="Write all files again, even those that are up to date."
)
@click.option("--quiet", is_flag=True, help="Do not show progress.")
def prepare(
    *,
    model_zoo: str,
    model_def: str,
    inputs: str,
    output: str,
    num_processes: int | None,
    records_per_file: int,
    shuffle: bool,
    seed: int,
    compressor: Any,
    overwrite: bool,
    quiet: bool,
) -> None:
    """Convert files of any kind to record files with your own function, in parallel.

    The model file defines how:

    \b
      def data_schema():
          return [
              {"name": "image", "shape": [28, 28], "dtype": "float32"},
              {"name": "label", "shape": [1], "dtype": "int64"},
          ]
    \b
      def prepare_data_for_a_single_file(filename):
          image = ...             # read the file
          return image, label     # one record, in the order of data_schema()

    Instead of one record it may return a list of them, or yield them; a record may be a dict.
    With two arguments, (file_object, filename), it also receives the open file.

    Run the same command again to resume after an interruption, or to update files that changed.
    Finished files are kept if the function raises; the folder cannot be used for training until it
    is complete.

    \b
    Example:
      elasticdl data prepare --model_zoo=my_zoo --model_def=my_model \\
          --input='pictures/*/*.png' --output=my_data
    """
    from elasticdl.data.prepare import prepare_data  # noqa: PLC0415 - not for `--help`
    from elasticdl.engines.progress_bar import Silent, for_stream  # noqa: PLC0415

    reporter = Silent() if quiet else for_stream()
    begun = False

    def on_progress(progress: PrepareProgress) -> None:
        nonlocal begun
        if not begun and progress.num_done < progress.num_inputs:
            reporter.started("prepare", progress.num_inputs, "files", progress.num_done)
            begun = True
        if begun:
            reporter.advanced(progress.num_done, {})

    try:
        prepared = prepare_data(
            functools.partial(load_preparation, model_zoo, model_def),
            inputs,
            output,
            num_processes=num_processes,
            records_per_file=records_per_file,
            shuffle=shuffle,
            seed=seed,
            compressor=compressor,
            overwrite=overwrite,
            on_progress=on_progress,
        )
    finally:
        if begun:
            reporter.ended()
    _print_prepared(output, model_def, prepared)


def _print_prepared(output: str, model_def: str, prepared: PreparedData) -> None:
    num_files = len(prepared.files)
    echo(f"{prepared.num_records:,} records in {num_files:,} files in {output}")
    num_parts = prepared.num_kept_parts + prepared.num_made_parts
    if prepared.num_kept_parts:
        echo(
            f"  {prepared.num_kept_parts:,} of {num_parts:,} parts exist already, and their input "
            "files are unchanged."
        )
    if prepared.num_kept_of_other_code:
        echo(
            f"  {model_def} has changed since {prepared.num_kept_of_other_code:,} of them were "
            "written; they were kept. Use --overwrite to write them again."
        )


def load_preparation(model_zoo: str, model_def: str) -> PartPreparation:
    """Load the model file's `prepare_data_for_a_single_file` and the schema of its records.

    Called in every process of `elasticdl data prepare`.

    Args:
        model_zoo: The zoo, as the user wrote it.
        model_def: The model file in the zoo, as the user wrote it.

    Returns:
        The function, the schema, and a hash of the user's code that detects changes.

    Raises:
        UsageError: The zoo or the file is missing.
        DefinitionError: The file lacks the function or the schema.
        UserCodeError: The file raised while it was imported.
    """
    from elasticdl.data.prepare_part import PartPreparation  # noqa: PLC0415 - not for `--help`

    model_code = _load(model_zoo, model_def)
    function = model_code.find(_FUNCTION)
    if function is None:
        raise DefinitionError(
            f"{model_code.symbol}: there is no {_FUNCTION}(filename) in the file, the function "
            "that reads one of your files and returns its record. Add it; `elasticdl data prepare "
            "--help` shows one."
        )
    files = [module.__file__ for module in model_code.modules if module.__file__]
    code = hashlib.sha256(b"".join(Path(file).read_bytes() for file in files)).hexdigest()
    model = f"{model_zoo} {model_def}"
    return PartPreparation(function.value, _schema_of(model_code), str(function), model, code)


# --- index -------------------------------------------------------------------------------------


@data.command(short_help="Write an index of records, so that data opens faster.")
@click.argument("files", nargs=-1, required=True, metavar="DATA...")
@click.option("--quiet", is_flag=True, help="Do not show progress.")
def index(files: tuple[str, ...], *, quiet: bool) -> None:
    """Index data files and the positions of their records, so that they open faster.

    DATA is what you pass to `elasticdl train --data`: files, folders or patterns, of RecordIO,
    TFRecord, CSV, Parquet or images. Each folder with such files gets a hidden file,
    .elasticdl-index.
    Opening these files then takes only a listing of the folder. Without an index, CSV files and
    TFRecord files with small records are read from start to end.

    An index is used only while the folder is unchanged. After files are added, removed or
    changed, opening them prints a warning; run the same command to update the index. `elasticdl
    data prepare` also writes an index of its output.

    \b
    Examples:
      elasticdl data index my_data
      elasticdl data index 's3://bucket/logs/2024-*/*.csv'
    """
    from elasticdl.data.index_file import write_index_files  # noqa: PLC0415 - not for `--help`
    from elasticdl.data.sources import index_data  # noqa: PLC0415
    from elasticdl.engines.progress_bar import Silent, for_stream  # noqa: PLC0415

    reporter = Silent() if quiet else for_stream()
    begun = False

    def on_progress(num_done: int, num_files: int) -> None:
        nonlocal begun
        if not begun:
            reporter.started("index", num_files, "files")
            begun = True
        reporter.advanced(num_done, {})

    try:
        found = index_data(",".join(files), on_progress)
    finally:
        if begun:
            reporter.ended()
    written = write_index_files(found)
    echo(f"{found.num_records:,} records in {counted(len(found.files), 'file')}")
    for uri in written[:_MAX_FILES_NAMED]:
        echo(f"  {uri}")
    if len(written) > _MAX_FILES_NAMED:
        echo(f"  and {len(written) - _MAX_FILES_NAMED:,} more")


# --- show --------------------------------------------------------------------------------------


@data.command(short_help="Show record files: fields, shapes, the first records.")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--limit", default=5, show_default=True, help="Number of records to show.")
@click.option(
    "--model_zoo", metavar="DIR|URL", help="Folder with your model files, for --model_def."
)
@click.option(
    "--model_def", metavar="NAME", help="Decode records with the data_schema() of this model file."
)
@click.option(
    "--schema",
    "schema_text",
    metavar="TEXT",
    help='Decode records with this schema: "image: float32[28, 28], label: int64[1]".',
)
def show(
    files: tuple[str, ...],
    limit: int,
    model_zoo: str | None,
    model_def: str | None,
    schema_text: str | None,
) -> None:
    """Show record files: the number of records, their fields, and the first records.

    FILE is a file, a folder or a pattern, of RecordIO, TFRecord, CSV, Parquet or images. Records
    contain their values but not their shapes: a schema adds these. Images are drawn.

    \b
    Examples:
      elasticdl data show digits/test
      elasticdl data show 's3://bucket/logs/*.parquet' --limit=20
      elasticdl data show my_data --model_zoo=my_zoo --model_def=my_model
    """
    from elasticdl.cli import data_show  # noqa: PLC0415
    from elasticdl.cli.console import TableConsole  # noqa: PLC0415 - not for `--help`
    from elasticdl.data.overview import summarize_files  # noqa: PLC0415

    if limit < 0:
        raise UsageError(f"--limit={limit}: expected 0 or more.")
    schema = _asked_schema(model_zoo, model_def, schema_text)
    data_show.show(summarize_files(",".join(files), limit, schema), TableConsole())


def _asked_schema(
    model_zoo: str | None, model_def: str | None, schema_text: str | None
) -> Schema | None:
    if schema_text is not None and model_def is not None:
        raise UsageError("--schema and --model_def both define a schema. Use only one of them.")
    if schema_text is not None:
        return parse_schema(schema_text)
    if model_def is not None:
        return _schema_of(_load(model_zoo, model_def))
    if model_zoo is not None:
        raise UsageError(f"--model_zoo={model_zoo} needs --model_def, a model file in it.")
    return None


_FIELD = re.compile(r"\s*([^:\[\],]+?)\s*:\s*(\w+)\s*\[([\d\s,]*)\]\s*(?:,|$)")


def parse_schema(text: str) -> Schema:
    """Parse a schema in the format in which fields are shown: `label: int64[1]`.

    Raises:
        UsageError: The string has another format.
        DefinitionError: A dtype or a shape is invalid.

    Example:
        >>> print(*parse_schema("image: float32[28, 28], label: int64[1]").fields, sep="; ")
        image: float32[28, 28]; label: int64[1]
    """
    from elasticdl.data.schema import Schema  # noqa: PLC0415 - not for `--help`

    entries = []
    at = 0
    while at < len(text):
        found = _FIELD.match(text, at)
        if found is None:
            raise UsageError(
                f"--schema: {text[at:].strip()!r} is not a field; expected NAME: DTYPE[SHAPE], "
                'such as "image: float32[28, 28], label: int64[1]".'
            )
        name, dtype, shape = found.groups()
        sides = [int(side) for side in shape.replace(",", " ").split()]
        entries.append({"name": name, "shape": sides, "dtype": dtype})
        at = found.end()
    return Schema.from_user(entries, "--schema")


# --- the user's model file ---------------------------------------------------------------------


def _load(model_zoo: str | None, model_def: str) -> ModelCode:
    from elasticdl import zoo  # noqa: PLC0415 - not for `--help`
    from elasticdl.job import ModelReference  # noqa: PLC0415

    return zoo.load(ModelReference(zoo=model_zoo, model_def=model_def))


def _schema_of(model_code: ModelCode) -> Schema:
    from elasticdl.data.schema import Schema  # noqa: PLC0415 - not for `--help`
    from elasticdl.dialects.dialect_reader import call  # noqa: PLC0415

    symbol = model_code.find("data_schema")
    if symbol is None:
        raise DefinitionError(
            f"{model_code.symbol}: there is no data_schema() in the file, which defines the name, "
            "shape and dtype of each field of a record. Add it; `elasticdl data prepare --help` "
            "shows one."
        )
    value = call(symbol) if callable(symbol.value) else symbol.value
    return Schema.from_user(value, f"{symbol}: data_schema()")
