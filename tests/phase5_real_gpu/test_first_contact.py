"""The first minutes on a card: figures stand beside what the card should give, and a second run goes on."""

import json
import subprocess
import sys
import textwrap

import pytest

from labkit.paths import ROOT
from phase1_tokens_embeddings.weights import CARDS
from phase5_real_gpu import first_contact as script
from phase5_real_gpu.measuring import first_contact as contact
from phase5_real_gpu.measuring import steps as running
from phase5_real_gpu.measuring.first_contact import STEPS, card_of, expected_on
from phase5_real_gpu.measuring.reference_files import read_reference
from phase5_real_gpu.measuring.steps import Step

LIMITS = dict(read_gb_s=4300.0, copy_gb_s=4200.0, launch_us=2.0, matmul_tflops={"bfloat16": 700.0})
CLOCKS = dict(lowest_sm_clock_mhz=1200.0, median_sm_clock_mhz=1900.0, highest_sm_clock_mhz=1980.0)


def program(*rows, then="") -> str:
    """A script that writes a report to where its arguments say."""
    source = f"""
        import json, sys
        rows = [dict(name=n, value=v, unit=u) for n, v, u in {rows!r}]
        facts = dict(gpu=dict(name="NVIDIA H200"), packages={{}}, when="2026-11-21")
        json.dump(dict(environment=facts, results=dict(measurements=rows, limits={LIMITS!r})), open(sys.argv[1], "w"))
        """
    return textwrap.dedent(source) + then


@pytest.fixture
def steps(tmp_path, monkeypatch):
    """Write programs, and make them the parts, on a machine that says it has an H200."""
    monkeypatch.setenv("INFERENCE_LAB_OUTPUTS", str(tmp_path / "out"))
    monkeypatch.setattr(script, "has_gpu", lambda: True)
    monkeypatch.setattr(script, "device_name", lambda _: "NVIDIA H200")
    monkeypatch.setattr(running, "watch_card", Watch)

    def make(**sources: str) -> None:
        for name, source in sources.items():
            (tmp_path / f"{name}.py").write_text(source)
        made = [Step(n, n, 20, (str(tmp_path / f"{n}.py"), "{report}", "{gathered}")) for n in sources]
        monkeypatch.setattr(contact, "STEPS", tuple(made))

    return make


class Watch:
    def __enter__(self):
        return CLOCKS | dict(throttled_by=["SwPowerCap"])

    def __exit__(self, *_):
        pass


def test_figures_stand_beside_the_data_sheet_and_a_second_run_goes_on(steps, run_script, tmp_path):
    count = f"\nopen({str(tmp_path / 'runs')!r}, 'a').write('x')\n"
    steps(
        good=program(("read-bandwidth", 4300.0, "GB/s"), then=count),
        slow=program(("itl-llama3-8b-b1", 40.0, "ms"), then="\nsys.exit(2)"),
        later=program(("read-bandwidth", 4310.0, "GB/s")),
        compare="import sys, json; assert json.load(open(sys.argv[2]))['measurements']",
    )
    data = run_script(script)
    assert [p["outcome"] for p in data["results"]["parts"]] == ["ok", "failed", "ok", "ok"]
    said = " ".join(data["out"].split())
    assert "as expected" in said and "a surprise: slower" in said
    assert "1,200 to 1,980 MHz, median 1,900. Lowered by: SwPowerCap" in said
    mine = read_reference(data["results"]["file"])
    assert mine.get("read-bandwidth").value == 4310.0 and mine.environment["gpu"]["name"] == "NVIDIA H200"

    again = program(then="\nsys.exit('error: it ran again')")
    steps(good=again, slow=program(("itl-llama3-8b-b1", 4.0, "ms")))
    data = run_script(script)
    assert [p["outcome"] for p in data["results"]["parts"]] == ["ok", "ok"]
    assert (tmp_path / "runs").read_text() == "x"
    assert read_reference(data["results"]["file"]).get("itl-llama3-8b-b1").value == 4.0
    steps(good="raise SystemExit('error: it ran again')")
    assert run_script(script, "--again")["results"]["parts"][0]["outcome"] == "failed"


def test_without_a_card_it_says_so_and_lists_what_it_would_do(run_script, capsys, monkeypatch):
    monkeypatch.setattr(script, "has_gpu", lambda: False)
    said = run_script(script, "--dry-run")["out"]
    assert "no NVIDIA GPU here" in said and all(step.name in said for step in STEPS)
    assert script.main([]) == 2
    assert "use a machine that has one, or --dry-run" in capsys.readouterr().err


def test_all_parts_take_ten_minutes_at_most_their_files_exist_and_that_of_cuda_graphs_selects_a_test():
    """pytest ends with code 5 where nothing is selected, and the part would fail on every card."""
    assert sum(step.seconds for step in STEPS) <= contact.TOTAL_SECONDS < 600
    files = [word for step in STEPS for word in step.command if word.endswith(".py")]
    assert files and all((ROOT / word).is_file() for word in files)
    words = next(step.command for step in STEPS if step.name == "graphs")
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
    assert h200["decode-b64-4k"].low == pytest.approx(225, rel=0.01)
    assert h200["itl-llama3-8b-b1"].low == pytest.approx(15.0e9 / 4.8e12 * 1e3, rel=0.01)
    assert t4["itl-llama3-8b-b1"].low is None and "matmul-float16" in t4
    assert json.dumps(h200)
