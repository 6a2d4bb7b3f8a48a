"""deploy/, docker/ and docker-compose.yml name commands, options, files, images and secrets that exist."""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from psycopg.conninfo import conninfo_to_dict
from typer.main import get_command

import hwqueue
from hwqueue.cli.inputs import span
from hwqueue.cli.main import app
from hwqueue.planner import Settings
from hwqueue.schema.bundle import OWNER, ROLES
from hwqueue.server.roles import Role
from hwqueue.server.routers import health
from hwqueue.server.settings import ServerSettings
from tests.metrics.test_names import unknown
from tests.unit.test_doc_commands import parse

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
DOCKERFILE = ROOT / "docker" / "Dockerfile"

SAID = ("user", "role", "tenant", "secret")  # by a reverse proxy
CANCEL_GRACE = timedelta(seconds=5)
LAST_CALLS = timedelta(seconds=10)  # hooks of on_stop among them


def needed_to_stop(words: list[str]) -> timedelta:
    """How long a command may take to stop, by its options and their defaults."""
    command: Any = get_command(app)
    for word in words[: 2 if words[0] == "worker" else 1]:
        command = command.commands[word]
    options = dict(word.split("=", 1) for word in words if "=" in word)
    default = next(p.default for p in command.params if p.name == "shutdown_timeout")
    text: str = options.get("--shutdown-timeout", default)
    found = span(text, "--shutdown-timeout")
    return found + (CANCEL_GRACE + LAST_CALLS if words[0] == "worker" else timedelta(0))


# systemd


def settings(unit: Path) -> dict[str, str]:
    """The settings of a unit; none may be there twice."""
    lines = re.findall(r"^(\w+)=(.*)$", unit.read_text(encoding="utf-8"), re.M)
    assert len(lines) == len(dict(lines))
    return dict(lines)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_runs_a_command_that_exists(unit: Path) -> None:
    found = settings(unit)
    program, *words = shlex.split(found["ExecStart"])
    assert program.endswith("/bin/hwqueue")
    parse(words)
    assert "password" not in found["ExecStart"]
    if words[0] == "webhook":
        command: Any = get_command(app)
        options = command.commands["webhook"].commands["run"].params
        longest = span(next(each.default for each in options if each.name == "timeout"), "")
        assert longest is not None
        assert timedelta(seconds=int(found["TimeoutStopSec"])) > longest
    elif words[0] == "planner":
        assert timedelta(seconds=int(found["TimeoutStopSec"])) > 2 * Settings().solve_timeout
    elif words[0] != "metrics":
        assert timedelta(seconds=int(found["TimeoutStopSec"])) >= needed_to_stop(words)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_understands_a_unit(unit: Path, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    text = re.sub(r"/\S+/bin/hwqueue", sys.executable, unit.read_text(encoding="utf-8"))
    copy = tmp_path / unit.name.replace("@", "@1")
    copy.write_text(text, encoding="utf-8")
    run = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert copy.name not in run.stderr  # unknown settings are only warned of


# Kubernetes


def documents(file: Path) -> list[dict[str, Any]]:
    """The objects of a manifest."""
    return [each for each in yaml.safe_load_all(file.read_text(encoding="utf-8")) if each]


def kustomization() -> dict[str, Any]:
    [found] = documents(DEPLOY / "kubernetes" / "kustomization.yaml")
    return found


def objects(kind: str | None = None) -> Iterator[dict[str, Any]]:
    """All objects, or those of a kind."""
    for file in MANIFESTS:
        for each in documents(file):
            if kind in (None, each["kind"]):
                yield each


def pods() -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Of each workload: its name, its pods' template, and its only container."""
    found = []
    for each in objects():
        template = each.get("spec", {}).get("template")
        if template:
            [container] = template["spec"]["containers"]
            found.append((each["metadata"]["name"], template, container))
    return found


def test_the_manifests_are_applied_or_named_as_apart() -> None:
    apart = {"kustomization.yaml", "secret.example.yaml", "keda.yaml"}
    assert {*kustomization()["resources"], *apart} == {file.name for file in MANIFESTS}


@pytest.mark.parametrize(("name", "template", "container"), pods(), ids=[name for name, *_ in pods()])
def test_a_container_runs_a_command_that_exists(
    name: str, template: dict[str, Any], container: dict[str, Any]
) -> None:
    words = container["args"]
    parse(words)
    assert container["image"] in {image["name"] for image in kustomization()["images"]}
    [secret] = objects("Secret")
    variables = {each["name"]: each["valueFrom"] for each in container["env"]}
    assert variables["HWQUEUE_DSN"]["secretKeyRef"] == {"name": "hwqueue", "key": name[8:]}
    assert name[8:] in secret["stringData"]
    for variable in re.findall(r"\$\((\w+)\)", " ".join(words)):
        assert variable in variables
    if words[0] in ("worker", "serve"):
        grace = template["spec"]["terminationGracePeriodSeconds"]
        assert timedelta(seconds=grace) >= needed_to_stop(words)
    assert template["spec"]["securityContext"] == {
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["volumeMounts"] == [{"name": "tmp", "mountPath": "/tmp"}]
    [volume] = template["spec"]["volumes"]
    assert (volume["name"], "sizeLimit" in volume["emptyDir"]) == ("tmp", True)


def test_selectors_find_their_pods() -> None:
    labels = {name: template["metadata"]["labels"] for name, template, _ in pods()}
    for each in objects("Deployment"):
        assert each["spec"]["selector"]["matchLabels"] == labels[each["metadata"]["name"]]
    for each in objects("Service"):
        assert each["spec"]["selector"] == labels[each["metadata"]["name"]]
        ports = [
            port["name"]
            for name, _, container in pods()
            if name == each["metadata"]["name"]
            for port in container.get("ports", [])
        ]
        assert [port["targetPort"] for port in each["spec"].get("ports", [])] == ports
    [scaled] = objects("ScaledObject")
    target = scaled["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", "hwqueue-worker")
    assert target["name"] in labels


def test_each_pod_takes_the_connections_that_it_is_there_for() -> None:
    policies = {each["metadata"]["name"]: each["spec"] for each in objects("NetworkPolicy")}
    labels = {template["metadata"]["labels"]["app.kubernetes.io/name"] for _, template, _ in pods()}
    [closed] = policies["hwqueue-nothing-in"]["podSelector"]["matchExpressions"]
    assert set(closed["values"]) == labels
    assert "ingress" not in policies["hwqueue-nothing-in"]
    [reached] = policies["hwqueue-database-out"]["podSelector"]["matchExpressions"]
    assert set(reached["values"]) == labels - {"hwqueue-worker"}
    open_ports = {}
    for name, template, container in pods():
        if name in policies:
            labelled = policies[name]["podSelector"]["matchLabels"]
            assert labelled == template["metadata"]["labels"]
            open_ports[name] = [port["name"] for port in container["ports"]]
            [rule] = policies[name]["ingress"]
            assert [each["port"] for each in rule["ports"]] == open_ports[name]
    assert set(open_ports) == {"hwqueue-server", "hwqueue-metrics"}
    [rule] = policies["hwqueue-metrics"]["ingress"]
    namespace = {"kubernetes.io/metadata.name": "monitoring"}
    assert rule["from"] == [{"namespaceSelector": {"matchLabels": namespace}}]


def test_probes_ask_what_the_server_answers() -> None:
    [server] = [container for name, _, container in pods() if name == "hwqueue-server"]
    paths = {server[probe]["httpGet"]["path"] for probe in ("readinessProbe", "livenessProbe")}
    assert paths == {getattr(route, "path", None) for route in health.router.routes}


def test_it_scales_by_metrics_that_exist() -> None:
    [scaled] = objects("ScaledObject")
    queries = [trigger["metadata"]["query"] for trigger in scaled["spec"]["triggers"]]
    page = (ROOT / "docs/run/deploy.md").read_text(encoding="utf-8")
    queries += re.findall(r"```promql\n(.*?)```", page, re.S)
    assert len(queries) == 3
    for query in queries:
        assert "hwqueue_" in query
        assert not unknown(query)
    [worker] = [container for name, _, container in pods() if name == "hwqueue-worker"]
    thresholds = [trigger["metadata"]["threshold"] for trigger in scaled["spec"]["triggers"]]
    assert f"--concurrency={thresholds[0]}" in worker["args"]
    assert worker["resources"]["limits"]["cpu"] == thresholds[1]


def test_prometheus_understands_the_queries(tmp_path: Path) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed")
    [scaled] = objects("ScaledObject")
    rules = [
        {"record": f"demand:{number}", "expr": trigger["metadata"]["query"]}
        for number, trigger in enumerate(scaled["spec"]["triggers"])
    ]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "demand", "rules": rules}]}))
    run = subprocess.run(["promtool", "check", "rules", str(file)], capture_output=True, check=False)
    assert run.returncode == 0, run.stderr


# Images


def stages() -> dict[str, tuple[str, str]]:
    """Each stage of the Dockerfile: what it is made from, and its text."""
    parts = re.split(r"^FROM ", DOCKERFILE.read_text(encoding="utf-8"), flags=re.M)[1:]
    found = {}
    for part in parts:
        head, _, body = part.partition("\n")
        source, _, name = head.partition(" AS ")
        found[name] = (source, body)
    return found


def test_there_is_an_image_for_each_role() -> None:
    found = stages()
    for line in re.findall(r"^COPY ([^-].*)$", DOCKERFILE.read_text(encoding="utf-8"), re.M):
        assert all((ROOT / source).exists() for source in line.split()[:-1]), line
    assert list(found)[2:] == ["worker", "migrate", "planner", "server"]
    assert {found[name][0] for name in list(found)[3:]} == {"worker"}
    # each is made from `base`, whose first process passes signals on and reaps; containers of
    # deploy/ and compose give arguments, and keep it
    assert '\nENTRYPOINT ["tini", "--", "hwqueue"]\n' in found["base"][1]
    assert not re.search("^ENTRYPOINT", "".join(text for _, text in list(found.values())[2:]), re.M)
    for name, (_, text) in list(found.items())[2:]:
        assert f"COPY docker/{name}.lock /tmp/" in text
        assert f"-r /tmp/{name}.lock" in text
        assert re.findall(r"^USER (\d+)$", text, re.M)[-1] == "10001"


@pytest.mark.parametrize("name", ["worker", "migrate", "planner", "server"])
def test_an_image_runs_a_command_that_exists(name: str) -> None:
    [words] = re.findall(r"^CMD (\[.*\])$", stages()[name][1], re.M)
    command = [word for word in yaml.safe_load(words) if word != "--help"]
    parse(command, whole=False)


# Single sign-on


def test_nginx_says_what_the_server_believes() -> None:
    text = (DEPLOY / "sso" / "nginx.conf").read_text(encoding="utf-8")
    sent = set(re.findall(r"^    proxy_set_header (\S+) ", text, re.M))
    believed = {ServerSettings.__dataclass_fields__[f"proxy_{name}_header"].default for name in SAID}
    assert believed <= sent
    roles = re.findall(r"^    ~\S+ (\w+);$", text, re.M)
    assert len(roles) == 3
    assert set(roles) <= set(Role)
    # a location that sets a header of its own inherits none
    to_server = [b for b in re.findall(r"\{[^{}]*\}", text) if "127.0.0.1:8080" in b]
    assert len(to_server) == 2
    assert not [block for block in to_server if "proxy_set_header" in block]


def test_the_page_shows_what_nginx_does() -> None:
    page = (ROOT / "docs" / "run" / "security.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```nginx\n(.*?)^```", page, re.M | re.S)
    assert len(blocks) == 2
    text = (DEPLOY / "sso" / "nginx.conf").read_text(encoding="utf-8")
    assert all(block in text for block in blocks)


# Logins


def test_each_login_has_its_role_and_no_more(conn: psycopg.Connection) -> None:
    text = (DEPLOY / "logins.sql").read_text(encoding="utf-8")
    logins = dict(re.findall(r"create role (\w+) login in role (\w+);", text))
    assert set(logins.values()) == {OWNER, *ROLES}
    suffix = conn.info.dbname[-12:]
    for login in logins:
        text = re.sub(rf"\b{login}\b", f"{login}_{suffix}", text)
    with conn.transaction(force_rollback=True):
        conn.execute(text.replace(':"app"', f'"{conn.info.dbname}"').encode())
        for login, role in logins.items():
            row = conn.execute(
                "select array(select r.rolname::text from pg_roles r"
                " where r.rolname = any (%s) and pg_has_role(%s, r.oid, 'member'))",
                [[OWNER, *ROLES], f"{login}_{suffix}"],
            ).fetchone()
            assert row == ([role],)


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
