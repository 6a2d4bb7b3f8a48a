"""GPUs as people type them: `MODEL[:MEMORY][xN]`, such as `A100:80GiB` or `MI300X:192GiBx8`."""

import re
from collections.abc import Sequence
from uuid import NAMESPACE_DNS, uuid5

from hwqueue.errors import ConfigError
from hwqueue.types import Gpu

_NAMESPACE = uuid5(NAMESPACE_DNS, "gpu.hwqueue")
_SPEC = re.compile(r"(?P<model>[^:]+?)(:(?P<amount>\d+)(?P<unit>MiB|GiB|M|G))?(x(?P<count>\d+))?")
_HALF_COUNT = re.compile(r"\dx$")  # A100x
_MIB_OF_UNIT = {"M": 1, "MiB": 1, "G": 1024, "GiB": 1024}
_MOST = 1024


def gpus_of(specs: Sequence[str], node_name: str) -> tuple[Gpu, ...]:
    """The devices that `--gpu` names, in their order.

    Their ids are made from the node's name and their place in the list: the same line names the
    same devices at every start.

    Raises: ConfigError.
    """
    kinds = [kind for spec in specs for kind in _kinds_of(spec)]
    if len(kinds) > _MOST:
        raise ConfigError(f"--gpu: {len(kinds)} devices; a node has at most {_MOST}")
    return tuple(
        Gpu(resource_id=uuid5(_NAMESPACE, f"{node_name}/{place}"), model=model, memory_mib=memory_mib)
        for place, (model, memory_mib) in enumerate(kinds)
    )


def _kinds_of(spec: str) -> list[tuple[str, int | None]]:
    """Model and memory in MiB, once for each device."""
    found = _SPEC.fullmatch(spec)
    count = int(found["count"] or 1) if found else 0
    if found is None or _HALF_COUNT.search(found["model"]) or not 1 <= count <= _MOST:
        raise ConfigError(
            f"--gpu: {spec[:80]!r} is not MODEL[:MEMORY][xN], with N from 1 to {_MOST}",
            hint="such as A100, A100:80GiB, A100x4 or A100:80GiBx4; memory has a unit, MiB or GiB",
        )
    memory = int(found["amount"]) * _MIB_OF_UNIT[found["unit"]] if found["amount"] else None
    return [(found["model"], memory)] * count
