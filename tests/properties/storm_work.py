"""What the storm runs: nodes of several kinds, and leases with every kind of constraint."""

from collections.abc import Sequence
from random import Random
from typing import Any
from uuid import UUID, uuid5

from tests.oracle.cluster import Service
from tests.properties.strategies import IDS

Options = dict[str, Any]

QUEUE = "storm"
POLICY = {
    "claim_timeout": 30,
    "max_attempts": 50,
    "retry": {"kind": "fixed", "base": 1, "jitter": 0},
    "patience": 1,
}
LIMITS: dict[str, Options] = {
    "key": {"slots": 2, "by": "key", "turn": "1 s"},
    "fair": {"fair": True, "by": "key"},
    "all": {"slots": 5},
}
NODES = tuple(uuid5(IDS, f"storm-node-{number}") for number in range(6))
SERVICES = tuple(uuid5(IDS, f"storm-service-{number}") for number in range(3))
# fixed for the whole storm: a policy moves places as an edited node does
SERVICE_POLICIES: dict[UUID, Options] = {
    SERVICES[0]: {"failure_domain": "label:zone"},
    SERVICES[1]: {"failure_domain": "node", "anti_affinity_services": [str(SERVICES[0])]},
}
KNOWN_SERVICES = {SERVICES[0]: Service("label:zone"), SERVICES[1]: Service("node", (SERVICES[0],))}
ADOPTED: Options = {"labels": {"app": "adopted"}, "tenant": "adopted"}  # nothing asks about these
TAINTS = (
    {"key": "dedicated", "value": "batch", "effect": "no_schedule"},
    {"key": "busy", "effect": "prefer_no_schedule"},
    {"key": "leave", "effect": "no_execute"},
)
_APPS = ("x", "y", "z")
_DOMAINS = ("node", "rack", "rack", "label:zone", "label:zone")
_MOST = {"node": 1, "rack": 2, "label:zone": 2}


def node_spec(number: int, choose: Random, instance: int) -> Options:
    """A node as it is now: what it has room for is always the same, where it is changes."""
    labels = choose.choice([{"zone": "a"}, {"zone": "b"}, {"zone": "a", "disk": "ssd"}, {}])
    spec: Options = {
        "name": f"storm-{number}",
        "instance_id": str(instance),
        "labels": labels,
        "capacity": {},
        "cores": [],
        "gpus": [],
        "cpu_isolation": [],
        "default_cpu_isolation": "best_effort",
        "gpu_exclusivity": [],
        "gpu_share_mode": "fractional",
    }
    rack = choose.choice([0, 0, 1, 1, 2, None])
    if rack is not None:
        spec["rack"] = rack
    if choose.random() < 0.1:
        spec["taints"] = [choose.choice(TAINTS)]
    if on_fast_path(number):
        return spec
    if number % 3 == 1:
        spec["capacity"] = {"cpu_milli": 6000, "memory_mib": 4096, "license": 2}
        spec["slots"] = 5
    else:
        spec["cores"] = [
            {"core": core, "numa": core // 2, "threads": [core, core + 100]} for core in range(4)
        ]
        spec["cpu_isolation"] = ["whole_core", "strict_isolated"]
        spec["capacity"] = {"cpu_milli": 4000, "license": 1}
    spec["gpus"] = _devices(number)
    spec["gpu_exclusivity"] = ["session_exclusive", "device_exclusive", "partition_exclusive"]
    return spec


def on_fast_path(number: int) -> bool:
    """Whether the node counts nothing at all."""
    return number % 3 == 0


def _devices(number: int) -> list[Options]:
    whole, halved, *parts = [str(uuid5(IDS, f"storm-device-{number}-{n}")) for n in range(4)]
    return [
        {"resource_id": whole},
        {"resource_id": halved, "partitionable": True},
        *({"resource_id": part, "parent_resource_id": halved} for part in parts),
    ]


def limits(choose: Random) -> Options:
    """Places of a key, or turns of one, and perhaps of what all share besides."""
    shared: Options = choose.choice([{}, {"all": None}])
    return {"limits": {choose.choice(["key", "fair"]): choose.choice("abc"), **shared}}


def lease_options(choose: Random, others: Sequence[UUID], naming: float = 0.0) -> Options:
    """A lease of any kind; `others` are leases that it may ask about, so much more often."""
    options: Options = {"labels": {"app": choose.choice(_APPS)}, "tenant": "t"}
    if choose.random() < 0.3:
        options["labels"]["tier"] = "1"
    if choose.random() < 0.3:
        options["service_id"] = str(choose.choice(SERVICES))
    if choose.random() < 0.2:
        options["priority"] = choose.randint(0, 3)
    if choose.random() < 0.1:
        options["max_run"] = choose.choice([5, 20])
    if placement := _placement(choose, others, naming):
        options["placement"] = placement
    return options


def _placement(choose: Random, others: Sequence[UUID], naming: float) -> Options:
    placement: Options = {}
    if naming and others and choose.random() < naming:
        placement["require"] = [_about_a_lease(choose, others, choose.choice(_DOMAINS))]
    elif choose.random() < 0.5:
        placement["require"] = [
            _lasting(choose, _requirement(choose, others)) for _ in range(choose.choice([1, 1, 1, 2]))
        ]
    if choose.random() < 0.3:
        placement["spread"] = [_spread(choose)]
    if choose.random() < 0.2:
        when = _requirement(choose, others)
        placement["prefer"] = [{"weight": choose.choice([-50, 20, 100]), "when": when}]
    if choose.random() < 0.2:
        placement["tolerate"] = [{"key": choose.choice(["dedicated", "leave"]), "op": "exists"}]
    if choose.random() < 0.4:
        placement |= _amounts(choose)
    return placement


def _lasting(choose: Random, requirement: Options) -> Options:
    """The requirement; now and then it must hold as long as the lease runs."""
    lasts = "any" not in requirement and choose.random() < 0.1
    return requirement | ({"during": "execution", "grace": 5} if lasts else {})


def _requirement(choose: Random, others: Sequence[UUID]) -> Options:
    domain = choose.choice(_DOMAINS)
    about: Options = {"leases": {"labels": {"app": choose.choice(_APPS)}}, "domain": domain}
    if choose.random() < 0.2:
        about["tenants"] = "*"
    match choose.randrange(9):
        case 0 | 1 | 2:
            return about | {"away": True}
        case 3 | 4:
            return about
        case 5:
            exprs = [{"label": "tier", "op": choose.choice(["exists", "does_not_exist"])}]
            return {"leases": {"exprs": exprs}, "domain": domain, "away": True}
        case 6:
            service: Options = {"service": str(choose.choice(SERVICES))}
            service |= choose.choice([{}, {"domain": domain}])
            return service | choose.choice([{}, {"away": True}, {"away": True}])
        case 7 if others:
            return _about_a_lease(choose, others, domain)
        case _:
            zone = {"label": "zone", "op": "in", "values": [choose.choice("ab")]}
            return choose.choice([zone, {"any": [[zone], [about | {"away": True}]]}])


def _about_a_lease(choose: Random, others: Sequence[UUID], domain: str) -> Options:
    lease: Options = {"lease": str(choose.choice(others)), "domain": domain}
    return lease | choose.choice([{}, {"away": True}])


def _spread(choose: Random) -> Options:
    domain = choose.choice(_DOMAINS)
    select = choose.choice([{"labels": {"app": choose.choice(_APPS)}}, {"same": "task"}])
    if choose.random() < 0.1:
        return {"domain": "fleet", "max_per_domain": 4, "select": select}
    if choose.random() < 0.5:
        return {"domain": domain, "max_per_domain": _MOST[domain], "select": select}
    return {"domain": domain, "max_skew": choose.randint(1, 2), "select": select}


def _amounts(choose: Random) -> Options:
    resources: Options = choose.choice(
        [{"cpu_milli": 700}, {"cpu_milli": 2500}, {"memory_mib": 1500}, {"license": 1}, {}]
    )
    resources |= choose.choice([{}, {"gpu": 1}, {"gpu": 2}, {"gpu_milli": 400}])
    isolation: Options = {}
    if choose.random() < 0.4:
        isolation["cpu"] = choose.choice(["best_effort", "whole_core", "strict_isolated"])
    if "gpu" in resources and choose.random() < 0.5:
        kinds = ["shared", "session_exclusive", "device_exclusive", "partition_exclusive"]
        isolation["gpu"] = choose.choice(kinds)
    parts = {"resources": resources, "isolation": isolation}
    return {key: value for key, value in parts.items() if value}
