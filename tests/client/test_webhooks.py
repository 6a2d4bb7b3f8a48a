"""Webhooks and tokens, through both clients."""

from datetime import UTC, datetime, timedelta

from hwqueue.client import AsyncClient

URL = "https://hooks.example/"


async def test_from_set_to_dropped(client: AsyncClient) -> None:
    secret = await client.set_webhook(
        "pager", URL, codes=("lease_failed",), queues=["q"], tenant="film", labels={"app": "db"}
    )
    assert secret is not None
    assert secret.startswith("whsec_")
    assert await client.set_webhook("pager", URL, codes=["lease_failed"]) is None
    [webhook] = await client.list_webhooks()
    assert (webhook.name, webhook.codes, webhook.queues) == ("pager", ["lease_failed"], None)
    assert secret.startswith(webhook.secret_prefix)
    assert await client.rotate_webhook("pager", keep=timedelta(0)) != secret
    assert await client.pause_webhook("pager") is True
    assert await client.resume_webhook("pager") is True
    assert await client.drop_webhook("pager") is True
    assert await client.drop_webhook("pager") is False


async def test_a_delivery_from_claimed_to_sent_again(client: AsyncClient) -> None:
    await client.set_webhook("pager", URL, codes=["none"])
    sent = await client.test_webhook("pager")
    [claimed] = await client.claim_deliveries(5, claim_timeout=timedelta(seconds=30))
    assert (claimed.delivery_id, claimed.webhook, claimed.code) == (sent, "pager", "webhook_test")
    state = await client.settle_delivery(
        sent, claimed.attempt, status=500, response="no", error=None, retry_after=60
    )
    assert state == "waiting"
    [delivery] = await client.list_deliveries("pager", state="waiting", limit=1)
    assert (delivery.status, delivery.response, delivery.attempt_count) == (500, "no", 1)
    assert delivery.body["type"] == "webhook_test"
    assert await client.list_deliveries("pager", before=sent) == []
    assert await client.redeliver("pager", sent) == 1
    assert await client.redeliver("pager") == 0  # none is dead
    assert await client.settle_delivery(sent, 1, status=200) == "lost"


DIGEST = bytes(range(32))


async def test_a_token_from_made_to_revoked(client: AsyncClient) -> None:
    ends = datetime.now(UTC) + timedelta(days=1)
    await client.create_token("ci", DIGEST, "producer", tenant="film", expires_at=ends)
    grant = await client.check_token(DIGEST)
    assert grant is not None
    assert (grant.name, grant.role, grant.tenant, grant.expires_at) == (
        "ci", "producer", "film", ends,
    )  # fmt: skip
    [token] = await client.list_tokens()
    assert (token.name, token.used_at is None, token.revoked_at) == ("ci", False, None)
    assert await client.revoke_token("ci") is True
    assert await client.revoke_token("ci") is False
    assert await client.check_token(DIGEST) is None
