"""`elasticdl data`: generates sample data, prepares and indexes data, shows what is in files.

The commands only parse and print. What they do lies in `data/`, imported when it is needed, so
that `--help` answers at once.
"""

from __future__ import annotations

import functools
import hashlib
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from elasticdl.cli.options import check_place
from elasticdl.cli.printable import echo
from elasticdl.data.wording import counted
from elasticdl.errors import DefinitionError, UsageError

if TYPE_CHECKING:
    from elasticdl.data.prepare import PreparedData, Progress
    from elasticdl.data.prepare_part import Preparation
    from elasticdl.data.samples import WrittenSample
    from elasticdl.data.schema import Schema
    from elasticdl.dialects.reference import Reference

_FUNCTION = "prepare_data_for_a_single_file"
_MOST_FILES_NAMED = 5


@click.group()
def data() -> None:
    """Make, prepare and look at record files.

    \b
    No data yet?
      elasticdl data sample digits --output=digits
    Pictures, logs, whatever your own function reads?
      elasticdl data prepare --model_zoo=my_zoo --model_def=my_model \\
          --input='pictures/*/*.png' --output=my_data
    What is in a file?
      elasticdl data show my_data
    Many files, or files on an object store?
      elasticdl data index my_data

    RecordIO, TFRecord, CSV and Parquet files need no preparing: `elasticdl train --data` reads
    them as they are.
    """


# --- sample ------------------------------------------------------------------------------------


@data.command(short_help="Write real data to start with, without a download.")
@click.argument("name")
@click.option(
    "--output",
    required=True,
    metavar="DIR",
    callback=check_place,
    help="Gets the folders train/ and test/.",
)
@click.option(
    "--format",
    "sample_format",
    type=click.Choice(["recordio", "tfrecord", "csv", "parquet"]),
    default="recordio",
    show_default=True,
    help="What kind of files; csv is for the tables only.",
)
@click.option(
    "--seed", default=0, show_default=True, help="Decides which records are kept for the test."
)
def sample(name: str, output: str, sample_format: Any, seed: int) -> None:
    """Write real data to start with: four fifths to train on, the others to test.

    \b
    NAME is one of
      digits          handwritten digits, 28 x 28, for models made for MNIST
      patches         colour pictures, 32 x 32, for models made for CIFAR-10
      iris            which flower it is, from four measures
      wine            which grower made a wine, from 13 measures
      breast_cancer   whether a tumour is benign, from 30 measures
      diabetes        how a disease goes on, a number, from ten measures

    They come with scikit-learn: nothing is downloaded.

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


@data.command(short_help="Turn your files into record files, with your function.")
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
    help="How many processes work at it.  [default: one a core]",
)
@click.option(
    "--records_per_file",
    default=4096,
    show_default=True,
    metavar="N",
    help="At most so many records in one file; 256 MB close a file as well.",
)
@click.option(
    "--shuffle/--no-shuffle",
    default=True,
    show_default=True,
    help="Put records in random order, or keep that of the files' names.",
)
@click.option("--seed", default=0, show_default=True, help="Decides the random order.")
@click.option(
    "--compressor",
    type=click.Choice(["none", "snappy", "gzip"]),
    default="snappy",
    show_default=True,
    help="How the record files are compressed.",
)
@click.option("--overwrite", is_flag=True, help="Make all files again, also those up to date.")
@click.option("--quiet", is_flag=True, help="Show no progress.")
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
    """Turn files of any kind into record files, with your own function, in parallel.

    The model file says how:

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
    With two arguments, (file_object, filename), it is given the open file as well.

    The same command again goes on where it was stopped and makes only what changed. What is
    finished stays if the function raises; the folder is not trained on until all is there.

    \b
    Example:
      elasticdl data prepare --model_zoo=my_zoo --model_def=my_model \\
          --input='pictures/*/*.png' --output=my_data
    """
    from elasticdl.data.prepare import prepare_data  # noqa: PLC0415 - not for `--help`
    from elasticdl.engines.progress import Silent, for_stream  # noqa: PLC0415

    reporter = Silent() if quiet else for_stream()
    begun = False

    def on_progress(progress: Progress) -> None:
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
            f"  {prepared.num_kept_parts:,} of {num_parts:,} parts were there already and their "
            "input files are unchanged."
        )
    if prepared.num_kept_of_other_code:
        echo(
            f"  {model_def} has changed since {prepared.num_kept_of_other_code:,} of them were "
            "made; they were kept. --overwrite makes them again."
        )


def load_preparation(model_zoo: str, model_def: str) -> Preparation:
    """Return the user's function and schema; called in every process that prepares.

    Raises:
        UsageError: The zoo or the file is not there.
        DefinitionError: The file lacks the function or the schema.
        UserCodeError: The file raised while it was imported.
    """
    from elasticdl.data.prepare_part import Preparation  # noqa: PLC0415 - not for `--help`

    reference = _load(model_zoo, model_def)
    function = reference.find(_FUNCTION)
    if function is None:
        raise DefinitionError(
            f"{reference.symbol}: there is no {_FUNCTION}(filename) in the file, which is what "
            "reads one of your files and returns its record. Add it; "
            "`elasticdl data prepare --help` shows one."
        )
    files = [module.__file__ for module in reference.modules if module.__file__]
    code = hashlib.sha256(b"".join(Path(file).read_bytes() for file in files)).hexdigest()
    model = f"{model_zoo} {model_def}"
    return Preparation(function.value, _schema_of(reference), str(function), model, code)


# --- index -------------------------------------------------------------------------------------


@data.command(short_help="Count records once, so that data opens faster.")
@click.argument("files", nargs=-1, required=True, metavar="DATA...")
@click.option("--quiet", is_flag=True, help="Show no progress.")
def index(files: tuple[str, ...], *, quiet: bool) -> None:
    """Write an index beside data: its files and the positions of their records.

    DATA is what you pass to `elasticdl train --data`: files, folders or patterns, of RecordIO,
    TFRecord, CSV or Parquet. Each folder with such files gets a hidden file, .elasticdl-index.
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
    from elasticdl.engines.progress import Silent, for_stream  # noqa: PLC0415

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
    for uri in written[:_MOST_FILES_NAMED]:
        echo(f"  {uri}")
    if len(written) > _MOST_FILES_NAMED:
        echo(f"  and {len(written) - _MOST_FILES_NAMED:,} more")


# --- show --------------------------------------------------------------------------------------


@data.command(short_help="Look into record files: fields, shapes, the first records.")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--limit", default=5, show_default=True, help="How many records to show.")
@click.option("--model_zoo", metavar="DIR|URL", help="Where --model_def is.")
@click.option(
    "--model_def", metavar="NAME", help="Read records by the data_schema() of this model file."
)
@click.option(
    "--schema",
    "schema_text",
    metavar="TEXT",
    help='Read records by this schema: "image: float32[28, 28], label: int64[1]".',
)
def show(
    files: tuple[str, ...],
    limit: int,
    model_zoo: str | None,
    model_def: str | None,
    schema_text: str | None,
) -> None:
    """Look into record files: how many records, which fields, and the first of them.

    FILE is a file, a folder or a pattern, of RecordIO, TFRecord, CSV or Parquet. Records say of
    themselves what they hold, but not in which shape: that is what a schema adds. Pictures are
    drawn.

    \b
    Examples:
      elasticdl data show digits/test
      elasticdl data show 's3://bucket/logs/*.parquet' --limit=20
      elasticdl data show my_data --model_zoo=my_zoo --model_def=my_model
    """
    from rich.console import Console  # noqa: PLC0415 - not for `--help`

    from elasticdl.cli import data_show  # noqa: PLC0415
    from elasticdl.data.overview import look_into  # noqa: PLC0415

    if limit < 0:
        raise UsageError(f"--limit={limit}: expected 0 or more.")
    schema = _asked_schema(model_zoo, model_def, schema_text)
    data_show.show(look_into(",".join(files), limit, schema), Console())


def _asked_schema(
    model_zoo: str | None, model_def: str | None, schema_text: str | None
) -> Schema | None:
    if schema_text is not None and model_def is not None:
        raise UsageError("--schema and --model_def both say a schema. Leave one of them out.")
    if schema_text is not None:
        return parse_schema(schema_text)
    if model_def is not None:
        return _schema_of(_load(model_zoo, model_def))
    if model_zoo is not None:
        raise UsageError(f"--model_zoo={model_zoo} needs --model_def, a model file in it.")
    return None


_FIELD = re.compile(r"\s*([^:\[\],]+?)\s*:\s*(\w+)\s*\[([\d\s,]*)\]\s*(?:,|$)")


def parse_schema(text: str) -> Schema:
    """Return the schema that is written as fields are shown: `label: int64[1]`.

    Raises:
        UsageError: It is written in another way.
        DefinitionError: A dtype or a shape is impossible.

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
                f"--schema: {text[at:].strip()!r} is no field; expected NAME: DTYPE[SHAPE], such "
                'as "image: float32[28, 28], label: int64[1]".'
            )
        name, dtype, shape = found.groups()
        sides = [int(side) for side in shape.replace(",", " ").split()]
        entries.append({"name": name, "shape": sides, "dtype": dtype})
        at = found.end()
    return Schema.from_user(entries, "--schema")


# --- the user's model file ---------------------------------------------------------------------


def _load(model_zoo: str | None, model_def: str) -> Reference:
    from elasticdl import zoo  # noqa: PLC0415 - not for `--help`
    from elasticdl.job import ModelReference  # noqa: PLC0415
    from elasticdl.training.create import quiet_frameworks  # noqa: PLC0415

    quiet_frameworks()
    return zoo.load(ModelReference(zoo=model_zoo, model_def=model_def))


def _schema_of(reference: Reference) -> Schema:
    from elasticdl.data.schema import Schema  # noqa: PLC0415 - not for `--help`
    from elasticdl.dialects.reading import call  # noqa: PLC0415

    symbol = reference.find("data_schema")
    if symbol is None:
        raise DefinitionError(
            f"{reference.symbol}: there is no data_schema() in the file, which says the name, "
            "shape and dtype of each field of a record. Add it; `elasticdl data prepare --help` "
            "shows one."
        )
    value = call(symbol) if callable(symbol.value) else symbol.value
    return Schema.from_user(value, f"{symbol}: data_schema()")
