"""Without keys, processes of other users are not served."""

import sys

import httpx
import pytest
from starlette.responses import PlainTextResponse

from elasticdl.engines.federated.flower.same_user import REFUSAL, SameUserOnly

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="of Linux")


@pytest.mark.anyio
async def test_other_users_are_refused():
    """The connection that the request claims to come from does not exist."""
    app = SameUserOnly(PlainTextResponse("secret"))
    transport = httpx.ASGITransport(app, client=("127.0.0.1", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:2") as client:
        answer = await client.get("/v1/fleet/get-run")

    assert (answer.status_code, answer.text) == (403, REFUSAL)
