"""An image is asked for in its registry as container engines do, without credentials."""

from __future__ import annotations

import json
import socket
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from elasticdl import api
from elasticdl.cluster.findings import ClusterVerdict
from elasticdl.cluster.registry import image, parse_image
from elasticdl.errors import UsageError

DIGEST = "sha256:" + "4b" * 32


class Handler(BaseHTTPRequestHandler):
    """A registry whose images of `open/` are for anyone and of `team/` for those let in."""

    def do_HEAD(self):
        host = self.headers["Host"]
        name, _, reference = self.path.removeprefix("/v2/").partition("/manifests/")
        assert "application/vnd.oci.image.index.v1+json" in self.headers["Accept"]
        if self.server.wants_token and self.headers.get("Authorization") != f"Bearer for-{name}":
            realm = f'Bearer realm="{self.server.realm or f"http://{host}/token"}"'
            scope = f'service="reg",scope="repository:{name}:pull"'
            self.answer(401, {"WWW-Authenticate": f"{realm},{scope}"})
        elif name == "open/app" and reference in {"1", DIGEST}:
            self.answer(200, {"Docker-Content-Digest": DIGEST})
        else:
            self.answer(500 if name == "broken" else 404)

    def do_GET(self):
        self.server.token_requests.append(self.path)
        if "team" in self.path:
            return self.answer(401)
        body = json.dumps({"token": "for-open/app"}).encode()
        return self.answer(200, {"Content-Length": str(len(body))}, body)

    def answer(self, status, headers=None, body=b""):
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Be quiet."""


@contextmanager
def registry(*, wants_token=False, realm=None):
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.wants_token, server.realm, server.token_requests = wants_token, realm, []
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        server.host = f"127.0.0.1:{server.server_address[1]}"
        yield server
        server.shutdown()


@pytest.mark.parametrize("wants_token", [False, True])
def test_an_image_given_by_digest_passes(wants_token):
    with registry(wants_token=wants_token) as server:
        found = image(f"{server.host}/open/app@{DIGEST}")

    assert found.verdict is ClusterVerdict.OK
    assert server.token_requests == [
        "/token?service=reg&scope=repository%3Aopen%2Fapp%3Apull"
    ] * wants_token  # fmt: skip


def test_a_tag_gets_a_warning_with_its_digest():
    with registry() as server:
        found = image(f"{server.host}/open/app:1")

    assert found.verdict is ClusterVerdict.WARNING
    assert f"--image={server.host}/open/app@{DIGEST}" in found.advice


def test_a_missing_image_is_reported():
    with registry() as server:
        found = image(f"{server.host}/open/app:2")

    assert (found.verdict, found.exit_code) == (ClusterVerdict.MISSING, 2)


def test_images_behind_credentials_cannot_be_checked():
    with registry(wants_token=True) as server:
        found = image(f"{server.host}/team/app:1")

    assert found.verdict is ClusterVerdict.UNKNOWN
    assert "cannot check from here" in found.message


@pytest.mark.parametrize("realm", ["file://{folder}/token#", "no address"])
def test_a_token_is_requested_only_from_http_addresses(realm, tmp_path):
    (tmp_path / "token").write_text('{"token": "for-open/app"}')
    realm = realm.format(folder=tmp_path)

    with registry(wants_token=True, realm=realm) as server:
        assert image(f"{server.host}/open/app:1").verdict is ClusterVerdict.UNKNOWN


def test_an_unavailable_registry_does_not_block_a_job():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        silent = image(f"127.0.0.1:{unused.getsockname()[1]}/open/app:1")
    with registry() as server:
        failing = image(f"{server.host}/broken:1")

    assert (silent.verdict, silent.exit_code) == (ClusterVerdict.UNKNOWN, 0)
    assert "status 500" in failing.message


@pytest.mark.parametrize(
    "text",
    ["", "a b", "Team/App", "registry.example/", "registry.example/a@sha256:1", "a:b:c", "a/../b",
     "registry.example/a:\n", "https://registry.example/a"],
)  # fmt: skip
def test_an_invalid_reference_is_reported_without_a_request(text):
    found = image(text)

    assert found.verdict is ClusterVerdict.MISSING
    assert "is not an image reference" in found.message


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("localhost/a", ("localhost", "a", "latest")),
        ("localhost:5000/a/b:1", ("localhost:5000", "a/b", "1")),
        ("team/app", ("docker.io", "team/app", "latest")),
        (f"registry.example/a:1@{DIGEST}", ("registry.example", "a", DIGEST)),
    ],
)
def test_references_are_parsed_as_in_docker(text, parts):
    found = parse_image(text)

    assert (found.registry, found.name, found.reference) == parts


def test_a_deleted_digest_is_refused_without_an_engine(monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with registry() as server:
        api.check_image(f"{server.host}/open/app@{DIGEST}")
        with pytest.raises(UsageError, match="has no open/app sha256:0000"):
            api.check_image(f"{server.host}/open/app@sha256:{'0' * 64}")
        # Only a registry knows; this one cannot tell.
        api.check_image(f"{server.host}/broken@{DIGEST}")
