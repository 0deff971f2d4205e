"""A process that has imported what is needed becomes a command, as often as somebody asks."""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from elasticdl.engines.federated.flower import prefork_client

# Stands for Flower's command; it says what it was called with and that it need not import anything.
CODE = """
import sys, time
from pathlib import Path
from elasticdl.engines.federated.protocol import wire
from elasticdl.engines.federated.flower import prefork_server

def command():
    what, *rest = sys.argv[1:]
    Path(sys.argv[-1]).write_text(f"{sys.argv[0]} {what} {len(sys.modules) == before}")
    if what == "raise":
        raise ValueError("mine")
    if what == "wait":
        time.sleep(60)
    if what.isdigit():
        sys.exit(int(what))

listener = wire.listen(Path(sys.argv[1]))
before = len(sys.modules)
prefork_server.serve(listener, command)
"""


@pytest.fixture(scope="module")
def path():
    """Return the socket of a prefork server."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "m")
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", CODE, path], stderr=subprocess.PIPE, text=True
        )
        yield path
        process.kill()
        process.communicate()


def run(path, *arguments):
    return prefork_client.main(str(path), [str(one) for one in arguments])


@pytest.mark.parametrize(("what", "code"), [("0", 0), ("3", 3), ("return", 0), ("raise", 1)])
def test_a_forked_process_ends_with_the_code_of_its_command(path, tmp_path, what, code):
    assert run(path, what, tmp_path / "said") == code
    assert (tmp_path / "said").read_text() == f"flwr-clientapp {what} True"


def test_a_forked_process_ends_when_its_command_is_killed(path, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-I", prefork_client.__file__, path, "wait", tmp_path / "x"]
    )
    deadline = time.monotonic() + 20
    while not (tmp_path / "x").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    (server,) = [one for one in psutil.Process().children() if str(path) in one.cmdline()[-1:]]
    (command,) = server.children()

    command.kill()

    assert process.wait(20) == 1


def test_a_command_waits_for_the_prefork_server(tmp_path):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "m")
        late = subprocess.Popen(
            [sys.executable, "-I", prefork_client.__file__, path, "5", tmp_path / "x"]
        )
        time.sleep(0.3)
        assert late.poll() is None
        server = subprocess.Popen([sys.executable, "-P", "-c", CODE, path])
        assert late.wait(20) == 5
        server.kill()
        server.wait()
