"""`lab chat` with the embedded model: through pipes, and in a terminal with Ctrl-C and Ctrl-D."""

import io
import shutil
import sys

import pytest

from labkit.paths import ROOT
from phase4_scheduler import chat
from phase4_scheduler.features.conversation import Conversation
from phase4_scheduler.story.chat_terminal import describe

TALK = """Who lives in the wood?
And then?

/dance
/system You tell of goats.
/prompt
/new
/prompt
/quit
Who?
"""


def test_a_conversation_through_pipes(monkeypatch, capsys):
    """Answers go to stdout; commands, mistakes and figures to stderr. /quit ends it, and so does the end of the lines."""
    talks = []
    monkeypatch.setattr(
        chat, "Conversation", lambda *args, **kwargs: talks.append(Conversation(*args, **kwargs)) or talks[0]
    )
    monkeypatch.setattr("sys.stdin", io.StringIO(TALK))
    assert chat.main(["--tokens", "12", "--seed", "3", "--dtype", "float32", "--temperature", "0"]) == 0
    out, err = capsys.readouterr()
    (talk,) = talks
    assert talk.messages == [{"role": "system", "content": "You tell of goats."}]  # after /new
    first, second = talk.turns
    assert len(out.splitlines()) == 2 and all(describe(turn) in err for turn in talk.turns)
    assert (talk.params.temperature, talk.params.max_tokens, talk.params.seed) == (0, 12, 3)
    assert second.cached_tokens >= first.prompt_tokens // 16 * 16
    assert sum(line.startswith("error: no command is called '/dance'") for line in err.splitlines()) == 1
    assert err.count("said the child") == 2 and "You tell of goats.\\n\\n" in err


def test_mistakes_are_one_line(tmp_path, capsys, monkeypatch):
    (tmp_path / "config.json").write_text("{}")
    assert chat.main(["--model", str(tmp_path)]) == 2
    (tmp_path / "chat_template.jinja").write_text("{% if %}")
    assert chat.main(["--model", str(tmp_path)]) == 2
    monkeypatch.setattr("phase2_attention_kvcache.model.checkpoint.memory_bytes", lambda device: 10**6)
    assert chat.main([]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 3 and "has no chat template: it was trained on no conversations" in errors[0]
    assert "the chat template cannot be used: Expected an expression" in errors[1]
    assert "tales: its weights take 0.0 GB in bfloat16, and this machine has 0.0 GB" in errors[2]


def test_a_model_is_asked_not_to_think(tmp_path, monkeypatch, capsys):
    """The template hears of it."""
    folder = tmp_path / "model"
    shutil.copytree(ROOT / "labkit" / "models" / "tales-draft", folder)
    (folder / "chat_template.jinja").write_text("{{ 'quick' if enable_thinking is false else 'slow' }}")
    for options, expected in ((["--no-thinking"], "quick"), ([], "slow")):
        monkeypatch.setattr("sys.stdin", io.StringIO("/prompt\n"))
        assert chat.main(["--model", str(folder), "--dtype", "float32", *options]) == 0
        assert f"'{expected}'\n" in capsys.readouterr().err


@pytest.mark.proof
@pytest.mark.parametrize("last, code", [("\x04", 0), ("\x03", 130)])
def test_a_conversation_in_a_terminal(last, code):
    """Ctrl-C ends an answer and not the conversation; Ctrl-D ends that with code 0, Ctrl-C at the prompt with 130."""
    pexpect = pytest.importorskip("pexpect", reason="needs a pseudo-terminal")
    options = ["--tokens", "900", "--temperature", "3", "--dtype", "float32"]
    terminal = pexpect.spawn(sys.executable, ["-m", "labkit.command", "chat", *options], cwd=ROOT, timeout=60)
    try:
        terminal.expect("> ")
        terminal.send("/new\nTell me all.\n")
        for said in ("a new conversation", r"all\.\r\n", "[a-z]+ [a-z]+"):
            terminal.expect(said)
        terminal.send("\x03")
        terminal.expect("prompt .* tokens")
        assert b"Traceback" not in terminal.before
        terminal.expect("> ")
        for _ in range(6):  # a key between Python's prompt and its wait is felt with the next one
            terminal.send(last)
            if terminal.expect([pexpect.EOF, pexpect.TIMEOUT], timeout=10) == 0:
                break
        terminal.wait()
        assert terminal.exitstatus == code
    finally:
        terminal.close(force=True)
