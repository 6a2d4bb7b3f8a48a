"""What a lease asks of its node, written in Python: an immutable builder for the placement grammar.

    Placement()
    .require(label("region").in_("us-east", "us-west"), tags(gpu=True))
    .require(any_of([label("driver").version(">= 550")], [label("emulated") == True]))
    .prefer(label("zone") == "a", weight=50)
    .resources(cpu_milli=4000, memory_mib=8192, gpu=2)

It only writes the JSON of docs/reference/placement.md; the database checks what it means. Wherever
a `Placement` is taken, the same JSON as a mapping is, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

__all__ = [
    "Expr",
    "Label",
    "Placement",
    "any_of",
    "label",
    "node",
    "rack",
    "resource",
    "tags",
]

Scalar = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Expr:
    """One condition on a node. Made by the functions of this module; `text` is its JSON."""

    text: str

    @classmethod
    def of(cls, **members: Any) -> Expr:
        """An expression with these members; for parts of the grammar without a function here."""
        return cls(_canonical(members))

    def as_json(self) -> dict[str, Any]:
        """The expression in the grammar."""
        expression: dict[str, Any] = json.loads(self.text)
        return expression

    def __bool__(self) -> bool:
        raise TypeError(
            "an expression is neither true nor false before a node is looked at: `and`, `or` and "
            "`1 < label < 5` do not combine expressions; list them in require(), or use any_of()"
        )


class Label:
    """A node label, to be compared: `label("vram") >= 40`, `label("region").in_("a", "b")`.

    A node without the label fails every comparison but `!=`, `not_in` and `does_not_exist`.
    Instead of values every method but those on patterns and versions takes another `Label`.
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


@dataclass(frozen=True, slots=True)
class Placement:
    """What a lease asks of its node. Every method returns a new placement."""

    # JSON texts, so that nothing in here can change
    _require: tuple[str, ...] = ()
    _prefer: tuple[str, ...] = ()
    _resources: tuple[tuple[str, int], ...] = ()

    def require(self, *expressions: Expr | Mapping[str, Any]) -> Placement:
        """Add conditions that must all hold."""
        added = (_canonical(_expression(part)) for part in expressions)
        return replace(self, _require=(*self._require, *added))

    def prefer(self, *when: Expr | Mapping[str, Any], weight: int = 100) -> Placement:
        """Add a preference for nodes where all of `when` holds.

        weight: -100..100; below zero: rather not there.
        """
        if not when:
            raise TypeError("prefer() needs at least one expression")
        added = _canonical({"weight": weight, "when": [_expression(part) for part in when]})
        return replace(self, _prefer=(*self._prefer, added))

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
        amounts = {
            "cpu_milli": cpu_milli,
            "memory_mib": memory_mib,
            "gpu": gpu,
            "gpu_milli": gpu_milli,
            **(custom or {}),
        }
        wanted = {name: amount for name, amount in amounts.items() if amount is not None}
        return replace(self, _resources=tuple({**dict(self._resources), **wanted}.items()))

    def as_json(self) -> dict[str, Any]:
        """The placement in the grammar; what asks nothing is left out."""
        members = {
            "require": [json.loads(part) for part in self._require],
            "prefer": [json.loads(part) for part in self._prefer],
            "resources": dict(self._resources),
        }
        return {key: value for key, value in members.items() if value}


def _target(kind: str, targets: Any, away: bool) -> Expr:
    return Expr.of(**{kind: targets}, **({"away": True} if away else {}))


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
