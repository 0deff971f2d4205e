"""`elasticdl data split`: divides record files into parts, such as for training and testing."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from elasticdl.cli.options import check_place
from elasticdl.cli.printable import echo
from elasticdl.data.wording import counted
from elasticdl.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elasticdl.data.split_files import WrittenPart


@click.command(short_help="Divide records into files for training and testing.")
@click.argument("files", nargs=-1, required=True, metavar="DATA...")
@click.option(
    "--output",
    required=True,
    metavar="DIR",
    callback=check_place,
    help="New or empty folder, in which each part gets a folder.",
)
@click.option(
    "--parts",
    default="train=0.8,test=0.2",
    show_default=True,
    metavar="NAME=SHARE,...",
    help="The parts and their shares of the records, which add up to 1.",
)
@click.option(
    "--stratify",
    metavar="FIELD",
    help="Divide the records of each value of this field evenly, such as those of each label.",
)
@click.option("--seed", default=0, show_default=True, help="Random seed of the division.")
@click.option("--quiet", is_flag=True, help="Do not show progress.")
def split(
    files: tuple[str, ...],
    output: str,
    parts: str,
    stratify: str | None,
    seed: int,
    *,
    quiet: bool,
) -> None:
    """Divide records at random into parts, and write these as files.

    DATA is what you pass to `elasticdl train --data`: files, folders or patterns, of RecordIO,
    TFRecord, CSV or Parquet. Each file becomes a file of the same format in each part; rows of CSV
    files are copied as they are. Nothing is overwritten; the output appears only once it is
    complete.

    The same command divides in the same way. To hold out records without writing files, use
    `elasticdl train --validation_split`.

    \b
    Examples:
      elasticdl data split flowers.csv --output=flowers --stratify=species
      elasticdl data split my_data --output=parts --parts=train=0.7,validation=0.1,test=0.2
    """
    from elasticdl.data.split_files import split_files  # noqa: PLC0415 - not for `--help`
    from elasticdl.data.split_parts import parse_parts  # noqa: PLC0415
    from elasticdl.engines.progress_bar import Silent, for_stream  # noqa: PLC0415

    if seed < 0:
        raise UsageError(f"--seed={seed}: expected 0 or more.")
    reporter = Silent() if quiet else for_stream()
    shown = ""

    def on_progress(title: str, done: int, total: int) -> None:
        nonlocal shown
        if title != shown:
            if shown:
                reporter.ended()
            shown = title
            reporter.started(title, total, "records")
        reporter.advanced(done, {})

    try:
        written = split_files(
            ",".join(files),
            output,
            parse_parts(parts),
            stratify=stratify,
            seed=seed,
            on_progress=on_progress,
        )
    finally:
        if shown:
            reporter.ended()
    _print_parts(written)


def _print_parts(written: Sequence[WrittenPart]) -> None:
    width = max(len(part.folder) for part in written)
    digits = max(len(f"{part.num_records:,}") for part in written)
    for part in written:
        echo(
            f"  {part.folder:<{width}}  {part.num_records:>{digits},} records in "
            f"{counted(part.num_files, 'file')}"
        )
    named = {Path(part.folder).name: part.folder for part in written}
    train = named.get("train", written[0].folder)
    others = [part.folder for part in written if part.folder != train]
    validation = next((named[name] for name in _VALIDATION if name in named), others[0])
    echo("\nNext:\n  elasticdl train --model_def=... \\")
    echo(
        f"      --data={shlex.quote(train)} --validation_data={shlex.quote(validation)} "
        "--output=my_model"
    )


_VALIDATION = ("validation", "valid", "val", "dev", "test")
