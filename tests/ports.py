"""Ports on loopback for servers that tests start."""

from __future__ import annotations

import random
import socket

HOST = "127.0.0.1"
# Below those that the kernel gives to clients: one of these, closed here, may be a client's before the server starts.
_FIRST, _STOP = 10_000, 30_000
_random = random.SystemRandom()  # Hypothesis seeds the other one, alike in all processes


def free_ports(count: int) -> list[int]:
    """So many ports of 127.0.0.1 on which nothing listens."""
    ports: set[int] = set()
    while len(ports) < count:
        port = _random.randrange(_FIRST, _STOP)
        if _free(port):
            ports.add(port)
    return list(ports)


def _free(port: int) -> bool:
    try:
        socket.create_server((HOST, port)).close()
    except OSError:
        return False
    return True
