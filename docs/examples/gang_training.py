"""A gang of two ranks on two workers of this machine; together they add up a number.

Run: HWQUEUE_DSN=$(hwqueue db url) python gang_training.py
"""

import os
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import hwqueue
from hwqueue.worker import WorkerSettings, run

app = hwqueue.App()


@app.task("train", queue="training", max_attempts=3)
def train(params: dict[str, Any], context: hwqueue.LeaseContext) -> dict[str, Any]:
    """Run the rank of this member. It is called once all members have been fetched."""
    gang = context.gang
    assert gang is not None
    where = os.environ | gang.environment(port=params["port"])
    command = [sys.executable, str(Path(__file__).with_name("gang_rank.py"))]
    with subprocess.Popen(command, env=where, stdout=subprocess.PIPE, text=True) as rank:
        try:
            while rank.poll() is None:
                context.raise_if_cancelled()  # another member was lost: all begin again
                time.sleep(0.02)
        finally:
            rank.kill()
        said, _ = rank.communicate()
    if rank.returncode:
        raise RuntimeError(f"rank {gang.rank} has ended with {rank.returncode}")
    return {"said": said.strip(), "nodes": [member.node for member in gang.members]}


def work(name: str) -> int:
    """A worker as it would run on each machine, with an address that the others can reach."""
    settings = WorkerSettings(
        dsn=os.environ["HWQUEUE_DSN"],
        queues=("training",),
        name=name,
        concurrency=1,
        labels={"address": "127.0.0.1"},
        reap_interval=timedelta(seconds=1),
    )
    return run(app, settings)


def main() -> None:
    with hwqueue.Client(os.environ["HWQUEUE_DSN"]) as client, ExitStack() as closing:
        client.create_queue("training")
        for name in ("node-1", "node-2"):
            worker = subprocess.Popen([sys.executable, __file__, name])
            closing.callback(worker.wait)
            closing.callback(worker.terminate)
        with socket.create_server(("127.0.0.1", 0)) as free:
            params = {"port": free.getsockname()[1]}
        members = client.spawn_gang("training", [hwqueue.Member(train, params, count=2)])
        at_most = timedelta(seconds=60)
        results = [client.wait(member.lease_id, timeout=at_most).result for member in members]
    for result in results:
        print(result["said"])
    print("on", *sorted(results[0]["nodes"]))


if __name__ == "__main__":
    if sys.argv[1:]:
        sys.exit(work(sys.argv[1]))
    main()
