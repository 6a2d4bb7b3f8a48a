"""Prometheus metrics; needs the extra `metrics`.

`HwqueueCollector` can be registered with any registry of `prometheus_client`; `hwqueue metrics
serve` and `hwqueue metrics print` do it for you.
"""

from hwqueue.extras import needs
from hwqueue.metrics.table import METRICS, Metric

with needs("metrics"):
    from hwqueue.metrics.collector import HwqueueCollector, registry_for

__all__ = ["METRICS", "HwqueueCollector", "Metric", "registry_for"]
