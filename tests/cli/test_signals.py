"""SIGTERM ends a command, also while packages are imported."""

from __future__ import annotations

import os
import subprocess
import sys


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
