"""Spans of time for people."""

from datetime import UTC, datetime, timedelta


def ago(moment: datetime | None) -> str | None:
    """How long ago a moment was, such as `3m`; by this machine's clock."""
    return None if moment is None else short(datetime.now(UTC) - moment)


def short(span: timedelta | None) -> str | None:
    """A span in its largest unit or two: `850ms`, `12s`, `3m20s`, `5h12m`, `3d4h`."""
    if span is None:
        return None
    if timedelta(0) < span < timedelta(seconds=1):
        return f"{span // timedelta(milliseconds=1)}ms"
    seconds = max(0, int(span.total_seconds()))
    for unit, size, smaller, part in (
        ("d", 86_400, "h", 3600),
        ("h", 3600, "m", 60),
        ("m", 60, "s", 1),
    ):
        if seconds >= size:
            rest = seconds % size // part
            return f"{seconds // size}{unit}" + (f"{rest}{smaller}" if rest else "")
    return f"{seconds}s"
