"""Peers that come with the dependency group `peers`."""

from importlib.metadata import PackageNotFoundError, version

from lab.peers.peer import NotAtHand


def installed_version(package: str) -> str:
    """The version of a peer's package.

    Raises: NotAtHand when it is not installed.
    """
    try:
        return version(package)
    except PackageNotFoundError as error:
        raise NotAtHand("pip install --group peers") from error
