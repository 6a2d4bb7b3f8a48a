"""What the screen writes shorter than other places; see `hwqueue.text` for the rest."""

from collections.abc import Sequence

_STEPS = " ▁▂▃▄▅▆▇█"


def amount(number: float) -> str:
    """At most one digit after the point: 3.5, 8."""
    return f"{number:,.1f}".removesuffix(".0")


def use(used: float, total: float | None) -> str:
    """What is in use of what there is; a dash where it is not counted or there is none."""
    return "-" if not total else f"{amount(used)}/{amount(total)}"


def sparkline(values: Sequence[float]) -> str:
    """A character for each value, as high as it is beside the greatest; a blank for none."""
    most = max(values, default=0) or 1
    return "".join(_STEPS[0 if value <= 0 else max(1, round(8 * value / most))] for value in values)
