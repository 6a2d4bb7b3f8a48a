"""The server in a thread of the tests, and a browser's window on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, expect

from hwqueue.serve import create_app
from hwqueue.server import ServerSettings
from tests.server.conftest import live

expect.set_options(timeout=15_000)


@dataclass
class Visit:
    """A browser's window on a server; it notes whatever goes wrong."""

    context: BrowserContext
    page: Page
    url: str
    complaints: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.set_default_timeout(15_000)
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        self.page.on("request", self._request)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text}")

    def _request(self, request: Request) -> None:
        if not request.url.startswith((self.url, "data:", "blob:")):
            self.complaints.append(f"left the host: {request.url}")

    def go(self, path: str) -> Page:
        """Open a page."""
        self.page.goto(self.url + path)
        return self.page

    def refresh(self) -> None:
        """What the clock does every five seconds."""
        with self.page.expect_response(lambda response: response.status in (200, 304)):
            self.page.keyboard.press("r")


def serving(dsn: str, **settings: Any) -> AbstractContextManager[str]:
    """Serve a database; the address to ask."""
    return live(create_app(ServerSettings(dsn=dsn, rate_limit=None, **settings)))


@contextmanager
def visiting(browser: Browser, dsn: str, **options: Any) -> Iterator[Visit]:
    """A window on a database that is served; nothing may go wrong in it."""
    with serving(dsn) as url, browser.new_context(**options) as made:
        window = Visit(made, made.new_page(), url)
        yield window
        assert window.complaints == [], window.complaints
