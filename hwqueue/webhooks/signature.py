"""Whether a request is from hwqueue: the signatures of Standard Webhooks (standardwebhooks.com).

With the standard library: it is one HMAC, and a receiver needs nothing else.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from hwqueue.errors import ConfigError, InvalidSignature

_ID, _TIMESTAMP, _SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"


def verify(
    headers: Mapping[str, str],
    body: bytes | str,
    secret: str | Sequence[str],
    *,
    tolerance: timedelta = timedelta(minutes=5),
) -> dict[str, Any]:
    """What a request says, once it is certain that who sent it knows the secret.

    A request may come twice: note `webhook-id` and ignore one that was handled.

    Args:
        headers: Of the request, whatever the case of their names.
        body: As it was received: parsed and written again it has another signature.
        secret: `whsec_...`, as it was shown; several while one is replaced by another.
        tolerance: How far the sender's clock may be from ours. What is older was recorded by
            somebody and sent again.

    Raises: InvalidSignature, ConfigError of a secret that is none.
    """
    found = {name.lower(): value for name, value in headers.items()}
    missing = [name for name in (_ID, _TIMESTAMP, _SIGNATURE) if not found.get(name)]
    if missing:
        raise InvalidSignature(f"the request has no header {missing[0]}")
    _check_age(found[_TIMESTAMP], tolerance)
    content = body.encode() if isinstance(body, str) else body
    message = f"{found[_ID]}.{found[_TIMESTAMP]}.".encode() + content
    digests = [
        hmac.digest(_key_of(each), message, "sha256")
        for each in ([secret] if isinstance(secret, str) else secret)
    ]
    given = [_decoded(each) for each in found[_SIGNATURE].split()]
    # compare_digest takes as long for a wrong signature as for a right one
    if not any([hmac.compare_digest(one, other) for one in digests for other in given]):  # noqa: C419
        raise InvalidSignature("no signature of the request fits the secret and the body")
    payload: dict[str, Any] = json.loads(content)
    return payload


def _check_age(timestamp: str, tolerance: timedelta) -> None:
    """Refuse a time that is far from now. Raises: InvalidSignature."""
    if not (timestamp.isascii() and timestamp.isdigit()) or len(timestamp) > 12:
        raise InvalidSignature(f"{_TIMESTAMP} is no time in seconds")
    away = abs(time.time() - int(timestamp))
    if away > tolerance.total_seconds():
        raise InvalidSignature(
            f"{_TIMESTAMP} is {away:.0f} s from now",
            hint="compare the clocks of sender and receiver; or somebody sent an old request again",
        )


def _key_of(secret: str) -> bytes:
    """The key that a secret stands for. Raises: ConfigError, without the secret."""
    try:
        key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not key:
        raise ConfigError(
            "the secret of a webhook is not base64",
            hint="give it as hwqueue webhook add printed it: whsec_...",
        )
    return key


def _decoded(signature: str) -> bytes:
    """The digest in a signature of version 1; empty of any other."""
    version, _, encoded = signature.partition(",")
    try:
        return base64.b64decode(encoded, validate=True) if version == "v1" else b""
    except (binascii.Error, ValueError):
        return b""
