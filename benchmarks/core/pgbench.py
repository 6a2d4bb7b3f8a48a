"""Drives the same sessions with pgbench, which costs the client a fraction of what Python costs."""

import shutil
import subprocess
import tempfile
from pathlib import Path

from benchmarks.core.load import Load, RanDryError
from benchmarks.core.spread import percentile

_SCRIPTS = Path(__file__).parent.parent / "pgbench"
# What settle_and_claim.sql has to settle at first.
_NOTHING_HELD = ("-D", "claim_token=0", "-D", "lease_id=none")


def is_there() -> bool:
    """Whether pgbench is on the PATH."""
    return shutil.which("pgbench") is not None


def drive_script(dsn: str, script: str, connections: int, seconds: float, warmup: float = 1.0) -> Load:
    """Run `benchmarks/pgbench/<script>.sql`, one lease a transaction, as `load.drive` would.

    pgbench reads the clock as rarely as it can: where answers come at once, single latencies may be
    0. Rates are not touched by that.

    Raises: RanDryError when a claim came back empty; RuntimeError when pgbench fails otherwise.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *("pgbench", "--no-vacuum", "--protocol=prepared", *_NOTHING_HELD),
            *(f"--client={connections}", f"--jobs={connections}"),
            *(f"--time={max(1, round(warmup + seconds))}", f"--file={_SCRIPTS / script}.sql"),
            *("--log", f"--log-prefix={folder}/log", dsn),
        ]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if "expected one row, got 0" in ended.stderr:
            raise RanDryError(f"nothing left for {script}.sql: the backlog is too small for this run")
        if ended.returncode != 0:
            raise RuntimeError(f"pgbench failed: {ended.stderr}")
        log = "".join(path.read_text(encoding="utf-8") for path in Path(folder).iterdir())
    return _load([line.split() for line in log.splitlines()], warmup)


def _load(transactions: list[list[str]], warmup: float) -> Load:
    """From pgbench's log: client, number, microseconds, script, second and microsecond it ended."""
    ended = [(int(row[4]) + int(row[5]) / 1e6, int(row[2]) / 1000) for row in transactions]
    started_at = min(ended)[0] + warmup
    seconds = max(ended)[0] - started_at
    latencies = [latency for at, latency in ended if at > started_at]
    return Load(
        seconds,
        len(latencies),
        len(latencies) / seconds,
        percentile(latencies, 50),
        percentile(latencies, 99),
    )
