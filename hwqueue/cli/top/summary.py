"""What stands above the tables: the state of the whole in a few lines."""

from collections import Counter

from hwqueue.cli.output import plain_text
from hwqueue.cli.top.formatting import sparkline, use
from hwqueue.cli.top.reading import Reading
from hwqueue.cli.top.tables import kind_of
from hwqueue.text import age, count


def summary(reading: Reading) -> list[str]:
    """Four lines: leases, what is stuck, nodes, throughput."""
    return [_leases(reading), _stuck(reading), _nodes(reading), _throughput(reading)]


def _leases(reading: Reading) -> str:
    queues = reading.queues
    parts = [
        f"{count(sum(queue.pending for queue in queues))} pending",
        f"{count(sum(queue.running for queue in queues))} running",
        f"{count(sum(queue.scheduled for queue in queues))} scheduled",
    ]
    oldest = min(((queue.oldest_at, queue.queue) for queue in queues if queue.oldest_at), default=None)
    if oldest is not None:
        parts.append(f"oldest {age(oldest[0], reading.at)} in {plain_text(oldest[1])}")
    paused = sum(queue.paused_at is not None for queue in queues)
    if paused:
        parts.append(f"{paused} of {len(queues)} queues paused")
    return "leases  " + ", ".join(parts)


def _stuck(reading: Reading) -> str:
    """Leases by why they wait; of what was not read nothing is known."""
    leases: Counter[str] = Counter()
    for reason in reading.pending:
        leases[kind_of(reason)] += reason.pending
    least = "at least " if "pending" in reading.cut else ""
    parts = []
    if leases["no match"]:
        parts.append(f"{least}{count(leases['no match'])} that no node may run")
    if leases["contended"]:
        parts.append(f"{least}{count(leases['contended'])} whose nodes are busy")
    return "stuck   " + (", ".join(parts) or "nothing")


def _nodes(reading: Reading) -> str:
    nodes = reading.nodes
    states = Counter(node.state for node in nodes)
    number = f"{len(nodes):,}+" if "nodes" in reading.cut else f"{len(nodes):,}"
    parts = [f"{number} ({', '.join(f'{many:,} {state}' for state, many in states.most_common())})"]
    for name, used_milli, total in (
        ("CPU", sum(node.cpu_used for node in nodes), sum(node.cpu_milli or 0 for node in nodes)),
        ("GPU", sum(node.gpu_milli_used for node in nodes), 1000 * sum(node.gpus for node in nodes)),
    ):
        if total:
            in_use = use(used_milli / 1000, total / 1000)
            parts.append(f"{name} {in_use} ({100 * used_milli / total:.0f} %)")
    return "nodes   " + (", ".join(parts) if nodes else "none")


def _throughput(reading: Reading) -> str:
    """Of the last minute that is over, with a line of those before it."""
    minutes = reading.minutes[:-1]
    if not minutes:
        return "ended   nothing yet"
    last = minutes[-1]
    line = sparkline([minute.completed for minute in minutes]).lstrip()
    return (
        f"ended   {count(last.completed)} completed, {count(last.failed)} failed,"
        f" {count(last.retried)} retried in the last minute  {line}"
    ).rstrip()
