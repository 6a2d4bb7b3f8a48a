"""Reads case files, as SCHEMA.md describes them, and says what a translated case looks like."""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

NODES = UUID("5f0a1c1e-6a0b-5c38-9b4e-0d9c3f1a7e52")
LEASES = UUID("5b1f7a44-9f6d-5d0e-8a55-3f1a3f8f4c11")
DEFAULT_FOLDER = Path(__file__).parent / "data"
# What a case says of a lease beside its labels becomes labels, so that selectors can name it.
JOB = "case.job"
GROUP = "case.group"
NAME = "case.name"
# Selects no lease: null in a case, a name that nothing has.
NOTHING: Mapping[str, Any] = {
    "exprs": [
        {"label": NAME, "op": "in", "values": ["nothing"]},
        {"label": NAME, "op": "not_in", "values": ["nothing"]},
    ]
}

Item = Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    """One case of one suite."""

    suite: str
    case_id: str
    stages: tuple[str, ...]
    nodes: tuple[Item, ...]
    candidates: frozenset[str]
    lease: Item
    running: tuple[Item, ...]
    namespaces: Mapping[str, Mapping[str, str]]
    options: Mapping[str, Any]
    expect: Mapping[str, Any]
    precision: int
    members: tuple[Item, ...] = ()  # of gangs, the lease itself left out
    gangs: tuple[Item, ...] = ()

    @property
    def is_about_a_gang(self) -> bool:
        """Whether it asks for a decision about a gang, not for nodes."""
        return any(stage.startswith("gang_") for stage in self.stages)


@dataclass(frozen=True)
class Adopted:
    """What runs already: the node's name in the case, and adopt_lease's options."""

    node: str
    options: Mapping[str, Any]
    is_leaving: bool

    @property
    def placement(self) -> Mapping[str, Any]:
        """What it asks for."""
        placement: Mapping[str, Any] = self.options["placement"]
        return placement


@dataclass(frozen=True)
class Translated:
    """A case in hwqueue's terms: node id and spec by the case's node name, and a placement.

    `lease` are the other options of the incoming lease: tenant and labels.
    """

    nodes: Mapping[str, tuple[UUID, Mapping[str, Any]]]
    placement: Mapping[str, Any]
    lease: Mapping[str, Any]
    running: tuple[Adopted, ...]


def folder() -> Path:
    """HWQUEUE_CASES_DIR, else the cases that ship with the tests."""
    return Path(os.environ.get("HWQUEUE_CASES_DIR", DEFAULT_FOLDER))


def read_cases(source: Path) -> Iterator[Case]:
    """Every case of every suite in the folder; raises ValueError where there is none."""
    files = sorted(source.glob("*.json"))
    if not files:
        raise ValueError(f"no case files (*.json) in {source}; set HWQUEUE_CASES_DIR to a folder")
    for file in files:
        suite = json.loads(file.read_text())
        if suite["schema"] != 1:
            raise ValueError(f"{file} has schema {suite['schema']}; this runner reads schema 1")
        for case in suite["cases"]:
            yield _case(suite["suite"], case)


def node_id(name: str) -> UUID:
    """The id under which the runner registers a node of this name, registered or not."""
    return uuid5(NODES, name)


def lease_id(name: str) -> UUID:
    """The id of the lease of this name, whether it runs or not."""
    return uuid5(LEASES, name)


def namespace_of(lease: Item) -> str:
    """The lease's namespace, which is its tenant in hwqueue."""
    return lease.get("namespace") or "default"


def identity(lease: Item) -> dict[str, Any]:
    """The options that say what a lease is: its tenant and labels."""
    own = {key: lease[name] for key, name in _OWN_LABELS.items() if lease.get(name)}
    return {"tenant": namespace_of(lease), "labels": dict(lease.get("labels") or {}) | own}


_OWN_LABELS = {JOB: "job", GROUP: "group", NAME: "name"}


def _case(suite: str, case: Mapping[str, Any]) -> Case:
    nodes = tuple(case.get("nodes") or ())
    asked = case.get("candidates")
    return Case(
        suite=suite,
        case_id=case["id"],
        stages=tuple(case["stage"]),
        nodes=nodes,
        candidates=frozenset([node["name"] for node in nodes] if asked is None else asked),
        lease=case.get("lease") or {},
        running=tuple(case.get("running") or ()),
        namespaces=case.get("namespaces") or {},
        options=case.get("options") or {},
        expect=case["expect"],
        precision=case.get("precision", 6),
        members=tuple(case.get("members") or ()),
        gangs=tuple(case.get("gangs") or ()),
    )
