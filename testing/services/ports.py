"""Free TCP ports that stay free while the service they belong to is down."""

from __future__ import annotations

import random
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

from .errors import DevServiceError

# Below the range from which systems take the ports of outgoing connections (32768 up on Linux, 49152 up elsewhere):
# otherwise a client's connection may sit on a killed server's port when that is to come back.
FIRST, LAST = 20_000, 32_000
ATTEMPTS = 200
LOOPBACK = "127.0.0.1"


def free_port(taken: Collection[int] = ()) -> int:
    """A port of the loopback address on which nobody listens.

    Args:
        taken: Ports that were given out already and may not be bound yet.

    Raises:
        DevServiceError: No free port was found.
    """
    choose = random.SystemRandom()
    for _ in range(ATTEMPTS):
        port = choose.randrange(FIRST, LAST)
        if port not in taken and _bindable(port):
            return port
    raise DevServiceError(f"no free TCP port between {FIRST} and {LAST} on {LOOPBACK}")


def _bindable(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def accepts_connections(port: int) -> bool:
    """Whether something accepts connections on this port of the loopback address."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout=1):
            return True
    except OSError:
        return False
