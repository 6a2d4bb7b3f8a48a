"""set_service_policy and service_policy: what operators say of a service."""

from typing import Any
from uuid import uuid4

import pytest

from tests.sql.api import Api

NOTHING: dict[str, Any] = {"failure_domain": None, "anti_affinity_services": []}
OTHERS = sorted(str(uuid4()) for _ in range(3))


@pytest.mark.parametrize("domain", ["node", "rack", "label:z", "label:" + "k" * 253])
def test_domains(api: Api, domain: str) -> None:
    service = uuid4()
    assert api.value("service_policy", service=service) == NOTHING
    policy = api.value("set_service_policy", service=service, policy={"failure_domain": domain})
    assert policy == NOTHING | {"failure_domain": domain}
    assert api.value("service_policy", service=service) == policy


def test_keys_not_given_stay(api: Api) -> None:
    service = uuid4()
    api.rows("set_service_policy", service=service, policy={"failure_domain": "node"})
    given = {"anti_affinity_services": [OTHERS[2], OTHERS[0].upper(), OTHERS[2]]}
    policy = api.value("set_service_policy", service=service, policy=given)
    assert policy == {"failure_domain": "node", "anti_affinity_services": [OTHERS[0], OTHERS[2]]}
    assert api.value("set_service_policy", service=service, policy={}) == policy
    policy = api.value("set_service_policy", service=service, policy={"failure_domain": None})
    assert policy == NOTHING | {"anti_affinity_services": [OTHERS[0], OTHERS[2]]}
    given = {"anti_affinity_services": []}
    assert api.value("set_service_policy", service=service, policy=given) == NOTHING
    given = {"anti_affinity_services": [str(service)]}  # it may keep away from itself
    assert api.value("set_service_policy", service=service, policy=given) == NOTHING | given


@pytest.mark.parametrize(
    ("field", "policy"),
    [
        ("policy", None),
        ("policy", []),
        ("policy.domain", {"domain": "node"}),
        ("policy.failure_domain", {"failure_domain": "zone"}),
        ("policy.failure_domain", {"failure_domain": "label:"}),
        ("policy.failure_domain", {"failure_domain": "label:" + "k" * 254}),
        ("policy.failure_domain", {"failure_domain": 7}),
        ("policy.anti_affinity_services", {"anti_affinity_services": OTHERS[0]}),
        ("policy.anti_affinity_services[1]", {"anti_affinity_services": [OTHERS[0], "x"]}),
        ("policy.anti_affinity_services[0]", {"anti_affinity_services": [None]}),
    ],
)
@pytest.mark.thorough
def test_bad_policies(api: Api, field: str, policy: Any) -> None:
    assert api.fault("set_service_policy", service=uuid4(), policy=policy) == field


def test_a_service_has_an_id(api: Api) -> None:
    assert api.fault("set_service_policy", service=None, policy={}) == "p_service"
    assert api.fault("service_policy", service=None) == "p_service"
