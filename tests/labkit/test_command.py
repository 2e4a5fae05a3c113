"""The `lab` command, finding models, and the doctor."""

import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from labkit import catalog, command, doctor, interrupts
from labkit.claims import CLAIMS, reference_run, verdict_of
from labkit.errors import LabError
from labkit.models import find_model
from labkit.paths import ROOT
from labkit.predictions import Prediction


def test_list_names_every_script_with_its_first_line(capsys):
    assert command.main(["list"]) == 0
    out = capsys.readouterr().out
    for script in catalog.all_scripts():
        assert script.is_file(), script
        assert script.name in out
        assert len(catalog.first_line(script)) > 20
    for word, scripts in (("1", catalog.select(["1"])), ("gpu", catalog.all_scripts("GPU"))):
        assert command.main(["list", word]) == 0
        listed = re.findall(r"\w+\.py", capsys.readouterr().out)
        assert listed == [script.name for script in scripts]
    assert command.main(["list", "nonsense"]) == 2


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["kv_cache_lab.py", "kv_cache_lab"], ["kv_cache_lab.py"]),
        (["phase1_tokens_embeddings/tokenization_lab.py"], ["tokenization_lab.py"]),
        (["1"], [*catalog.SCRIPTS["phase1_tokens_embeddings"]]),
        (["phase2"], [*catalog.SCRIPTS["phase2_attention_kvcache"]]),
        (["phase2_attention_kvcache/"], [*catalog.SCRIPTS["phase2_attention_kvcache"]]),
        (["phase2_attention_kvcache\\"], [*catalog.SCRIPTS["phase2_attention_kvcache"]]),
        ([], [s.name for s in catalog.all_scripts()]),
    ],
)
def test_select(words, names):
    assert [s.name for s in catalog.select(words)] == names


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("phase9", "no phase or script is called 'phase9': `lab list` shows them all"),
        ("2 --predct", "no script here has the option --predct: did you mean --predict?"),
        ("2 --drill=3", "no script here has the option --drill; each lists its options with --help"),
        ("--quick 2", "scripts come before options: lab run 2 --quick"),
        ("--seed=3 kv_cache_lab", "scripts come before options: lab run kv_cache_lab --seed=3"),
        ("--seed 3 kv_cache_lab", "scripts come before options: lab run kv_cache_lab --seed 3"),
        ("--device cpu 2", "scripts come before options: lab run 2 --device cpu"),
        ("--quick --predict 2", "scripts come before options: lab run 2 --quick --predict"),
        ("--resume engine_benchmark", "scripts come before options: lab run engine_benchmark --resume"),
        ("--list war_room --quick", "scripts come before options: lab run war_room --list --quick"),
        ("1 --json x.json", "--json names one file, for one script: all reports are in outputs/reports"),
    ],
)
def test_a_mistake_is_told_once_and_nothing_runs(words, says, capsys):
    assert command.main(["run", *words.split()]) == 2
    assert capsys.readouterr() == ("", f"error: {says}\n")


@pytest.mark.parametrize(
    "script", ["phase1_tokens_embeddings/tokenization_lab.py", "phase4_scheduler/serve.py"]
)
def test_without_the_environment_a_script_says_so(script):
    for way in ([str(ROOT / script)], ["-m", script.removesuffix(".py").replace("/", ".")]):
        command = [sys.executable, "-S", *way]  # -S: nothing but Python's own library
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={"PATH": ""})
        assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
        assert "source .venv/bin/activate" in done.stderr


def test_where_a_process_cannot_be_replaced_a_program_is_waited_for(monkeypatch, capfd):
    monkeypatch.setattr(interrupts, "os", SimpleNamespace(name="nt"))
    assert command.main(["convert", "--help"]) == 0
    assert "OUT.gguf" in capfd.readouterr().out


def test_run_passes_options_on_and_goes_on_after_a_script_that_fails(tmp_path, monkeypatch, capfd):
    for name, code in (("a.py", 2), ("b.py", 0), ("c.py", 1)):
        (tmp_path / name).write_text(f"import sys; print(sys.argv[1:]); sys.exit({code})")
    monkeypatch.setattr(command, "select", lambda words: sorted(tmp_path.glob("*.py")))
    assert command.main(["run", "kv_cache_lab", "--seed", "3"]) == 2  # 3 is a seed, no phase
    out = capfd.readouterr().out
    assert out.count("['--seed', '3']") == 3
    assert "could not run" in out and "a prediction failed" in out and "ok" in out


def test_help_is_that_of_lab_or_of_the_script():
    assert command.split_run(["run", "--help"]) == (["run", "--help"], [])
    assert command.split_run(["run", "kv_cache_lab", "--help"]) == (["run", "kv_cache_lab"], ["--help"])


def test_the_gravest_verdict_stands():
    good, bad = Prediction("x", "?", 1, 1), Prediction("x", "?", 1, 2)
    assert verdict_of([]) == "not run yet"
    assert verdict_of([good]) == "reproduced" and verdict_of([good, bad, good]) == "corrected"
    missed = Prediction("x", "?", 1, 2, kind="timing")
    assert verdict_of([good, missed]) == "differs here" and verdict_of([missed, bad]) == "corrected"


def test_the_reference_run_has_a_verdict_on_each_claim():
    ids = [c.id for claims in CLAIMS.values() for c in claims]
    assert len(ids) == len(set(ids)) and set(reference_run()["claims"]) == set(ids)


@pytest.mark.parametrize(
    ("cuda", "driver", "told"),
    [
        ("13.0", "535.104.05", "driver 535.104.05 is too old.*580 or newer"),
        ("13.0", "580.65.06", "torch finds no GPU"),
        ("12.8", "535.104.05", "torch finds no GPU"),
        (None, "535.104.05", "this torch is built without CUDA"),
        ("13.0", None, "torch finds no GPU"),
    ],
)
def test_doctor_names_the_driver_that_this_torch_wants(monkeypatch, cuda, driver, told):
    """A card whose driver is too old is invisible: a torch with CUDA, or another machine, would change nothing."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(doctor, "_driver", lambda: driver)
    [gpu] = [f for f in doctor.examine() if f.what == "GPU"]
    assert re.search(told, f"{gpu.value} {gpu.remedy}") and not gpu.ok


@pytest.mark.parametrize("name", ["./nothing", "/no/such/folder", "~/nothing-here", "a/b/c", ""])
def test_a_path_that_is_not_there(name):
    with pytest.raises(LabError, match="no model folder"):
        find_model(name)


def test_doctor_says_what_runs_here(capsys):
    assert command.main(["doctor"]) == 0
    out = capsys.readouterr().out
    for what in ("Python", "torch", "GPU", "triton", "GPT-2 weights", "CPU", "memory"):
        assert what in out
    assert {f.what for f in doctor.examine() if not f.ok and not f.remedy} == set()
