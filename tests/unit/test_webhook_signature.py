"""Receivers of webhooks take what is signed and new, and nothing else."""

import base64
import hmac
import json
import time

import pytest

from hwqueue.errors import ConfigError, InvalidSignature
from hwqueue.webhooks import verify

SECRET, OTHER = (f"whsec_{base64.b64encode(bytes([n]) * 32).decode()}" for n in (1, 2))
BODY = b'{"type": "webhook_test"}'


def headers(secret: str = SECRET, body: bytes = BODY, *, age: int = 0) -> dict[str, str]:
    """What comes with a request, as Standard Webhooks has it."""
    stamp = str(int(time.time()) - age)
    key = base64.b64decode(secret.removeprefix("whsec_"))
    digest = hmac.digest(key, b"msg_1." + stamp.encode() + b"." + body, "sha256")
    return {
        "webhook-id": "msg_1",
        "webhook-timestamp": stamp,
        "webhook-signature": "v1," + base64.b64encode(digest).decode(),
    }


def test_what_is_signed_is_read_with_one_of_several_signatures_and_secrets() -> None:
    assert verify(headers(), BODY, SECRET) == json.loads(BODY)
    assert verify(headers(), BODY.decode(), SECRET) == json.loads(BODY)
    shouted = {name.upper(): value for name, value in headers().items()}
    assert verify(shouted, BODY, SECRET) == json.loads(BODY)
    both = headers()
    both["webhook-signature"] = f"v1a,x v1,!! {headers(OTHER)['webhook-signature']}"
    both["webhook-timestamp"] = headers(OTHER)["webhook-timestamp"]
    assert verify(both, BODY, OTHER)
    assert verify(headers(), BODY, [OTHER, SECRET])


def test_the_vector_of_the_standard(monkeypatch: pytest.MonkeyPatch) -> None:
    """The example of the specification, so that its libraries read what we write."""
    monkeypatch.setattr(time, "time", lambda: 1614265330.0)
    payload = verify(
        {
            "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
            "webhook-timestamp": "1614265330",
            "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
        },
        '{"test": 2432232314}',
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
    )
    assert payload == {"test": 2432232314}


@pytest.mark.parametrize(
    "wrong",
    [
        {"webhook-signature": "v1,"},
        {"webhook-signature": "v1"},
        {"webhook-signature": "v2," + "A" * 43 + "="},
        {"webhook-signature": ""},
        {"webhook-id": "msg_2"},
        {"webhook-timestamp": "soon"},
        {"webhook-timestamp": "9" * 400},
        {"webhook-timestamp": "-5"},
        {"webhook-timestamp": "\u0661"},
    ],
)
def test_what_is_not_signed_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(InvalidSignature):
        verify(headers() | wrong, BODY, SECRET)


@pytest.mark.parametrize(
    ("body", "secret", "age"),
    [(BODY + b" ", SECRET, 0), (BODY, OTHER, 0), (BODY, SECRET, 310), (BODY, SECRET, -310)],
    ids=["another body", "another secret", "old", "of the future"],
)
def test_what_else_is_refused(body: bytes, secret: str, age: int) -> None:
    with pytest.raises(InvalidSignature):
        verify(headers(age=age), body, secret)


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_no base64"])
def test_a_secret_that_is_none_is_not_repeated(secret: str) -> None:
    with pytest.raises(ConfigError) as caught:
        verify(headers(), BODY, secret)
    assert "no base64" not in str(caught.value)
