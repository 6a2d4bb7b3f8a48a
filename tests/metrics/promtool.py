"""Which of the alert rules fire on figures that the exporter gave: Prometheus' own tool says it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.fix_db import strict_skip

ALERTS = Path(__file__).parents[2] / "monitoring" / "alerts.yml"
_GOT = re.compile(r"Labels:\{(.*)\}\n\s*Annotations:\{(.*)\}")
_PAIR = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*")')

Values = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@dataclass(frozen=True)
class Alert:
    """An alert that fires, as somebody on call gets it."""

    name: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]


def promtool() -> str:
    """Where it is; without it the test is skipped, in CI it fails."""
    found = shutil.which("promtool")
    if found is None:
        strict_skip("promtool is not installed: apt install prometheus")
    return found


def rules() -> list[dict[str, Any]]:
    """The rules as they are shipped."""
    [group] = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    return list(group["rules"])


def read(exposition: str) -> Values:
    """All samples by name and labels, as Prometheus would read them."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(exposition)
        for sample in family.samples
    }


def firing(folder: Path, history: Sequence[Values]) -> list[Alert]:
    """The alerts that fire at the last of figures that were read a minute apart.

    promtool compares with what is expected and prints what it got: so nothing is expected.
    """
    series = [
        {
            "series": f"{name}{{{','.join(f'{k}={json.dumps(v)}' for k, v in labels)}}}",
            "values": " ".join(str(values.get((name, labels), "stale")) for values in history),
        }
        for name, labels in sorted(set().union(*history))
    ]
    at = f"{len(history) - 1}m"
    test = {
        "interval": "1m",
        "input_series": series or [{"series": "up", "values": f"0x{len(history) - 1}"}],
        "alert_rule_test": [
            {"eval_time": at, "alertname": rule["alert"], "exp_alerts": []} for rule in rules()
        ],
    }
    file = folder / "test.yml"
    file.write_text(
        json.dumps({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": [test]}),
        encoding="utf-8",
    )
    run = subprocess.run([promtool(), "test", "rules", file], capture_output=True, text=True, check=False)
    said = run.stdout + run.stderr
    found = []
    for labels, notes in _GOT.findall(said):
        named = _pairs(labels)
        found.append(Alert(named.pop("alertname"), named, _pairs(notes)))
    assert run.returncode == 0 if not found else "FAILED" in said, said
    return found


def _pairs(text: str) -> dict[str, str]:
    return {name: json.loads(value) for name, value in _PAIR.findall(text)}
