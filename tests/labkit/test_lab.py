"""The frame of a script: exit codes, reports, guesses, and mistakes told in one line."""

import io
import json

import numpy as np
import pytest
import torch

from labkit.errors import LabError
from labkit.figures import new_figure
from labkit.lab import run_lab
from labkit.machine import pick_device

DOC = "A test script.\n\nIt teaches."


def run(story, *argv, options=("seed", "quick")):
    return run_lab(story, DOC, options=options, argv=list(argv))


def report_of(tmp_path):
    """The report that the script left in the outputs folder."""
    return json.loads(next((tmp_path / "outputs" / "reports").glob("*/*.json")).read_text())


def test_a_long_line_stays_inside_the_figure():
    short, long = new_figure("A finding", "of a test")[0], new_figure("A finding", "of a test " * 30)[0]
    assert "\n" not in short.texts[1].get_text()
    assert all(line.get_window_extent().x1 <= long.bbox.x1 for line in long.texts)


def test_a_report_holds_everything(tmp_path):
    def story(lab):
        lab.predict("a", "how many", 3, 3, unit="x", note="because")
        lab.predict("b", "how fast", 10.0, 20.0, kind="timing")
        lab.cannot_measure("c", "on a card", "GPU", "find one")
        lab.record(figure=7)
        fig, (ax,) = new_figure("A finding", "of a test")
        ax.plot([1, 2])
        lab.figure(fig, "line")

    extra = tmp_path / "deep" / "copy.json"
    assert run(story, "--seed", "5", "--json", str(extra)) == 0
    report = report_of(tmp_path)
    assert json.loads(extra.read_text()) == report
    assert [(p["claim"], p["verdict"]) for p in report["predictions"]] == [
        ("a", "reproduced"), ("b", "differs here"), ("c", "needs a GPU"),
    ]  # fmt: skip
    assert report["results"] == {"figure": 7} and report["arguments"]["seed"] == 5
    assert report["environment"]["packages"]["torch"] and report["environment"]["cores"] >= 1
    assert (tmp_path / "outputs" / "line.png").read_bytes().startswith(b"\x89PNG")


def test_an_article_is_named_at_its_first_figure(capsys):
    def story(lab):
        lab.predict("dogs-weights", "?", 39, 39)
        lab.predict("dogs-weights", "?", 39, 39, source_says=38)
        lab.predict("work-cached", "?", 101, 101, source_says=102)

    run(story)
    out = capsys.readouterr().out
    assert out.count("How vLLM Actually Works") == 1 and out.index("38") < out.index("How vLLM")


def test_structure_decides_the_exit_code_and_timing_does_not(capsys):
    assert run(lambda lab: lab.predict("t", "time", 1.0, 9.0, kind="timing")) == 0
    assert run(lambda lab: lab.predict("count", "blocks", 1, 2)) == 1
    assert "must hold on every machine, and failed: count" in capsys.readouterr().out


@pytest.mark.parametrize("error", [LabError, ValueError, FileNotFoundError, ConnectionError])
def test_a_users_mistake_is_one_line(capsys, error):
    def story(lab):
        raise error("the [file] is wrong: mend it")

    assert run(story) == 2
    assert capsys.readouterr().err == "error: the [file] is wrong: mend it\n"


def test_a_bug_of_ours_is_not_hidden():
    with pytest.raises(ZeroDivisionError):
        run(lambda lab: 1 / 0)


@pytest.mark.parametrize(
    "allocate", [lambda: bytearray(2**62), lambda: torch.empty(2**60), lambda: np.empty(2**57)]
)
def test_too_little_memory_is_one_line(capsys, allocate):
    assert run(lambda lab: allocate()) == 2
    error = capsys.readouterr().err
    assert "not enough memory: use a smaller model" in error and error.count("\n") == 1


def test_guesses_are_asked_before_the_reveal_and_scored(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("sys.stdin", io.StringIO("many\n90\n\n"))

    def story(lab):
        lab.predict("a", "how many", 100, 100)
        lab.predict("b", "skipped", [True, False], [True, False])
        lab.predict("c", "no more input", 100, 100)

    assert run(story, "--predict") == 0
    out = capsys.readouterr().out
    assert out.index("Your guess: how many") < out.index("measured 100")
    assert "'many' is not a number" in out
    assert "(2 values, such as yes / yes)" in out
    assert "you scored 2 of 3 points" in out
    assert [p["points"] for p in report_of(tmp_path)["predictions"]] == [2, None, None]


def test_a_later_run_keeps_the_guesses_it_does_not_ask_for(monkeypatch, tmp_path):
    def story(lab):
        for question in ("first", "second", "second"):
            lab.predict("a", question, 100, 100)

    def points(typed, *argv):
        monkeypatch.setattr("sys.stdin", io.StringIO(typed))
        assert run(story, *argv) == 0
        return [(p["guess"], p["points"]) for p in report_of(tmp_path)["predictions"]]

    assert points("90\n\n300\n", "--predict") == [(90, 2), (None, None), (300, 1)]
    assert points("") == [(90, 2), (None, None), (300, 1)]
    assert points("\n100\n\n", "--predict") == [(90, 2), (100, 3), (300, 1)]
    assert points("0\n\n\n", "--predict") == [(90, 2), (100, 3), (300, 1)]  # the first guess stays
    next((tmp_path / "outputs" / "reports").glob("*/*.json")).write_text('{"predictions": [{"cla')
    assert points("") == [(None, None)] * 3


@pytest.mark.parametrize("option", ["--figures", "--json"])
def test_a_folder_that_cannot_be_written_is_named(tmp_path, capsys, option):
    blocked = tmp_path / "file"
    blocked.write_text("")  # a file where a folder is needed: fails for every user, root too

    ran = []
    assert run(lambda lab: ran.append(lab), option, str(blocked / "x")) == 2
    error = capsys.readouterr().err
    assert "cannot write" in error and error.count("\n") == 1
    assert not ran  # said at the beginning, not after minutes


@pytest.mark.parametrize(
    ("card", "built", "device"),
    [
        ((7, 0), ["sm_75", "sm_90", "sm_120"], "cpu"),
        ((7, 5), ["sm_75", "sm_90a"], "cuda"),
        ((7, 0), [], "cuda"),
    ],
)
def test_a_gpu_that_torch_has_no_code_for_is_not_taken(monkeypatch, card, built, device):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: built)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: card)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Some Card")
    assert pick_device("auto") == device
    if device == "cpu":
        says = r"Some Card has compute capability 7.0, torch .* begins at 7.5: use"
        with pytest.raises(LabError, match=says):
            pick_device("cuda")


def test_cuda_without_a_gpu_is_refused(capsys):
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    assert run(lambda lab: lab.device, "--device", "cuda", options=("device",)) == 2
    assert "no CUDA GPU on this machine: use --device cpu" in capsys.readouterr().err


def test_under_lab_run_options_for_other_scripts_are_taken_but_typos_are_not(monkeypatch):
    with pytest.raises(SystemExit):
        run(lambda lab: None, "--device", "cpu")
    monkeypatch.setenv("INFERENCE_LAB_RUN", "1")
    assert run(lambda lab: None, "--device", "cpu", "--model", "tales") == 0
    with pytest.raises(SystemExit):
        run(lambda lab: None, "--devise", "cpu")


def test_a_table_fits_the_page_and_shortens_no_word(capsys):
    run(lambda lab: lab.table("t", ["a", "b"], [["word " * 60, 1234567], ["x" * 150, 7]], note="n"))
    out = capsys.readouterr().out
    assert "1,234,567" in out and max(map(len, out.splitlines())) <= 100
    assert out.count("x") == 150
