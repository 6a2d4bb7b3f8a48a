"""Services: what operators say of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from hwqueue.types.base import given


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicePolicy:
    """What is said of a service; what is None is left as it is, or was never said.

    failure_domain: what counts as one place for leases that require or avoid the service: `node`,
    `rack` or `label:KEY`; None: the queue's. anti_affinity_services: services that its leases keep
    away from.
    """

    failure_domain: str | None = None
    anti_affinity_services: Sequence[UUID | str] | None = None

    def as_json(self) -> dict[str, Any]:
        """The JSON object that the SQL functions take."""
        services = self.anti_affinity_services
        return given(
            failure_domain=self.failure_domain,
            anti_affinity_services=None if services is None else [str(each) for each in services],
        )
