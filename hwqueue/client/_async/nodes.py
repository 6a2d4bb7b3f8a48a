"""Methods about nodes and upkeep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from hwqueue import calls, types
from hwqueue.client._async.part import AsyncPart
from hwqueue.client._json import given, plain


class AsyncNodes(AsyncPart):
    """Register and steer nodes; reap and prune."""

    async def register_node(self, node_id: UUID | str, spec: types.NodeSpec | Mapping[str, Any]) -> int:
        """Register a node, or say what it is now.

        Returns: The node epoch to claim with. A new `instance_id` raises it, which fences the
            older instance and ends its claims. The node belongs to the first login that registers
            it.
        Raises: NodeNameTaken, NodeNotYours, BadArgument, IsolationLevel.
        SQL: register_node. Safe inside your transaction: no, it locks the node until the end.
        """
        return await self._value(calls.REGISTER_NODE, p_node=node_id, p_spec=plain(spec, "spec"))

    async def list_nodes(
        self,
        *,
        name: str | None = None,
        node_id: UUID | str | None = None,
        after: str | None = None,
        limit: int | None = None,
    ) -> list[types.Node]:
        """Registered nodes with what they have and what is in use, by name.

        Args:
            name, node_id: Only this one.
            after: Only names after this one: the last of the previous page.
            limit: Most to return; None: all.

        SQL: list_nodes. Safe inside your transaction: yes.
        """
        return await self._rows(calls.LIST_NODES, p_name=name, p_node=node_id, p_after=after, p_limit=limit)

    async def node_claims(self, node_id: UUID | str, *, limit: int = 500) -> list[types.NodeClaim]:
        """What runs on a node and what is set aside for it, the oldest claims first.

        Raises: BadArgument.
        SQL: node_claims. Safe inside your transaction: yes.
        """
        return await self._rows(calls.NODE_CLAIMS, p_node=node_id, p_limit=limit)

    async def match_nodes(
        self,
        placement: types.AsJson | Mapping[str, Any] | None,
        *,
        queue: str | None = None,
        task: str | None = None,
        tenant: str | None = None,
        service_id: UUID | str | None = None,
        labels: Mapping[str, str] | None = None,
        nodes: Sequence[str] | None = None,
    ) -> list[types.NodeMatch]:
        """For every registered node: may it run this now, how well, and if not, why.

        Args:
            placement: None: what the defaults of the task ask (`set_task`), if one is named.
            task: Its default labels hold, too, unless `labels` are given.
            nodes: Names of nodes, at most 10,000: only these are told of.

        Raises: PlacementInvalid, PlacementContradictory, QueueUnknown, BadArgument.
        SQL: match_nodes. Safe inside your transaction: yes.
        """
        return await self._rows(
            calls.MATCH_NODES,
            p_placement=plain(placement, "placement"),
            p_options=_as_lease(
                queue=queue,
                task=task,
                tenant=tenant,
                service_id=service_id,
                labels=labels,
                nodes=None if nodes is None else list(nodes),
            ),
        )

    async def match_groups(
        self,
        placement: types.AsJson | Mapping[str, Any] | None,
        *,
        queue: str | None = None,
        task: str | None = None,
        tenant: str | None = None,
        service_id: UUID | str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> list[types.NodeGroup]:
        """The same without the words, by groups of nodes that are told the same codes.

        Raises: PlacementInvalid, PlacementContradictory, QueueUnknown, BadArgument.
        SQL: match_groups. Safe inside your transaction: yes.
        """
        return await self._rows(
            calls.MATCH_GROUPS,
            p_placement=plain(placement, "placement"),
            p_options=_as_lease(queue=queue, task=task, tenant=tenant, service_id=service_id, labels=labels),
        )

    async def match_page(
        self,
        placement: types.AsJson | Mapping[str, Any] | None,
        *,
        queue: str | None = None,
        task: str | None = None,
        tenant: str | None = None,
        service_id: UUID | str | None = None,
        labels: Mapping[str, str] | None = None,
        limit: int = 100,
        skip: int = 0,
    ) -> types.MatchPage:
        """The same, counted, and of the nodes `limit` after the first `skip`, the best first.

        Args:
            limit: 1 to 10,000.
            skip: 0 to 1,000,000. Every page judges all nodes again.

        Raises: PlacementInvalid, PlacementContradictory, QueueUnknown, BadArgument.
        SQL: match_page. Safe inside your transaction: yes.
        """
        return await self._row(
            calls.MATCH_PAGE,
            p_placement=plain(placement, "placement"),
            p_options=_as_lease(queue=queue, task=task, tenant=tenant, service_id=service_id, labels=labels),
            p_limit=limit,
            p_skip=skip,
        )

    async def cordon_node(self, node_id: UUID | str) -> None:
        """Grant the node no more claims; running ones go on.

        Raises: NodeUnknown.
        SQL: cordon_node. Safe inside your transaction: no, it locks the node until the end.
        """
        await self._call(calls.CORDON_NODE, p_node=node_id)

    async def uncordon_node(self, node_id: UUID | str) -> None:
        """Undo `cordon_node` and `drain_node`.

        Raises: NodeUnknown.
        SQL: uncordon_node. Safe inside your transaction: no, it locks the node until the end.
        """
        await self._call(calls.UNCORDON_NODE, p_node=node_id)

    async def drain_node(self, node_id: UUID | str, *, deadline: timedelta | None = None) -> None:
        """Cordon the node and, with a deadline, ask its running claims to stop by then.

        Args:
            deadline: From now; None: running claims may end in their own time.

        Raises: NodeUnknown, BadArgument.
        SQL: drain_node. Safe inside your transaction: no, it locks the node until the end.
        """
        await self._call(calls.DRAIN_NODE, p_node=node_id, p_deadline=deadline)

    async def deregister_node(self, node_id: UUID | str) -> None:
        """Remove the node; its running claims end at once, one attempt used up.

        Raises: NodeUnknown.
        SQL: deregister_node. Safe inside your transaction: no, it locks the node until the end.
        """
        await self._call(calls.DEREGISTER_NODE, p_node=node_id)

    async def deregister_own_node(self, node_id: UUID | str, node_epoch: int) -> bool:
        """Remove the caller's own node, whose worker stops; returns whether it did.

        A node stays that holds claims, or that an operator has cordoned, tainted or attested.

        Args:
            node_epoch: Of its registration.

        Raises: NodeUnknown, NodeSuperseded, NodeNotYours.
        SQL: deregister_own_node. Safe inside your transaction: no, it locks the node until the end.
        """
        return await self._value(calls.DEREGISTER_OWN_NODE, p_node=node_id, p_epoch=node_epoch)

    async def set_node_expiry(self, after: timedelta | None) -> timedelta | None:
        """Set how long a node may be silent before it is deregistered; returns what it was.

        For admins. 7 days at first, from 1 h to 10 years; None: for ever. A node stays that holds
        claims, or that an operator has cordoned, tainted or attested. `prune` does it.

        Raises: BadArgument.
        SQL: set_node_expiry. Safe inside your transaction: yes.
        """
        return await self._value(calls.SET_NODE_EXPIRY, p_after=after)

    async def node_wake_payload(self, node_id: UUID | str) -> str:
        """What notifications carry that tell the node's worker to heartbeat at once.

        They come on channel `hwqueue` when its claims have ended or are to stop. As with
        `wake_payloads` they are hints.

        Raises: NodeUnknown, NodeNotYours.
        SQL: node_wake_payload. Safe inside your transaction: yes.
        """
        return await self._value(calls.NODE_WAKE_PAYLOAD, p_node=node_id)

    async def taint_node(self, node_id: UUID | str, taint: types.Taint | Mapping[str, Any]) -> None:
        """Keep leases off the node that do not tolerate the taint.

        With effect `no_execute` those that run there are asked to stop, too: at once, or when the
        seconds of their toleration are over. Another value of the same key and effect replaces it.

        Raises: NodeUnknown, BadArgument.
        SQL: taint_node. Safe inside your transaction: no, it locks the node until the end.
        """
        await self._call(calls.TAINT_NODE, p_node=node_id, p_taint=plain(taint, "taint"))

    async def untaint_node(self, node_id: UUID | str, key: str, *, effect: str | None = None) -> int:
        """Take taints of this key off the node that `taint_node` put there.

        Args:
            effect: Only the one of this effect; None: all.

        Returns: How many there were.
        Raises: NodeUnknown, BadArgument.
        SQL: untaint_node. Safe inside your transaction: no, it locks the node until the end.
        """
        return await self._value(calls.UNTAINT_NODE, p_node=node_id, p_key=key, p_effect=effect)

    async def set_node_tenants(
        self, node_id: UUID | str, tenants: Sequence[str], *, stop: bool = False
    ) -> None:
        """Say for which tenants the node is, any of them, instead of those before.

        Args:
            tenants: None of them: it is for all. Leases of others, and of no tenant, are not
                claimed there any more.
            stop: Those that run there are asked to stop, too.

        Raises: NodeUnknown, BadArgument.
        SQL: set_node_tenants. Safe inside your transaction: no, it locks the node until the end.
        """
        await self._call(calls.SET_NODE_TENANTS, p_node=node_id, p_tenants=list(tenants), p_stop=stop)

    async def attest_node(
        self,
        node_id: UUID | str,
        domain: str,
        *,
        expires_at: datetime | None = None,
        expires_after: timedelta | None = None,
        any_instance: bool = False,
    ) -> None:
        """Vouch that the node belongs to a trust domain, which leases may require.

        Args:
            domain: 1 to 255 bytes, compared byte for byte.
            expires_at, expires_after: When it ends, with a time zone, or how long from now by the
                database's clock; None: it does not expire.
            any_instance: It holds for every instance that the node's login registers; else it is
                suspended when another one does, until `confirm_node`.

        Raises: NodeUnknown, BadArgument.
        SQL: attest_node. Safe inside your transaction: no, it locks the node until the end.
        """
        await self._call(
            calls.ATTEST_NODE,
            p_node=node_id,
            p_domain=domain,
            p_expires_at=expires_at,
            p_expires_after=expires_after,
            p_any_instance=any_instance,
        )

    async def revoke_attestation(self, node_id: UUID | str, domain: str) -> bool:
        """End an attestation; running leases that need it are asked to stop at once.

        Returns: Whether there was one.
        Raises: NodeUnknown, BadArgument.
        SQL: revoke_attestation. Safe inside your transaction: no, it locks the node until the end.
        """
        return await self._value(calls.REVOKE_ATTESTATION, p_node=node_id, p_domain=domain)

    async def confirm_node(self, node_id: UUID | str, *, instance_id: str | None = None) -> int:
        """Confirm the node's suspended attestations.

        Args:
            instance_id: Only if this is the instance that is registered; None: whichever is.

        Returns: How many there were.
        Raises: NodeUnknown, NodeSuperseded (another instance is registered), BadArgument.
        SQL: confirm_node. Safe inside your transaction: no, it locks the node until the end.
        """
        return await self._value(calls.CONFIRM_NODE, p_node=node_id, p_instance_id=instance_id)

    async def hand_over_node(self, node_id: UUID | str, login: str) -> None:
        """Give the node and its claims to another login, or to a role that several logins have.

        Its attestations are suspended until `confirm_node`.

        Raises: NodeUnknown, BadArgument (no such role).
        SQL: hand_over_node. Safe inside your transaction: no, it locks the node until the end.
        """
        await self._call(calls.HAND_OVER_NODE, p_node=node_id, p_login=login)

    async def reap(self, *, limit: int = 1000, unless_within: timedelta = timedelta(0)) -> types.ReapResult:
        """End expired claims, promote due leases, fail those past their deadline.

        Args:
            limit: Most of each kind.
            unless_within: Do nothing if somebody reaped less than this ago, 0 to 1 day.

        Raises: BadArgument, IsolationLevel.
        SQL: reap. Safe inside your transaction: no.
        """
        return await self._row(calls.REAP, p_limit=limit, p_unless_within=unless_within)

    async def prune(
        self, *, limit: int = 10_000, unless_within: timedelta = timedelta(0)
    ) -> types.PruneResult:
        """Remove what is past its retention.

        Args:
            limit: Most of each kind, about.
            unless_within: Do nothing if somebody pruned less than this ago, 0 to 1 day.

        Raises: BadArgument, IsolationLevel.
        SQL: prune. Safe inside your transaction: no.
        """
        return await self._row(calls.PRUNE, p_limit=limit, p_unless_within=unless_within)

    async def verify_invariants(self) -> list[types.BrokenInvariant]:
        """What must hold at every instant and does not, counted again; it reads everything.

        Call it in a repeatable read transaction of yours while others work.

        SQL: verify_invariants. Safe inside your transaction: yes.
        """
        return await self._rows(calls.VERIFY_INVARIANTS)


def _as_lease(**options: Any) -> Any:
    """The options of a match: those that are given."""
    return plain(given(options), "options")
