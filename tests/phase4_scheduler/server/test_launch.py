"""The socket that a server listens on, what it takes from a model's files, and options that cannot be served."""

import json
import shutil
import socket

import pytest
import tokenizers
from tokenizers.processors import TemplateProcessing

from labkit.errors import LabError
from labkit.models import EMBEDDED_MODELS
from phase4_scheduler.serve import build_parser, serve
from phase4_scheduler.server.client import running_server
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


# ---------------------------------------------------------------------- a model's files


@pytest.fixture
def folder(tmp_path):
    """The embedded model. Its files say how to sample, that " tree" ends a text too, and which token begins one."""
    shutil.copytree(EMBEDDED_MODELS / "tales", tmp_path / "tales")
    settings = {"temperature": 0, "max_new_tokens": 5, "eos_token_id": [8191, 1304], "do_sample": True}
    (tmp_path / "tales" / "generation_config.json").write_text(json.dumps(settings))
    file = tmp_path / "tales" / "tokenizer.json"
    tokenizer = tokenizers.Tokenizer.from_file(str(file))
    tokenizer.post_processor = TemplateProcessing("<|endoftext|> $A", None, [("<|endoftext|>", 8191)])
    tokenizer.save(str(file))
    return tmp_path / "tales"


def test_a_models_files_say_what_requests_leave_out(folder):
    server = make_server(str(folder))
    assert (server.defaults, server.first_tokens) == ({"temperature": 0, "max_tokens": 5}, [8191])
    assert server.engine.model_config.eos_token_ids == (8191, 1304)
    assert make_server(str(folder), generation_config="vllm").defaults == {}
    (folder / "generation_config.json").write_text('{"top_p": 2}')
    with pytest.raises(LabError, match=r"generation_config\.json: top_p"):
        make_server(str(folder))


@pytest.mark.proof
def test_a_server_samples_stops_and_begins_as_the_files_say(folder):
    chat = {"messages": [{"role": "user", "content": "Who?"}]}
    with running_server(str(folder), "--dtype", "float32") as server:

        def ask(path, body):
            return json.loads(server.call(path, body)[1])

        text = ask("/v1/completions", {"prompt": "Once upon a time"})
        assert (
            text["choices"][0]["text"] == " a little girl was sitting on a"
        )  # " tree" is an end, as vLLM 0.32 finds it
        assert text["choices"][0]["finish_reason"] == "stop" and text["usage"]["prompt_tokens"] == 5
        whole = [ask("/v1/chat/completions", chat) for _ in range(2)]
        assert whole[0]["choices"] == whole[1]["choices"] and whole[0]["usage"]["completion_tokens"] == 5
        counts = [
            ask("/tokenize", {"prompt": "x"} | more)["count"] for more in ({}, {"add_special_tokens": False})
        ]
        assert counts == [2, 1] and ask("/tokenize", chat)["count"] == whole[0]["usage"]["prompt_tokens"]
