"""Which addresses requests may go to: none that only our own network reaches."""

from __future__ import annotations

import asyncio
import socket
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

from hwqueue.errors import HwqueueError
from hwqueue.single_flight import SingleFlight

_NAT64 = IPv6Network("64:ff9b::/96")
_INTERNET = IPv6Network("2000::/3")
_DOCUMENTATION = IPv6Network("3fff::/20")  # is_global of Python before 3.13.1 does not know it


class RefusedAddress(HwqueueError):
    """The receiver's address is one that requests do not go to."""


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Whether an address is one of the internet: not private, loopback, link-local or reserved.

    An IPv6 address that stands for an IPv4 one counts as that.
    """
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return is_public(address.ipv4_mapped)
        if address.sixtofour is not None:
            return is_public(address.sixtofour)
        if address.teredo is not None or address.scope_id is not None:
            return False
        if address in _NAT64:
            return is_public(IPv4Address(int(address) & 0xFFFFFFFF))
        if address not in _INTERNET or address in _DOCUMENTATION:
            return False  # site-local ones, for example, and NAT64 of a network's own
    return address.is_global and not address.is_multicast and not address.is_reserved


class Resolver:
    """Finds the addresses of names, and refuses those that requests do not go to.

    A name is looked up once at a time, for all who wait for it. A lookup takes a thread for as long
    as name servers let it, and there are few: a name that nobody answers for takes one of them.

    Args:
        allow_private: Refuse no address.
    """

    def __init__(self, *, allow_private: bool) -> None:
        self._allow_private = allow_private
        self._lookups = SingleFlight[list[str]]()

    async def resolve(self, host: str, port: int) -> str:
        """The address to connect to, so that what was checked is what is connected to.

        One private address among several is enough to refuse them all: a name of the internet has
        none.

        Raises: RefusedAddress, OSError when there is no such name.
        """
        addresses = await self._lookups.do((host, port), lambda: _look_up(host, port))
        for each in addresses:
            if not self._allow_private and not is_public(ip_address(each)):
                raise RefusedAddress(
                    f"{host} is {each}, which is no address of the internet",
                    hint="permit such addresses: hwqueue webhook run --allow-private",
                )
        return addresses[0]


async def _look_up(host: str, port: int) -> list[str]:
    """Raises: OSError, UnicodeError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(place[0]) for *_, place in found]
