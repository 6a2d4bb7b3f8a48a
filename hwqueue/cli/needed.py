"""What a command needs that serves or runs: an extra, and an address that is free."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from hwqueue.errors import ConfigError


@contextmanager
def required(extra: str) -> Iterator[None]:
    """What this block imports needs an extra. Raises: ConfigError, which says how to install it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "hwqueue":
            raise  # nothing that an extra would bring
        raise ConfigError(f"{error.name} is not installed", hint=f"pip install 'hwqueue[{extra}]'") from error


def check_address(host: str, port: int) -> None:
    """Bind to the address, and let go of it. Raises: OSError, which names it."""
    try:
        for family, kind, proto, _, address in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            with socket.socket(family, kind, proto) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
    except OSError as error:
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        raise OSError(
            f"cannot listen at {where}: {error.strerror}; choose another --port or "
            "--host, or stop what listens there"
        ) from error
