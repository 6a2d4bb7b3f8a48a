"""The ids of what has a name in a world: the same in every walk."""

from uuid import UUID, uuid5

from tests.properties.strategies import IDS

QUEUE = "walk"


def lease_id(name: str) -> UUID:
    return uuid5(IDS, f"walk-lease-{name}")


def gang_id(name: str) -> UUID:
    return uuid5(IDS, f"walk-gang-{name}")


def choice_id(name: str) -> UUID:
    return uuid5(IDS, f"walk-choice-{name}")


def everywhere_id(name: str) -> UUID:
    """The id of an everywhere task."""
    return uuid5(IDS, f"walk-everywhere-{name}")


def node_id(name: str) -> UUID:
    return uuid5(IDS, f"walk-node-{name}")
