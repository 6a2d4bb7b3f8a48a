"""The test vectors: tests/wire/wire_vectors.json, or the file that HWQUEUE_WIRE_VECTORS names."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OWN = Path(__file__).with_name("wire_vectors.json")
PATH = Path(os.environ.get("HWQUEUE_WIRE_VECTORS") or OWN)


@dataclass(frozen=True)
class Vector:
    """A blob and what becomes of it. reason: None where the file is not this project's own.

    parsed: None for a blob to be refused.
    """

    name: str
    blob: bytes
    parsed: dict[str, Any] | None
    reason: str | None

    def __str__(self) -> str:
        return self.name


def _read(vector: dict[str, Any]) -> Vector:
    expected = vector["expect"]
    assert ("ok" in expected) != ("error" in expected)
    # reasons are this project's own words: other files may use others
    reason = expected.get("reason") if PATH == OWN else None
    return Vector(vector["id"], bytes.fromhex(vector["hex"]), expected.get("ok"), reason)


VECTORS = [_read(vector) for vector in json.loads(PATH.read_text(encoding="utf-8"))["vectors"]]
ACCEPTED = [vector for vector in VECTORS if vector.parsed is not None]
