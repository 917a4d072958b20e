"""What listens, and whether other machines reach it."""

from __future__ import annotations

import socket

import psutil

from flowgraph.runtime.ray.open_ports import ListeningSocket, listening_sockets
from tests.looped import looped


@looped(
    "address, beyond",
    [("127.0.0.1", False), ("0.0.0.0", True), ("::", True), ("::1", False), ("::ffff:127.0.0.1", False)],
)
def test_a_socket_on_loopback_is_told_from_one_for_all(address: str, beyond: bool) -> None:
    assert ListeningSocket("raylet", 1, address, 2).beyond is beyond


def test_the_sockets_of_a_process_are_found_while_they_listen() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        own = [each for each in listening_sockets([psutil.Process()]) if each.port == server.getsockname()[1]]
        assert [(each.address, each.beyond) for each in own] == [("127.0.0.1", False)]
        port = server.getsockname()[1]
    assert port not in [each.port for each in listening_sockets([psutil.Process()])]


def test_an_address_is_said_as_one_types_it() -> None:
    assert str(ListeningSocket("raylet", 7, "::", 8000)) == "raylet (7) on [::]:8000, for other machines too"
    assert str(ListeningSocket("raylet", 7, "127.0.0.1", 8000)) == "raylet (7) on 127.0.0.1:8000"
