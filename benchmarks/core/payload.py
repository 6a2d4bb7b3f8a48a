"""What the leases carry: JSON of a given size that does not compress to nothing."""

import random


def payload(size_bytes: int = 100) -> dict[str, str]:
    """An object whose JSON text has so many bytes; the same one for the same size."""
    around = len('{"data": ""}')
    return {"data": random.Random(size_bytes).randbytes(size_bytes).hex()[: size_bytes - around]}
