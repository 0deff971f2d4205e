"""What passes the front, looked at with a superlink that only writes down what it is asked."""

import asyncio

import httpx
import pytest

from elasticdl.engines.federated.flower.tls_proxy import FLEET, application


class Pieces(httpx.AsyncByteStream):
    async def __aiter__(self):
        yield b"ye"
        yield b"s"


class Superlink(httpx.AsyncBaseTransport):
    """Answers everything, and remembers what it was asked."""

    def __init__(self):
        self.asked = []
        self.down = False

    async def handle_async_request(self, request):
        if self.down:
            raise httpx.ConnectError("refused")
        body = b"".join([piece async for piece in request.stream])
        self.asked.append((request.method, request.url.raw_path.decode(), body, request.headers))
        headers = {"content-type": "application/x-protobuf", "server": "x"}
        return httpx.Response(200, headers=headers, stream=Pieces())


@pytest.fixture
def superlink():
    return Superlink()


@pytest.fixture
def ask(superlink):
    """Return a function that sends the front one request."""
    client = httpx.AsyncClient(transport=superlink, base_url="https://127.0.0.1:1")
    app = application(client, max_body_bytes=1000)

    def ask(method, path, content=b"", headers=None):
        async def request():
            # Paths as they are, not as httpx would tidy them up.
            transport = httpx.ASGITransport(app)
            url = httpx.URL("https://front").copy_with(raw_path=path.encode())
            async with httpx.AsyncClient(transport=transport) as front:
                return await front.request(method, url, content=content, headers=headers)

        return asyncio.run(request())

    return ask


@pytest.mark.parametrize("path", FLEET)
def test_a_fleet_request_passes_unchanged(ask, superlink, path):
    answer = ask("POST", path, b"body", {"x-signature": "s"})

    assert (answer.status_code, answer.content) == (200, b"yes")
    assert answer.headers["content-type"] == "application/x-protobuf"
    ((method, asked, body, headers),) = superlink.asked
    assert (method, asked, body, headers["x-signature"]) == ("POST", path, b"body", "s")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/control/start-run"),
        ("POST", "/v1/runtime/acquire-task"),
        ("GET", "/v1/fleet/get-run"),
        ("PUT", "/v1/fleet/get-run"),
        ("POST", "/v1/fleet/get-run/"),
        ("POST", "/v1/fleet/../control/start-run"),
        ("POST", "/v1/fleet/%2e%2e/control/start-run"),
        ("POST", "/v1/fleet/get-run%2f..%2f..%2fcontrol%2fstart-run"),
        ("POST", "//v1/fleet/get-run"),
        ("POST", "/V1/fleet/get-run"),
        ("POST", "/v1/fleet/get-run;x"),
        ("POST", "/v1/fleet/"),
        ("GET", "/docs"),
        ("GET", "/openapi.json"),
        ("GET", "/"),
    ],
)
def test_other_requests_do_not_pass(ask, superlink, method, path):
    answer = ask(method, path)

    assert answer.status_code == 404
    assert superlink.asked == []


def test_a_query_does_not_pass(ask, superlink):
    ask("POST", "/v1/fleet/get-run?path=/v1/control/start-run")

    assert superlink.asked[0][1] == "/v1/fleet/get-run"


@pytest.mark.parametrize("headers", [{}, {"content-length": "10"}, {"content-length": "x"}])
def test_a_body_that_is_too_long_is_refused_for_any_headers(ask, superlink, headers):
    answer = ask("POST", "/v1/fleet/push-object", b"x" * 1001, headers)

    assert answer.status_code == 413
    assert superlink.asked == []


def test_a_party_retries_when_the_superlink_is_down(ask, superlink):
    superlink.down = True

    assert ask("POST", "/v1/fleet/pull-messages").status_code == 503
    assert ask("GET", "/health").status_code == 503


def test_health_matches_the_superlink(ask, superlink):
    assert ask("GET", "/health").status_code == 200
    assert superlink.asked[0][:2] == ("GET", "/health")


def test_refused_requests_are_logged_without_control_characters(ask, caplog):
    ask("POST", "/v1/control/\x1b[2Jstart-run".replace("\x1b", "%1b"))

    assert "refused POST '/v1/control/\\x1b[2Jstart-run'" in caplog.text
