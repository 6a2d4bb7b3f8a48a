"""All queues that can be measured beside each other, and which of them are at hand."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from lab.peers.absurd import Absurd
from lab.peers.hwqueue import Hwqueue
from lab.peers.naive import Naive
from lab.peers.node_peers import GraphileWorker, PgBoss
from lab.peers.peer import NotAtHand, Peer, SqlPeer
from lab.peers.pgmq import Pgmq
from lab.peers.pgqueuer import PgQueuer
from lab.peers.procrastinate import Procrastinate

PeerNames = Annotated[
    list[str], typer.Option("--peer", help="Only these peers; may be repeated; default: all")
]
PeerSql = Annotated[
    list[str],
    typer.Option(help="Where pgmq's and absurd's SQL is: pgmq=FILE; may be repeated"),
]


@dataclass(frozen=True)
class AtHand:
    """The peers that can run here.

    Attributes:
        peers: Those.
        notes: Their versions and what they cannot do; which others are missing, and why.
    """

    peers: tuple[Peer, ...]
    notes: tuple[str, ...]


def at_hand(names: Sequence[str], sql_files: Sequence[str]) -> AtHand:
    """Look for the peers of these names, or for all.

    Raises: typer.BadParameter for a name that is none, a file option of another form, or when no
        peer is at hand.
    """
    peers = {peer.name: peer for peer in _peers(_by_peer(sql_files))}
    for name in names:
        _check_name(name, peers)
    found: list[Peer] = []
    notes: list[str] = []
    for peer in peers.values():
        if names and peer.name not in names:
            continue
        try:
            notes.append(f"{peer.name} {peer.version()} cannot {'; '.join(peer.cannot)}")
            found.append(peer)
        except NotAtHand as error:
            notes.append(f"{peer.name} is not at hand: {error}")
    if not found:
        raise typer.BadParameter("; ".join(notes))
    return AtHand(tuple(found), tuple(notes))


def sql_peer(name: str, sql_files: Sequence[str]) -> SqlPeer:
    """A queue that is driven by SQL, hwqueue among them.

    Raises: typer.BadParameter when there is none of this name, or it is not at hand.
    """
    queues: list[Peer] = [Hwqueue(), *_peers(_by_peer(sql_files))]
    peers = {peer.name: peer for peer in queues if isinstance(peer, SqlPeer)}
    _check_name(name, peers)
    try:
        peers[name].version()
    except NotAtHand as error:
        raise typer.BadParameter(f"{name} is not at hand: {error}") from error
    return peers[name]


def _peers(sql_files: Mapping[str, Path]) -> tuple[Peer, ...]:
    return (
        Naive(),
        Procrastinate(),
        Procrastinate("procrastinate-delete", delete_jobs=True),
        PgQueuer(),
        GraphileWorker(),
        PgBoss(),
        Pgmq(sql_files.get("pgmq")),
        Absurd(sql_files.get("absurd")),
    )


def _by_peer(sql_files: Sequence[str]) -> dict[str, Path]:
    pairs = [given.partition("=") for given in sql_files]
    for name, _, file in pairs:
        if name not in {"pgmq", "absurd"} or not file:
            raise typer.BadParameter("--peer-sql takes pgmq=FILE or absurd=FILE")
    return {name: Path(file) for name, _, file in pairs}


def _check_name(name: str, peers: Mapping[str, Peer]) -> None:
    if name not in peers:
        raise typer.BadParameter(f"there is no peer {name!r}; there are {', '.join(peers)}")
