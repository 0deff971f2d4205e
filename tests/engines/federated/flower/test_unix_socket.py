"""Flower's commands on a unix socket: what they refuse, and what they hand over unseen."""

import http.server
import subprocess
import sys
import threading

import pytest
from flwr.proto import fleet_pb2

from elasticdl.engines.federated.flower import prefork_client
from elasticdl.engines.federated.flower.commands import (
    environment,
    unix_socket_command,
    write_commands,
)
from elasticdl.engines.federated.flower.protocol_constants import SOCKET


@pytest.mark.parametrize("mode", [0o755, 0o710, 0o701])
def test_commands_with_an_accessible_socket_folder_do_not_start(tmp_path, mode):
    tmp_path.chmod(mode)

    done = subprocess.run(
        [*unix_socket_command("flower-supernode"), "--help"],
        env=environment(tmp_path / "flwr", **{SOCKET: str(tmp_path / "s")}),
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1
    assert "other users can access it" in done.stderr


def test_commands_without_a_socket_do_not_start(tmp_path):
    done = subprocess.run(
        [*unix_socket_command("flwr"), "--help"],
        env=environment(tmp_path / "flwr"),
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1
    assert SOCKET in done.stderr


def test_an_executor_passes_a_token_in_the_environment(tmp_path):
    """What it starts sees the token in neither a command line nor, later, the environment."""
    said = tmp_path / "said"
    program = (
        "import os, sys; from pathlib import Path;"
        "from elasticdl.engines.federated.flower import prefork_client;"
        f"Path({str(said)!r}).write_text(' '.join([*prefork_client.with_token(sys.argv[1:]),"
        " str(prefork_client.TOKEN in os.environ), Path('/proc/self/cmdline').read_text()]))"
    )
    write_commands(tmp_path / "bin", {"flwr-clientapp": [sys.executable, "-c", program]})
    launch = (
        "from elasticdl.engines.federated.flower import unix_socket; unix_socket._hide_tokens()\n"
        "import subprocess\n"
        "from flwr.supercore.constant import TaskType\n"
        "from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor\n"
        "from flwr.supercore.superexec.executor.types import ExecutionSpec\n"
        "started = []\n"
        "popen = subprocess.Popen\n"
        "subprocess.Popen = lambda *a, **k: started.append(popen(*a, **k))\n"
        "SubprocessExecutor().launch(ExecutionSpec(TaskType.CLIENT_APP, 'host:1', 'the-token',"
        " True, None, False, None, False, 1))\n"
        "started[0].wait()\n"
        "import os; print('ELASTICDL_FLOWER_TOKEN' in os.environ)\n"
    )

    done = subprocess.run(
        [sys.executable, "-P", "-c", launch],
        env={**environment(tmp_path / "flwr"), "PATH": str(tmp_path / "bin")},
        capture_output=True,
        text=True,
        check=True,
    )

    arguments, still_there, line = said.read_text().partition(" False ")
    assert "--token the-token" in arguments
    assert still_there
    assert "the-token" not in line
    assert prefork_client.PLACEHOLDER in line
    assert done.stdout.strip() == "False"


class _NoHeartbeats(http.server.BaseHTTPRequestHandler):
    """An aggregator that lets a supernode in and fails at its heartbeats."""

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        answers = {
            "register-node": fleet_pb2.RegisterNodeFleetResponse(node_id=1),
            "activate-node": fleet_pb2.ActivateNodeResponse(node_id=1),
            "pull-messages": fleet_pb2.PullMessagesResponse(),
        }
        answer = answers.get(self.path.rpartition("/")[2])
        content = b"" if answer is None else answer.SerializeToString()
        self.send_response(500 if answer is None else 200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@pytest.mark.flower
def test_a_supernode_without_heartbeats_ends(tmp_path):
    """Otherwise it would seem connected on one side and gone on the other."""
    tmp_path.chmod(0o700)
    write_commands(tmp_path / "bin", {"flower-superexec": [sys.executable, "-c", "pass"]})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _NoHeartbeats) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{server.server_port}"
        done = subprocess.run(
            [*unix_socket_command("flower-supernode"), "--superlink", address, "--insecure"],
            env={
                **environment(tmp_path / "flwr", **{SOCKET: str(tmp_path / "s")}),
                "PATH": str(tmp_path / "bin"),
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        server.shutdown()

    assert "SuperNode ID: 1" in done.stdout + done.stderr
    assert "500" in done.stderr
    assert done.returncode == 1
