"""What a lease asks of its node, written in Python: an immutable builder for the placement grammar.

    Placement()
    .require(label("region").in_("us-east", "us-west"), tags(gpu=True))
    .require(any_of([label("driver").version(">= 550")], [label("emulated") == True]))
    .prefer(label("zone") == "a", weight=50)
    .strength(20)
    .require(leases(selector(app="web"), domain="rack", away=True))
    .require(trust("acme.prod"), during="execution", grace=timedelta(minutes=1))
    .tolerate("dedicated", value="batch")
    .spread("label:zone", max_skew=1, select=selector(app="web"))
    .resources(cpu_milli=4000, memory_mib=8192, gpu=2)
    .isolation(cpu="whole_core")

It only writes the JSON of docs/reference/placement.md; the database checks what it means. Wherever
a `Placement` is taken, the same JSON as a mapping is, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from typing import Any, TypeVar
from uuid import UUID

from hwqueue.types.base import given

__all__ = [
    "Expr",
    "Label",
    "Placement",
    "Selector",
    "any_of",
    "label",
    "lease",
    "leases",
    "node",
    "rack",
    "resource",
    "same",
    "selector",
    "service",
    "tags",
    "trust",
]

Scalar = str | int | float | bool


_Json = TypeVar("_Json", bound="JsonText")


@dataclass(frozen=True, slots=True)
class JsonText:
    """JSON as text, so that nothing in here can change."""

    text: str

    @classmethod
    def of(cls: type[_Json], **members: Any) -> _Json:
        """With these members; for parts of the grammar without a function here.

        Raises: TypeError, ValueError: it is no JSON.
        """
        return cls(_canonical(members))

    def as_json(self) -> dict[str, Any]:
        """As the grammar has it."""
        members: dict[str, Any] = json.loads(self.text)
        return members


class Expr(JsonText):
    """One condition on a node. Made by the functions of this module; `text` is its JSON."""

    __slots__ = ()

    def __bool__(self) -> bool:
        raise TypeError(
            "an expression is neither true nor false before a node is looked at: `and`, `or` and "
            "`1 < label < 5` do not combine expressions; list them in require(), or use any_of()"
        )


class Label:
    """A node label, to be compared: `label("vram") >= 40`, `label("region").in_("a", "b")`.

    A node without the label fails every comparison but `!=`, `not_in` and `does_not_exist`.
    Instead of values every method but those on patterns and versions takes another `Label`.
    In `selector` it is a label of leases.
    """

    __slots__ = ("key",)
    __hash__ = None  # type: ignore[assignment]  # == makes an expression, so there is no equality

    def __init__(self, key: str) -> None:
        self.key = key

    def __repr__(self) -> str:
        return f"label({self.key!r})"

    def __eq__(self, other: Scalar | Label) -> Expr:  # type: ignore[override]
        return self.in_(other)

    def __ne__(self, other: Scalar | Label) -> Expr:  # type: ignore[override]
        return self.not_in(other)

    def __gt__(self, other: float | Label) -> Expr:
        return self._compare("gt", other)

    def __ge__(self, other: float | Label) -> Expr:
        return self._compare("gte", other)

    def __lt__(self, other: float | Label) -> Expr:
        return self._compare("lt", other)

    def __le__(self, other: float | Label) -> Expr:
        return self._compare("lte", other)

    def in_(self, *values: Scalar | Label) -> Expr:
        """Equal to one of the values; types count, `1` is not `"1"`."""
        return self._compare("in", *values)

    def not_in(self, *values: Scalar | Label) -> Expr:
        """Equal to none of the values, or not there."""
        return self._compare("not_in", *values)

    def exists(self) -> Expr:
        """There, whatever its value."""
        return Expr.of(label=self.key, op="exists")

    def does_not_exist(self) -> Expr:
        """Not there."""
        return Expr.of(label=self.key, op="does_not_exist")

    def matches(self, pattern: str) -> Expr:
        """Text that holds a match of a POSIX pattern of at most 200 characters; not anchored."""
        return self._compare("regexp", pattern)

    def version(self, constraint: str) -> Expr:
        """A version in a range such as `">= 1.2, < 2"`."""
        return self._compare("version", constraint)

    def semver(self, constraint: str) -> Expr:
        """A semantic version in a range: pre-releases sort before their release."""
        return self._compare("semver", constraint)

    def contains_all(self, *values: Scalar | Label) -> Expr:
        """A list that holds all of the values."""
        return self._compare("contains_all", *values)

    def contains_any(self, *values: Scalar | Label) -> Expr:
        """A list that holds at least one of the values."""
        return self._compare("contains_any", *values)

    def _compare(self, op: str, *values: Scalar | Label) -> Expr:
        others = [value.key for value in values if isinstance(value, Label)]
        if not others:
            return Expr.of(label=self.key, op=op, values=list(values))
        if len(values) > 1:
            raise TypeError(f"{self!r}: another label is compared alone, not in a list of values")
        return Expr.of(label=self.key, op=op, other_label=others[0])


def label(key: str) -> Label:
    """A node label to compare."""
    return Label(key)


def tags(wanted: Mapping[str, Any] | None = None, /, **more: Any) -> Expr:
    """The node's labels contain these: `tags(gpu=True)`, `tags({"net/speed": 100})`."""
    return Expr.of(tags={**(wanted or {}), **more})


def any_of(*branches: Iterable[Expr | Mapping[str, Any]]) -> Expr:
    """At least one of the branches holds; a branch holds when all its expressions do."""
    return Expr.of(any=[[_expression(part) for part in branch] for branch in branches])


def node(*node_ids: UUID | str, away: bool = False) -> Expr:
    """One of these nodes; with `away`, none of them."""
    return _target("node", [str(node_id) for node_id in node_ids], away)


def rack(*racks: int, away: bool = False, unknown: str | None = None) -> Expr:
    """One of these racks; with `away`, none of them.

    unknown: `pass` or `fail`: what a node without a rack does; None: it passes `away` only.
    """
    expression = _target("rack", list(racks), away)
    return expression if unknown is None else Expr.of(**expression.as_json(), unknown=unknown)


def resource(resource_id: UUID | str, *, away: bool = False) -> Expr:
    """The node has this resource; with `away`, it has not."""
    return _target("resource", str(resource_id), away)


def trust(domain: str) -> Expr:
    """The node is attested in this trust domain now: 1..255 bytes, compared byte by byte.

    Only for `require`.
    """
    return Expr.of(trust=domain)


def lease(
    lease_id: UUID | str, *, domain: str | None = None, away: bool = False, unknown: str | None = None
) -> Expr:
    """Where this lease runs, or else last succeeded; with `away`, not where it runs.

    domain: what counts as one place, `node`, `rack` or `label:KEY`; None: `node`. unknown: `pass`
    or `fail`, what a node outside all domains does; None: it passes `away` only.
    """
    return _elsewhere({"lease": str(lease_id)}, domain, away, unknown)


def service(
    service_id: UUID | str, *, domain: str | None = None, away: bool = False, unknown: str | None = None
) -> Expr:
    """Where leases of this service run; with `away`, where none does.

    domain: as for `lease`; None: the service's failure domain, else its queue's. unknown: as there.
    """
    return _elsewhere({"service": str(service_id)}, domain, away, unknown)


def leases(
    select: Selector | Mapping[str, Any],
    *,
    domain: str,
    tenants: str | Iterable[str] | None = None,
    away: bool = False,
    unknown: str | None = None,
) -> Expr:
    """Where leases with such labels run; with `away`, where none does.

    domain, unknown: as for `lease`. tenants: whose leases are looked at, names or `"*"` for all;
    None: those of the lease's own tenant.
    """
    looked_at: dict[str, Any] = {"leases": _selector(select)}
    if tenants is not None:
        looked_at["tenants"] = tenants if isinstance(tenants, str) else list(tenants)
    return _elsewhere(looked_at, domain, away, unknown)


class Selector(JsonText):
    """Which leases are meant. Made by `selector` and `same`; `text` is its JSON."""

    __slots__ = ()


def selector(*parts: Expr | Mapping[str, str], **labels: str) -> Selector:
    """Leases whose labels are these: `selector(app="web")`, `selector({"k8s/app": "web"})`.

    parts: labels, and expressions on labels by `in_`, `not_in`, `exists` or `does_not_exist`, as in
    `selector(label("track").in_("stable", "beta"), app="web")`. Without any, every lease.
    """
    equal = dict(labels)
    exprs = []
    for part in parts:
        if isinstance(part, Expr):
            exprs.append(part.as_json())
        else:
            equal |= part
    return Selector.of(labels=equal, **given(exprs=exprs or None))


def same(what: str) -> Selector:
    """The leases with the same `service` or of the same `task` as the one that asks."""
    return Selector.of(same=what)


@dataclass(frozen=True, slots=True)
class Placement:
    """What a lease asks of its node. Every method returns a new placement."""

    # JSON texts, so that nothing in here can change
    _require: tuple[str, ...] = ()
    _prefer: tuple[str, ...] = ()
    _tolerate: tuple[str, ...] = ()
    _spread: tuple[str, ...] = ()
    _resources: tuple[tuple[str, int], ...] = ()
    _isolation: tuple[tuple[str, str], ...] = ()
    _strength: int | None = None

    def require(
        self,
        *expressions: Expr | Mapping[str, Any],
        during: str | None = None,
        grace: timedelta | None = None,
    ) -> Placement:
        """Add conditions that must all hold.

        during: `scheduling`: when the lease is claimed; `execution`: as long as it runs, too, else
        its worker is asked to stop (stop reason `placement_broken`) and it waits for another node;
        None: `scheduling`. grace: how long it may go on while a condition does not hold, with
        `execution` only; None: not at all.
        """
        when = given(during=during, grace=_seconds(grace))
        added = (_canonical(_expression(part) | when) for part in expressions)
        return replace(self, _require=(*self._require, *added))

    def prefer(self, *when: Expr | Mapping[str, Any], weight: int = 100) -> Placement:
        """Add a preference for nodes where all of `when` holds.

        weight: -100..100; below zero: rather not there.
        """
        if not when:
            raise TypeError("prefer() needs at least one expression")
        added = _canonical({"weight": weight, "when": [_expression(part) for part in when]})
        return replace(self, _prefer=(*self._prefer, added))

    def strength(self, strength: int) -> Placement:
        """Set how much all preferences together count beside those of other leases.

        strength: 1..100, in percent; without it 100. Weights only say which of this lease's own
        preferences matters more: of two leases that prefer one node, it gets the stronger.
        """
        return replace(self, _strength=strength)

    def tolerate(
        self,
        key: str | None = None,
        *,
        op: str | None = None,
        value: str | int | None = None,
        effect: str | None = None,
        seconds: int | None = None,
    ) -> Placement:
        """Add a toleration: nodes with such a taint will do.

        key: None: every taint, with op `exists`. op: `equal`, `exists`, `gt` or `lt`; None: `equal`
        if there is a value, else `exists`. value: the taint's; for `gt` (`lt`) a whole number that
        the taint's value must be above (below). effect: `no_schedule`, `prefer_no_schedule` or
        `no_execute`; None: all of them. seconds: how long the lease may go on beside a `no_execute`
        taint; None: for ever.
        """
        if op is None:
            op = "exists" if value is None else "equal"
        added = given(key=key, op=op, value=value, effect=effect, seconds=seconds)
        return replace(self, _tolerate=(*self._tolerate, _canonical(added)))

    def spread(
        self,
        domain: str,
        *,
        select: Selector | Mapping[str, Any],
        max_skew: int = 1,
        min_domains: int | None = None,
        when: str | None = None,
        count_nodes: Mapping[str, str] | None = None,
    ) -> Placement:
        """Keep the number of selected leases even over domains.

        domain: `node`, `rack` or `label:KEY`. max_skew: how many more a domain may hold than the
        one that holds the fewest. min_domains: with fewer domains the fewest counts as 0; only
        with `require`. when: `require` or `prefer`; None: `require`. count_nodes: which nodes make
        the domains: `{"affinity": "honor" or "ignore", "taints": "ignore" or "honor"}`, whether
        nodes that this placement does not fit, or whose taints it does not tolerate, are left out.
        """
        rule = given(min_domains=min_domains, when=when)
        if count_nodes is not None:
            rule["count_nodes"] = dict(count_nodes)
        return self._spread_by(domain, select, max_skew=max_skew, **rule)

    def max_per_domain(self, limit: int, *, domain: str, select: Selector | Mapping[str, Any]) -> Placement:
        """At most `limit` selected leases in the domain where this one runs, itself included.

        domain: `node`, `rack`, `label:KEY`, or `fleet`, which holds all nodes: a limit on what
        runs at once.
        """
        return self._spread_by(domain, select, max_per_domain=limit)

    def spread_targets(
        self,
        domain: str,
        percents: Mapping[Any, int],
        *,
        select: Selector | Mapping[str, Any],
        weight: int | None = None,
    ) -> Placement:
        """Prefer that shares of the selected leases run in given domains.

        percents: 0..100 by the domain's name: a node id, a rack, a value of the label; what they
        leave of 100 is for all other domains; without any, equal shares. weight: 1..100; None: 100.
        """
        targets = [
            {"value": str(value) if isinstance(value, UUID) else value, "percent": percent}
            for value, percent in percents.items()
        ]
        return self._spread_by(domain, select, targets=targets, **given(weight=weight))

    def _spread_by(self, domain: str, select: Selector | Mapping[str, Any], **rule: Any) -> Placement:
        added = _canonical({"domain": domain, "select": _selector(select), **rule})
        return replace(self, _spread=(*self._spread, added))

    def isolation(self, *, cpu: str | None = None, gpu: str | None = None) -> Placement:
        """Set how the lease is kept apart from others on its node; the last word on each counts.

        cpu: `best_effort`, `whole_core` or `strict_isolated`. gpu: `shared`, `session_exclusive`,
        `device_exclusive` or `partition_exclusive`; without a count of GPUs it asks for one. None:
        as set before, else the node's default.
        """
        wanted = given(cpu=cpu, gpu=gpu)
        return replace(self, _isolation=tuple({**dict(self._isolation), **wanted}.items()))

    def resources(
        self,
        *,
        cpu_milli: int | None = None,
        memory_mib: int | None = None,
        gpu: int | None = None,
        gpu_milli: int | None = None,
        custom: Mapping[str, int] | None = None,
    ) -> Placement:
        """Set amounts to be set aside on the node; the last word on each counts.

        cpu_milli: thousandths of a CPU. gpu: whole devices. gpu_milli: 1..999, a share of one
        device; excludes `gpu`. custom: the node's own countables by name.
        """
        wanted = given(cpu_milli=cpu_milli, memory_mib=memory_mib, gpu=gpu, gpu_milli=gpu_milli) | dict(
            custom or {}
        )
        return replace(self, _resources=tuple({**dict(self._resources), **wanted}.items()))

    def as_json(self) -> dict[str, Any]:
        """The placement in the grammar; what asks nothing is left out."""
        members = {
            "require": [json.loads(part) for part in self._require],
            "prefer": [json.loads(part) for part in self._prefer],
            "tolerate": [json.loads(part) for part in self._tolerate],
            "spread": [json.loads(part) for part in self._spread],
            "resources": dict(self._resources),
            "isolation": dict(self._isolation),
        }
        written = {key: value for key, value in members.items() if value}
        return written | given(strength=self._strength)


PLACEMENT_KEYS = tuple(each.name.removeprefix("_") for each in fields(Placement))
"""What a placement consists of, the keys of its JSON."""


def _target(kind: str, targets: Any, away: bool) -> Expr:
    return Expr.of(**{kind: targets}, **({"away": True} if away else {}))


def _elsewhere(looked_at: dict[str, Any], domain: str | None, away: bool, unknown: str | None) -> Expr:
    return Expr.of(**looked_at, **given(domain=domain, away=away or None, unknown=unknown))


def _seconds(span: timedelta | None) -> int | float | None:
    """The span in seconds, whole ones as int: the same placement is the same text."""
    if span is None:
        return None
    if not isinstance(span, timedelta):
        raise TypeError(f"grace must be a timedelta, such as timedelta(seconds=5), not {span!r}")
    seconds = span.total_seconds()
    return int(seconds) if seconds.is_integer() else seconds


def _selector(select: Selector | Mapping[str, Any]) -> dict[str, Any]:
    """The JSON of a selector; mappings are taken as they are."""
    if isinstance(select, Selector):
        return select.as_json()
    if isinstance(select, Mapping):
        return dict(select)
    raise TypeError(f"expected a selector such as selector(app='web'), got {select!r}")


def _expression(part: Expr | Mapping[str, Any]) -> dict[str, Any]:
    """The JSON of an expression; mappings are taken as they are."""
    if isinstance(part, Expr):
        return part.as_json()
    if isinstance(part, Mapping):
        return dict(part)
    raise TypeError(f"expected an expression such as label('gpu') == True, got {part!r}")


def _canonical(value: Any) -> str:
    """JSON text: immutable, and equal for equal values. Raises TypeError, ValueError for NaN."""
    return json.dumps(value, sort_keys=True, allow_nan=False)
