"""Whether a server may listen where it is told to, asked before it says that it does."""

import socket


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
