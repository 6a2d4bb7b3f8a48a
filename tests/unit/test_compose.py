"""docker-compose.yml names services, files and options that exist.

This does not start it: that takes Docker, and `docker compose up --build`.
"""

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from psycopg.conninfo import conninfo_to_dict

import hwqueue
from tests.unit.test_doc_commands import parse

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docker-compose.yml"

NODES = ("node-gpu", "node-cpu")


@pytest.fixture
def services() -> dict[str, Any]:
    content = yaml.safe_load(FILE.read_text())
    assert isinstance(content["services"], dict)
    return content["services"]


@pytest.mark.parametrize("name", ["migrate", "queues", "api", *NODES])
def test_the_program_takes_the_command(services: dict[str, Any], name: str) -> None:
    parse(services[name]["command"])


def test_services_wait_for_what_they_need_and_reach_no_more(services: dict[str, Any]) -> None:
    assert services["postgres"]["image"] == "postgres:18"
    assert services["postgres"]["healthcheck"]["test"][1] == "pg_isready"
    assert services["migrate"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    done = "service_completed_successfully"
    assert services["queues"]["depends_on"] == {"migrate": {"condition": done}}
    for name in ("api", *NODES):
        assert services[name]["depends_on"] == {"queues": {"condition": done}}
    for name in ("postgres", "api"):
        assert all(port.startswith("127.0.0.1:") for port in services[name]["ports"])
    assert "--no-auth" in services["api"]["command"]
    for name in NODES:
        assert not set(services[name]["networks"]) & set(services["api"]["networks"])
        assert set(services[name]["networks"]) <= set(services["postgres"]["networks"])
    assert set(services["api"]["networks"]) <= set(services["postgres"]["networks"])


def test_the_nodes_differ_and_scale(services: dict[str, Any]) -> None:
    """What is named after the container, and has no port of the machine, may be there twice."""
    lines = [services[name]["command"] for name in NODES]
    for name, line in zip(NODES, lines, strict=True):
        assert not [word for word in line if word.startswith(("--name", "--node-id"))]
        assert not {"container_name", "hostname", "ports"} & set(services[name])
    gpus, regions = (
        [next(word for word in line if word.startswith(option)) for line in lines]
        for option in ("--label=gpu=", "--label=region=")
    )
    assert len(set(gpus)) == len(set(regions)) == 2


def test_files_exist_and_hold_the_app(services: dict[str, Any]) -> None:
    build = services["migrate"]["build"]
    assert (ROOT / build["dockerfile"]).is_file()
    for line in (ROOT / build["dockerfile"]).read_text().splitlines():
        if line.startswith("COPY "):
            assert all((ROOT / source).exists() for source in line.split()[1:-1]), line
    for name in NODES:
        (volume,) = services[name]["volumes"]
        folder = ROOT / volume.split(":")[0]
        module, attribute = services[name]["command"][2].removeprefix("--app=").split(":")
        spec = importlib.util.spec_from_file_location(module, folder / f"{module}.py")
        assert spec is not None
        assert spec.loader is not None
        loaded = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loaded)
        assert isinstance(getattr(loaded, attribute), hwqueue.App)


def roles_of_logins() -> dict[str, set[str]]:
    """The roles of each login that the init script makes."""
    found = re.findall(
        r"create role (\w+) login(?: password '\w+')? in role ([\w, ]+);",
        (ROOT / "docker" / "logins.sql").read_text(),
    )
    return {login: set(roles.split(", ")) for login, roles in found}


def login_of(service: dict[str, Any]) -> str:
    return str(conninfo_to_dict(service["environment"]["HWQUEUE_DSN"])["user"])


def test_only_the_migration_is_done_by_the_superuser(services: dict[str, Any]) -> None:
    superuser = services["postgres"]["environment"]["POSTGRES_USER"]
    roles = roles_of_logins()
    assert superuser not in roles
    assert login_of(services["migrate"]) == superuser
    for name in ("queues", "api"):
        assert roles[login_of(services[name])] == {"hwqueue_admin"}
    for name in NODES:
        assert roles[login_of(services[name])] == {"hwqueue_worker"}
    mounted = services["postgres"]["volumes"][-1].split(":")
    assert (ROOT / mounted[0]).is_file()
    assert mounted[1].startswith("/docker-entrypoint-initdb.d/")


def test_what_nodes_run_cannot_guess_its_way_to_more(services: dict[str, Any]) -> None:
    """Who may do more than a worker has no password, and comes through a socket that nodes lack."""
    text = (ROOT / "docker" / "logins.sql").read_text()
    assert f"alter role {services['postgres']['environment']['POSTGRES_USER']} password null" in text
    assert re.findall(r"create role (\w+) login password", text) == ["queue_node"]
    socket = "socket:/var/run/postgresql"
    for name in ("migrate", "queues", "api"):
        dsn = conninfo_to_dict(services[name]["environment"]["HWQUEUE_DSN"])
        assert (dsn["host"], "password" in dsn) == ("/var/run/postgresql", False)
        assert socket in services[name]["volumes"]
    assert socket in services["postgres"]["volumes"]
    for name in NODES:
        assert socket not in services[name]["volumes"]
