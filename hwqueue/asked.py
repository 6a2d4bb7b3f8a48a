"""What a step asks of its node, and who asks: the workflow, the submission, the step, the task.

Or where another step ran, that it is near or away from: `("near train", ["rack 7"])`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_LONGEST = 60
_MOST_VALUES = 3
_OPS = {"not_in": "not in", "gt": ">", "gte": ">=", "lt": "<", "lte": "<=", "regexp": "matches"}


def _plain(key: str, value: Any) -> str:
    return f"{key.replace('_', ' ')} {_text(value)}"


def asked(
    placement: Mapping[str, Any] | None,
    came_from: Mapping[str, Any] | None,
    amount: Callable[[str, Any], str] = _plain,
) -> list[tuple[str, list[str]]]:
    """What is asked, by who asks it: `("step", ["nvlink in full", "4 GPU"])`.

    Args:
        placement: In normal form; None: of a step without a lease.
        came_from: As in `hwqueue.types.CheckedStep`. What several levels ask is theirs together:
            `workflow and step`. What nobody is named for is left out.
        amount: How one of the resources is written, by its name and value.
    """
    found: dict[str, list[str]] = {}
    for levels, words in _parts(placement or {}, came_from or {}, amount):
        who, arrow, place = " and ".join(levels).partition(" -> ")
        if arrow:  # the place of another step has its own words
            sign = "not " if who.startswith("away") else ""
            mild = "prefers " if words.startswith("prefers ") else ""
            found.setdefault(who, []).append(mild + sign + place)
        else:
            found.setdefault(who, []).append(words)
    return [(who, words) for who, words in found.items() if who]


def _parts(
    placement: Mapping[str, Any], came_from: Mapping[str, Any], amount: Callable[[str, Any], str]
) -> Iterator[tuple[list[str], str]]:
    for key, value in placement.items():
        levels = came_from.get(key, ())
        if isinstance(value, list):
            yield from ((by, _words(key, each)) for each, by in zip(value, levels, strict=False) if by)
        elif isinstance(value, Mapping) and isinstance(levels, Mapping):
            yield from (
                (by, (amount if key == "resources" else _isolation)(name, value[name]))
                for name, by in levels.items()
                if name in value
            )
        else:
            yield list(levels), _plain(key, value)  # one value: a list of levels


def _isolation(name: str, value: Any) -> str:
    return _plain(name.upper(), value)


def _words(key: str, each: Any) -> str:
    """One entry of a list of the placement."""
    if key == "require":
        return _rule(each)
    if key == "prefer":
        rules = " and ".join(_rule(rule) for rule in each.get("when", ()))
        sign = "not " if each.get("weight", 0) < 0 else ""
        return f"prefers {sign}{rules or 'any node'}"
    if key == "tolerate":
        return f"tolerates {each.get('key', 'everything')}"
    return _plain(key, each)


def _rule(rule: Mapping[str, Any]) -> str:
    """One rule of `require`, as explanations say it."""
    if "label" not in rule or "values" not in rule:
        has = {"exists": "has", "does_not_exist": "has no"}.get(rule.get("op", ""))
        return f"{has} {rule['label']}" if has else _text(rule)
    values = [_text(value) for value in rule["values"][:_MOST_VALUES]]
    more = len(rule["values"]) - len(values)
    told = " or ".join(values) + (f" or {more} more" if more else "")
    return f"{rule['label']} {_OPS.get(rule['op'], rule['op'])} {told}"


def _text(value: Any) -> str:
    told = value if isinstance(value, str) else json.dumps(value)
    return told if len(told) <= _LONGEST else told[: _LONGEST - 1] + "…"
