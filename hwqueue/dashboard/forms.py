"""The forms of the pages that try things: what people type, and what the functions take."""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid5

from hwqueue.errors import HwqueueError
from hwqueue.text import label_value
from hwqueue.types import ClassStats, Node, NodeGpu

# The fields of a node that is not there, and what of its specification each is.
NODE_FIELDS = (
    *("labels", "rack", "cores", "memory", "custom"),
    *("gpus", "gpu_model", "gpu_memory", "taints", "more", "count"),
)
_OWN_FIELDS = ("labels", "rack", "capacity", "gpus", "taints", "count", "name", "instance_id")
_PLACES = {
    "spec.capacity.cpu_milli": "cores",
    "spec.capacity.memory_mib": "memory",
    "spec.capacity": "custom",
    "spec.labels": "labels",
    "spec.rack": "rack",
    "spec.gpus": "gpus",
    "spec.taints": "taints",
    "spec.count": "count",
}
LEASE_FIELDS = ("placement", "queue", "task", "tenant", "service", "labels")
_MOST_GPUS = 1024
# What a node offers that says nothing of it.
_PLAIN = {
    "cpu_isolation": ["best_effort"],
    "gpu_exclusivity": ["shared"],
    "default_cpu_isolation": "best_effort",
    "gpu_share_mode": "fractional",
}
_SPACE = UUID("3e2b7f64-3a51-4c0e-9d5b-0b4a3c1f5d21")  # of the ids of devices that are not there


class FieldError(HwqueueError):
    """What was typed in a field cannot be understood. field: its name."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message, detail={"field": name})


@dataclass(frozen=True, slots=True)
class Asked:
    """A node as a class asks for it. left_out: what of it a form does not say, as JSON."""

    fields: Mapping[str, str]
    left_out: Sequence[str] = ()


def node_of(fields: Mapping[str, str]) -> dict[str, Any]:
    """The specification of a node that a form describes. Raises: FieldError."""
    more = json_object(fields, "more") if fields.get("more") else {}
    for name in _OWN_FIELDS:
        if name in more and (name != "gpus" or fields.get("gpus")):
            raise FieldError("more", f"{name} has a field of its own")
    capacity: dict[str, Any] = {
        name: number(value, "custom") for name, value in pairs(fields.get("custom", ""), "custom")
    }
    if fields.get("cores"):
        capacity["cpu_milli"] = round(number(fields["cores"], "cores") * 1000)
    if fields.get("memory"):
        capacity["memory_mib"] = round(number(fields["memory"], "memory") * 1024)
    spec = more | {
        "labels": {key: scalar(value) for key, value in pairs(fields.get("labels", ""), "labels")},
        "capacity": capacity,
        "taints": [_taint(line) for line in _lines(fields.get("taints", ""))],
    }
    if fields.get("rack"):
        spec["rack"] = number(fields["rack"], "rack")
    if fields.get("gpus"):
        spec["gpus"] = _gpus(fields)
    if fields.get("count"):
        spec["count"] = number(fields["count"], "count")
    return spec


def _gpus(fields: Mapping[str, str]) -> list[dict[str, Any]]:
    count = number(fields["gpus"], "gpus")
    if not isinstance(count, int) or not 0 <= count <= _MOST_GPUS:
        raise FieldError("gpus", f"GPUs are a number from 0 to {_MOST_GPUS:,}")
    device: dict[str, Any] = {}
    if fields.get("gpu_model"):
        device["model"] = fields["gpu_model"]
    if fields.get("gpu_memory"):
        device["memory_mib"] = round(number(fields["gpu_memory"], "gpu_memory") * 1024)
    return [{"resource_id": str(uuid5(_SPACE, str(index)))} | device for index in range(count)]


def lease_of(fields: Mapping[str, str]) -> dict[str, Any]:
    """The placement and options of `AsyncClient.match_nodes` from a form. Raises: FieldError."""
    return {
        "placement": json_object(fields, "placement"),
        "queue": fields["queue"] or None,
        "task": fields["task"] or None,
        "tenant": fields["tenant"] or None,
        "service_id": fields["service"] or None,
        "labels": dict(pairs(fields["labels"], "labels")) or None,
    }


def place_of(error: HwqueueError, *, lease: bool) -> str:
    """The field of a form that an error of the functions, or of reading it, is about."""
    given = error.field or ""
    if isinstance(error, FieldError):
        return given
    if lease:
        name = given.removeprefix("options.").partition(".")[0].partition("[")[0]
        name = {"service_id": "service", "p_queue": "queue"}.get(name, name)
        if not given and error.sqlstate == "QHQ01":
            name = "queue"
        return name if name in LEASE_FIELDS else "placement"
    for place, name in _PLACES.items():
        if given == place or given.startswith((f"{place}.", f"{place}[")):
            return name
    return "more"


def json_object(fields: Mapping[str, str], name: str) -> dict[str, Any]:
    """The JSON object in a field. Raises: FieldError, with line and column."""
    value = json_value(fields, name)
    if not isinstance(value, dict):
        raise FieldError(name, "this must be a JSON object: {...}")
    return value


def json_value(fields: Mapping[str, str], name: str) -> Any:
    """The JSON in a field. Raises: FieldError, with line and column."""
    try:
        return json.loads(fields[name], parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise FieldError(name, f"this is no JSON, {where}: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise FieldError(name, f"this is no JSON: {error}") from None


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is no number")


def number(text: str, name: str) -> int | float:
    """A number. Raises: FieldError."""
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except ValueError:
        value = None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise FieldError(name, f"{text[:40]!r} is no number")
    return value


def scalar(text: str) -> Any:
    """The value of a node's label: a list, an object or null in JSON, else `label_value`."""
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return text
    return value if value is None or isinstance(value, dict | list) else label_value(text)


def text_of(value: Any) -> str:
    """What to type for a value, so that `scalar` returns it."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, str) and scalar(value) == value and value.strip() == value:
        return value if value and len(value.splitlines()) == 1 else json.dumps(value)
    return json.dumps(value, ensure_ascii=False)


def _label_lines(labels: Mapping[str, Any]) -> str:
    return "\n".join(f"{key}={text_of(value)}" for key, value in labels.items())


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def pairs(text: str, name: str) -> list[tuple[str, str]]:
    """Lines of `key=value`. Raises: FieldError."""
    found = []
    for line in _lines(text):
        key, is_there, value = line.partition("=")
        if not is_there or not key.strip():
            raise FieldError(name, f"{line[:60]!r} is not key=value")
        found.append((key.strip(), value.strip()))
    return found


def _taint(line: str) -> dict[str, str]:
    """A taint, `key=value:effect` or `key:effect`."""
    rest, is_there, effect = line.rpartition(":")
    key, _, value = rest.partition("=")
    if not is_there or not key.strip():
        raise FieldError("taints", f"{line[:60]!r} is not key=value:effect")
    taint = {"key": key.strip(), "effect": effect.strip()}
    return taint | ({"value": value.strip()} if value.strip() else {})


def like(node: Node) -> dict[str, str]:
    """A form that describes a node as one that is there; what operators did to it is left out."""
    capacity = dict(node.capacity)
    cpu, memory = capacity.pop("cpu_milli", None), capacity.pop("memory_mib", None)
    more: dict[str, Any] = {}
    fields = {
        "labels": _label_lines(node.labels),
        "rack": "" if node.rack is None else str(node.rack),
        "cores": "" if cpu is None else amount(cpu / 1000),
        "memory": "" if memory is None else amount(memory / 1024),
        "custom": "\n".join(
            f"{name}={value}" for name, value in capacity.items() if not name.startswith("gpu")
        ),
        "taints": "\n".join(
            f"{taint.key}{f'={taint.value}' if taint.value else ''}:{taint.effect}"
            for taint in node.taints
            if taint.by == "node"
        ),
    }
    if len({(gpu.model, gpu.memory_mib, gpu.parent_resource_id) for gpu in node.gpus}) == 1 and (
        node.gpus[0].parent_resource_id is None
    ):
        device = node.gpus[0]
        fields["gpus"] = str(len(node.gpus))
        fields["gpu_model"] = device.model or ""
        fields["gpu_memory"] = "" if device.memory_mib is None else amount(device.memory_mib / 1024)
    elif node.gpus:
        parents = {gpu.parent_resource_id for gpu in node.gpus}
        more["gpus"] = [_device(gpu, gpu.resource_id in parents) for gpu in node.gpus]
    if node.slots is not None:
        more["slots"] = node.slots
    if node.isolation is not None:
        given = {
            "cpu_isolation": list(node.isolation.cpu),
            "gpu_exclusivity": list(node.isolation.gpu),
            "default_cpu_isolation": node.isolation.default_cpu,
            "gpu_share_mode": node.isolation.gpu_share_mode,
        }
        more |= {key: value for key, value in given.items() if value != _PLAIN[key]}
    if node.cores:
        more["cores"] = [
            {"core": core.core, "numa": core.numa, "threads": list(core.threads)} for core in node.cores
        ]
    return fields | {"more": json.dumps(more) if more else ""}


def _device(gpu: NodeGpu, is_split: bool) -> dict[str, Any]:
    given: dict[str, Any] = {
        "resource_id": str(gpu.resource_id),
        "model": gpu.model,
        "memory_mib": gpu.memory_mib,
        "parent_resource_id": gpu.parent_resource_id and str(gpu.parent_resource_id),
        "partitionable": is_split or None,
    }
    return {key: value for key, value in given.items() if value is not None}


def amount(value: float) -> str:
    """A number to type."""
    return f"{value:.12g}"


def asked_by(row: ClassStats, base: Mapping[str, str] | None = None) -> Asked:
    """The smallest node that a class asks for; or `base`, made to be what it asks for.

    What it asks about other leases counts as met, and is not mentioned.
    """
    fields = dict(base or {})
    own = {key: scalar(value) for key, value in pairs(fields.get("labels", ""), "labels")}
    made = _Wanted(own)
    for expr in row.placement.get("require", ()):
        made.meet(expr)
    fields["labels"] = _label_lines(made.labels)
    resources = row.placement.get("resources", {})
    if made.rack is not None:
        fields["rack"] = str(made.rack)
    custom = dict(pairs(fields.get("custom", ""), "custom"))
    for name, value in resources.items():
        if name == "cpu_milli":
            _raise(fields, "cores", value / 1000)
        elif name == "memory_mib":
            _raise(fields, "memory", value / 1024)
        elif name in ("gpu", "gpu_milli"):
            _raise(fields, "gpus", value if name == "gpu" else math.ceil(value / 1000))
        else:
            custom[name] = str(max(value, int(custom.get(name, "0"))))
    fields["custom"] = "\n".join(f"{name}={value}" for name, value in custom.items())
    more = json.loads(fields.get("more") or "{}")
    if "gpus" in more:  # devices one by one: theirs is what the node has
        fields.pop("gpus", None)
    if "gpu_milli" in resources:
        more["gpu_share_mode"] = "fractional"
    for kind, key in (("cpu", "cpu_isolation"), ("gpu", "gpu_exclusivity")):
        wanted = row.placement.get("isolation", {}).get(kind)
        if wanted not in (None, "best_effort", "shared", *more.get(key, ())):
            more[key] = [*more.get(key, ()), wanted]
    if set(more.get("cpu_isolation", ())) - {"best_effort"} and "cores" not in more:
        count = math.ceil(float(fields.get("cores") or 1))
        more["cores"] = [{"core": index} for index in range(count)]
    fields["more"] = json.dumps(more) if more else ""
    return Asked(fields, [json.dumps(each) for each in made.left_out])


def _raise(fields: dict[str, str], name: str, least: float) -> None:
    """A field holds at least so much."""
    if not fields.get(name) or float(fields[name]) < least:
        fields[name] = amount(least)


# Operators that compare: whether one holds, and how far from its number one is that meets it.
_NUMBERS: Mapping[str, tuple[Callable[[float, float], bool], int]] = {
    "gt": (operator.gt, 1),
    "gte": (operator.ge, 0),
    "lt": (operator.lt, -1),
    "lte": (operator.le, 0),
}


@dataclass(slots=True)
class _Wanted:
    """What expressions ask of a node, as far as labels and a rack can say it."""

    labels: dict[str, Any]
    rack: int | None = None
    left_out: list[Mapping[str, Any]] = field(default_factory=list)

    def meet(self, expr: Mapping[str, Any]) -> None:
        """Be what an expression asks, or note that it is left out."""
        if "any" in expr:
            for each in expr["any"][0] if expr["any"] else ():
                self.meet(each)
        elif "tags" in expr:
            self.labels |= expr["tags"]
        elif "rack" in expr and not expr.get("away"):
            racks = expr["rack"]
            self.rack = racks[0] if isinstance(racks, list) else racks
        elif "label" in expr:
            self._label(expr)
        elif not expr.get("away") and not {"lease", "service", "leases"} & expr.keys():
            self.left_out.append(expr)

    def _label(self, expr: Mapping[str, Any]) -> None:
        key, op, values = expr["label"], expr.get("op", ""), expr.get("values", ())
        if op in _NUMBERS and values:
            holds, step = _NUMBERS[op]
            has = self.labels.get(key)
            if not isinstance(has, int | float) or not holds(has, values[0]):
                self.labels[key] = values[0] + step
        elif op == "in" and self.labels.get(key) not in values:
            self.labels[key] = values[0]
        elif op == "exists":
            self.labels.setdefault(key, True)
        elif op in ("contains_all", "contains_any"):
            self.labels[key] = list(values) if op == "contains_all" else [values[0]]
        elif op not in ("in", "not_in", "does_not_exist"):  # a node that lacks it meets the last two
            self.left_out.append(expr)


def asks_as(row: ClassStats) -> dict[str, str]:
    """The form of a lease that asks what a class asks."""
    return {
        "placement": json.dumps(dict(row.placement), indent=2, ensure_ascii=False),
        "queue": row.queue,
        "task": row.task_name,
        "tenant": row.tenant,
        "service": str(row.service_id or ""),
        "labels": "\n".join(f"{key}={value}" for key, value in row.labels.items()),
    }
