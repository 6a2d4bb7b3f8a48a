"""Who is signed in, by what, and for how long; what the forms of a page prove."""

import hashlib
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from hwqueue.client import Client
from hwqueue.dashboard.cookies import CSRF_COOKIE, SESSION_COOKIE
from hwqueue.dashboard.csrf import CsrfSigner
from hwqueue.dashboard.sessions import MAX_PER_TOKEN, SessionStore
from hwqueue.errors import ConfigError
from hwqueue.server import ServerSettings
from tests.dashboard.conftest import Pages, csrf, serving

MakeToken = Callable[..., str]
DIGEST = hashlib.sha256(b"a token").digest()
HTTPS = {"X-Forwarded-Proto": "https"}


async def sign_in(pages: Pages, secret: str, **options: Any) -> httpx.Response:
    """Type a token into the form."""
    asked = await pages.get("/", **options)
    fields = {"csrf": csrf(asked.text), "token": secret}
    answer = await pages.post("/sign-in", data=fields, **options)
    assert answer.status_code == 303, answer.text
    return answer


def cookies_of(answer: httpx.Response) -> list[str]:
    return answer.headers.get_list("set-cookie")


class TestCookies:
    """What browsers are given."""

    async def test_the_token_is_in_none(self, guarded: Pages, token: MakeToken) -> None:
        secret = token("operator")
        given = cookies_of(await sign_in(guarded, secret))
        await guarded.page("/")
        digest = hashlib.sha256(secret.encode()).digest()
        for told in (secret, digest.hex(), secret.encode().hex()):
            assert all(told not in each for each in given)
        # nor lets what is in it anybody into the API
        value = guarded.cookies[SESSION_COOKIE]
        # a plain one counts for nothing behind https: any page of a sibling domain could set it
        assert (await guarded.get("/", headers=HTTPS)).status_code == 401
        guarded.cookies.clear()
        answer = await guarded.get("/api/v1/me", headers={"Authorization": f"Bearer {value}"})
        assert answer.status_code == 401
        guarded.cookies.set(SESSION_COOKIE, secret)  # nor is a token a session
        await guarded.page("/", 401)

    @pytest.mark.parametrize(
        ("settings", "headers"),
        [
            ({}, HTTPS),
            ({"secure_cookies": True}, {}),
            ({"public_url": "https://queue.example"}, {}),
            ({"host": "0.0.0.0"}, {}),
        ],
    )
    async def test_behind_https_they_go_over_https_alone(
        self, dsn: str, token: MakeToken, settings: dict[str, Any], headers: dict[str, str]
    ) -> None:
        async with serving(dsn, auth="tokens", **settings) as pages:
            pages.base_url = httpx.URL("https://localhost") if not headers else pages.base_url
            pages.headers.update(headers)
            first = await pages.get("/")
            form = re.fullmatch(r"([^=]+)=([^;]+); (.*)", cookies_of(first)[0])
            assert form
            assert form[1] == f"__Host-{CSRF_COOKIE}"
            # by hand: the client keeps what is secure from http
            jar = {"Cookie": f"{form[1]}={form[2]}"}
            fields = {"csrf": csrf(first.text), "token": token("operator")}
            answer = await pages.post("/sign-in", data=fields, headers=jar)
            [session] = cookies_of(answer)
            assert session.startswith(f"__Host-{SESSION_COOKIE}=")
            for each in (form[3], session):
                parts = each.split("; ")
                assert {"Path=/", "HttpOnly", "Secure", "SameSite=Lax"} <= set(parts)
                assert not [part for part in parts if part.startswith("Domain")]
            jar["Cookie"] += f"; {session.partition(';')[0]}"
            assert (await pages.get("/", headers=jar)).status_code == 200

    async def test_on_a_laptop_they_need_no_https(self, dsn: str, token: MakeToken) -> None:
        async with serving(dsn, auth="tokens") as pages:
            for each in cookies_of(await sign_in(pages, token("operator"))):
                assert "Secure" not in each
                assert "__Host-" not in each
        async with serving(dsn, auth="tokens", secure_cookies=False) as pages:
            answer = await sign_in(pages, token("operator"), headers=HTTPS)
            assert not [each for each in cookies_of(answer) if "Secure" in each]

    async def test_who_comes_without_https_is_told(self, dsn: str, token: MakeToken) -> None:
        async with serving(dsn, auth="tokens", secure_cookies=True) as pages:
            fields = {"csrf": csrf(await pages.page("/", 401)), "token": token("operator")}
            answer = await pages.post("/sign-in", data=fields)  # the client kept no secure cookie
            assert answer.status_code == 403
            assert "--no-secure-cookies" in answer.text

    async def test_browsers_are_told_to_come_back_over_https(self, dsn: str) -> None:
        for address, told in (("https://queue.example", True), ("http://queue.example", False)):
            async with serving(dsn, auth="tokens", public_url=address) as pages:
                for path in ("/", "/healthz", "/api/v1/me", "/nowhere"):
                    headers = (await pages.get(path)).headers
                    assert ("strict-transport-security" in headers) is told


class TestSessions:
    """What the server keeps."""

    async def test_signing_in_again_ends_the_one_before(self, guarded: Pages, token: MakeToken) -> None:
        secret = token("operator")
        await sign_in(guarded, secret)
        before = guarded.cookies[SESSION_COOKIE]
        text = await guarded.page("/")
        await guarded.post("/sign-in", data={"csrf": csrf(text), "token": secret})
        assert guarded.cookies[SESSION_COOKIE] != before
        stolen = {"Cookie": f"{SESSION_COOKIE}={before}"}
        guarded.cookies.clear()
        assert (await guarded.get("/", headers=stolen)).status_code == 401

    async def test_a_revoked_token_ends_them(self, dsn: str, sql: Client, token: MakeToken) -> None:
        async with serving(dsn, auth="tokens", token_cache=timedelta(0)) as pages:
            await sign_in(pages, token("operator"))
            await pages.page("/")
            [grant] = sql.list_tokens()
            sql.revoke_token(grant.name)
            await pages.page("/", 401)

    async def test_all_processes_know_them(self, dsn: str, token: MakeToken, tmp_path: Path) -> None:
        settings = {"auth": "tokens", "session_dir": str(tmp_path / "sessions")}
        async with AsyncExitStack() as stack:
            one = await stack.enter_async_context(serving(dsn, **settings))
            other = await stack.enter_async_context(serving(dsn, **settings))
            await sign_in(one, token("operator"))
            other.cookies = one.cookies
            text = await other.page("/")
            await other.post("/sign-out", data={"csrf": csrf(text)})
            other.cookies.clear()
            stolen = {"Cookie": f"{SESSION_COOKIE}={one.cookies[SESSION_COOKIE]}"}
            one.cookies.clear()
            assert (await one.get("/", headers=stolen)).status_code == 401

    def test_they_end_by_themselves(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        made = self.made(tmp_path)
        session, now = made.create(DIGEST), time.time()
        assert made.find(session) == DIGEST
        monkeypatch.setattr(time, "time", lambda: now + 12 * 3600 - 60)
        assert made.find(session) == DIGEST
        monkeypatch.setattr(time, "time", lambda: now + 12 * 3600 + 60)
        assert made.find(session) is None
        made.create(bytes(32))
        assert len(list(tmp_path.glob("*.session"))) == 1

    def test_of_a_token_there_are_so_many(self, tmp_path: Path) -> None:
        made = self.made(tmp_path)
        others = made.create(bytes(32))
        sessions = [made.create(DIGEST) for _ in range(MAX_PER_TOKEN + 2)]
        known = [made.find(session) is not None for session in sessions]
        assert known == [False, False] + [True] * MAX_PER_TOKEN
        assert made.find(others)

    def test_nobody_else_may_look_at_them(self, tmp_path: Path) -> None:
        made = self.made(tmp_path / "new")
        session = made.create(DIGEST)
        assert len(made.key) == 32
        assert self.made(tmp_path / "new").key == made.key
        assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
        files = list((tmp_path / "new").iterdir())
        assert len(files) == 2
        for path in files:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert session not in f"{path.name} {path.read_bytes()!r}"
        open_to_others = tmp_path / "open"
        open_to_others.mkdir(mode=0o755)
        with pytest.raises(ConfigError, match="closed to others"):
            self.made(open_to_others).create(DIGEST)
        (tmp_path / "link").symlink_to(tmp_path / "new")
        with pytest.raises(ConfigError, match="closed to others"):
            self.made(tmp_path / "link").create(DIGEST)

    def test_a_folder_that_somebody_else_made_meanwhile_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Where old temporary files are cleared away."""
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        made = SessionStore(ServerSettings(dsn=""))
        session = made.create(DIGEST)
        [folder] = tmp_path.iterdir()
        shutil.rmtree(folder)
        assert made.find(made.create(DIGEST)) == DIGEST  # it is made again
        assert made.find(session) is None
        shutil.rmtree(folder)
        folder.mkdir(mode=0o777)
        folder.chmod(0o777)
        with pytest.raises(ConfigError, match="closed to others"):
            made.create(DIGEST)

    def test_what_is_none_finds_nothing(self, tmp_path: Path) -> None:
        made = self.made(tmp_path)
        assert made.key
        for session in (None, "", "-", "../key", "key", "é", "x" * 10_000):
            assert made.find(session) is None, session

    def made(self, folder: Path) -> SessionStore:
        if folder.exists() and folder.name.startswith("test_"):
            folder.chmod(0o700)
        return SessionStore(ServerSettings(dsn="", session_dir=str(folder)))


class TestForms:
    """What a form proves."""

    async def test_one_of_another_session_is_refused(self, dsn: str, token: MakeToken) -> None:
        """Who can plant a cookie knows what it is worth with their own session."""
        async with serving(dsn, auth="tokens") as mallory, Pages(mallory.app) as ada:
            await sign_in(mallory, token("operator"))
            await sign_in(ada, token("operator"))
            planted = mallory.cookies[CSRF_COOKIE]
            session = ada.cookies[SESSION_COOKIE]
            ada.cookies.clear()
            for name, value in ((CSRF_COOKIE, planted), (SESSION_COOKIE, session)):
                ada.cookies.set(name, value)
            theirs, own = csrf(await mallory.page("/")), csrf(await ada.page("/"))
            assert (await ada.post("/sign-out", data={"csrf": theirs})).status_code == 403
            assert (await ada.post("/sign-out", data={"csrf": own})).status_code == 303

    async def test_one_of_another_user_behind_a_proxy_is_refused(self, dsn: str, sql: Client) -> None:
        sql.create_queue("renders")
        proxied = {"X-Forwarded-Role": "operator", "X-Forwarded-Tenant": "*"}
        settings = {"auth": "proxy", "proxy_networks": ("127.0.0.1/32",)}
        async with serving(dsn, **settings) as pages:
            question = "/do/pause?queue=renders"
            pages.headers.update(proxied | {"X-Forwarded-User": "mallory"})
            theirs = csrf(await pages.page(question))
            pages.headers["X-Forwarded-User"] = "ada"
            own = csrf(await pages.page(question))
            for sent, status in ((theirs, 403), (own, 303)):
                fields = {"csrf": sent, "subject": "renders"}
                assert (await pages.post("/do/pause", data=fields)).status_code == status

    async def test_the_csrf_token_differs_for_each_guess(self, pages: Pages, sql: Client) -> None:
        """Else the length of the compressed page would tell when a part was guessed (BREACH)."""
        sql.create_queue("renders")
        for task in ("draw", "drax"):  # a page without leases has no form
            sql.spawn_lease("renders", task)
        first, again = [await pages.page("/leases?task=draw") for _ in range(2)]
        other = await pages.page("/leases?task=drax")
        assert csrf(other)
        assert csrf(first) == csrf(again) != csrf(other)
        assert not set(csrf(first).split(".")) & set(csrf(other).split("."))

    def test_it_fits_whom_it_was_made_for(self) -> None:
        mine = CsrfSigner(b"key", salt="me")
        made = mine.token_for("/a?b=c")
        assert mine.validate(made)
        for other in (CsrfSigner(b"other", salt="me"), CsrfSigner(b"key", salt="you")):
            assert not other.validate(made)
        salt, _, proof = made.partition(".")
        for wrong in ("", ".", salt, f"{salt}.", f".{proof}", f"x{made}", f"{made}x", "é.é"):
            assert not mine.validate(wrong)
