"""Measuring in parts: a part that fails or hangs costs its own figures and no others; the file is always whole."""

import json
import subprocess
import sys
import textwrap
import threading
from contextlib import nullcontext
from unittest.mock import MagicMock, call

import psutil
import pynvml
import pytest

from labkit.paths import ROOT
from phase1_tokens_embeddings.weights import CARDS
from phase5_real_gpu import measure_machine
from phase5_real_gpu.measuring import first_contact as contact
from phase5_real_gpu.measuring import gpu_watch
from phase5_real_gpu.measuring.first_contact import card_of, expected_on
from phase5_real_gpu.measuring.reference_files import read_reference
from phase5_real_gpu.measuring.steps import Step, run_steps

GOOD = """
    import json, sys
    path = sys.argv[sys.argv.index("--json") + 1]
    rows = [{"name": n, "value": v, "unit": UNIT, "details": {"argv": sys.argv[3:]}} for n, v in ROWS]
    facts = {"cpu": "Some CPU", "cores": 2, "packages": {}, "gpu": GPU, "when": "2026-11-21"}
    report = {"script": "x.py", "environment": facts, "results": {"measurements": rows, "limits": LIMITS}}
    json.dump(report, open(path, "w"))
"""
LIMITED = dict(read_gb_s=20.0, copy_gb_s=15.0, launch_us=3.0, matmul_tflops={"float32": 0.2}, h2d_gb_s=50.0)


def good(*rows, limits=None, unit="ms", gpu=None, then="") -> str:
    """A script that writes a report of these rows to where its arguments say."""
    return (
        f"ROWS, LIMITS, UNIT, GPU = {rows!r}, {limits!r}, {unit!r}, {gpu!r}\n" + textwrap.dedent(GOOD) + then
    )


@pytest.fixture
def steps_of(tmp_path):
    """Programs as parts."""

    def make(seconds=60.0, **sources: str) -> list[Step]:
        for name, source in sources.items():
            (tmp_path / f"{name}.py").write_text(textwrap.dedent(source))
        return [
            Step(name, name, seconds, (str(tmp_path / f"{name}.py"), "--json", "{report}", "{gathered}"))
            for name in sources
        ]

    return make


@pytest.fixture
def run(tmp_path, steps_of):
    """Run programs as parts. Returns all figures, and how each part went."""

    def run_parts(earlier=None, seconds=600.0, each=60.0, **sources: str):
        file = tmp_path / "gathered.json"
        steps = steps_of(each, **sources)
        gathered = run_steps(steps, tmp_path / "out", file, lambda *_: None, seconds, earlier, device="cpu")
        assert {m.name for m in read_reference(file).measurements} == set(gathered.measurements)
        return gathered, {part.script: (part.outcome, part.error) for part in gathered.parts}

    return run_parts


# ---------------------------------------------------------------------- parts that fail


def test_a_failure_costs_only_its_own_figures(run):
    second = dict(read_gb_s=18.0, copy_gb_s=16.0, launch_us=4.0, matmul_tflops={"bfloat16": 0.4})
    gathered, outcomes = run(
        first=good(("itl-tales-b1", 2.0), limits=LIMITED),
        refuses="import sys; sys.exit('error: no such card: use --device cpu')",
        crashes="print('fine so far'); raise RuntimeError('the card fell off')",
        no_report="pass",
        half="import sys; open(sys.argv[2], 'w').write('{\"results\": ')",
        crashes_late=good(("launch", 7.0), then="raise RuntimeError('the card fell off')"),
        last=good(("itl-gpt2-b1", 9.0), ("itl-tales-b1", 5.0), limits=second, then="sys.exit(1)"),
    )
    # Of two of one name the later stays.
    values = {name: m.value for name, m in gathered.measurements.items()}
    assert values == {"itl-tales-b1": 5.0, "launch": 7.0, "itl-gpt2-b1": 9.0}
    limits = gathered.limits  # the best ceiling counts
    assert (limits.read_gb_s, limits.copy_gb_s, limits.launch_us) == (20.0, 16.0, 3.0)
    assert limits.matmul_tflops == {"bfloat16": 0.4, "float32": 0.2} and limits.h2d_gb_s == 50.0
    assert outcomes["refuses"] == ("failed", "it ended with code 1: error: no such card: use --device cpu")
    crash = ("failed", "it ended with code 1: RuntimeError: the card fell off")
    assert outcomes["crashes"] == outcomes["crashes_late"] == crash
    assert [outcomes[name][0] for name in ("first", "no_report", "half", "last")] == ["ok"] * 4
    assert "prediction" in outcomes["last"][1]


@pytest.mark.proof
def test_a_part_that_hangs_is_stopped_with_its_children_and_keeps_its_figures(run, tmp_path):
    pid_file = tmp_path / "pid"
    hang = f"""
import subprocess, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
open({str(pid_file)!r}, "w").write(str(child.pid))
time.sleep(60)
"""
    parts = dict(hangs=good(("itl-gpt2-b1", 3.0), then=hang), after=good(("itl-tales-b1", 2.0)))
    gathered, outcomes = run(each=5.0, **parts)
    assert outcomes == {"hangs": ("timed out", "stopped after 5 s"), "after": ("ok", "")}
    assert set(gathered.measurements) == {"itl-gpt2-b1", "itl-tales-b1"}  # saved before it hung
    child = int(pid_file.read_text())
    _, alive = psutil.wait_procs([psutil.Process(child)] if psutil.pid_exists(child) else [], timeout=5)
    assert all(process.status() == psutil.STATUS_ZOMBIE for process in alive)


def test_a_part_begins_if_time_is_left(run):
    _, outcomes = run(seconds=2.0, a="import time; time.sleep(60)", b=good(("itl-tales-b1", 2.0)))
    assert outcomes["a"][0] == "timed out" and outcomes["b"] == ("skipped", "no time was left for it")


def test_going_on_with_what_is_there(run, tmp_path):
    """A part that was finished is kept with its figures; one that was not finds its earlier report."""
    found = good(("itl-gpt2-b1", 2.0), then="open(path + '.2', 'w')\nsys.exit(2)")
    gathered, _ = run(a=good(("itl-tales-b1", 2.0)), b=found)
    earlier = gathered.as_reference(device="cpu")
    (tmp_path / "out" / "a.json").unlink()  # a run for another file may have taken its place
    again = "import os, sys; sys.exit(0 if os.path.exists(sys.argv[2]) else 'error: gone')"
    gathered, outcomes = run(earlier, a="raise SystemExit('error: it ran again')", b=again)
    assert outcomes == {"a": ("ok", ""), "b": ("ok", "")}
    assert set(gathered.measurements) == {"itl-tales-b1", "itl-gpt2-b1"}
    assert run(b=again)[1]["b"][1].endswith("error: gone")  # a run from the beginning forgets it


# ---------------------------------------------------------------------- the script


def test_script_writes_a_reference_file(steps_of, monkeypatch, tmp_path, capsys, mistake_of):
    steps = steps_of(a=good(("itl-tales-b1", 2.0), limits=LIMITED), b="raise SystemExit(2)")
    monkeypatch.setattr(contact, "everything", lambda device, quick: steps)
    out = tmp_path / "new" / "mine.json"
    assert measure_machine.main(["--out", str(out), "--quick"]) == 0
    said = capsys.readouterr().out
    assert "ok, " in said and "failed" in said
    mine = read_reference(out)
    assert (mine.name, mine.title) == ("some-cpu-2-cores", "Some CPU, 2 cores")
    assert mine.origin == "measured" and mine.quick
    assert mine.get("itl-tales-b1").value == 2.0 and mine.limits.read_gb_s == 20.0
    assert [p.outcome for p in mine.parts] == ["ok", "failed"]
    assert mine.device == "cpu" and mine.measured_at and "--quick" in mine.command
    assert "was measured with --quick" in mistake_of(measure_machine, "--out", out, "--resume")
    assert "is a folder" in mistake_of(measure_machine, "--out", ".")  # before anything runs
    steps[:] = steps_of(a="raise SystemExit('error: out of luck')")
    assert "out of luck" in mistake_of(measure_machine, "--out", out)
    assert read_reference(out).parts[0].outcome == "failed"


CLOCKS = dict(lowest_sm_clock_mhz=1200.0, median_sm_clock_mhz=1900.0, highest_sm_clock_mhz=1980.0)


def test_a_first_contact_stands_beside_the_data_sheet_and_goes_on(
    steps_of, run_script, tmp_path, monkeypatch
):
    monkeypatch.setattr(measure_machine, "has_gpu", lambda: True)
    monkeypatch.setattr(measure_machine, "device_name", lambda _: "NVIDIA H200")
    watch = nullcontext(CLOCKS | dict(throttled_by=["SwPowerCap"]))
    monkeypatch.setattr("phase5_real_gpu.measuring.steps.watch_card", lambda: watch)

    def outcomes(*options, **sources):
        monkeypatch.setattr(contact, "FIRST_CONTACT", steps_of(**sources))
        data = run_script(measure_machine, "--first-contact", "--out", tmp_path / "mine.json", *options)
        return [p["outcome"] for p in data["results"]["parts"]], " ".join(data["out"].split())

    card = dict(gpu={"name": "NVIDIA H200"}, limits=LIMITED)
    went, said = outcomes(
        good=good(("read-bandwidth", 4300.0), unit="GB/s", **card),
        slow=good(("itl-llama3-8b-b1", 40.0), then="sys.exit(2)", **card),
        compare="import sys, json; assert json.load(open(sys.argv[3]))['measurements']",
    )
    assert went == ["ok", "failed", "ok"] and "as expected" in said and "unexpected: slower" in said
    assert "1,200 to 1,980 MHz, median 1,900. Lowered by: SwPowerCap" in said
    again = "raise SystemExit('error: it ran again')"
    assert outcomes("--resume", good=again, slow=good(("itl-llama3-8b-b1", 4.0), **card))[0] == ["ok", "ok"]
    mine = read_reference(tmp_path / "mine.json")
    assert mine.get("itl-llama3-8b-b1").value == 4.0 and mine.get("read-bandwidth").value == 4300.0
    assert mine.environment["gpu"]["name"] == "NVIDIA H200"


def test_without_a_card_the_first_contact_says_so_and_lists_what_it_would_do(
    run_script, mistake_of, monkeypatch
):
    monkeypatch.setattr(measure_machine, "has_gpu", lambda: False)
    assert "use a machine that has one, or --dry-run" in mistake_of(measure_machine, "--first-contact")
    said = run_script(measure_machine, "--first-contact", "--dry-run")["out"]
    assert all(step.name in said for step in contact.FIRST_CONTACT) and "H200" in said


def test_all_parts_take_ten_minutes_at_most_their_files_exist_and_that_of_cuda_graphs_selects_a_test():
    """pytest ends with code 5 where nothing is selected, and the part would fail on every card."""
    for steps in (contact.FIRST_CONTACT, contact.everything("auto", quick=True)):
        assert sum(step.seconds for step in steps) <= contact.TOTAL_SECONDS < 600
        files = [word for step in steps for word in step.command if word.endswith(".py")]
        assert files and all((ROOT / word).is_file() for word in files)
    assert all({"--quick", "{report}"} <= {*step.command} for step in contact.everything("auto", quick=True))
    needed = {"memory": 60, "kernels": 180, "engine": 300}  # on a large GPU
    assert all(step.seconds > needed[step.name] for step in contact.everything("cuda", quick=False))
    words = next(step.command for step in contact.FIRST_CONTACT if step.name == "graphs")
    run = [sys.executable, *words, "--collect-only"]
    assert subprocess.run(run, cwd=ROOT, capture_output=True).returncode == 0


@pytest.mark.parametrize(
    ("name", "card"),
    [
        ("NVIDIA H200", "h200"), ("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA H100 PCIe", None), ("NVIDIA H100 NVL", None),
        ("NVIDIA GH200 480GB", None), ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("NVIDIA A100-SXM4-80GB", "a100-80"), ("NVIDIA A100-SXM4-40GB", "a100-40"), ("NVIDIA A100 80GB PCIe", None),
        ("NVIDIA GeForce RTX 4090", "rtx4090"), ("NVIDIA GeForce RTX 4090 D", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None), ("NVIDIA L4", "l4"), ("NVIDIA L40S", None), ("Tesla T4", "t4"),
    ],
)  # fmt: skip
def test_a_card_is_known_by_its_drivers_name(name, card):
    """Another form of a card has another memory."""
    assert card_of(name) == (card and CARDS[card])


def test_expected_figures_follow_from_the_data_sheet():
    """By hand: 1.08 GB at 4.8 TB/s are 225 us; 8 billion weights of 2 bytes, the token table left out, are 15.0 GB."""
    h200, t4 = expected_on(CARDS["h200"]), expected_on(CARDS["t4"])
    assert h200["read-bandwidth"][:2] == (3600, 4800)
    assert h200["matmul-bfloat16"].high == pytest.approx(1.1 * CARDS["h200"].tensor_tflops)
    assert h200["decode-b64-4k"].low == pytest.approx(225, rel=0.01)
    assert h200["itl-llama3-8b-b1"].low == pytest.approx(15.0e9 / 4.8e12 * 1e3, rel=0.01)
    assert t4["itl-llama3-8b-b1"].low is None and "matmul-float16" in t4
    operations = 4 * 32 * 128 * 8192 * 8193 / 2  # Triton leaves a T4's tensor cores idle
    assert t4["prefill-8k"].low == pytest.approx(operations / 8.1e12 * 1e6, rel=0.01)
    assert json.dumps(h200)


# ---------------------------------------------------------------------- the card's own report


@pytest.fixture
def nvml(monkeypatch):
    """NVIDIA's library with its own names, and the answers of one card."""
    constants = {name: value for name, value in vars(pynvml).items() if isinstance(value, (int, type))}
    fake = MagicMock(spec=pynvml, **constants)
    fake.nvmlDeviceGetPowerUsage.return_value = 690_100
    fake.nvmlDeviceGetClockInfo.return_value = 1905
    fake.nvmlDeviceGetCurrentClocksThrottleReasons.return_value = pynvml.nvmlClocksThrottleReasonSwPowerCap
    fake.nvmlDeviceGetTemperature.side_effect = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


def test_the_visible_card_is_asked_for_what_it_reports(nvml, monkeypatch):
    for visible in ("", "2,3", "GPU-8f6e,3"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        told = gpu_watch.ask()
        assert told["highest_power_w"] == 690.1 and told["highest_sm_clock_mhz"] == 1905.0
        assert told["throttled_by"] == ["SwPowerCap"] and "highest_temperature_c" not in told
    assert nvml.nvmlDeviceGetHandleByIndex.mock_calls == [call(0), call(2)]
    assert nvml.nvmlDeviceGetHandleByUUID.mock_calls == [call("GPU-8f6e")]
    nvml.nvmlInit.side_effect = pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
    with gpu_watch.watch_card() as seen:
        assert gpu_watch.ask() == {} == seen


def test_throttling_shows_while_the_card_is_busy(monkeypatch):
    def report(clock, power, busy, *reasons):
        return dict(
            highest_sm_clock_mhz=clock, highest_power_w=power, busy_percent=busy, throttled_by=reasons
        )

    idle = report(345.0, 120.5, 0)  # its low clock says nothing
    reports = [idle, *[report(1905.0, 690.1, 99)] * 8, report(1200.0, 300.0, 99, "SwThermalSlowdown")]
    told_all = threading.Event()

    def ask():
        if not reports:
            told_all.set()
        return dict(reports.pop(0) if reports else idle)

    monkeypatch.setattr(gpu_watch, "ask", ask)
    with gpu_watch.watch_card(every=0.001) as seen:
        assert told_all.wait(20)
    clocks = dict(lowest_sm_clock_mhz=1200.0, p10_sm_clock_mhz=1200.0, median_sm_clock_mhz=1905.0)
    best = dict(highest_sm_clock_mhz=1905.0, highest_power_w=690.1, throttled_by=["SwThermalSlowdown"])
    assert seen == clocks | best
