"""What a handler is told about the gang that its lease is a member of."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from hwqueue.errors import BadArgument, ConfigError
from hwqueue.types import Claim, GangMember, GangStatus, LeaseState


@dataclass(frozen=True, slots=True, kw_only=True)
class GangContext:
    """The gang of a handler's lease, as it was when all members were there, or enough of them.

    Attributes:
        gang_id: The gang.
        rank: This member's, from 0.
        size: How many members the gang has.
        members: All of them by rank: lease, node, and the labels of the node.
        min_size: How many of them must be there; None: all. What is not there has no node.
    """

    gang_id: UUID
    rank: int
    size: int
    members: tuple[GangMember, ...]
    min_size: int | None = None

    @classmethod
    def of(cls, claim: Claim, status: GangStatus) -> GangContext:
        """The gang as the member with this claim sees it."""
        [rank] = [each.rank for each in status.members if each.lease_id == claim.lease_id]
        return cls(
            gang_id=status.gang_id,
            rank=rank,
            size=status.size,
            members=status.members,
            min_size=status.min_size,
        )

    @property
    def present(self) -> tuple[GangMember, ...]:
        """The members that run, or are reserved: with a `min_size` others may join them later."""
        return tuple(each for each in self.members if each.state is LeaseState.CLAIMED)

    def address(self, rank: int = 0, *, label: str = "address") -> str:
        """Where a member can be reached: a label of its node.

        Args:
            rank: The member.
            label: Set by the node's worker: `hwqueue worker run --label address=10.0.0.7`.

        Raises: BadArgument: there is no such rank. ConfigError: it is not there, or its node has
            no such label, or it is no text.
        """
        if not 0 <= rank < len(self.members):
            raise BadArgument(
                f"the gang has ranks 0 to {len(self.members) - 1}, not {rank}", detail={"field": "rank"}
            )
        member = self.members[rank]
        if member.node is None:
            raise ConfigError(
                f"rank {rank} is not there: it waits to join its gang",
                hint="take one of those that are present",
            )
        found = member.labels.get(label)
        if not isinstance(found, str):
            raise ConfigError(
                f"node {member.node} of rank {rank} has no label {label!r} that is text",
                hint=f"start its worker with --label {label}=ADDRESS",
            )
        return found

    def environment(self, *, port: int, label: str = "address") -> dict[str, str]:
        """What `torch.distributed` reads: MASTER_ADDR, MASTER_PORT, WORLD_SIZE and RANK.

        For `torchrun` hand them over as `--master-addr`, `--master-port`, `--nnodes` and
        `--node-rank`.

        Args:
            port: On the node of rank 0, and free there: of gangs whose first members share a node
                each needs its own.
            label: As for `address`.

        Raises: ConfigError, as `address`; or the gang has a `min_size`, so that WORLD_SIZE changes.
        """
        if self.min_size is not None and self.min_size < self.size:
            raise ConfigError(
                f"the gang has {self.min_size} to {self.size} members: WORLD_SIZE is not known",
                hint=f"run torchrun --nnodes {self.min_size}:{self.size} with --rdzv-endpoint",
            )
        return {
            "MASTER_ADDR": self.address(0, label=label),
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(self.size),
            "RANK": str(self.rank),
        }
