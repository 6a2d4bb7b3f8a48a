"""Peers that are a file of SQL, which the user names: `--peer-sql pgmq=FILE`."""

from pathlib import Path

from lab.peers.peer import NotAtHand


def named_file(peer: str, file: Path | None) -> Path:
    """The peer's file.

    Raises: NotAtHand when none was named, or there is none.
    """
    if file is None:
        raise NotAtHand(f"name its SQL: --peer-sql {peer}=FILE")
    if not file.is_file():
        raise NotAtHand(f"there is no file {file}")
    return file
