"""Samples from the database to Prometheus' metric families."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family

from hwqueue.metrics.table import METRICS, Metric
from hwqueue.types import Sample


def families(samples: Iterable[Sample]) -> list[Family]:
    """One family for each metric of the table; names that it does not know are left out.

    A newer database may know more than this package.
    """
    named: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        named[sample.name].append(sample)
    return [_family(metric, named) for metric in METRICS]


def _family(metric: Metric, named: dict[str, list[Sample]]) -> Family:
    if metric.kind == "histogram":
        return _histogram(metric, named[f"{metric.name}_bucket"], named[f"{metric.name}_sum"])
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = kind(metric.name, metric.help, labels=metric.labels)
    for sample in named[metric.name]:
        family.add_metric(_values(metric, sample), sample.value)
    return family


def _histogram(metric: Metric, buckets: Sequence[Sample], sums: Sequence[Sample]) -> Family:
    family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
    series: dict[tuple[str, ...], list[tuple[float, float]]] = defaultdict(list)
    for sample in buckets:
        series[_values(metric, sample)].append((float(sample.labels["le"]), sample.value))
    totals = {_values(metric, sample): sample.value for sample in sums}
    for values, found in series.items():
        cumulated = [("+Inf" if math.isinf(bound) else str(bound), count) for bound, count in sorted(found)]
        family.add_metric(values, cumulated, sum_value=totals[values])
    return family


def _values(metric: Metric, sample: Sample) -> tuple[str, ...]:
    """The label values in the order of the table."""
    return tuple(sample.labels.get(label, "") for label in metric.labels)
