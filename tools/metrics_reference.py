"""Write docs/reference/metrics.md from the table of metrics.

`python tools/metrics_reference.py` writes the page, `--check` fails when it is out of date.
"""

import sys
from pathlib import Path

from hwqueue.metrics.table import METRICS, OF_THE_SCRAPE

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "metrics.md"
INTRODUCTION = """# Metrics

<!-- Generated from `hwqueue/metrics/table.py` by `make reference`; do not edit. -->

`hwqueue metrics serve` and `hwqueue metrics print` have them for Prometheus, the SQL function
`metrics` for everybody else ([how to](../run/monitoring.md)).
Counters and histograms count from the installation on, and a queue that is dropped and made again
counts from 0. They trail by a few seconds: [upkeep](../explanation/upkeep.md#figures).

`class` is the id of a placement class, or `other`: of each reason the 50 classes with most leases
waiting are named, the others are summed up. `workflow` and `task` are names, of which 100 at most
are told apart. All other labels but `queue` have a few fixed values, so the number of series grows
with queues and webhooks alone: 50 for each queue, 4 kB. One name has another beginning:
`highway_tasks_pending_no_affinity_match` is what the proposal for this queue called it.

| name | kind | unit | labels | meaning |
|---|---|---|---|---|
"""


def page() -> str:
    """The whole page."""
    rows = [
        f"| `{metric.name}` | {metric.kind} | {metric.unit} | {', '.join(metric.labels) or '-'} "
        f"| {metric.help} |\n"
        for metric in METRICS
    ]
    of_the_scrape = ", ".join(f"`{m.name}`" for m in METRICS if m.name in OF_THE_SCRAPE)
    return f"{INTRODUCTION}{''.join(rows)}\nThe exporter's own are {of_the_scrape}.\n"


def main() -> int:
    """Write or check the page; return the exit code."""
    if "--check" not in sys.argv:
        PAGE.write_text(page(), encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page():
        print("docs/reference/metrics.md is out of date: run `make reference`")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
