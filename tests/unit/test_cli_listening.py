"""A taken port is told before anything else."""

from __future__ import annotations

import re
import socket

import pytest

from hwqueue.cli.needed import check_address


def test_a_taken_port_and_a_host_that_does_not_exist_are_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        where = re.escape(f"cannot listen at 127.0.0.1:{port}: ")
        with pytest.raises(OSError, match=f"^{where}Address .*in use; choose another --port"):
            check_address("127.0.0.1", port)
    check_address("127.0.0.1", port)
    with pytest.raises(OSError, match=r"^cannot listen at nobody\.invalid:80: "):
        check_address("nobody.invalid", 80)
