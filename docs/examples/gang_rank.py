"""One rank of gang_training.py. It knows its peers from its environment, and nothing of hwqueue.

Run: MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 WORLD_SIZE=1 RANK=0 python gang_rank.py
"""

import importlib.util
import os
import socket
import time
from contextlib import ExitStack
from datetime import timedelta
from typing import TextIO


def over_torch(number: int) -> int:
    """`init_process_group` reads the environment itself."""
    torch, distributed = map(importlib.import_module, ("torch", "torch.distributed"))
    distributed.init_process_group("gloo", timeout=timedelta(seconds=30))
    total = torch.tensor([number])
    distributed.all_reduce(total)
    distributed.destroy_process_group()
    return int(total.item())


def over_sockets(number: int) -> int:
    """Rank 0 adds up the numbers of all ranks, and sends them the sum."""
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if os.environ["RANK"] != "0":
        with connected(address) as master, master.makefile("rw") as stream:
            print(number, file=stream, flush=True)
            return int(stream.readline())
    with ExitStack() as closing:
        server = closing.enter_context(socket.create_server(address))
        server.settimeout(30)
        peers: list[TextIO] = []
        for _ in range(int(os.environ["WORLD_SIZE"]) - 1):
            connection = closing.enter_context(server.accept()[0])
            peers.append(closing.enter_context(connection.makefile("rw")))
        total = number + sum(int(peer.readline()) for peer in peers)
        for peer in peers:
            print(total, file=peer, flush=True)
    return total


def connected(address: tuple[str, int]) -> socket.socket:
    """Rank 0 listens soon: its process starts at the same time."""
    for _ in range(600):
        try:
            return socket.create_connection(address, timeout=30)
        except ConnectionRefusedError:
            time.sleep(0.05)
    raise TimeoutError(f"no rank 0 at {address}")


if __name__ == "__main__":
    rank, size = os.environ["RANK"], os.environ["WORLD_SIZE"]
    add_up = over_torch if importlib.util.find_spec("torch") else over_sockets
    print(f"rank {rank} of {size}: the sum is {add_up(int(rank) + 1)}")
