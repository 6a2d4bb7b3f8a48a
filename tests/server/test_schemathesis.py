"""Whatever fits the OpenAPI document, and much that does not: the server answers as it says."""

import hashlib
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import httpx
import pytest
import schemathesis
import uvicorn
from hypothesis import HealthCheck, Phase, settings
from limits import parse
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi.checks import positive_data_acceptance

from hwqueue.client import Client
from hwqueue.server import ServerSettings, create_app

load_all_checks()
DOCUMENT = schemathesis.openapi.from_dict(create_app(ServerSettings(dsn="")).openapi())
SECRET = "of an admin"


@pytest.fixture(scope="module")
def address(database: str) -> Iterator[str]:
    """A server in a thread of its own, with a queue of the name that the examples use."""
    with pytest.MonkeyPatch.context() as patch:
        # one of the checks is that tokens which nobody knows are refused
        patch.setattr("hwqueue.server.rates._UNKNOWN_TOKENS", parse("100000/second"))
        yield from _served(database)


def _served(database: str) -> Iterator[str]:
    with Client(database, pool_size=1) as client:
        client.create_queue("renders")
        client.create_token("admin", hashlib.sha256(SECRET.encode()).digest(), "admin")
    app = create_app(
        ServerSettings(
            dsn=database, auth="tokens", rate_limit=None, token_cache=timedelta(minutes=5)
        )
    )
    config = uvicorn.Config(app, port=0, log_config=None, access_log=False, proxy_headers=False)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        [socket] = server.servers[0].sockets
        yield f"http://127.0.0.1:{socket.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@DOCUMENT.parametrize()
@settings(
    max_examples=20,
    derandomize=True,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
def test_the_server_keeps_its_word(case: schemathesis.Case[Any], address: str) -> None:
    case.call_and_validate(
        base_url=address,
        headers={"Authorization": f"Bearer {SECRET}"},
        # rules that go over several members are the database's: what fits may still be refused
        excluded_checks=[positive_data_acceptance],
    )


def test_it_is_there(address: str) -> None:
    assert httpx.get(f"{address}/readyz").status_code == 200
