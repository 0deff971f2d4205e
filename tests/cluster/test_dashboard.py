"""Ray's dashboard of a job on a cluster, reached through a port-forward of the API server."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import signal
import subprocess
import sys
import threading
from urllib.parse import urlsplit

import pytest
from tests.cluster.api_server.resources import PODS
from tests.cluster.operator import Operator
from tests.cluster.pod_states import exited
from tests.cluster.test_launch import OPTIONS
from tests.cluster.test_progress import wait_until

from elasticdl import api, job_options

pytestmark = pytest.mark.timeout(120)

RAY_TOKEN = "a-token-of-ray"
# More than a socket or a websocket takes at once.
LARGE = bytes(range(256)) * (1 << 14)


class Dashboard(http.server.BaseHTTPRequestHandler):
    """What listens at port 8265 of a head's pod: it asks for Ray's token."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        is_known = self.headers.get("Authorization") == f"Bearer {RAY_TOKEN}"
        self._answer(200 if is_known else 401, body[::-1] if is_known else b"no token")

    def _answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def dashboard(api_server):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Dashboard) as server:
        api_server.ports[8265] = server.server_port
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield
        server.shutdown()


@pytest.fixture
def operator(api_server):
    with Operator(api_server, rewrite=lambda _: "sleep 90") as made:
        yield made


@pytest.fixture
def job(monkeypatch, kubeconfig):
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    return job_options.prediction_job(
        trained_model="s3://honest/model", data="s3://honest/a", output="s3://honest/b",
        num_workers=1,
    )  # fmt: skip


@contextlib.contextmanager
def command(name):
    process = subprocess.Popen(
        [sys.executable, "-m", "elasticdl.cli.main", "job", "dashboard", name,
         "--cluster=kubernetes"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)


def address_in(process):
    line = process.stdout.readline()
    assert line.startswith("Ray's dashboard: http://127.0.0.1:"), line + process.stderr.read()
    return urlsplit(line.split()[-1])


def post(connection, body, token=RAY_TOKEN):
    connection.request("POST", "/api/jobs/", body, {"Authorization": f"Bearer {token}"})
    answer = connection.getresponse()
    return answer.status, answer.read()


def test_the_dashboard_is_reached_at_the_printed_url(api_server, operator, job, dashboard):
    api.run_on_cluster(job, OPTIONS, detach=True, print_fn=lambda _: None)

    with command(job.id) as process:
        found = address_in(process)
        connections = [http.client.HTTPConnection(found.netloc, timeout=20) for _ in range(2)]
        for connection in connections:
            with contextlib.closing(connection):
                # Twice: the connection is kept, as browsers do.
                assert post(connection, LARGE) == (200, LARGE[::-1])
                assert post(connection, b"ab") == (200, b"ba")
                assert post(connection, b"ab", token="wrong") == (401, b"no token")
    assert process.returncode == 0


def test_how_to_log_in_is_printed_and_the_token_is_not(api_server, operator, job, dashboard):
    api.run_on_cluster(job, OPTIONS, detach=True, print_fn=lambda _: None)

    with command(job.id) as process:
        address_in(process)
        said = process.stdout.readline()
    [head] = [each for each in api_server.store.list(PODS)
              if each["metadata"]["labels"].get("ray.io/node-type") == "head"]  # fmt: skip
    ray_cluster = head["metadata"]["labels"]["ray.io/cluster"]
    assert f"kubectl get secret {ray_cluster} --namespace=default " in said
    assert "auth_token" in said


def test_the_connection_follows_the_head_to_another_pod(operator, job, dashboard):
    api.run_on_cluster(job, OPTIONS, detach=True, print_fn=lambda _: None)

    with command(job.id) as process:
        found = address_in(process)
        operator.lose("head", exited(137))

        def answers():
            with contextlib.closing(http.client.HTTPConnection(found.netloc, timeout=20)) as one:
                try:
                    return post(one, b"ab") == (200, b"ba")
                except (http.client.HTTPException, OSError):
                    return False

        wait_until(answers)


def refused(name, *options):
    ended = subprocess.run(
        [sys.executable, "-m", "elasticdl.cli.main", "job", "dashboard", name, *options],
        check=False, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    return ended.returncode, ended.stderr


def test_a_missing_job_has_no_dashboard(operator, job):
    code, said = refused("none", "--cluster=kubernetes")

    assert (code, "There is no job 'none'" in said) == (2, True)


def test_missing_port_forwarding_permission_is_reported(api_server, operator, job, dashboard):
    api.run_on_cluster(job, OPTIONS, detach=True, print_fn=lambda _: None)
    api_server.access.forbid("create", "pods/portforward")

    code, said = refused(job.id, "--cluster=kubernetes")

    assert (code, "not allowed to forward a port of pod" in said) == (2, True)


def test_a_job_without_a_cluster_has_no_dashboard(tmp_path):
    code, said = refused(str(tmp_path))

    assert (code, "--cluster=kubernetes" in said) == (2, True)
