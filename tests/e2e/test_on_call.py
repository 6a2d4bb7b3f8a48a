"""The walk-through for people on call, docs/run/on_call.md: every step as it is written there.

Blocks are done as tests/e2e/reading.py says. Besides:

| written | done |
|---|---|
| in a numbered list: open <..>, click **..**, see **..**, enter `$..` as **..** | in a browser |
| *5 minutes later* | the queue's clock moves; workers beat, Prometheus scrapes |
| > **Name** fires: .. / is resolved | promtool: that alert, in these words, and no other |
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from markdown_it.token import Token
from playwright.sync_api import Page, expect

from benchmarks.core.pooler import free_port
from hwqueue.client import Client
from hwqueue.testing import Clock
from tests.dashboard.screenshots import browsing, chromium
from tests.e2e.conftest import Shell
from tests.e2e.reading import Reader
from tests.e2e.test_serve import wait_until_ready
from tests.e2e.worker_support import BOUND_SECONDS, wait_until
from tests.fix_db import strict_skip
from tests.metrics.promtool import Values, firing, read
from tests.shell_lines import tokens
from tests.sql.api import count_all

PAGE = Path(__file__).parents[2] / "docs" / "run" / "on_call.md"
LOGIN = "worker"  # what the page calls the user of the database
DEED = re.compile(
    r"\b(?P<verb>open|click|see|enter) (?:<(?P<url>[^>]+)>"
    r"|(?:`\$(?P<variable>\w+)` as )?\*\*(?P<what>.+?)\*\*)",
    re.IGNORECASE,
)
HALF_A_MINUTE = timedelta(seconds=30)

pytestmark = pytest.mark.embedded


@dataclass(kw_only=True)
class Story(Reader):
    """How to do each step, and what has happened so far."""

    conn: psycopg.Connection[Any]
    client: Client
    clock: Clock
    page: Page
    folder: Path
    port: str = field(default_factory=lambda: str(free_port()))
    history: list[Values] = field(default_factory=list)
    alerts: set[str] = field(default_factory=set)

    def typed(self, text: str) -> str:
        """With the port of this run, too."""
        return super().typed(text.replace("8080", self.port))

    def printed(self, command: str) -> str:
        """With the port and the user of the page."""
        told = super().printed(command)
        return told.replace(self.port, "8080").replace(self.conn.info.user, LOGIN)

    def block(self, token: Token) -> None:
        """Wait for what a block starts, too."""
        super().block(token)
        if token.info == "sh":
            self.settle()

    def settle(self) -> None:
        """Wait until what was started is there."""
        wait_until(lambda: not any("bash" in words for words in self.shell.jobs()))
        if any("serve" in words for words in self.shell.jobs()):
            wait_until_ready(f"http://127.0.0.1:{self.port}")
        logs = [self.folder / f"{name}.log" for name in self.shell.workers()]
        wait_until(lambda: all("registered" in log.read_text(encoding="utf-8") for log in logs))

    def deed(self, text: str) -> None:
        """An item of a numbered list."""
        found = list(DEED.finditer(text))
        assert found, f"nothing to do in: {text}"
        for each in found:
            what = each["what"]
            match each["verb"].lower():
                case "open":
                    self.page.goto(self.typed(each["url"]))
                case "click":
                    link = self.page.get_by_role("link", name=what, exact=True)
                    button = self.page.get_by_role("button", name=what, exact=True)
                    link.or_(button).click()
                case "enter":
                    value = self.shell.run(f"echo ${each['variable']}").strip()
                    self.page.get_by_label(what).fill(value)
                case "see":
                    expect(self.page.locator("main")).to_contain_text(what)

    def pass_time(self, minutes: int) -> None:
        """Let time pass as it does: workers beat twice a minute, Prometheus asks once."""
        if not self.history:
            self.scrape()
        for _ in range(minutes):
            for _ in range(2):
                self.clock.advance(HALF_A_MINUTE)
                self.beat()
                count_all(self.conn)
            self.scrape()

    def beat(self) -> None:
        """What each worker that lives would have done by now."""
        alive = self.shell.workers()
        for node in self.client.list_nodes():
            if node.name in alive:
                claims = [(c.lease_id, c.claim_token) for c in self.client.node_claims(node.node_id)]
                self.client.heartbeat_node(node.node_id, node.node_epoch, claims=claims)

    def scrape(self) -> None:
        """What the server answers Prometheus."""
        token = self.shell.run("echo $TOKEN").strip()
        answer = httpx.get(
            f"http://127.0.0.1:{self.port}/metrics",
            headers={"Authorization": f"Bearer {token}"},
            timeout=BOUND_SECONDS,
        )
        assert answer.status_code == 200, answer.text
        self.history.append(read(answer.text))

    def alert(self, text: str) -> None:
        """An alert begins or ends, as the rules say."""
        told = re.fullmatch(r"\*\*(\w+)\*\* (fires|is resolved)(?:: (.*))?", text, re.S)
        assert told, f"not how alerts are told: {text}"
        name, verb, said = told.groups()
        found = {alert.name: alert for alert in firing(self.folder, self.history)}
        if verb == "fires":
            assert name in found, f"{name} does not fire, but {sorted(found)}"
            self.alerts.add(name)
            notes = found[name].annotations
            words = "\n".join(notes[key] for key in ("summary", "description") if key in notes)
            if words != said:
                self.differs.append(f"> **{name}** fires: {words}")
        else:
            assert name not in found
            self.alerts.remove(name)

    def all_alerts_are_told(self) -> None:
        """Nothing fires that the page does not tell."""
        if self.history:
            assert {alert.name for alert in firing(self.folder, self.history)} == self.alerts


@pytest.fixture
def story(
    conn: psycopg.Connection[Any], dsn: str, clock: Clock, shell: Shell, tmp_path: Path
) -> Iterator[Story]:
    """An empty database, a shell, and a browser."""
    if chromium() is None:
        strict_skip("no Chromium: apt-get install chromium, or name it: HWQUEUE_TEST_CHROMIUM")
    clock.freeze()
    with Client(dsn, pool_size=1) as client, browsing() as browser:
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.set_default_timeout(BOUND_SECONDS * 1000)
        yield Story(shell, conn=conn, client=client, clock=clock, page=page, folder=tmp_path)


def test_the_walk_through(story: Story) -> None:
    expect.set_options(timeout=15_000)
    context: list[str] = []
    for token in tokens(PAGE):
        if token.type.endswith("_open"):
            context.append(token.type)
        elif token.type.endswith("_close"):
            context.pop()
        if token.type == "heading_open":
            story.all_alerts_are_told()
        elif token.type == "fence":
            story.block(token)
        elif token.type == "inline" and "ordered_list_open" in context:
            story.deed(token.content)
        elif token.type == "inline" and "blockquote_open" in context:
            story.alert(token.content)
        elif token.type == "inline" and (later := re.match(r"\*(\d+) minutes? later\*", token.content)):
            story.pass_time(int(later[1]))
    assert story.alerts == set()
    story.finish()
