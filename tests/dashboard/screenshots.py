"""Pictures of the dashboard: those that the docs show, or of every page.

    python -m tests.dashboard.screenshots [FOLDER]

Without a folder those that the docs show are taken again; into a folder of your own go all, light
and dark, wide and narrow.

Needs Chromium (see `chromium` below) and a server to make a database on: HWQUEUE_TEST_DSN, else the
embedded one.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from io import BytesIO
from pathlib import Path

import psycopg
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from hwqueue.client import Client
from hwqueue.embedded import EmbeddedServer
from hwqueue.schema import upgrade
from hwqueue.testing import install_clock
from tests.dashboard.seed import seed
from tests.dashboard.visits import serving
from tests.fix_db import THROWAWAY, fresh_database

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "images"
SIZES = {"wide": (1440, 900), "narrow": (390, 844)}
SCHEMES = ("light", "dark")
TALLEST = 1100
FIRST = "class-light-wide.png"


def chromium() -> str | None:
    """Where Chromium is: HWQUEUE_TEST_CHROMIUM, else where Debian puts it."""
    given = os.environ.get("HWQUEUE_TEST_CHROMIUM") or shutil.which("chromium")
    return given if given and Path(given).exists() else None


@contextmanager
def browsing() -> Iterator[Browser]:
    """A headless Chromium."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


def pages(client: Client) -> dict[str, str]:
    """Every page by the name of its picture."""
    classes = client.pending_reasons(limit=100)
    stuck = next(row for row in classes if "H100" in (row.words or ""))
    dead = client.list_leases(state="failed", limit=1)[0]
    waiting = client.list_leases(queue="training", state="pending", limit=1)[0]
    listed = client.list_workflow_runs(limit=100)
    training = next(run for run in listed if run.workflow == "train-and-publish")
    failed = next(run for run in listed if run.state == "failed")
    scoring = next(run for run in listed if run.workflow == "score-and-release")
    nested = next(run for run in listed if run.parent_run_id == scoring.run_id)
    scored = next(run for run in listed if run.workflow == "score-shards")
    gang = client.list_gangs(state="waiting", limit=1)[0]
    asked = client.list_preemptions()[0]
    preempting = client.list_leases(queue="live", state="pending", limit=1)[0]
    [parked, *_] = (lane for lane in client.limit_lanes("per_customer") if lane.lease_id)
    return {
        "overview": "/",
        "pending": "/pending",
        "class": f"/pending/{stuck.class_id}",
        "leases": "/leases",
        "lease": f"/leases/{dead.lease_id}",
        "lease-pending": f"/leases/{waiting.lease_id}",
        "gangs": "/gangs",
        "gang": f"/gangs/{gang.gang_id}",
        "gang-reserved": f"/gangs/{client.list_gangs(state='reserved', limit=1)[0].gang_id}",
        "fleet": "/fleet",
        "fleet-history": "/fleet/history",
        "map": "/fleet?view=map",
        "map-fit": f"/fleet?view=map&fit={stuck.class_id}",
        "node": "/nodes/n-01-01",
        "runs": "/runs",
        "run": f"/runs/{training.run_id}",
        "run-failed": f"/runs/{failed.run_id}",
        "run-kinds": f"/runs/{scoring.run_id}",
        "run-nested": f"/runs/{nested.run_id}",
        "items": f"/runs/{scored.run_id}/steps/score",
        "workflows": "/workflows",
        "workflow": "/workflows/train-and-publish",
        "workflow-where": "/workflows/score-and-release/where",
        "schedules": "/schedules",
        "schedule": "/schedules/report?since=2026-11-02&until=2026-11-09",
        "schedule-paused": "/schedules/sweep",
        "queues": "/queues",
        "queue": "/queues/renders",
        "queue-limits": "/queues/calls",
        "limits": "/limits",
        "limit": "/limits/per_customer",
        "limit-fair": "/limits/customers?order=wait",
        "limit-rate": "/limits/openai",
        "lease-limit": f"/leases/{parked.lease_id}",
        "tenants": "/tenants",
        "tenant": "/tenants/lab",
        "tenant-row": "/tenants/*",
        "lease-preempted": f"/leases/{asked.lease_id}",
        "lease-preempting": f"/leases/{preempting.lease_id}",
        "classes": "/classes",
        "events": "/events",
        "try-node": f"/try?for={stuck.class_id}",
        "try-placement": f"/try/placement?for={stuck.class_id}",
        "system": "/system",
    }


def picture(page: Page, url: str, path: Path) -> None:
    """One page, as it is when it has come to rest, down to where most readers stop."""
    page.goto(url)
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(300)
    width, height = page.evaluate("[innerWidth, document.documentElement.scrollHeight]")
    taken = page.screenshot(
        full_page=True, clip={"x": 0, "y": 0, "width": width, "height": min(height, TALLEST)}
    )
    # a palette is a third of the size; this way of choosing it keeps colours that are rare
    image = Image.open(BytesIO(taken)).convert("RGB")
    image.quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=4).save(path, optimize=True)


def shown() -> set[str]:
    """The files that the README and the docs show; the first page of the site has dark ones, too."""
    texts = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    found = (re.findall(r"images/([\w-]+\.png)", text.read_text("utf-8")) for text in texts)
    names = {name for names in found for name in names}
    return names | {FIRST.replace("light", "dark")}


def main() -> None:
    """Take them."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    wanted = shown() if folder == FOLDER else None
    with ExitStack() as stack:
        server = os.environ.get("HWQUEUE_TEST_DSN")
        if not server:
            home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            home.chmod(0o755)
            embedded = EmbeddedServer(home / "server", settings=THROWAWAY)
            stack.callback(embedded.stop)
            server = embedded.ensure_running()
        dsn = stack.enter_context(fresh_database(server))
        upgrade(dsn)
        with psycopg.connect(dsn, autocommit=True) as connection, Client(dsn) as client:
            seed(client, install_clock(connection))
            client.reap()
            found = pages(client)
        url = stack.enter_context(serving(dsn))
        browser = stack.enter_context(browsing())
        client = stack.enter_context(Client(dsn))
        for scheme in SCHEMES:
            for size, (width, height) in SIZES.items():
                client.reap()  # else pages say that nobody does
                context = browser.new_context(
                    viewport={"width": width, "height": height},
                    color_scheme="dark" if scheme == "dark" else "light",
                    timezone_id="Europe/Berlin",
                )
                page = context.new_page()
                for name, path in found.items():
                    file = f"{name}-{scheme}-{size}.png"
                    if wanted is None or file in wanted:
                        picture(page, url + path, folder / file)
                context.close()


if __name__ == "__main__":
    main()
