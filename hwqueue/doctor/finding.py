"""What a check finds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad it is: `fail` keeps work from running, `skip` could not be checked.

    What `info` says matters to some, and is wrong for nobody.
    """

    OK = "ok"
    INFO = "info"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found: a sentence, and what to do about it ("": nothing)."""

    check: str
    level: Level
    message: str
    advice: str = ""


def ok(check: str, message: str) -> Finding:
    """All is well."""
    return Finding(check, Level.OK, message)


def info(check: str, message: str, advice: str) -> Finding:
    """Work runs as it should; somebody may want it otherwise."""
    return Finding(check, Level.INFO, message, advice)


def warn(check: str, message: str, advice: str) -> Finding:
    """Work runs, but slower or less safely than it should."""
    return Finding(check, Level.WARN, message, advice)


def fail(check: str, message: str, advice: str) -> Finding:
    """Work does not run, or may be lost."""
    return Finding(check, Level.FAIL, message, advice)


def skip(check: str, message: str, advice: str) -> Finding:
    """This login, or this database, does not let it be checked."""
    return Finding(check, Level.SKIP, message, advice)
