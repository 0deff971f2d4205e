"""The documents are true: their commands run, their files train, and nothing is left unsaid.

A block marked `console` is run line by line, in a folder of its own that all pages share as one
reader would; `python file=NAME` or `yaml file=NAME` is written there first. A command that an
earlier page gave is not run again: reading on does not undo what was read.

The README's first commands of a kind are processes of a shell. All others run in this process,
which has imported the frameworks: that takes most of the time.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import click
import pytest

import elasticdl
from elasticdl import errors
from elasticdl.cli.main import cli, main
from elasticdl.dialects import DIALECTS
from elasticdl.engines.federated.strategies.fusions import FUSIONS, Fusion

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TEXT = "\n".join(page.read_text() for page in PAGES)
BLOCK = re.compile(r"^```(.+?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


# What a shell would change.
OF_A_SHELL = re.compile(r"[|<>;&$`]")
# Each of them once is enough to see that the installed command runs.
STARTED_IN_A_SHELL = ("elasticdl data", "elasticdl train")


def named(page: Path) -> str:
    return page.name


@dataclass
class Reader:
    """Somebody who follows the pages in one folder."""

    folder: Path
    done: set[str] = field(default_factory=set)

    def follow(self, page: Path, *, in_a_shell: bool = False) -> None:
        for info, block in BLOCK.findall(page.read_text()):
            if info.startswith(("python file=", "yaml file=")):
                target = self.folder / info.partition("=")[2]
                target.parent.mkdir(exist_ok=True)
                target.write_text(block)
            elif info == "console":
                for line in block.splitlines():
                    self.run(line.removeprefix("$ "), in_a_shell=in_a_shell)

    def run(self, command: str, *, in_a_shell: bool) -> None:
        if command in self.done:
            return
        kind = " ".join(command.split()[:2])
        is_new = not any(done.startswith(kind) for done in self.done)
        is_ours = command.startswith("elasticdl ") and not OF_A_SHELL.search(command)
        if is_ours and not (in_a_shell and is_new and kind in STARTED_IN_A_SHELL):
            code, output = self._run_here(command)
        else:
            code, output = self._run_in_a_shell(command)
        assert code == 0, f"{command}\n{output}"
        self.done.add(command)

    def _run_here(self, command: str) -> tuple[object, str]:
        output, terminate = io.StringIO(), signal.getsignal(signal.SIGTERM)
        with (
            contextlib.chdir(self.folder),
            contextlib.redirect_stdout(output),
            contextlib.redirect_stderr(output),
            pytest.raises(SystemExit) as ended,
        ):
            main(shlex.split(command)[1:])
        signal.signal(signal.SIGTERM, terminate)
        return ended.value.code, output.getvalue()

    def _run_in_a_shell(self, command: str) -> tuple[object, str]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        result = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env={**os.environ, "PATH": path},
            check=False,
            capture_output=True,
            text=True,
            timeout=100,
        )
        return result.returncode, result.stdout + result.stderr


@pytest.fixture(scope="module")
def reader(tmp_path_factory) -> Reader:
    """Return somebody who has installed the package, without a clone, and has read the README."""
    reader = Reader(tmp_path_factory.mktemp("reader"))
    reader.follow(PAGES[0], in_a_shell=True)
    return reader


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("page", PAGES, ids=named)
def test_commands_of_a_page_run(page: Path, reader: Reader) -> None:
    reader.follow(page)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_are_valid(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text())

    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_the_site_is_built_without_warnings(tmp_path) -> None:
    pytest.importorskip("sphinx")
    build = [sys.executable, "-m", "sphinx", "--fail-on-warning", "-q", str(ROOT / "docs")]

    result = subprocess.run([*build, str(tmp_path)], check=False, capture_output=True, text=True)

    assert result.returncode == 0, result.stderr
    assert "--num_epochs" in (tmp_path / "reference/commands.html").read_text()


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_python_code_on_a_page_is_valid(page: Path) -> None:
    for info, block in BLOCK.findall(page.read_text()):
        if info.split()[0] == "python":
            compile(block, page.name, "exec")


def options(command: click.Command) -> set[str]:
    """Return the flags of a command and of the commands below it."""
    own = {
        name
        for parameter in command.params
        for name in (*parameter.opts, *parameter.secondary_opts)
        if name.startswith("--") and not getattr(parameter, "hidden", False)
    }
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            own |= options(command.get_command(context, name))
    return own


def test_every_flag_is_documented() -> None:
    documented = set(re.findall(r"--[a-z_-]+", TEXT)) | {"--help", "--version"}

    assert sorted(options(cli) - documented) == []


def test_help_names_every_dialect() -> None:
    command = cli.get_command(click.Context(cli), "train")
    (option,) = [parameter for parameter in command.params if parameter.name == "dialect"]

    assert [dialect.NAME for dialect in DIALECTS if dialect.NAME not in option.help] == []


def test_every_error_is_documented_with_its_exit_code() -> None:
    page = (ROOT / "docs/reference/exit-codes.md").read_text()
    rows = re.findall(r"^\| (\d+) .*\| ([^|]+) \|$", page, re.MULTILINE)
    documented = {name: int(code) for code, names in rows for name in re.findall(r"`(\w+)`", names)}

    for name, value in vars(errors).items():
        if isinstance(value, type) and issubclass(value, errors.ElasticDLError):
            assert documented.get(name) == value.exit_code, name


def test_every_public_name_is_documented() -> None:
    names = [name for name in elasticdl.__all__ if not name.startswith("_")]

    assert [name for name in names if not re.search(rf"\b{name}\b", TEXT)] == []


def row_of(fusion: Fusion) -> str:
    """Return how a row of the table of fusions begins."""
    params = ", ".join(f"`{name}` {param.default}" for name, param in fusion.params.items())
    cells = (f"`{fusion.name}`", f"[{fusion.title}]({fusion.paper})", params or "none")
    return f"| {' | '.join(cells)} | {fusion.needs({})} | "


def test_every_fusion_is_documented_correctly() -> None:
    page = (ROOT / "docs/guides/federated.md").read_text()
    section = page.partition("## Fusions")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]

    assert len(rows) == len(FUSIONS)
    for fusion, row in zip(FUSIONS.values(), rows, strict=True):
        assert row.startswith(row_of(fusion)), f"expected: {row_of(fusion)}"
