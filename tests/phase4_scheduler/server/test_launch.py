"""The socket that a server listens on, and options that cannot be served."""

import socket

import pytest

from labkit.errors import LabError
from phase4_scheduler.serve import build_parser, serve
from phase4_scheduler.server.launch import open_socket


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


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--enable-step-events --replicas=2", "the steps of one engine: leave out --replicas"),
        # Steps name all users' requests.
        ("--enable-step-events --api-key=secret", "leave out --api-key or --enable-step-events"),
        ("--router=round-robin", "add --replicas 2 or more"),
    ],
)
def test_options_that_do_not_go_together_are_one_line(options, says):
    with pytest.raises(LabError, match=says):
        serve(build_parser().parse_args(["nowhere", *options.split()]))
