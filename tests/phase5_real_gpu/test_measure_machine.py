"""Measuring in parts: a part that fails or hangs costs its own figures and no others; the file is always whole."""

import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from phase5_real_gpu import measure_machine
from phase5_real_gpu.measuring import gpu_watch
from phase5_real_gpu.measuring.gpu_watch import watch_card
from phase5_real_gpu.measuring.reference_files import read_reference
from phase5_real_gpu.measuring.steps import Step, run_steps

GOOD = """
    import json, sys
    path = sys.argv[sys.argv.index("--json") + 1]
    rows = [{"name": n, "value": v, "unit": "ms", "better": "lower", "floor": 1.0, "limit": "bandwidth",
             "details": {"argv": sys.argv[3:]}, "share_of_limit": 1 / v} for n, v in ROWS]
    facts = {"cpu": "Some CPU", "cores": 2, "packages": {}, "gpu": None, "when": "2026-11-21"}
    report = {"script": "x.py", "environment": facts, "results": {"measurements": rows, "limits": LIMITS}}
    json.dump(report, open(path, "w"))
"""
LIMITED = dict(read_gb_s=20.0, copy_gb_s=15.0, launch_us=3.0, matmul_tflops={"float32": 0.2}, h2d_gb_s=50.0)


def good(*rows, limits=None, then="") -> str:
    return f"ROWS, LIMITS = {rows!r}, {limits!r}\n" + textwrap.dedent(GOOD) + then


@pytest.fixture
def run(tmp_path):
    """Run programs as parts. Returns all figures, and how each part went."""

    def run_parts(earlier=None, seconds=600.0, each=60.0, **sources: str):
        steps = []
        for name, source in sources.items():
            (tmp_path / f"{name}.py").write_text(textwrap.dedent(source))
            command = (str(tmp_path / f"{name}.py"), "--json", "{report}", "--more")
            steps.append(Step(name, name, each, command))
        file = tmp_path / "gathered.json"
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
    assert gathered.measurements["itl-gpt2-b1"].details["argv"] == ["--more"]
    limits = gathered.limits  # the best ceiling counts
    assert (limits.read_gb_s, limits.copy_gb_s, limits.launch_us) == (20.0, 16.0, 3.0)
    assert limits.matmul_tflops == {"bfloat16": 0.4, "float32": 0.2} and limits.h2d_gb_s == 50.0
    assert outcomes["refuses"] == ("failed", "it ended with code 1: error: no such card: use --device cpu")
    crash = ("failed", "it ended with code 1: RuntimeError: the card fell off")
    assert outcomes["crashes"] == outcomes["crashes_late"] == crash
    assert [outcomes[name][0] for name in ("first", "no_report", "half", "last")] == ["ok"] * 4
    assert "prediction" in outcomes["last"][1]


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
    gone, alive = psutil.wait_procs([psutil.Process(child)] if psutil.pid_exists(child) else [], timeout=5)
    assert all(process.status() == psutil.STATUS_ZOMBIE for process in alive), gone


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


@pytest.fixture
def scripts(tmp_path, monkeypatch):
    def make(**sources: str) -> None:
        monkeypatch.setattr(measure_machine, "SCRIPTS", {})
        for name, source in sources.items():
            (tmp_path / f"{name}.py").write_text(textwrap.dedent(source))
            measure_machine.SCRIPTS[name] = (str(tmp_path / f"{name}.py"), 20.0, True)

    return make


def test_script_writes_a_reference_file(scripts, tmp_path, capsys, mistake_of):
    scripts(a=good(("itl-tales-b1", 2.0), limits=LIMITED), b="raise SystemExit(2)")
    out = tmp_path / "new" / "mine.json"
    assert measure_machine.main(["--out", str(out), "--quick"]) == 0
    said = capsys.readouterr().out
    assert "ok, " in said and "failed" in said
    mine = read_reference(out)
    assert (mine.name, mine.title) == ("some-cpu-2-cores", "Some CPU, 2 cores")
    assert mine.origin == "measured" and mine.quick
    assert mine.get("itl-tales-b1").value == 2.0 and mine.limits.read_gb_s == 20.0
    assert mine.get("itl-tales-b1").details["argv"] == ["--device", "auto", "--quick", "--resume"]
    assert [p.outcome for p in mine.parts] == ["ok", "failed"]
    assert mine.device == "cpu" and mine.measured_at and "--quick" in mine.command
    said = mistake_of(measure_machine, "--out", out, "--resume")
    assert "was measured with --quick" in said


def test_real_parts_exist_and_fit_in_ten_minutes():
    folder, needed = Path(measure_machine.__file__).parent, {"memory": 60, "kernels": 180, "engine": 300}
    assert all((folder / file).is_file() for file, *_ in measure_machine.SCRIPTS.values())
    # On a large GPU.
    assert all(measure_machine.SCRIPTS[part][1] > seconds for part, seconds in needed.items())
    assert sum(needed.values()) <= measure_machine.TOTAL_SECONDS < 600


def test_no_figure_at_all_is_an_error_and_the_file_says_why(scripts, tmp_path, mistake_of):
    scripts(a="raise SystemExit('error: out of luck')")
    said = mistake_of(measure_machine, "--out", tmp_path / "mine.json")
    assert "out of luck" in said and read_reference(tmp_path / "mine.json").parts[0].outcome == "failed"


def test_a_file_that_cannot_be_written_is_refused_before_anything_runs(mistake_of):
    assert "is a folder" in mistake_of(measure_machine, "--out", ".")


# ---------------------------------------------------------------------- the card's own report


class NVMLError(Exception):
    pass


@pytest.fixture
def nvml(monkeypatch):
    """A stand-in for NVIDIA's library with one card, whose power, clock and temperature go up and down."""
    now = SimpleNamespace(power=120_500, sm=345, temperature=31, busy=0, reasons=0)
    fake = SimpleNamespace(
        NVMLError=NVMLError, NVML_CLOCK_SM=0, NVML_CLOCK_MEM=1, NVML_TEMPERATURE_GPU=0, now=now, asked=[],
        nvmlClocksThrottleReasonSwPowerCap=4, nvmlClocksThrottleReasonSwThermalSlowdown=32,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByIndex=lambda i: fake.asked.append(i) or i,
        nvmlDeviceGetHandleByUUID=lambda name: fake.asked.append(name) or name,
        nvmlSystemGetDriverVersion=lambda: "580.82.07",
        nvmlDeviceGetPowerManagementLimit=lambda h: 700_000,
        nvmlDeviceGetPowerManagementDefaultLimit=lambda h: 700_000,
        nvmlDeviceGetMaxClockInfo=lambda h, kind: [1980, 3201][kind],
        nvmlDeviceGetPowerUsage=lambda h: now.power,
        nvmlDeviceGetClockInfo=lambda h, kind: [now.sm, 3201][kind],
        nvmlDeviceGetTemperature=lambda h, kind: now.temperature,
        nvmlDeviceGetUtilizationRates=lambda h: SimpleNamespace(gpu=now.busy),
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda h: now.reasons,
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return fake


def test_the_card_is_asked_and_throttling_shows(nvml):
    def until(reached) -> None:
        end = time.monotonic() + 20
        while not reached() and time.monotonic() < end:
            time.sleep(0.01)

    with watch_card(every=0.01) as seen:
        vars(nvml.now).update(power=690_100, sm=1905, temperature=66, busy=99)
        until(lambda: seen.get("p10_sm_clock_mhz") == 1905)
        vars(nvml.now).update(power=300_000, sm=1200, temperature=60, reasons=32)
        until(lambda: seen.get("p10_sm_clock_mhz") == 1200)
        vars(nvml.now).update(sm=345, busy=0, reasons=0)  # idle: its low clock says nothing
        time.sleep(0.1)
    assert seen.pop("lowest_sm_clock_mhz") == 1200 <= seen.pop("median_sm_clock_mhz") <= 1905
    assert seen == {
        "driver": "580.82.07", "power_limit_w": 700.0, "default_power_limit_w": 700.0, "max_sm_clock_mhz": 1980.0,
        "max_memory_clock_mhz": 3201.0, "highest_power_w": 690.1, "highest_sm_clock_mhz": 1905.0,
        "highest_memory_clock_mhz": 3201.0, "highest_temperature_c": 66.0, "p10_sm_clock_mhz": 1200.0,
        "throttled_by": ["SwThermalSlowdown"],
    }  # fmt: skip


def test_the_card_that_is_visible_is_asked(nvml, monkeypatch):
    for visible in ("", "2,3", "GPU-8f6e,3"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert gpu_watch.ask()["highest_power_w"] == 120.5
    assert nvml.asked == [0, 2, "GPU-8f6e"]


def test_a_card_that_does_not_answer(nvml, monkeypatch):
    def refuses(*_):
        raise NVMLError("not supported")

    nvml.nvmlDeviceGetPowerManagementLimit = nvml.nvmlDeviceGetTemperature = refuses
    del nvml.nvmlDeviceGetCurrentClocksThrottleReasons  # an older library
    told = gpu_watch.ask()
    assert not {"power_limit_w", "highest_temperature_c", "throttled_by"} & told.keys()
    assert told["max_sm_clock_mhz"] == 1980.0
    nvml.nvmlInit = refuses
    assert gpu_watch.ask() == {}
    with watch_card() as seen:
        assert seen == {}
