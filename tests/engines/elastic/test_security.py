"""No listener of a local elastic job is open to the network, and none trusts a stranger.

The job runs on a host of its own (a network namespace, `hosts.py`); the attacker is another host of
the same network. Where namespaces cannot be made, those tests are skipped and say so.
"""

import contextlib
import json
import os
import subprocess
import sys

import pytest
from tests.engines.elastic.hosts import NoNamespacesError, network_of
from tests.engines.elastic.training import MINIBATCH_SIZE, Training, write_numbers

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(300)]

# So that it lasts until the test is over.
WITHOUT_END = ["--num_epochs=1000", "--params=pause_s=0.05"]

# Asks the control store for its nodes, as a program of Ray's would.
ASK_THE_CONTROL_STORE = """
import sys
from ray._raylet import GcsClient
print(len(GcsClient(address=sys.argv[1]).get_all_node_info()))
"""

KNOCK = """
import json, socket, sys
opened = []
for port in json.loads(sys.argv[2]):
    try:
        socket.create_connection((sys.argv[1], port), timeout=2).close()
        opened.append(port)
    except OSError:
        pass
print(json.dumps(opened))
"""


def without_credentials(**more):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    return {**kept, **more}


@pytest.fixture(scope="module")
def hosts():
    with contextlib.ExitStack() as undo:
        try:
            yield undo.enter_context(network_of(2))
        except NoNamespacesError as error:
            pytest.skip(f"cannot make network namespaces: {error}")


@pytest.fixture(scope="module")
def training(hosts, tmp_path_factory):
    """A training on two workers of the first host."""
    folder = tmp_path_factory.mktemp("job")
    job = Training(
        folder / "out",
        [
            f"--data={write_numbers(folder / 'numbers.recordio')}",
            f"--minibatch_size={MINIBATCH_SIZE}", "--num_workers=2", *WITHOUT_END,
        ],
        run_by=hosts[0].command(),
    )  # fmt: skip
    with job:
        job.wait_for_workers(2)
        job.wait_for(lambda: job.events("step_committed"), "a step")
        yield job


def listeners(host):
    """Return (address, port, process) of everything that listens for TCP on a host."""
    found = subprocess.run(
        host.command("ss", "-ltnpH"), check=True, capture_output=True, text=True
    ).stdout.splitlines()
    rows = [line.split() for line in found]
    return [
        (row[3].rpartition(":")[0], int(row[3].rpartition(":")[2]), " ".join(row[5:]))
        for row in rows
    ]


def run_on(host, program, *arguments, environment):
    return subprocess.run(
        host.command(sys.executable, "-c", program, *arguments),
        check=False, capture_output=True, text=True, timeout=120, env=environment,
    )  # fmt: skip


def test_every_listener_of_a_local_job_is_on_loopback(training, hosts):
    found = listeners(hosts[0])

    names = " ".join(process for _, _, process in found)
    assert "gcs_server" in names
    assert "raylet" in names
    assert "Lighthouse" in names
    loopback = {"127.0.0.1", "[::ffff:127.0.0.1]", "[::1]"}
    assert [row for row in found if row[0] not in loopback] == []


def test_other_machines_cannot_reach_ports_of_a_local_job(training, hosts):
    job, attacker = hosts
    ports = sorted({port for _, port, _ in listeners(job)})

    answer = run_on(
        attacker, KNOCK, job.address, json.dumps(ports), environment=without_credentials()
    )

    assert len(ports) > 5
    assert json.loads(answer.stdout) == [], answer.stderr


@pytest.mark.parametrize(
    "credentials",
    [{}, {"RAY_AUTH_MODE": "disabled"}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "f" * 64}],
)
def test_other_users_cannot_access_the_control_store(training, hosts, credentials, tmp_path):
    ports = [port for _, port, process in listeners(hosts[0]) if "gcs_server" in process]
    environment = without_credentials(HOME=str(tmp_path), **credentials)

    answers = [
        run_on(hosts[0], ASK_THE_CONTROL_STORE, f"127.0.0.1:{port}", environment=environment)
        for port in ports
    ]

    assert ports
    for answer in answers:
        assert answer.returncode != 0, answer.stdout
        assert "AuthenticationError" in answer.stderr
