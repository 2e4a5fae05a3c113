"""Measuring in parts: what fails or hangs costs its own figures and no others; the file is always whole."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from types import SimpleNamespace

import pytest

from labkit.paths import ROOT
from phase5_real_gpu import measure_machine
from phase5_real_gpu.measuring import gpu_watch
from phase5_real_gpu.measuring.gather import SCRIPTS, TOTAL_SECONDS, as_reference, best_limits, measure_all
from phase5_real_gpu.measuring.gpu_watch import watch_card
from phase5_real_gpu.measuring.reference_files import Limits, known_references, read_reference
from phase5_real_gpu.measuring.run_scripts import FOLDER, Script, run_part

GOOD = """
    import json, sys
    path = sys.argv[sys.argv.index("--json") + 1]
    rows = [{"name": n, "value": v, "unit": "ms", "better": "lower", "floor": 1.0, "limit": "bandwidth",
             "details": {"argv": sys.argv[3:]}, "share_of_limit": 1 / v} for n, v in ROWS]
    report = {"script": "x.py", "environment": {"cpu": "Some CPU", "cores": 2, "packages": {}, "gpu": GPU},
              "predictions": [float("nan")], "results": {"measurements": rows, "limits": LIMITS}}
    json.dump(report, open(path, "w"))
    sys.exit(CODE)
"""


def good(rows, limits=None, code=0, gpu=None) -> str:
    return f"ROWS, LIMITS, CODE, GPU = {rows!r}, {limits!r}, {code}, {gpu!r}\n" + textwrap.dedent(GOOD)


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


def nothing(*_):
    pass


# ---------------------------------------------------------------------- parts that fail


def test_what_fails_costs_only_its_own_figures(scripts):
    parts = scripts(
        first=good([("itl-tales-b1", 2.0)]),
        refuses="import sys; sys.exit('error: no such card: use --device cpu')",
        crashes="print('fine so far'); raise RuntimeError('the card fell off')",
        no_report="pass",
        half="import sys; open(sys.argv[2], 'w').write('{\"results\": ')",
        list_of="import sys; open(sys.argv[2], 'w').write('[1]')",
        last=good([("itl-gpt2-b1", 9.0)], code=1),
    )
    saved = []
    gathered = measure_all(parts, ["--quick"], lambda g: saved.append(len(g.measurements)), nothing)
    outcomes = {os.path.basename(p.script).removesuffix(".py"): (p.outcome, p.error) for p in gathered.parts}
    assert set(gathered.measurements) == {"itl-tales-b1", "itl-gpt2-b1"}
    assert saved == [1, 1, 1, 1, 1, 1, 2]  # after each part
    assert outcomes["first"] == ("ok", "")
    assert outcomes["refuses"] == ("failed", "it ended with code 1: error: no such card: use --device cpu")
    assert outcomes["crashes"] == ("failed", "it ended with code 1: RuntimeError: the card fell off")
    for name in ("no_report", "half", "list_of"):
        assert outcomes[name] == ("failed", "it ended with code 0: it left no report")
    assert outcomes["last"][0] == "ok" and "prediction" in outcomes["last"][1]
    assert gathered.measurements["itl-tales-b1"].details["argv"] == ["--quick"]


def test_what_hangs_is_stopped_with_its_children(scripts, tmp_path):
    pid_file = tmp_path / "pid"
    parts = scripts(
        seconds=3.0,
        hangs=f"""
            import subprocess, sys, time
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
            open({str(pid_file)!r}, "w").write(str(child.pid))
            time.sleep(60)
        """,
        after=good([("itl-tales-b1", 2.0)]),
    )
    began = time.monotonic()
    gathered = measure_all(parts, [], nothing, nothing)
    assert time.monotonic() - began < 30
    assert [p.outcome for p in gathered.parts] == ["timed out", "ok"]
    assert gathered.parts[0].error == "stopped after 3 s"
    if os.name == "posix":
        assert is_gone(int(pid_file.read_text()))


def is_gone(pid: int, within: float = 5.0) -> bool:
    until = time.monotonic() + within
    while time.monotonic() < until:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        try:  # a zombie: ended, its exit code not yet collected
            with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
                if file.read().rsplit(")", 1)[1].split()[0] == "Z":
                    return True
        except OSError:
            pass
        time.sleep(0.05)
    return False


def test_the_time_is_for_all_parts_together(scripts):
    parts = scripts(a="import time; time.sleep(60)", b=good([("itl-tales-b1", 2.0)]))
    gathered = measure_all(parts, [], nothing, nothing, total_seconds=2.0)
    assert [p.outcome for p in gathered.parts] == ["timed out", "skipped"]
    assert gathered.parts[1].error == "no time was left for it"


def test_a_part_without_its_package_is_skipped(tmp_path):
    (tmp_path / "x.py").write_text("raise SystemExit('never run')")
    part, report = run_part(Script("x.py", 10, needs="no_such_package_at_all"), [], 10, tmp_path)
    assert (part.outcome, part.error, report) == ("skipped", "no_such_package_at_all is not installed", None)
    part, _ = run_part(Script("missing.py", 10), [], 10, tmp_path)
    assert (part.outcome, part.error) == ("failed", "there is no such script")


def test_vllm_in_an_environment_of_its_own(scripts, monkeypatch):
    scripts(vllm=good([("ours-throughput-tales-mixed16", 2.0)]))
    wanting = Script(SCRIPTS["vllm"].file, 20, needs="no_such_package_at_all")
    monkeypatch.setitem(SCRIPTS, "vllm", wanting)
    assert measure_all(["vllm"], [], nothing, nothing).parts[0].outcome == "skipped"
    gathered = measure_all(["vllm"], [], nothing, nothing, vllm_python="/env/bin/python")
    (m,) = gathered.measurements.values()
    assert m.details["argv"] == ["--vllm-python", "/env/bin/python"]


def test_figures_that_cannot_be_used_are_left_out_and_said(scripts):
    parts = scripts(a=good([("itl-tales-b1", 2.0), ("Bad Name", 1.0), ("ttft-tales-isl10", -3.0)]))
    gathered = measure_all(parts, [], nothing, nothing)
    assert set(gathered.measurements) == {"itl-tales-b1"}
    assert gathered.parts[0].error.startswith("2 figures could not be used, the first because")


def test_the_first_figure_stays_and_the_best_ceiling_counts(scripts):
    parts = scripts(
        a=good([("launch", 5.0)], {"read_gb_s": 20.0, "launch_us": 3.0, "matmul_tflops": {"float32": 0.2}}),
        b=good([("launch", 4.0)], {"read_gb_s": 22.0, "launch_us": 4.0, "copy_gb_s": 15.0, "h2d_gb_s": None}),
    )
    gathered = measure_all(parts, [], nothing, nothing)
    assert gathered.measurements["launch"].value == 5.0
    assert gathered.limits == Limits(22.0, 15.0, {"float32": 0.2}, 3.0)
    assert best_limits(Limits(), {"read_gb_s": float("nan"), "launch_us": 0, "copy_gb_s": "x"}) == Limits()


def test_real_parts_exist_and_fit_in_ten_minutes():
    assert all((FOLDER / script.file).is_file() for script in SCRIPTS.values())
    assert TOTAL_SECONDS < 600
    needed = {"memory": 60, "kernels": 180, "engine": 300}  # what each is given on a large GPU
    assert all(SCRIPTS[part].seconds > seconds for part, seconds in needed.items())
    assert sum(needed.values()) <= TOTAL_SECONDS


# ---------------------------------------------------------------------- the file


def test_script_writes_a_reference_file(scripts, tmp_path, capsys):
    scripts(a=good([("itl-tales-b1", 2.0)], {"read_gb_s": 20.0}), b="raise SystemExit(2)")
    out, report = tmp_path / "new" / "mine.json", tmp_path / "report.json"
    argv = [
        "--out",
        str(out),
        "--name",
        "my-laptop",
        "--title",
        "My laptop",
        "--quick",
        "--json",
        str(report),
    ]
    assert measure_machine.main(argv) == 0
    said = capsys.readouterr().out
    assert all(words in said for words in ("1 of 2", "2 of 2", "failed"))
    assert max(map(len, said.splitlines())) <= 100 + len(str(out))
    mine = read_reference(out)
    assert (mine.name, mine.title, mine.origin, mine.quick) == ("my-laptop", "My laptop", "measured", True)
    assert mine.get("itl-tales-b1").value == 2.0 and mine.limits.read_gb_s == 20.0
    assert [p.outcome for p in mine.parts] == ["ok", "failed"]
    assert mine.device == "cpu" and mine.measured_at and "--quick" in mine.command
    assert json.loads(report.read_text())["results"]["figures"] == 1
    found, problems = known_references(out.parent)
    assert [r.name for r in found] == ["my-laptop"] and problems == []


def test_a_name_is_made_from_the_processor_or_the_card():
    card = {"driver": "580.1", "power_limit_w": 700.0}
    facts = {"cpu": "Some CPU @ 2 GHz", "cores": 2, "packages": {}, "gpu": None}
    on_cpu = as_reference(facts, "auto", card)
    assert (on_cpu.name, on_cpu.title) == ("some-cpu-2-ghz-2-cores", "Some CPU @ 2 GHz, 2 cores")
    facts = facts | {"gpu": {"name": "NVIDIA H200"}}
    on_gpu = as_reference(facts, "auto", card)
    assert (on_gpu.name, on_gpu.environment["gpu"]["power_limit_w"]) == ("nvidia-h200", 700.0)
    # There is a card, and the processor was measured.
    assert as_reference(facts, "cpu", card).device == "cpu"


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
        (["--title", "x" * 400], "shorten it to 300"),
        (["--out", "."], "is a folder"),
        (["--out", "/dev/null/mine.json"], "cannot write"),
    ],
)
def test_bad_options_are_refused_before_anything_runs(scripts, mistake_of, argv, says):
    if "--parts" not in argv:
        scripts(a="raise SystemExit('must not run')")
    assert says in mistake_of(measure_machine, *argv)


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_cut_short_it_leaves_what_it_has_and_no_process_behind(tmp_path, number):
    """As `timeout` and Ctrl-C would do in the second part."""
    pid_file = tmp_path / "pid"
    (tmp_path / "a.py").write_text(good([("itl-tales-b1", 2.0)]))
    (tmp_path / "b.py").write_text(
        f"import os, time; open({str(pid_file)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    )
    driver = f"""
import sys
from phase5_real_gpu import measure_machine
from phase5_real_gpu.measuring.gather import SCRIPTS, Script
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
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and said == "stopped\n"
    assert is_gone(int(pid_file.read_text()))
    mine = read_reference(tmp_path / "mine.json")
    assert [p.outcome for p in mine.parts] == ["ok"] and mine.get("itl-tales-b1")


# ---------------------------------------------------------------------- what the card says


class NVMLError(Exception):
    pass


@pytest.fixture
def nvml(monkeypatch):
    """A stand-in for NVIDIA's library with one card, whose power, clock and temperature go up and down."""

    def refuses(*_):
        raise NVMLError("not supported")

    now = dict(power=120_500, sm=345, temperature=31)
    clocks = {0: 0, 1: 1}
    fake = SimpleNamespace(
        NVMLError=NVMLError,
        NVML_CLOCK_SM=0,
        NVML_CLOCK_MEM=1,
        NVML_TEMPERATURE_GPU=0,
        now=now,
        refuses=refuses,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByIndex=lambda i: i,
        nvmlDeviceGetHandleByUUID=lambda name: name,
        nvmlSystemGetDriverVersion=lambda: "580.82.07",
        nvmlDeviceGetPowerManagementLimit=lambda h: 700_000,
        nvmlDeviceGetPowerManagementDefaultLimit=lambda h: 700_000,
        nvmlDeviceGetMaxClockInfo=lambda h, kind: [1980, 3201][clocks[kind]],
        nvmlDeviceGetPowerUsage=lambda h: now["power"],
        nvmlDeviceGetClockInfo=lambda h, kind: [now["sm"], 3201][clocks[kind]],
        nvmlDeviceGetTemperature=lambda h, kind: now["temperature"],
    )
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return fake


def test_the_card_is_asked_and_the_highest_values_kept(nvml):
    with watch_card(every=0.01) as seen:
        nvml.now.update(power=690_100, sm=1905, temperature=66)
        until = time.monotonic() + 20
        while seen.get("highest_temperature_c") != 66 and time.monotonic() < until:
            time.sleep(0.01)
        nvml.now.update(power=300_000, sm=1200, temperature=60)
        time.sleep(0.1)
    assert seen == {
        "driver": "580.82.07", "power_limit_w": 700.0, "default_power_limit_w": 700.0, "max_sm_clock_mhz": 1980.0,
        "max_memory_clock_mhz": 3201.0, "highest_power_w": 690.1, "highest_sm_clock_mhz": 1905.0,
        "highest_memory_clock_mhz": 3201.0, "highest_temperature_c": 66.0,
    }  # fmt: skip


@pytest.mark.parametrize(("visible", "card"), [("", 0), ("2,3", 2), ("GPU-8f6e,3", "GPU-8f6e")])
def test_the_card_that_is_visible_is_asked(nvml, monkeypatch, visible, card):
    asked = []
    nvml.nvmlDeviceGetPowerUsage = lambda handle: asked.append(handle) or 1000
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpu_watch.ask()["highest_power_w"] == 1.0 and asked == [card]


def test_what_a_card_does_not_tell_is_left_out(nvml):
    nvml.nvmlDeviceGetPowerManagementLimit = nvml.nvmlDeviceGetTemperature = nvml.refuses
    told = gpu_watch.ask()
    assert not {"power_limit_w", "highest_temperature_c"} & told.keys() and told["max_sm_clock_mhz"] == 1980.0


@pytest.mark.parametrize("missing", ["the package", "the driver", "the card"])
def test_without_nvml_nothing_is_seen(nvml, monkeypatch, missing):
    if missing == "the package":
        monkeypatch.setitem(sys.modules, "pynvml", None)
    elif missing == "the driver":
        nvml.nvmlInit = nvml.refuses
    else:
        nvml.nvmlDeviceGetHandleByIndex = nvml.refuses
    with watch_card(every=0.01) as seen:
        pass
    assert seen == {}
