"""What operators do to nodes and to the queue, and what registers a node again."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from tests.calls import Row
from tests.direct import Direct
from tests.walk.names import QUEUE
from tests.walk.seen import Seen, span
from tests.walk.steps import OfNode, Outcome, Step
from tests.walk.sweeps import lost, unlike


class Cordon(OfNode):
    """The node gets nothing new."""

    verb = "cordon"

    def can(self, seen: Seen) -> bool:
        """Whether it is not cordoned."""
        return super().can(seen) and seen.nodes[self.node]["cordoned_at"] is None

    def make(self, direct: Direct, seen: Seen) -> None:
        direct.conn.execute("select hwqueue.cordon_node(p_node => %s)", [self.node])


class Uncordon(Cordon):
    """The node gets work again."""

    verb = "uncordon"

    def can(self, seen: Seen) -> bool:
        """Whether it is cordoned."""
        return self.node in seen.nodes and not super().can(seen)

    def make(self, direct: Direct, seen: Seen) -> None:
        direct.conn.execute("select hwqueue.uncordon_node(p_node => %s)", [self.node])


class Drain(Cordon):
    """The node gets nothing new, and what runs there is asked to stop."""

    verb = "drain"

    def make(self, direct: Direct, seen: Seen) -> None:
        direct.drain(self.node, timedelta(seconds=10))

    def wrong(self, before: Seen, after: Seen, outcome: Outcome) -> list[str]:
        """Its claims are asked to stop, those that were asked before as they were."""
        asked = {
            key: replace(one, stop_at=before.now, stop_reason="preempted")
            for key, one in before.leases.items()
            if one.node == self.node and (one.stop_at is None or one.stop_at > before.now)
        }
        return unlike(before, after, asked)


class Restart(OfNode):
    """Another instance registers the node: what the old one held has ended, one attempt used."""

    verb = "restart"

    def make(self, direct: Direct, seen: Seen) -> int:
        """Register it under another instance."""
        node = seen.nodes[self.node]
        other = "second" if node["instance_id"] == "first" else "first"
        return direct.register(self.node, self.spec(node) | {"instance_id": other})

    def spec(self, node: Row) -> Row:
        """With what it registers: it is silent soon, as by default."""
        return {key: value for key, value in spec_of(node).items() if key != "heartbeat_timeout"}

    def wrong(self, before: Seen, after: Seen, outcome: Outcome) -> list[str]:
        """Its claims are over."""
        held = {key: one for key, one in before.leases.items() if one.node == self.node}
        return unlike(before, after, {key: before.lost(one, lost(one)) for key, one in held.items()})


class RestartAlike(Restart):
    """The same, and the node lives on as long as before."""

    def spec(self, node: Row) -> Row:
        """All that it had registered with."""
        return spec_of(node)


class Arrive(OfNode):
    """A node comes, or comes back."""

    verb = "arrive"

    def __init__(self, node: str, spec: Mapping[str, Any]) -> None:
        super().__init__(node)
        always = {"name": node, "instance_id": "first", "heartbeat_timeout": 3600}
        self.spec = {**always, **spec}

    def can(self, seen: Seen) -> bool:
        """Whether it is not there."""
        return not super().can(seen)

    def make(self, direct: Direct, seen: Seen) -> int:
        return direct.register(self.node, self.spec)


class Leave(OfNode):
    """An operator takes the node out: what it held has ended."""

    verb = "leave"

    def make(self, direct: Direct, seen: Seen) -> None:
        direct.deregister(self.node)

    def wrong(self, before: Seen, after: Seen, outcome: Outcome) -> list[str]:
        """Its claims are over."""
        held = {key: one for key, one in before.leases.items() if one.node == self.node}
        return unlike(before, after, {key: lost(one) for key, one in held.items()})


class Pause(Step):
    """The queue gives nothing."""

    name = "pause"
    is_paused = False

    def can(self, seen: Seen) -> bool:
        """Whether it is not so already."""
        return (seen.queue["paused_at"] is not None) == self.is_paused

    def make(self, direct: Direct, seen: Seen) -> None:
        direct.conn.execute("select hwqueue.pause_queue(p_queue => %s)", [QUEUE])


class Resume(Pause):
    """The queue gives again."""

    name = "resume"
    is_paused = True

    def make(self, direct: Direct, seen: Seen) -> None:
        direct.conn.execute("select hwqueue.resume_queue(p_queue => %s)", [QUEUE])


def spec_of(node: Row) -> Row:
    """With what a node registers that is there."""
    spec = {key: node[key] for key in ("name", "labels", "taints", "slots") if node[key]}
    capacity = {k: node[k] for k in ("cpu_milli", "memory_mib") if node[k] is not None}
    spec |= {} if node["rack"] is None else {"rack": node["rack"]}
    gpus = [{"resource_id": gpu, "model": "T4", "memory_mib": 16384} for gpu in node["gpu_ids"]]
    timeout = span(node["heartbeat_timeout"]).total_seconds()
    return spec | {
        "capacity": capacity | node["custom"],
        "gpus": gpus,
        "instance_id": node["instance_id"],
        "heartbeat_timeout": timeout,
    }
