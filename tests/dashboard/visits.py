"""A browser's window on a server."""

from __future__ import annotations

from dataclasses import dataclass, field

from playwright.sync_api import BrowserContext, Page, expect

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

    def _console(self, message: object) -> None:
        kind, text = getattr(message, "type", ""), getattr(message, "text", "")
        if kind in ("error", "warning"):
            self.complaints.append(f"{kind}: {text}")

    def _request(self, request: object) -> None:
        address = str(getattr(request, "url", ""))
        if not address.startswith((self.url, "data:", "blob:")):
            self.complaints.append(f"left the host: {address}")

    def go(self, path: str) -> Page:
        """Open a page."""
        self.page.goto(self.url + path)
        return self.page

    def refresh(self) -> None:
        """What the clock does every five seconds."""
        with self.page.expect_response(lambda response: response.status in (200, 304)):
            self.page.keyboard.press("r")
