"""The socket that a server listens on, and options that cannot be served."""

import socket

import pytest

from labkit.errors import LabError
from phase4_scheduler.serve import build_parser, serve
from phase4_scheduler.server.launch import make_server, open_socket


def test_a_small_piece_is_sent_at_once():
    """Not held back until the client has confirmed the piece before it, as TCP does unless told otherwise."""
    with open_socket("127.0.0.1", 0) as listening:
        client = socket.create_connection(listening.getsockname())
        connection, _ = listening.accept()
        with client, connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize("wrong", ["http://127.0.0.1:8080", '"*"', "[1]", '{"a": 1}'])
def test_origins_that_are_no_list_are_one_line(capsys, wrong):
    with pytest.raises(SystemExit):
        build_parser().parse_args(["--allowed-origins", wrong])
    assert 'is no list of strings: give ["..."]' in capsys.readouterr().err
    assert build_parser().parse_args(["--allowed-origins", '["*"]']).allowed_origins == ["*"]


def test_the_steps_of_several_engines_are_not_one_stream():
    with pytest.raises(LabError, match="the steps of one engine: leave out --replicas"):
        make_server("tales", record_steps=True, replicas=2)


def test_steps_are_not_told_where_a_key_is_asked_for():
    """They name all users' requests."""
    asked = build_parser().parse_args(["nowhere", "--enable-step-events", "--api-key", "secret"])
    with pytest.raises(LabError, match="leave out --api-key or --enable-step-events"):
        serve(asked)
