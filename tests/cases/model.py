"""Reads case files, as SCHEMA.md describes them, and says what a translated case looks like."""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

NODES = UUID("5f0a1c1e-6a0b-5c38-9b4e-0d9c3f1a7e52")
DEFAULT_FOLDER = Path(__file__).parent / "data"


@dataclass(frozen=True)
class Case:
    """One case of one suite."""

    suite: str
    case_id: str
    stages: tuple[str, ...]
    nodes: tuple[Mapping[str, Any], ...]
    candidates: frozenset[str]
    lease: Mapping[str, Any]
    running: tuple[Mapping[str, Any], ...]
    options: Mapping[str, Any]
    expect: Mapping[str, Any]
    precision: int


@dataclass(frozen=True)
class Translated:
    """A case in hwqueue's terms: node id and spec by the case's node name, and a placement."""

    nodes: Mapping[str, tuple[UUID, Mapping[str, Any]]]
    placement: Mapping[str, Any]


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


def node_spec(node: Mapping[str, Any], labels: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the runner registers for a node of a case."""
    return {"name": node["name"], "instance_id": "case", "labels": dict(labels)}


def _case(suite: str, case: Mapping[str, Any]) -> Case:
    nodes = tuple(case["nodes"]) if "nodes" in case else ()
    return Case(
        suite=suite,
        case_id=case["id"],
        stages=tuple(case["stage"]),
        nodes=nodes,
        candidates=frozenset(case.get("candidates", [node["name"] for node in nodes])),
        lease=case.get("lease", {}),
        running=tuple(case.get("running", ())),
        options=case.get("options", {}),
        expect=case["expect"],
        precision=case.get("precision", 6),
    )
