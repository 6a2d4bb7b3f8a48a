"""A producer needs psycopg and little else; whatever else is missing is said with its extra."""

import subprocess
import sys
import tomllib
from collections.abc import Collection
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
# What the base installation brings, with what psycopg itself asks for.
BASE = {
    *("cronsim", "hwqueue", "packaging", "psycopg", "psycopg_pool"),
    "typing_extensions",
}
LIBPQ = {"psycopg_binary", "psycopg_c"}
pytestmark = pytest.mark.thorough

# sys.argv[1]: packages that are there; or, behind a `-`, those that are not.
BARE = """
import sys
from importlib.machinery import PathFinder

GIVEN = sys.argv.pop(1)

class Bare:
    def find_spec(self, name, path=None, target=None):
        found = PathFinder.find_spec(name, path) if "." not in name else None
        is_named = name in GIVEN.removeprefix("-").split(",")
        if found and is_named == GIVEN.startswith("-") and "site-packages" in str(found.origin):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Bare())
"""
SPAWN = """
import hwqueue
with hwqueue.Client(sys.argv[1]) as client:
    client.check_schema()
    client.create_queue("of-a-producer")
    lease = client.spawn_lease("of-a-producer", "task", {}, affinity_tags={"gpu": True})
    print(client.get_lease(lease.lease_id).state.value)
"""
TYPED = """
from dataclasses import dataclass
import hwqueue

@dataclass
class Scene:
    name: str

app = hwqueue.App()

@app.task("draw", queue="of-a-producer")
def draw(context: hwqueue.LeaseContext, frame: int, scene: Scene) -> None: ...

with hwqueue.Client(sys.argv[1]) as client:
    client.create_queue("of-a-producer")
    lease = draw.spawn(client, frame=1, scene=Scene("intro"))
    print(client.get_lease(lease.lease_id).params)
"""
# What needs an extra, and which.
PARTS = [
    ("from hwqueue import Worker", "worker"),
    ("import hwqueue.worker", "worker"),
    ("from hwqueue.schema import upgrade", "schema"),
    ("import hwqueue.embedded", "embedded"),
    ("import hwqueue.metrics", "metrics"),
    ("import hwqueue.server", "serve"),
    ("import hwqueue.contrib.django", "django"),
    ("from hwqueue.webhooks import Deliverer", "webhooks"),
    ("import hwqueue.planner", "planner"),
]


def bare(code: str, *arguments: str, without: Collection[str] = ()) -> subprocess.CompletedProcess[str]:
    """Run Python code as if only the base installation and libpq were there, or all but some packages."""
    given = f"-{','.join(without)}" if without else ",".join(BASE | LIBPQ)
    return subprocess.run(
        [sys.executable, "-c", BARE + code, given, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("code", "printed"),
    [(SPAWN, "pending\n"), (TYPED, "{'frame': 1, 'scene': {'name': 'intro'}}\n")],
    ids=["plain", "typed"],
)
def test_a_producer_needs_no_extra(dsn: str, code: str, printed: str) -> None:
    run = bare(code, dsn)
    assert run.stdout == printed, run.stderr


@pytest.mark.parametrize(("code", "extra"), PARTS)
def test_what_is_missing_is_said(code: str, extra: str) -> None:
    run = bare(code)
    last = run.stderr.splitlines()[-1]
    assert last.startswith("ModuleNotFoundError: ")
    assert last.endswith(f" is not installed: pip install 'hwqueue[{extra}]'")


def test_the_program_says_it_in_one_line() -> None:
    run = bare("from hwqueue.__main__ import main; main()")
    assert run.returncode == 1
    assert run.stderr.startswith("error: ")
    assert run.stderr.endswith(" is not installed: pip install 'hwqueue[cli]'\n")
    assert len(run.stderr.splitlines()) == 1
    run = bare("import hwqueue; print(hasattr(hwqueue, 'nothing'), hasattr(hwqueue, 'schema'))")
    assert run.stdout.startswith("False "), run.stderr


def test_who_has_no_libpq_hears_where_to_get_it() -> None:
    """A psycopg without its binary asks the system."""
    run = bare("import ctypes.util; ctypes.util.find_library = print; import hwqueue", without=LIBPQ)
    assert run.stdout == "pq\n"
    assert run.stderr.splitlines()[-1].startswith(
        "ImportError: psycopg finds no libpq: pip install 'hwqueue[binary]'"
    )


@pytest.mark.parametrize("command", ["sql", "upgrade"])
def test_a_command_that_installs_the_schema_says_which_extra_it_needs(command: str) -> None:
    """The rest of the command line does without it."""
    code = "from hwqueue.__main__ import main; main()"
    run = bare(
        code, "db", command, "--dsn=postgresql://nobody@127.0.0.1:1/none", without={"alembic", "sqlalchemy"}
    )
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr == "error: alembic is not installed\nhint: pip install 'hwqueue[schema]'\n"


def test_the_core_depends_on_little_and_all_has_every_extra_but_the_developers() -> None:
    """What it brings is in README.md and lab/figures.md: measure it again."""
    lines = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    named = {required.name: required.extras for required in map(Requirement, lines)}
    assert named == {"cronsim": set(), "packaging": set(), "psycopg": {"pool"}}
    assert set(named) < BASE
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    [line] = extras["all"]
    all_of = set(line.removeprefix("hwqueue[").removesuffix("]").split(","))
    left_out = {"all", "dev", "django", "docs", "planner", "test"}
    assert set(extras) - all_of - {"worker"} == left_out
