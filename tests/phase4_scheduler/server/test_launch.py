"""The socket that a server listens on."""

import socket

from phase4_scheduler.server.launch import open_socket


def test_a_small_piece_is_sent_at_once():
    """Not held back until the client has confirmed the piece before it, as TCP does unless told otherwise."""
    with open_socket("127.0.0.1", 0) as listening:
        client = socket.create_connection(listening.getsockname())
        connection, _ = listening.accept()
        with client, connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
