"""Measuring in parts: a part that fails or hangs costs its own figures and no others; the file is always whole."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from labkit.paths import ROOT
from phase5_real_gpu import measure_machine
from phase5_real_gpu.measuring import gpu_watch
from phase5_real_gpu.measuring.gpu_watch import watch_card
from phase5_real_gpu.measuring.measure_all import (
    FOLDER,
    SCRIPTS,
    TOTAL_SECONDS,
    Script,
    measure_all,
)
from phase5_real_gpu.measuring.reference_files import Limits, read_reference

GOOD = """
    import json, sys
    path = sys.argv[sys.argv.index("--json") + 1]
    rows = [{"name": n, "value": v, "unit": "ms", "better": "lower", "floor": 1.0, "limit": "bandwidth",
             "details": {"argv": sys.argv[3:]}, "share_of_limit": 1 / v} for n, v in ROWS]
    report = {"script": "x.py", "environment": {"cpu": "Some CPU", "cores": 2, "packages": {}, "gpu": None},
              "predictions": [float("nan")], "results": {"measurements": rows, "limits": LIMITS}}
    json.dump(report, open(path, "w"))
"""


LIMITED = dict(read_gb_s=20.0, copy_gb_s=15.0, launch_us=3.0, matmul_tflops={"float32": 0.2})


def good(*rows, limits=None, then="") -> str:
    return f"ROWS, LIMITS = {rows!r}, {limits!r}\n" + textwrap.dedent(GOOD) + then


@pytest.fixture
def scripts(tmp_path, monkeypatch):
    """Write scripts, and make them the parts of the measurement."""

    def make(seconds=20.0, **sources: str):
        for name in list(SCRIPTS):
            monkeypatch.delitem(SCRIPTS, name)
        for name, source in sources.items():
            path = tmp_path / f"{name}.py"
            path.write_text(textwrap.dedent(source))
            monkeypatch.setitem(SCRIPTS, name, Script(str(path), seconds))
        return list(sources)

    return make


def measured(parts, options=(), save=lambda _: None, **more):
    return measure_all(parts, options, save, lambda _: None, **more)


# ---------------------------------------------------------------------- parts that fail


def test_a_failure_costs_only_its_own_figures(scripts):
    parts = scripts(
        first=good(("itl-tales-b1", 2.0)),
        refuses="import sys; sys.exit('error: no such card: use --device cpu')",
        crashes="print('fine so far'); raise RuntimeError('the card fell off')",
        no_report="pass",
        half="import sys; open(sys.argv[2], 'w').write('{\"results\": ')",
        last=good(("itl-gpt2-b1", 9.0), ("itl-tales-b1", 5.0), then="sys.exit(1)"),
    )
    saved = []
    gathered = measured(parts, ["--quick"], lambda g: saved.append(len(g.measurements)))
    outcomes = {Path(p.script).stem: (p.outcome, p.error) for p in gathered.parts}
    assert set(gathered.measurements) == {"itl-tales-b1", "itl-gpt2-b1"}
    assert saved == [1, 1, 1, 1, 1, 2]  # after each part
    assert gathered.measurements["itl-tales-b1"].value == 2.0  # the first figure stays
    assert gathered.measurements["itl-tales-b1"].details["argv"] == ["--quick"]
    assert outcomes["first"] == ("ok", "")
    assert outcomes["refuses"] == ("failed", "it ended with code 1: error: no such card: use --device cpu")
    assert outcomes["crashes"] == ("failed", "it ended with code 1: RuntimeError: the card fell off")
    for name in ("no_report", "half"):
        assert outcomes[name] == ("failed", "it ended with code 0: it left no report")
    assert outcomes["last"][0] == "ok" and "prediction" in outcomes["last"][1]


def test_a_part_that_hangs_is_stopped_with_its_children_and_keeps_its_figures(scripts, tmp_path):
    pid_file = tmp_path / "pid"
    hang = f"""
import subprocess, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
open({str(pid_file)!r}, "w").write(str(child.pid))
time.sleep(60)
"""
    parts = scripts(
        seconds=5.0, hangs=good(("itl-gpt2-b1", 3.0), then=hang), after=good(("itl-tales-b1", 2.0))
    )
    gathered = measured(parts)
    assert [p.outcome for p in gathered.parts] == ["timed out", "ok"]
    assert gathered.parts[0].error == "stopped after 5 s"
    assert set(gathered.measurements) == {"itl-gpt2-b1", "itl-tales-b1"}  # saved before it hung
    if os.name == "posix":
        assert is_gone(int(pid_file.read_text()))


def is_gone(pid: int, within: float = 5.0) -> bool:
    until = time.monotonic() + within
    while time.monotonic() < until:
        try:
            os.kill(pid, 0)
            # A zombie has ended; its exit code is not yet collected.
            if Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.05)
    return False


def test_time_and_packages_are_asked_for_beforehand(scripts, monkeypatch):
    parts = scripts(
        a="import time; time.sleep(60)", b=good(("itl-tales-b1", 2.0)), vllm=good(("itl-gpt2-b1", 2.0))
    )
    gathered = measured(parts[:2], total_seconds=2.0)
    assert [p.outcome for p in gathered.parts] == ["timed out", "skipped"]
    assert gathered.parts[1].error == "no time was left for it"
    monkeypatch.setitem(SCRIPTS, "vllm", Script(SCRIPTS["vllm"].file, 20, needs="no_such_package_at_all"))
    assert measured(["vllm"]).parts[0].error == "no_such_package_at_all is not installed"
    (m,) = measured(["vllm"], vllm_python="/env/bin/python").measurements.values()
    assert m.details["argv"] == ["--vllm-python", "/env/bin/python"]


def test_going_on_with_what_is_there(scripts, monkeypatch):
    """The report of the earlier run stays, and scripts that can are told to go on with it."""
    parts = scripts(
        a=good(("itl-tales-b1", 2.0)),
        b="import os, sys; sys.exit(0 if os.path.exists(sys.argv[2]) else 'error: gone')",
    )
    monkeypatch.setitem(SCRIPTS, "a", Script(SCRIPTS["a"].file, 20, resumes=True))
    (m,) = measured(parts[:1]).measurements.values()
    assert m.details["argv"] == []
    (m,) = measured(parts[:1], resume=True).measurements.values()
    assert m.details["argv"] == ["--resume"]
    assert measured(parts[1:], resume=True).parts[0].error.endswith("error: gone")


def test_the_best_ceiling_counts(scripts):
    second = dict(
        read_gb_s=22.0, copy_gb_s=14.0, launch_us=4.0, matmul_tflops={"bfloat16": 0.4}, h2d_gb_s=None
    )
    parts = scripts(a=good(("launch", 3.0), limits=LIMITED), b=good(("launch", 4.0), limits=second))
    assert measured(parts).limits == Limits(22.0, 15.0, {"bfloat16": 0.4, "float32": 0.2}, 3.0)


def test_real_parts_exist_and_fit_in_ten_minutes():
    assert all((FOLDER / script.file).is_file() for script in SCRIPTS.values())
    needed = {"memory": 60, "kernels": 180, "engine": 300}  # the time of each on a large GPU
    assert all(SCRIPTS[part].seconds > seconds for part, seconds in needed.items())
    assert sum(needed.values()) <= TOTAL_SECONDS < 600


# ---------------------------------------------------------------------- the file


def test_script_writes_a_reference_file(scripts, tmp_path, capsys):
    scripts(a=good(("itl-tales-b1", 2.0), limits=LIMITED), b="raise SystemExit(2)")
    out, report = tmp_path / "new" / "mine.json", tmp_path / "report.json"
    argv = ["--out", out, "--name", "my-laptop", "--title", "My laptop", "--quick", "--json", report]
    assert measure_machine.main(list(map(str, argv))) == 0
    said = capsys.readouterr().out
    assert all(words in said for words in ("1 of 2", "2 of 2", "failed"))
    assert max(map(len, said.splitlines())) <= 100 + len(str(out))
    mine = read_reference(out)
    assert (mine.name, mine.title, mine.origin, mine.quick) == ("my-laptop", "My laptop", "measured", True)
    assert mine.get("itl-tales-b1").value == 2.0 and mine.limits.read_gb_s == 20.0
    assert [p.outcome for p in mine.parts] == ["ok", "failed"]
    assert mine.device == "cpu" and mine.measured_at and "--quick" in mine.command
    assert json.loads(report.read_text())["results"]["figures"] == 1


def test_no_figure_at_all_is_an_error_and_the_file_says_why(scripts, tmp_path, mistake_of):
    scripts(a="raise SystemExit('error: out of luck')")
    assert "out of luck" in mistake_of(measure_machine, "--out", tmp_path / "mine.json")
    assert read_reference(tmp_path / "mine.json").parts[0].outcome == "failed"


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--parts", "memory,moon"], "unknown part 'moon'"),
        (["--parts", ","], "--parts is empty"),
        (["--name", "My Laptop"], "small letters"),
        (["--seconds", "0"], "out of range"),
        (["--seconds", "nan"], "out of range"),
        (["--out", "."], "is a folder"),
        (["--out", "/dev/null/mine.json"], "cannot write"),
    ],
)
def test_bad_options_are_refused_before_anything_runs(scripts, mistake_of, argv, says):
    if "--parts" not in argv:
        scripts(a="raise SystemExit('must not run')")
    assert says in mistake_of(measure_machine, *argv)


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_cut_short_it_leaves_what_it_has_and_no_process_behind(tmp_path):
    """Ctrl-C in the second part."""
    pid_file = tmp_path / "pid"
    (tmp_path / "a.py").write_text(good(("itl-tales-b1", 2.0)))
    (tmp_path / "b.py").write_text(
        f"import os, time; open({str(pid_file)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    )
    driver = f"""
import sys
from phase5_real_gpu import measure_machine
from phase5_real_gpu.measuring.measure_all import SCRIPTS, Script
SCRIPTS.clear()
SCRIPTS.update({{k: Script({str(tmp_path)!r} + f"/{{k}}.py", 60) for k in "ab"}})
sys.exit(measure_machine.main(["--parts", "a,b", "--out", {str(tmp_path / "mine.json")!r}]))
"""
    process = subprocess.Popen(
        [sys.executable, "-c", driver], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    until = time.monotonic() + 60
    while not (pid_file.exists() and pid_file.read_text()) and time.monotonic() < until:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and said == "stopped\n"
    assert is_gone(int(pid_file.read_text()))
    mine = read_reference(tmp_path / "mine.json")
    assert [p.outcome for p in mine.parts] == ["ok"] and mine.get("itl-tales-b1")


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


@pytest.mark.parametrize(("visible", "card"), [("", 0), ("2,3", 2), ("GPU-8f6e,3", "GPU-8f6e")])
def test_the_card_that_is_visible_is_asked(nvml, monkeypatch, visible, card):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpu_watch.ask()["highest_power_w"] == 120.5 and nvml.asked == [card]


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
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with watch_card() as seen:
        assert seen == {}
