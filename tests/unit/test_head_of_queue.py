"""claim_task and settle_and_claim take the head of a queue in the same words: a call costs more."""

from pathlib import Path

CLAIMS = Path(__file__).parents[2] / "sql" / "api" / "claims.sql"


def head(function: str) -> list[str]:
    """What stands between its two comments, line by line."""
    _, found, rest = CLAIMS.read_text().partition(f"function hwqueue.{function}(")
    assert found
    _, found, rest = rest.partition("  -- head: as in ")
    assert found
    _, _, rest = rest.partition("\n")
    body, found, _ = rest.partition("-- head: end")
    assert found
    return [line.strip() for line in body.splitlines()]


def test_both_are_alike() -> None:
    ours = head("claim_task")
    assert len(ours) > 40
    assert ours == head("settle_and_claim")
