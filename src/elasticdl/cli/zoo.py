"""`elasticdl zoo`: lists the prebuilt models, or writes a model file to start from.

Prints what `zoo/catalogue.py` reads from the source. Loads no framework, so it is fast.
"""

from __future__ import annotations

import difflib
import shutil
from pathlib import Path

import click
from rich.table import Table

from elasticdl.cli.console import TableConsole
from elasticdl.cli.printable import echo
from elasticdl.errors import OutputError, OutputTakenError, UsageError
from elasticdl.zoo import catalogue


@click.group()
def zoo() -> None:
    """Show the prebuilt models, or create your own model file."""


@zoo.command("list")
def list_models() -> None:
    """List the prebuilt models with their data and params.

    \b
    Each of them can be trained without --model_zoo:
      elasticdl train --model_def=NAME --data=DATA --output=OUTPUT
    """
    table = Table("model_def", "what it does", "params", show_lines=True)
    for entry in catalogue.entries():
        params = "\n".join(map(str, entry.params))
        table.add_row(entry.name, f"{entry.summary}\n[dim]Data: {entry.data}[/dim]", params)
    console = TableConsole()
    console.print(table)
    console.print("More of one:  elasticdl zoo show NAME", highlight=False)


@zoo.command("show")
@click.argument("name")
def show_model(name: str) -> None:
    """Show the description of a prebuilt model, and where its source is."""
    found = {entry.name: entry for entry in catalogue.entries()}
    if name not in found:
        near = difflib.get_close_matches(name, found, n=1, cutoff=0.4)
        hint = f"Did you mean {near[0]!r}?" if near else f"There are {', '.join(found)}."
        raise UsageError(f"There is no prebuilt model {name!r}. {hint}")
    entry = found[name]
    click.secho(entry.name, bold=True)
    echo(f"{entry.doc}\n")
    echo(f"Params: {', '.join(map(str, entry.params)) or 'none'}")
    echo(f"Source: {entry.file}:{entry.line}")


@zoo.command("init")
@click.argument("folder", type=click.Path(path_type=Path))
def init(folder: Path) -> None:
    """Write a small commented model file into FOLDER, as a template for your own."""
    target = folder / catalogue.STARTER.name
    if target.exists():
        raise OutputTakenError(
            f"{target} exists already and was not changed. Choose another folder."
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(catalogue.STARTER, target)
    except OSError as error:
        raise OutputError(
            f"{target} cannot be written: {error.strerror}. Choose a folder that can be written."
        ) from error
    echo(f"Wrote {target}. It can be trained without changes:\n")
    echo("  elasticdl data sample digits --output digits")
    echo(
        f"  elasticdl train --model_zoo={folder} --model_def={target.stem} "
        "--data=digits/train --output=my_first_model\n"
    )
    echo("Then change the file, and train with another --output.")
