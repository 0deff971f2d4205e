"""SIGTERM ends a command, also while packages are imported."""

from __future__ import annotations

import os
import subprocess
import sys

import click
import pytest

from elasticdl.cli import main


def test_sigterm_within_an_import_is_answered_after_it(tmp_path) -> None:
    # As packages do with their optional parts.
    (tmp_path / "optional.py").write_text(
        "import os, signal, time\n"
        "try:\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    time.sleep(0.5)\n"
        "except:\n"
        "    pass\n"
    )
    # A command that imports it and then works for long.
    (tmp_path / "command.py").write_text(
        "import time\n"
        "import click\n"
        "from elasticdl.cli.main import cli, main\n"
        "@click.command()\n"
        "def work():\n"
        "    import optional\n"
        "    time.sleep(20)\n"
        "cli.get_command = lambda context, name: work\n"
        "main(['train'])\n"
    )
    done = subprocess.run(
        [sys.executable, str(tmp_path / "command.py")],
        check=False,
        capture_output=True,
        text=True,
        timeout=50,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
    )

    assert done.returncode == 143, done.stderr


@pytest.mark.parametrize(
    ("notes", "said"),
    [
        ([], "\nInterrupted.\n"),
        (["Progress is saved up to step 9."], "\nInterrupted. Progress is saved up to step 9.\n"),
    ],
)
def test_ctrl_c_promises_only_what_the_command_has_saved(monkeypatch, capsys, notes, said) -> None:
    def work(*, standalone_mode: bool, **given: object) -> None:
        # As click does with it.
        try:
            interrupt = KeyboardInterrupt()
            for note in notes:
                interrupt.add_note(note)
            raise interrupt
        except KeyboardInterrupt as error:
            raise click.Abort from error

    monkeypatch.setattr(main.cli, "main", work)

    assert main._run([], debug=False) == 130
    assert capsys.readouterr().err == said
