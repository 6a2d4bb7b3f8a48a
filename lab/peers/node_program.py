"""Runs the programs in lab/peers/node: Node's packages are installed on first use."""

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import platformdirs
from filelock import FileLock
from psycopg.conninfo import conninfo_to_dict

from lab.peers.peer import NotAtHand

_SOURCES = Path(__file__).parent / "node"
_PACKAGES = ("package.json", "package-lock.json")
# What node-postgres reads; the rest of a DSN is about encryption and the like.
_ENVIRONMENT = {
    "host": "PGHOST",
    "port": "PGPORT",
    "user": "PGUSER",
    "password": "PGPASSWORD",
    "dbname": "PGDATABASE",
    "sslmode": "PGSSLMODE",
}


def pinned_version(package: str) -> str:
    """The version of a package that `lab/peers/node/package.json` asks for.

    Raises: NotAtHand when npm cannot install it.
    """
    _installed()
    return str(json.loads((_SOURCES / "package.json").read_text())["dependencies"][package])


def call(program: str, command: str, dsn: str, **options: Any) -> dict[str, Any]:
    """Run a program's command on a database; what it prints.

    Raises:
        NotAtHand: npm cannot install what it needs.
        RuntimeError: It failed.
    """
    folder = _installed()
    shutil.copytree(_SOURCES, folder, dirs_exist_ok=True)  # beside the packages they import
    ended = subprocess.run(
        [_node(folder), folder / program, command, json.dumps(options)],
        env=os.environ | _environment(dsn),
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode != 0:
        raise RuntimeError(f"{program} {command} failed: {ended.stderr}")
    printed: dict[str, Any] = json.loads(ended.stdout)
    return printed


def _installed() -> Path:
    """The folder with the packages, which brings a Node of its own: most systems' is too old."""
    wanted = b"".join((_SOURCES / name).read_bytes() for name in _PACKAGES)
    cache = platformdirs.user_cache_path("hwqueue") / "benchmark-peers"
    folder = cache / hashlib.sha256(wanted).hexdigest()[:16]
    cache.mkdir(parents=True, exist_ok=True)
    with FileLock(cache / "install.lock"):
        if not (folder / "installed").exists():
            _install(folder)
    return folder


def _install(folder: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise NotAtHand("npm is not on the PATH; it comes with Node.js")
    folder.mkdir(exist_ok=True)
    for name in _PACKAGES:
        shutil.copy(_SOURCES / name, folder)
    ended = subprocess.run(
        [npm, "ci", "--no-audit", "--no-fund"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    # The package `node` gets its program by a script, which npm may have been told not to run.
    if ended.returncode != 0 or not _node(folder).exists():
        raise NotAtHand(f"npm could not install its packages: {ended.stderr.strip()}")
    (folder / "installed").touch()


def _node(folder: Path) -> Path:
    return folder / "node_modules" / ".bin" / "node"


def _environment(dsn: str) -> dict[str, str]:
    given = conninfo_to_dict(dsn)
    return {name: str(given[key]) for key, name in _ENVIRONMENT.items() if given.get(key)}
