"""The judge of `command_line.py` finds what it is there to find."""

import pytest

from tests.fuzzing import command_line
from tests.fuzzing.command_line import complaint, options_of


@pytest.mark.parametrize(
    ("code", "out", "err", "finding"),
    [
        (None, "", "", "does not end"),
        (1, "", "Traceback (most recent call last):\nKeyError: 'a'", "KeyError"),
        (120, "", "Exception ignored in: <stdout>", "Exception ignored"),
        (130, "", 'Traceback\n  File "site-packages/torch"\nKeyboardInterrupt', "torch"),
        (-9, "", "", "code -9"),
        (-2, "", 'File "site-packages/torch"', "code -2"),
        (0, "a\x1b[2J", "", "prints"),
        (2, "", "error: \u202ex", "prints"),
        (2, "", "", "0 characters"),
        (2, "", "error: " + "x" * 5000, "5007 characters"),
        (2, "", "error: a\nb", "2 lines"),
    ],
)
def test_what_is_wrong_is_found(code, out, err, finding):
    assert finding in complaint(code, out, err)


def test_every_script_tells_its_options():
    options = {name: dict(options_of(name)) for name in command_line.NAMES if "phase1" in name}
    assert all({"--json", "--figures", "--predict"} <= set(known) for known in options.values())
    assert options["phase1_tokens_embeddings.gpu_memory_equation"]["--kv"].startswith("{FP")
