"""Forms that only our own pages can send: CSRF tokens, and reading a form with one."""

from __future__ import annotations

import hashlib
from urllib.parse import parse_qs, urlsplit

from itsdangerous import Signer
from starlette.requests import Request

from hwqueue.dashboard.cookies import CSRF_COOKIE, cookies_of
from hwqueue.server.problems import HTTPProblem

_MAX_FORM_BYTES = 64 * 1024
_FOREIGN = "pages of other sites may not act here"


class CsrfSigner(Signer):
    """Makes and checks the tokens of forms: that the server made the page, for who sends it.

    `salt` says whom pages are made for: session, actor and the browser's number.
    """

    default_digest_method = hashlib.sha256
    default_key_derivation = "hmac"

    def token_for(self, address: str) -> str:
        """The token of the page with this path and query.

        It differs by address: a page may repeat what its address says, and is compressed, so its
        length would tell how much of a fixed value was guessed (BREACH). It is the same for the
        same address, so that a page which has not changed need not be sent.
        """
        return self.sign(hashlib.sha256(address.encode()).hexdigest()).decode()


async def read_form(request: Request) -> dict[str, str]:
    """The fields of a form that one of our pages has sent, the last value of each name.

    Raises: as `read_form_lists`.
    """
    return {name: values[-1] for name, values in (await read_form_lists(request)).items()}


async def read_form_lists(request: Request) -> dict[str, list[str]]:
    """The fields of a form that one of our pages has sent, with all values of each name.

    Raises: HTTPProblem (403: another site's form, or an old one; 413).
    """
    headers = request.headers
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise HTTPProblem(403, _FOREIGN, hint="open the page here, and act there")
    origin = headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != headers.get("host"):
        raise HTTPProblem(403, _FOREIGN, hint="open the page here, and act there")
    if int(headers.get("content-length", "0")) > _MAX_FORM_BYTES:
        raise HTTPProblem(413, "the form is too large")
    cookies = cookies_of(request)
    signer: CsrfSigner = request.scope["dashboard"]["csrf_signer"]
    body = await request.body()
    if len(body) > _MAX_FORM_BYTES:
        raise HTTPProblem(413, "the form is too large")
    fields = parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True)
    if cookies.get(CSRF_COOKIE) is None and cookies.is_secure:
        raise HTTPProblem(
            403,
            "the browser sent no cookie",
            hint="open the dashboard over https; where there is none, "
            "start the server with --no-secure-cookies",
        )
    if cookies.get(CSRF_COOKIE) is None or not signer.validate(fields.get("csrf", [""])[-1]):
        raise HTTPProblem(403, "the form is out of date", hint="go back, load the page and try again")
    return fields
