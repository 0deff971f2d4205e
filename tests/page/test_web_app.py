"""The server as a browser meets it: a real one, on a port of its own."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from tests.page.conftest import (
    as_log,
    elastic_events,
    elastic_job,
    finished_events,
    joined,
    shifted_to_now,
    started,
    step,
    write_output,
)

from elasticdl.errors import UnavailableError, UsageError
from elasticdl.page.security import is_own_host, is_token
from elasticdl.page.web_server import PageProcess, parse_address, serve, warning_of


@contextmanager
def served(place, *flags):
    """Run `elasticdl job page`; yields its URL."""
    process = subprocess.Popen(
        [sys.executable, "-m", "elasticdl.cli.main", "job", "page", str(place), *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        line = process.stdout.readline()
        assert line.startswith("Job page: http://"), line + process.stderr.read()
        yield line.removeprefix("Job page: ").strip()
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


class Client:
    """Asks a server, with or without its token."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.address = parts.netloc
        self.token = parse_qs(parts.query)["token"][0]

    def get(self, path, *, token=True, host=None, cookie=None):
        connection = http.client.HTTPConnection(self.address, timeout=10)
        joint = "&" if "?" in path else "?"
        headers = {"Host": host or self.address, **({"Cookie": cookie} if cookie else {})}
        target = f"{path}{joint}token={self.token}" if token is True else path
        connection.request("GET", target, headers=headers)
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        return answer, body.decode()

    def json(self, path):
        answer, body = self.get(path)
        assert answer.status == 200, body
        return json.loads(body)

    @contextmanager
    def events(self, path):
        connection = http.client.HTTPConnection(self.address, timeout=15)
        connection.request("GET", f"{path}?token={self.token}", headers={"Host": self.address})
        answer = connection.getresponse()

        def following():
            while line := answer.readline():
                if line.startswith(b"data: "):
                    yield json.loads(line[6:])

        yield following()
        connection.close()


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served") / "<b>job & co"
    write_output(folder, finished_events())
    (folder / "report").mkdir()
    (folder / "report" / "report.html").write_text("<script>alert(1)</script>")
    with served(folder) as url:
        yield Client(url)


def test_the_url_is_on_loopback_with_a_token(client) -> None:
    assert client.address.startswith("127.0.0.1:")
    assert len(client.token) >= 30


def test_the_page_and_its_resources_are_served(client) -> None:
    answer, page = client.get("/")
    loaded = re.findall(r'(?:src|href)="(static/[^"]+)"', page)

    assert answer.status == 200
    assert len(loaded) >= 4
    for path in loaded:
        answer, _ = client.get(f"/{path}")
        assert answer.status == 200
        assert answer.headers["content-type"].split(";")[0] in {"text/css", "text/javascript"}


def test_the_page_uses_no_external_or_inline_code(client) -> None:
    answer, page = client.get("/")

    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert not re.search(r"https?://", page)
    assert not re.search(r"\son\w+=|<script>", page)
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["x-frame-options"] == "DENY"


def test_the_whole_page_is_smaller_than_half_a_megabyte(client) -> None:
    _, page = client.get("/")
    scripts = {*re.findall(r'"(static/[^"]+)"', page)}
    for path in list(scripts):
        if path.endswith(".js"):
            _, text = client.get(f"/{path}")
            scripts |= {f"static/{name}" for name in re.findall(r'from "\./([^"]+)"', text)}

    weight = len(page) + sum(len(client.get(f"/{path}")[1]) for path in scripts)
    assert len(scripts) >= 8
    assert weight < 500_000


def test_the_state_matches_the_log(client) -> None:
    state = client.json("/state.json")

    assert state["head"]["state"] == "finished"
    assert state["head"]["name"] == "<b>job & co"
    assert any("Worker 1 was lost" in finding["text"] for finding in state["findings"])


@pytest.mark.parametrize(
    "path", ["/", "/state.json", "/events", "/jobs.json", "/static/page.js", "/report"]
)
def test_requests_without_the_token_are_refused(client, path) -> None:
    # A random token may end in any letter.
    other = "y" if client.token.endswith("x") else "x"
    for wrong in (
        path,
        f"{path}?token=",
        f"{path}?token={client.token[:-1]}{other}",
        f"{path}?token=%ff",
    ):
        answer, body = client.get(wrong, token=False)
        assert answer.status == 403
        assert "Open the complete URL" in body
        assert "set-cookie" not in answer.headers


def test_the_cookie_of_the_first_page_suffices_for_the_rest(client) -> None:
    answer, _ = client.get("/")
    cookie = answer.headers["set-cookie"]

    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    again, _ = client.get("/state.json", token=False, cookie=cookie.split(";")[0])
    assert again.status == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", ""])
def test_dns_rebinding_is_refused(client, host) -> None:
    answer, body = client.get("/state.json", host=host or " ")

    assert answer.status in {400, 421}
    assert "Worker" not in body


def test_files_outside_the_output_are_not_served(client) -> None:
    for path in (
        "/static/../server.py",
        "/static/..%2Fserver.py",
        "/static/%2e%2e/server.py",
        "/static/none.js",
        "/static/%00.js",
        f"/static/{'x' * 5000}.js",
        "/..%2f..%2fjob.json",
        "//etc/passwd",
    ):
        answer, _ = client.get(path)
        assert answer.status == 404


def test_a_report_is_shown_and_runs_nothing(client) -> None:
    answer, body = client.get("/report?name=report")

    assert "<script>" in body
    policy = answer.headers["content-security-policy"]
    assert "sandbox" in policy
    assert "script-src" not in policy
    assert client.get("/report?name=../job")[0].status == 404


def test_names_that_utf8_or_a_screen_cannot_represent_are_escaped(tmp_path) -> None:
    odd = "\\ud800\\u202e\\u0000" + "x" * 10_000
    output = write_output(tmp_path / "a\x07b", [started(), step(1)])
    line = '{"event": "evaluated", "time": 1700000002, "step": 1, "epoch": 0, "metrics": '
    with (output / "events.jsonl").open("a") as log:
        log.write(f'{line}{{"loss": 1, "{odd}": 2}}}}\n')
    with served(output) as url:
        client = Client(url)
        (job,) = client.json("/jobs.json")["jobs"]
        state = client.json(f"/state.json?job={quote(job['name'])}")

    assert job["name"] == "a\\x07b"
    (metrics,) = [row["metrics"] for row in state["evaluations"]["rows"]]
    assert list(metrics) == ["loss", "\\ud800\\u202e\\x00" + "x" * 97 + " ..."]


def test_an_output_removed_while_open_is_still_shown(tmp_path) -> None:
    output = write_output(tmp_path / "job", finished_events())
    with served(output) as url:
        client = Client(url)
        before = client.json("/state.json")["head"]
        shutil.rmtree(output)
        time.sleep(1.0)
        jobs = client.json("/jobs.json")["jobs"]
        after = client.json("/state.json")["head"]

    assert jobs[0]["state"] == "finished"
    assert (before["step"], after["step"]) == (15, 15)
    assert any("no longer there" in note for note in after["notes"])


def test_two_hundred_viewers_including_slow_ones_are_served(tmp_path) -> None:
    output = write_output(tmp_path / "live", shifted_to_now(elastic_events()), held=True)
    with served(output) as url:
        client = Client(url)
        host, port = client.address.split(":")
        request = f"GET /events?token={client.token} HTTP/1.1\r\nHost: {client.address}\r\n"
        # Half of them never finish their request, the others never read the answer.
        slow = [socket.create_connection((host, int(port))) for _ in range(200)]
        for number, connection in enumerate(slow):
            connection.sendall((request + ("\r\n" if number % 2 else "")).encode())
        with client.events("/events") as events:
            first = next(events)
        state = client.json("/state.json")["head"]["state"]
        for connection in slow:
            connection.close()

    assert first["head"]["step"] == 15
    assert state == "running"


def test_a_missing_job_is_404(client) -> None:
    assert client.get("/state.json?job=other")[0].status == 404


def test_appended_events_are_pushed_as_changes_only(tmp_path) -> None:
    output = write_output(tmp_path / "live", shifted_to_now(elastic_events()), held=True)
    # Held by this very process, which lives.
    with served(output) as url, Client(url).events("/events") as events:
        first = next(events)
        with (output / "events.jsonl").open("ab") as log:
            now = step(16, rows=[(0, 0, 2, 7, 8)])
            log.write(as_log([*shifted_to_now([now]), *shifted_to_now([joined(2, 9, 0)])]))
        for _ in range(10):
            second = next(events)
            if "events" in second:
                break

    assert first["head"]["state"] == "running"
    assert set(first) >= {"head", "curves", "clock", "shards", "checkpoints", "about"}
    assert second["head"]["step"] == 16
    assert any(lane["rank"] == 2 for lane in second["clock"]["lanes"])
    assert "about" not in second


def test_a_folder_of_outputs_is_listed_with_losses(tmp_path) -> None:
    for name in ("a", "b"):
        write_output(tmp_path / name, finished_events(), elastic_job(name))
    with served(tmp_path) as url:
        client = Client(url)
        jobs = client.json("/jobs.json")["jobs"]
        state = client.json("/state.json?job=b")

    assert [job["name"] for job in jobs] == ["a", "b"]
    assert jobs[0]["loss_curve"]["x"][-1] == 15
    assert state["head"]["name"] == "b"


def test_a_port_in_use_is_reported_with_a_remedy(output) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"

        with pytest.raises(UnavailableError, match=f"Cannot listen on {address}.*--listen"):
            serve(str(output), address, print)


@pytest.mark.parametrize("listen", ["8080", "localhost", ":80", "a:b", "127.0.0.1:70000"])
def test_an_invalid_address_is_refused(output, listen) -> None:
    with pytest.raises(UsageError, match="expected HOST:PORT"):
        serve(str(output), listen, print)


def test_serving_other_machines_gives_a_warning() -> None:
    assert warning_of("127.0.0.1:0") is None
    assert warning_of("[::1]:0") is None
    assert "without encryption" in warning_of("0.0.0.0:80")
    assert parse_address("[::]:80") == ("::", 80)


def test_only_the_complete_token_is_accepted() -> None:
    assert is_token("abc", "abc")
    assert not any(is_token(given, "abc") for given in (None, "", "ab", "abcd", "\udc80"))


def test_the_machines_own_name_is_allowed() -> None:
    assert is_own_host(f"{socket.gethostname()}:80")
    assert is_own_host("train.example:80", allowed="train.example")


def test_a_page_beside_a_training_waits_for_its_log_and_ends_with_it(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("MY_PASSWORD", "sesame")
    told = []
    with PageProcess(str(tmp_path / "out"), told.append) as page:
        deadline = time.monotonic() + 30
        while not told and time.monotonic() < deadline:
            time.sleep(0.05)
        client = Client(told[0].removeprefix("Job page: "))
        before = client.json("/state.json")["head"]["state"]
        write_output(tmp_path / "out", shifted_to_now(elastic_events()), held=True)
        time.sleep(0.6)
        after = client.json("/state.json")["head"]["state"]
        has_secrets = "sesame" in Path(f"/proc/{page._process.pid}/environ").read_text()
    page._process.wait(10)

    assert (before, after) == ("unknown", "running")
    assert not has_secrets
    assert not Path(f"/proc/{page._process.pid}").exists()
