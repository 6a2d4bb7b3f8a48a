"""A way to the database that can fall silent."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from psycopg.conninfo import conninfo_to_dict, make_conninfo


@dataclass
class Relay:
    """Passes everything on, but while it is frozen: then it takes all, and says nothing.

    dsn: of the database, through it.
    """

    dsn: str
    _flows: threading.Event = field(default_factory=threading.Event)
    _ends: list[socket.socket] = field(default_factory=list)

    def freeze(self) -> None:
        """Close nothing, answer nothing."""
        self._flows.clear()

    def thaw(self) -> None:
        """Go on as if nothing had been."""
        self._flows.set()

    def hang_up(self) -> None:
        """End all connections: an attempt to connect that was given up may be open for a minute."""
        self.thaw()
        for end in self._ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@contextmanager
def relay(dsn: str) -> Iterator[Relay]:
    """A relay to this database."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        made = Relay(make_conninfo(dsn, host="127.0.0.1", hostaddr="", port=port))
        made.thaw()
        accepting = threading.Thread(target=_accept, args=(listening, dsn, made))
        accepting.start()
        yield made
        listening.shutdown(socket.SHUT_RDWR)
    made.hang_up()
    accepting.join()


def _accept(listening: socket.socket, dsn: str, made: Relay) -> None:
    serving = []
    with suppress(OSError):
        while True:
            client, _ = listening.accept()
            serving.append(threading.Thread(target=_serve, args=(client, dsn, made)))
            serving[-1].start()
    for thread in serving:
        thread.join()


def _serve(client: socket.socket, dsn: str, made: Relay) -> None:
    with client, _connect(dsn) as server:
        made._ends += [client, server]
        back = threading.Thread(target=_pass_on, args=(server, client, made))
        back.start()
        _pass_on(client, server, made)
        back.join()


def _connect(dsn: str) -> socket.socket:
    told = conninfo_to_dict(dsn)
    host, port = str(told.get("host") or "localhost"), int(told.get("port") or 5432)
    if not host.startswith("/"):
        return socket.create_connection((host, port))
    local = socket.socket(socket.AF_UNIX)
    local.connect(f"{host}/.s.PGSQL.{port}")
    return local


def _pass_on(source: socket.socket, target: socket.socket, made: Relay) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            made._flows.wait()
            target.sendall(data)
    made._flows.wait()
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
