"""Result rows to the dataclasses of `hwqueue.types`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

from hwqueue import types
from hwqueue.calls import Call

Row = Sequence[Any]
T = TypeVar("T")


def decode(call: Call, kind: type[T], rows: Iterable[Row]) -> list[T]:
    """The rows of a call, each as a `kind`, the row type of the call."""
    assert call.row is kind
    return [build(kind, dict(zip(call.columns, row, strict=True))) for row in rows]


def service_policy(value: Mapping[str, Any]) -> types.ServicePolicy:
    """The JSON object of `service_policy`."""
    return types.ServicePolicy(
        failure_domain=value["failure_domain"],
        anti_affinity_services=tuple(map(UUID, value["anti_affinity_services"])),
    )


def _known(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the values that the type knows: a newer schema may say more."""
    return {name: values[name] for name in kind.__dataclass_fields__ if name in values}  # type: ignore[attr-defined]


def build(kind: type[T], values: dict[str, Any]) -> T:
    """The object of these values as they came from the database."""
    for name, convert in _CONVERTERS.get(kind, {}).items():
        if values.get(name) is not None:
            values[name] = convert(values[name])
    return kind(**values)


def _assignment(value: Mapping[str, Any]) -> types.Assignment:
    lists = {
        name: tuple(value[name])
        for name in ("cores", "core_milli", "numa", "cpus")
        if value.get(name) is not None
    }
    return types.Assignment(
        cpu_milli=value.get("cpu_milli", 0),
        memory_mib=value.get("memory_mib", 0),
        gpus=tuple(
            types.AssignedGpu(
                index=gpu["index"], resource_id=UUID(gpu["resource_id"]), model=gpu.get("model")
            )
            for gpu in value.get("gpus", ())
        ),
        gpu_milli=value.get("gpu_milli", 0),
        custom=value.get("custom", {}),
        cpu_isolation=value.get("cpu_isolation"),
        gpu_exclusivity=value.get("gpu_exclusivity"),
        **lists,
    )


def _progress(value: Mapping[str, Any] | None) -> types.Progress | None:
    if value is None:
        return None
    told = {name: value[name] for name in ("fraction", "done", "total", "message")}
    return types.Progress(**told, reported_at=datetime.fromisoformat(value["reported_at"]))


def _attempts(value: Iterable[Mapping[str, Any]] | str) -> tuple[types.Attempt, ...]:
    if isinstance(value, str):  # an error in it is nested too deep to be read
        return ()
    return tuple(
        types.Attempt(
            attempt=attempt["attempt"],
            claim_token=attempt["claim_token"],
            node_id=UUID(attempt["node_id"]),
            outcome=attempt["outcome"],
            claimed_at=datetime.fromisoformat(attempt["claimed_at"]),
            ended_at=datetime.fromisoformat(attempt["ended_at"]),
            error=attempt["error"],
            progress=_progress(attempt.get("progress")),
            assignment=_assignment(given) if (given := attempt.get("assignment")) else None,
        )
        for attempt in value
    )


def _headers(value: Mapping[str, Any] | str) -> Mapping[str, Any]:
    # text, where they are nested too deep to be read: what looks a header up finds none
    return {"unreadable": value} if isinstance(value, str) else value


def _gpus(value: Iterable[Mapping[str, Any]]) -> tuple[types.NodeGpu, ...]:
    return tuple(
        types.NodeGpu(
            resource_id=UUID(gpu["resource_id"]),
            model=gpu.get("model") or None,
            memory_mib=gpu.get("memory_mib") or None,
            milli_used=gpu["milli_used"],
            parent_resource_id=_uuid(gpu.get("parent_resource_id")),
        )
        for gpu in value
    )


def _cores(value: Iterable[Mapping[str, Any]]) -> tuple[types.NodeCore, ...]:
    return tuple(
        types.NodeCore(
            core=core["core"],
            numa=core["numa"],
            threads=tuple(core["threads"]),
            milli_used=core.get("milli_used"),
        )
        for core in value
    )


def _isolation(value: Mapping[str, Any]) -> types.NodeIsolation:
    return types.NodeIsolation(
        cpu=tuple(value["cpu"]),
        gpu=tuple(value["gpu"]),
        default_cpu=value["default_cpu"],
        gpu_share_mode=value["gpu_share_mode"],
    )


def _reasons(value: Iterable[Mapping[str, Any]]) -> tuple[types.Reason, ...]:
    return tuple(
        types.Reason(
            code=reason["code"],
            permanent=reason["permanent"],
            message=reason["message"],
            predicate=reason.get("predicate"),
            stage=reason.get("stage"),
        )
        for reason in value
    )


def _matches(value: Iterable[Mapping[str, Any]]) -> tuple[types.NodeMatch, ...]:
    return tuple(
        types.NodeMatch(
            node_id=UUID(match["node_id"]),
            node_name=match["node_name"],
            eligible=match["eligible"],
            score=match["score"],
            reasons=_reasons(match["reasons"]),
        )
        for match in value
    )


def _taints(value: Iterable[Mapping[str, Any]]) -> tuple[types.NodeTaint, ...]:
    return tuple(
        types.NodeTaint(
            key=taint["key"],
            value=taint.get("value"),
            effect=taint["effect"],
            since=datetime.fromisoformat(taint["since"]),
            by=taint["by"],
        )
        for taint in value
    )


def _attestations(value: Iterable[Mapping[str, Any]]) -> tuple[types.Attestation, ...]:
    return tuple(
        types.Attestation(
            domain=attestation["domain"],
            expires_at=_moment(attestation["expires_at"]),
            attested_at=datetime.fromisoformat(attestation["attested_at"]),
            attested_by=attestation["attested_by"],
            any_instance=attestation.get("any_instance", False),
            suspended_at=_moment(attestation.get("suspended_at")),
            suspended_why=attestation.get("suspended_why"),
        )
        for attestation in value
    )


def _funnel(value: Iterable[Mapping[str, Any]]) -> tuple[types.FunnelStage, ...]:
    return tuple(types.FunnelStage(**_known(types.FunnelStage, stage)) for stage in value)


def _blockers(value: Iterable[Mapping[str, Any]]) -> tuple[types.SoleBlocker, ...]:
    return tuple(
        types.SoleBlocker(**{**_known(types.SoleBlocker, blocker), "samples": tuple(blocker["samples"])})
        for blocker in value
    )


def _near_nodes(value: Iterable[Mapping[str, Any]]) -> tuple[types.NearNode, ...]:
    return tuple(
        types.NearNode(
            node_id=UUID(node["node_id"]),
            node=node["node"],
            rack=node["rack"],
            state=node["state"],
            seen_at=datetime.fromisoformat(node["seen_at"]),
            reasons=tuple(
                types.NearReason(
                    **{
                        **_known(types.NearReason, reason),
                        "holders": _holders(reason.get("holders", ())),
                    }
                )
                for reason in node["reasons"]
            ),
        )
        for node in value
    )


def _holders(value: Iterable[Mapping[str, Any]]) -> tuple[types.Holder, ...]:
    return tuple(
        types.Holder(
            lease_id=UUID(holder["lease_id"]),
            task=holder["task"],
            queue=holder["queue"],
            node=holder["node"],
            since=datetime.fromisoformat(holder["since"]),
            expires_at=_moment(holder["expires_at"]),
            service_id=UUID(holder["service_id"]) if "service_id" in holder else None,
            stopping=holder.get("stopping", False),
            holds=holder.get("holds"),
        )
        for holder in value
    )


def _help(value: Iterable[Mapping[str, Any]]) -> tuple[types.Help, ...]:
    return tuple(
        types.Help(
            action=one["action"],
            words=one["words"],
            leases=one["leases"],
            nodes=one.get("nodes"),
            samples=tuple(one.get("samples", ())),
            predicate=one.get("predicate"),
            lease_id=UUID(one["lease_id"]) if "lease_id" in one else None,
        )
        for one in value
    )


def _waiting(value: Iterable[Mapping[str, Any]]) -> tuple[types.WaitingLease, ...]:
    return tuple(
        types.WaitingLease(
            lease_id=UUID(lease["lease_id"]),
            priority=lease["priority"],
            eligible_at=datetime.fromisoformat(lease["eligible_at"]),
            attempt=lease["attempt"],
            deadline=_moment(lease["deadline"]),
        )
        for lease in value
    )


def _gang_members(value: Iterable[Mapping[str, Any]]) -> tuple[types.GangMember, ...]:
    return tuple(
        types.GangMember(
            ordinal=member["ordinal"],
            lease_id=UUID(member["lease_id"]),
            state=_state(member.get("state")),
            node_id=_uuid(member.get("node_id")),
            node=member.get("node"),
            labels=member.get("labels", {}),
            reserved_until=_moment(member.get("reserved_until")),
            earmarked=member.get("earmarked", False),
        )
        for member in value
    )


def _everywhere_leases(
    value: Iterable[Mapping[str, Any]],
) -> tuple[types.EverywhereLease, ...]:
    return tuple(
        types.EverywhereLease(
            node_id=UUID(lease["node_id"]),
            node=lease["node"],
            lease_id=UUID(lease["lease_id"]),
            state=lease["state"],
            reason=lease["reason"],
            starts=lease["starts"],
            failures=lease["failures"],
            due_at=_moment(lease["due_at"]),
        )
        for lease in value
    )


def _gang_kinds(value: Iterable[Mapping[str, Any]]) -> tuple[types.GangKind, ...]:
    return tuple(types.GangKind(**_known(types.GangKind, kind)) for kind in value)


def _gang_places(value: Iterable[Mapping[str, Any]]) -> tuple[types.GangPlace, ...]:
    return tuple(
        types.GangPlace(
            **{
                **_known(types.GangPlace, place),
                "in_the_way": tuple(place["in_the_way"]),
                "claims": _holders(place["claims"]),
            }
        )
        for place in value
    )


def _gang_ways(value: Iterable[Mapping[str, Any]]) -> tuple[types.GangWay, ...]:
    return tuple(
        types.GangWay(
            **{
                **_known(types.GangWay, way),
                "together": tuple(way["together"]),
                "same": tuple(way["same"]),
                "claims": _holders(way.get("claims", ())),
                "until": _moment(way.get("until")),
            }
        )
        for way in value
    )


def _uuid(value: str | None) -> UUID | None:
    return None if value is None else UUID(value)


def _moment(value: str | None) -> datetime | None:
    return None if value is None else datetime.fromisoformat(value)


def _state(value: str | None) -> types.LeaseState | None:
    return None if value is None else types.LeaseState(value)


_Converters = Mapping[str, Callable[[Any], Any]]
_LEASE: _Converters = {"state": types.LeaseState, "headers": _headers}
_EXPLANATION: _Converters = {
    "funnel": _funnel,
    "sole_blockers": _blockers,
    "nearest": _near_nodes,
    "help": _help,
}
_GANG: _Converters = {"kinds": _gang_kinds, "places": _gang_places, "ways": _gang_ways}
_CONVERTERS: Mapping[type, _Converters] = {
    types.WorkflowStep: {"waits_for": tuple},
    types.CheckedStep: {"reasons": _blockers},
    types.PreviewedStep: {"reasons": _blockers},
    types.StepDetail: {"attempts": _attempts},
    types.RunProgress: {"failed_steps": tuple},
    types.SpawnResult: {"state": types.LeaseState, "warnings": tuple},
    types.SignalSent: {"state": types.LeaseState},
    types.AwaitedLease: {"state": _state},
    types.LeaseSummary: _LEASE,
    types.RunningLease: {"progress": _progress},
    types.LeaseOutlook: {"state": types.LeaseState},
    types.Lease: {
        **_LEASE,
        "attempts": _attempts,
        "assignment": _assignment,
        "progress": _progress,
    },
    types.Claim: {"assignment": _assignment, "headers": _headers},
    types.Settled: {"verdict": types.Verdict, "state": types.LeaseState},
    types.Heartbeat: {"verdict": types.Verdict},
    types.NodeClaim: {"assignment": _assignment},
    types.Node: {
        "gpus": _gpus,
        "taints": _taints,
        "attestations": _attestations,
        "cores": _cores,
        "isolation": _isolation,
    },
    types.NodeMatch: {"reasons": _reasons},
    types.NodeGroup: {"codes": tuple, "node_names": tuple},
    types.MatchPage: {"items": _matches},
    types.LeaseExplanation: {"state": types.LeaseState, **_EXPLANATION},
    types.ClassExplanation: {**_EXPLANATION, "leases": _waiting},
    types.ClassStats: {"anchors": tuple},
    types.Gang: {"together": tuple, "same": tuple, "members": _gang_members},
    types.GangStatus: {"members": _gang_members},
    types.EverywhereTask: {"leases": _everywhere_leases},
    types.GangExplanation: _GANG,
    types.GangForecast: _GANG,
}
