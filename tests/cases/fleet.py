"""Fleet's unit options in hwqueue's grammar: a unit is a lease, its name a label and its id.

MachineID is a node, MachineMetadata labels, MachineOf the place of leases known by id, Conflicts an
away from names, Replaces a lease known by id: the unit that comes takes the place of a running one,
also where that one is said to replace it. Selectors have no globs, so they are expanded over
the names of the case.
"""

import re
from typing import Any

from tests.cases.model import NAME, Case, Item, lease_id, node_id


def unit(case: Case) -> dict[str, list[Any]]:
    """What the incoming unit asks for."""
    return held(case, case.lease)


def held(case: Case, lease: Item) -> dict[str, list[Any]]:
    """What a unit asks for; values of one metadata key are alternatives, keys are ANDed."""
    options = lease.get("fleet") or {}
    require: list[Any] = [
        {"label": key, "op": "in", "values": list(values)}
        for key, values in (options.get("machine_metadata") or {}).items()
    ]
    if options.get("machine_id"):
        require.append({"node": str(node_id(options["machine_id"]))})
    for name in options.get("machine_of") or []:
        require.append({"lease": str(lease_id(name)), "domain": "node"})
    conflicting = _conflicting(case, lease)
    if conflicting:
        selector = {"exprs": [{"label": NAME, "op": "in", "values": conflicting}]}
        require.append({"leases": selector, "domain": "node", "away": True})
    return {"require": require}


def replaced(case: Case) -> list[str]:
    """The names of the running units that the incoming one makes go elsewhere.

    Fleet moves a unit when one of the two replaces the other, whichever it is. When each replaces
    the other nothing moves: it would go on for ever.
    """
    return [
        other["name"]
        for other in case.running
        if other.get("name")
        and other["name"] != case.lease["name"]
        and _replaces(case.lease, other) != _replaces(other, case.lease)
    ]


def _replaces(lease: Item, other: Item) -> bool:
    patterns = map(glob, (lease.get("fleet") or {}).get("replaces") or [])
    return any(pattern.fullmatch(other["name"]) for pattern in patterns)


def glob(pattern: str) -> re.Pattern[str]:
    """A pattern as Go's path.Match reads it: `*` and `?` stop at a slash, `[^...]` excludes."""
    translated = ""
    for token in re.findall(r"\\.|\[\^?(?:\\.|[^\]])*\]|.", pattern, re.DOTALL):
        if token in ("*", "?"):
            translated += "[^/]" + token.replace("?", "")
        elif token[0] == "[" and len(token) > 1:
            translated += "[" + token[1:-1].replace("[", r"\[") + "]"
        else:
            translated += re.escape(token.removeprefix("\\") or token)
    return re.compile(translated, re.DOTALL)


def _conflicting(case: Case, lease: Item) -> list[str]:
    names = {other["name"] for other in (case.lease, *case.running) if other.get("name")}
    patterns = map(glob, (lease.get("fleet") or {}).get("conflicts") or [])
    return sorted({name for pattern in patterns for name in names if pattern.fullmatch(name)})
