"""SIGTERM ends a command, also while packages are imported."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import click
import pytest

from elasticdl.cli import main


def run_command(folder, doing):
    """Run a command that does something and then works for long."""
    (folder / "command.py").write_text(
        "import time\n"
        "import click\n"
        "from elasticdl.cli.main import cli, main\n"
        "@click.command()\n"
        "def work():\n"
        f"    {doing}\n"
        "    time.sleep(20)\n"
        "cli.get_command = lambda context, name: work\n"
        "main(['train'])\n"
    )
    return subprocess.run(
        [sys.executable, str(folder / "command.py")],
        check=False,
        capture_output=True,
        text=True,
        timeout=50,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])},
    )


def test_sigterm_during_an_import_is_handled_after_it(tmp_path) -> None:
    # As packages do with their optional parts.
    (tmp_path / "optional.py").write_text(
        "import os, signal, time\n"
        "try:\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    time.sleep(0.5)\n"
        "except:\n"
        "    pass\n"
    )
    done = run_command(tmp_path, "import optional")

    assert done.returncode == 143, done.stderr


@pytest.mark.parametrize(
    ("name", "doing", "code"),
    [
        ("SIGTERM", "finalized.Slow()", 143),
        ("SIGINT", "finalized.Slow()", 130),
        ("SIGTERM", "finalized.called_back()", 143),
    ],
)
def test_a_signal_during_a_finalizer_is_handled_after_it(tmp_path, name, doing, code) -> None:
    """Python prints exceptions of a finalizer and continues."""
    (tmp_path / "finalized.py").write_text(
        "import os, signal, time, weakref\n"
        "def work(*_):\n"
        f"    os.kill(os.getpid(), signal.{name})\n"
        "    time.sleep(0.2)\n"
        "class Slow:\n"
        "    __del__ = work\n"
        "class Plain:\n"
        "    pass\n"
        "def called_back():\n"
        "    plain = Plain()\n"
        "    kept = weakref.ref(plain, work)\n"
        "    del plain\n"
    )
    began_s = time.monotonic()

    done = run_command(tmp_path, f"import finalized; {doing}")

    assert done.returncode == code, done.stderr
    assert time.monotonic() - began_s < 15
    assert "Exception ignored" not in done.stderr


@pytest.mark.parametrize(
    ("notes", "said"),
    [
        ([], "\nInterrupted.\n"),
        (["Progress is saved up to step 9."], "\nInterrupted. Progress is saved up to step 9.\n"),
    ],
)
def test_the_message_on_ctrl_c_promises_only_what_was_saved(
    monkeypatch, capsys, notes, said
) -> None:
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
