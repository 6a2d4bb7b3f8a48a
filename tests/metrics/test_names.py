"""One table names all metrics: the page, the dashboard and the alert rules use no other."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from hwqueue.metrics import METRICS
from hwqueue.metrics.families import families
from hwqueue.types import Sample

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "monitoring" / "grafana" / "hwqueue.json"
ALERTS = ROOT / "monitoring" / "alerts.yml"
HOWTO = ROOT / "docs" / "run" / "monitoring.md"
NAME = re.compile(r"\b(?:hwqueue|highway)_\w+")
SERIES = {
    metric.name + part
    for metric in METRICS
    for part in (("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",))
}


class Fixed(Collector):
    """Gives the families of these samples."""

    def __init__(self, *samples: Sample) -> None:
        self._families = families(samples)

    def collect(self) -> list[Family]:
        return self._families


def exposition(*samples: Sample) -> str:
    """The text that Prometheus would read."""
    registry = CollectorRegistry()
    registry.register(Fixed(*samples))
    return generate_latest(registry).decode()


def unknown(expression: str) -> set[str]:
    """The metrics in an expression that do not exist."""
    return set(NAME.findall(re.sub(r'"[^"]*"', "", expression))) - SERIES


def test_names_are_unique_and_tell_their_kind() -> None:
    names = [metric.name for metric in METRICS]
    assert len(names) == len(set(names))
    for metric in METRICS:
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        assert metric.help.endswith("."), metric.name
        if metric.unit in ("seconds", "bytes"):
            assert re.search(rf"_{metric.unit}(_used)?$", metric.name), metric.name


def test_the_page_is_up_to_date() -> None:
    tool = ROOT / "tools" / "metrics_reference.py"
    run = subprocess.run([sys.executable, tool, "--check"], capture_output=True, check=False)
    assert run.returncode == 0, run.stdout


def test_samples_become_series() -> None:
    text = exposition(
        Sample(name="hwqueue_leases", labels={"queue": 'a "b"', "state": "pending"}, value=3.0),
        Sample(name="hwqueue_retries_total", labels={"queue": "a"}, value=7.0),
        Sample(name="hwqueue_wait_seconds_bucket", labels={"queue": "a", "le": "+Inf"}, value=5.0),
        Sample(name="hwqueue_wait_seconds_bucket", labels={"queue": "a", "le": "10"}, value=4.0),
        Sample(name="hwqueue_wait_seconds_bucket", labels={"queue": "a", "le": "9"}, value=2.0),
        Sample(name="hwqueue_wait_seconds_sum", labels={"queue": "a"}, value=61.5),
        Sample(name="hwqueue_of_a_later_version", labels={}, value=1.0),
    )
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert lines == [
        r'hwqueue_leases{queue="a \"b\"",state="pending"} 3.0',
        'hwqueue_retries_total{queue="a"} 7.0',
        'hwqueue_wait_seconds_bucket{le="9.0",queue="a"} 2.0',
        'hwqueue_wait_seconds_bucket{le="10.0",queue="a"} 4.0',
        'hwqueue_wait_seconds_bucket{le="+Inf",queue="a"} 5.0',
        'hwqueue_wait_seconds_count{queue="a"} 5.0',
        'hwqueue_wait_seconds_sum{queue="a"} 61.5',
    ]


def test_the_dashboard_shows_what_there_is() -> None:
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    assert len(expressions) >= len(panels) > 10
    for expression in expressions:
        assert NAME.search(expression), expression
        assert not unknown(expression), expression
    variables = {one["name"]: one for one in dashboard["templating"]["list"]}
    for name in ("queue", "workflow"):
        assert NAME.search(variables[name]["definition"])
        assert not unknown(variables[name]["definition"])
    used = set(re.findall(r"\$(\w+)", " ".join(expressions)))
    assert used <= variables.keys() | {"__rate_interval"}
    shown = {name for expression in expressions for name in NAME.findall(expression)}
    left_out = {metric.name for metric in METRICS if "_workflow_" in metric.name} - {
        name.removesuffix("_bucket") for name in shown
    }
    assert left_out == {"hwqueue_workflow_arrivals"}  # its age tells more
    places = [panel["gridPos"] for panel in dashboard["panels"]]
    taken = [
        (x, y)
        for place in places
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(taken) == len(set(taken))


def test_alerts_ask_for_what_there_is_and_say_what_to_do() -> None:
    headings = {
        line.lstrip("# ").lower()
        for line in HOWTO.read_text(encoding="utf-8").splitlines()
        if line.startswith("#")
    }
    [group] = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]:
        assert NAME.search(rule["expr"])
        assert not unknown(rule["expr"]), rule["alert"]
        assert rule["annotations"]["runbook"].split("#")[1] == rule["alert"].lower()
        assert rule["alert"].lower() in headings


@pytest.mark.parametrize("expression", ["hwqueue_lease > 0", "rate(hwqueue_wait_seconds[5m])"])
def test_a_name_that_does_not_exist_is_seen(expression: str) -> None:
    assert unknown(expression)
