"""Whatever fits the OpenAPI document, and much that does not: the server answers as it says."""

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, assume, settings
from limits import parse
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi.checks import allow_header_conformance, positive_data_acceptance

from hwqueue.client import Client
from hwqueue.serve import create_app
from hwqueue.server import ServerSettings
from tests.server.conftest import live

# What the functions refuse is tested on every server: tests/sql/test_bad_input.py.

load_all_checks()
DOCUMENT = schemathesis.openapi.from_dict(create_app(ServerSettings(dsn="")).openapi()).exclude(
    path_regex="/stream$"  # they would not end
)
SECRET = "of an admin"
# GET is there, too: of a workflow of this name. The document has it under the path with {workflow}.
ALSO_A_NAME = ("/api/v1/workflows/check",)


@pytest.fixture(scope="module")
def address(database: str) -> Iterator[str]:
    """A server in a thread of its own, with a queue of the name that the examples use."""
    told = ServerSettings(dsn=database, auth="tokens", rate_limit=None, token_cache=timedelta(minutes=5))
    with pytest.MonkeyPatch.context() as patch, Client(database, pool_size=1) as client:
        # one of the checks is that tokens which nobody knows are refused
        patch.setattr("hwqueue.server.rate_limits._UNKNOWN_TOKENS", parse("100000/second"))
        client.create_queue("renders")
        client.create_token("admin", hashlib.sha256(SECRET.encode()).digest(), "admin")
        with live(create_app(told)) as url:
            yield url


@DOCUMENT.parametrize()
@settings(
    max_examples=4,
    derandomize=True,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
def test_the_server_keeps_its_word(case: schemathesis.Case[Any], address: str) -> None:
    # an empty list is nothing in a URL, and so nothing that could be refused
    assume([] not in (case.query or {}).values())
    if _is_long((case.query or {}).get("wait")):
        case.query["wait"] = 0.1  # nothing ends while it waits
    case.call_and_validate(
        base_url=address,
        headers={"Authorization": f"Bearer {SECRET}"},
        excluded_checks=[
            # rules that go over several members are the database's: what fits may still be refused
            positive_data_acceptance,
            *([allow_header_conformance] if case.path in ALSO_A_NAME else ()),
        ],
    )


def _is_long(wait: Any) -> bool:
    with suppress(TypeError, ValueError):
        return float(wait) > 1  # numbers come as text, too
    return False
