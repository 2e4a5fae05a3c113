"""Each cause is provoked, or planted where only a GPU could show it, and must be named; a healthy report names none."""

import dataclasses

import pytest

from phase5_real_gpu.comparing.causes import find_causes
from phase5_real_gpu.measuring.measurements import Limits, Measurement
from phase5_real_gpu.measuring.reference_files import Reference, find_reference

CPU = {"cpu": "Some CPU", "cores": 2, "threads": 2, "packages": {"torch": "2.13.0"}, "gpu": None}
CARD = {
    "name": "NVIDIA H200", "cuda": "13.0", "driver": "580.82.07",
    "power_limit_w": 700.0, "default_power_limit_w": 700.0, "highest_sm_clock_mhz": 1965.0, "max_sm_clock_mhz": 1980.0,
}  # fmt: skip
GPU = {"cpu": "Some CPU", "cores": 16, "packages": {"torch": "2.13.0", "triton": "3.7.1"}, "gpu": CARD}


def report(*measurements, environment=CPU, limits=None, **fields) -> Reference:
    """A report of a machine without a GPU, unless the environment says otherwise."""
    limits = limits or Limits(20.0, 15.0, {"bfloat16": 0.4}, 2.0)
    when = "2026-11-21T10:00:00+00:00"
    return Reference("mine", "mine", "measured", environment, "", when, limits, measurements, **fields)


def named(mine, reference=None) -> list[str]:
    return [finding.cause.name for finding in find_causes(mine, reference)]


def evidence(mine, reference, cause) -> str:
    return next(f.evidence for f in find_causes(mine, reference) if f.cause.name == cause)


def itl(model, value, floor) -> Measurement:
    return Measurement(f"itl-{model}-b1", value, "ms", "lower", floor, "bandwidth", {"dtype": "bfloat16"})


HEALTHY = (
    itl("gpt2", 0.35, 0.06), itl("tinyllama", 0.62, 0.5), itl("llama3-8b", 4.2, 3.7),
    Measurement("ttft-tinyllama-isl10", 3.0, "ms", "lower", 0.5, "bandwidth", {"dtype": "bfloat16"}),
    Measurement("ttft-tinyllama-isl4000", 22.0, "ms", "lower", 14.0, "arithmetic", {"dtype": "bfloat16"}),
    Measurement("throughput-tinyllama-b1", 1500.0, "tok/s", "higher", 2000.0, "bandwidth"),
    Measurement("throughput-tinyllama-b64", 60e3, "tok/s", "higher", 110e3, "bandwidth"),
    Measurement("decode-b64-4k", 270.0, "us", "lower", 250.0, "bandwidth", {"dtype": "bfloat16"}),
    Measurement("decode-b1-4k", 14.0, "us", "lower", 3.9, "bandwidth", {"dtype": "bfloat16"}),
)  # fmt: skip


def healthy_gpu(**fields) -> Reference:
    """What an H200 might report; made up, and consistent with itself."""
    limits = Limits(4300.0, 4100.0, {"bfloat16": 750.0}, 4.0)
    return report(*HEALTHY, **{"environment": GPU, "limits": limits, **fields})


# ---------------------------------------------------------------------- on a CPU


def with_seconds(seconds) -> Reference:
    return report(Measurement("cpu-decode-b16-512", 50.0, "us", details={"seconds": seconds}))


def throughput(*factors) -> tuple[Measurement, ...]:
    batches = zip((1, 8, 64), factors)
    return tuple(Measurement(f"throughput-tales-b{b}", 400.0 * f, "tok/s", "higher") for b, f in batches)


def in_format(dtype, **fields) -> Reference:
    return report(Measurement("itl-tales-b1", 2.0, "ms", details={"dtype": dtype}), **fields)


def on_path(path) -> Reference:
    return report(Measurement("itl-tales-b1", 2.0, "ms", details={"path": path}))


WARM_UP = "compile or warm-up inside the timed region"
ON_A_CPU = {
    "the first repeat compiles": (
        with_seconds([0.4, 0.001, 0.001, 0.002]), None, WARM_UP, ["cpu-decode-b16-512: the first repeat took 400 ms"]),
    "no repeat stands out": (with_seconds([0.001] * 4), None, None, []),
    "a hiccup of the system is short": (with_seconds([0.012, 0.001, 0.001, 0.001]), None, None, []),
    "or it hits others as well": (with_seconds([0.5, 0.01, 0.4, 0.01, 0.01]), None, None, []),
    "float32 where the reference has bfloat16": (
        in_format("float32"), in_format("bfloat16"), "wrong dtype",
        ["float32, the reference in bfloat16: 2 times the bytes"]),
    "narrower than the reference": (in_format("bfloat16"), in_format("float32"), None, []),
    "the same format": (in_format("float32"), in_format("float32"), None, []),
    "another kind of machine has formats of its own": (
        in_format("float32"), in_format("bfloat16", environment=GPU), None, []),
    "no compiled kernel": (on_path("gather"), on_path("kernel"), "eager fallback", []),
    "nor has the reference": (on_path("gather"), on_path("gather"), None, []),
    "one request beside the reference's 64": (
        report(*throughput(1)), report(*throughput(1, 4, 18)), "small batch", []),
    "one request alone": (report(*throughput(1)), None, None, []),
    "batches that share steps": (report(*throughput(1, 4, 18)), report(*throughput(1, 4, 18)), None, []),
    "a batch that is not shared": (report(*throughput(1, 1.1)), None, "small batch", ["one after the other"]),
}  # fmt: skip


# ---------------------------------------------------------------------- what only a GPU can show: planted


def test_healthy_reports_name_nothing():
    gpu = healthy_gpu()
    path = {"dtype": "bfloat16", "path": "kernel"}
    cpu = report(
        Measurement("itl-tales-b1", 2.4, "ms", "lower", 0.5, "bandwidth", path),
        Measurement("ttft-tales-isl10", 0.2, "ms", "lower", 0.5, "bandwidth"),  # the weights fit its cache
        Measurement("throughput-tales-b1", 450.0, "tok/s", "higher", 1800.0, "bandwidth"),
        Measurement("throughput-tales-b32", 4400.0, "tok/s", "higher", 17000.0, "arithmetic"),
    )
    article = find_reference("t4-article")
    for mine in (gpu, cpu, article):
        for reference in (None, mine, gpu, cpu, article):
            assert named(mine, reference) == []


def changed(name, environment=GPU, **fields) -> Reference:
    """A healthy report but for one figure."""
    rows = [dataclasses.replace(m, **fields) if m.name == name else m for m in HEALTHY]
    return dataclasses.replace(healthy_gpu(environment=environment), measurements=tuple(rows))


def on_card(limits=None, **facts) -> Reference:
    return healthy_gpu(environment=GPU | {"gpu": CARD | facts}, **({"limits": limits} if limits else {}))


SUNK = Limits(4200.0, 4000.0, {"bfloat16": 450.0}, 4.0)
PLANTED = {
    "less than the shortest time": (
        changed("decode-b64-4k", value=9.0), None, "missing synchronise", ["9 us", "250 us"]),
    "the same on a CPU, whose call returns when it is done": (
        changed("decode-b64-4k", CPU, value=9.0), None, None, []),
    "throttled while it was busy": (
        on_card(p10_sm_clock_mhz=1200.0, throttled_by=["SwThermalSlowdown"]), None, "power or clock limit",
        ["at 1,200 MHz or less (SwThermalSlowdown)"]),
    "float32 needs no reference": (changed("itl-llama3-8b-b1", details={"dtype": "float32"}), None, "wrong dtype", []),
    "float32 beside a reference": (
        changed("itl-llama3-8b-b1", details={"dtype": "float32"}), healthy_gpu(), "wrong dtype", []),
    "float16": (changed("itl-llama3-8b-b1", details={"dtype": "float16"}), None, None, []),
    "no CUDA graph, by its path": (changed("itl-llama3-8b-b1", details={"path": "eager"}), None, "eager fallback", []),
    "less power than it was built for": (on_card(power_limit_w=350.0), None, "power or clock limit", ["350 W"]),
    "hot, seen by itself": (on_card(SUNK, highest_sm_clock_mhz=1200.0), None, None, []),
    "hot, beside its twin": (
        on_card(SUNK, highest_sm_clock_mhz=1200.0), healthy_gpu(), "power or clock limit",
        ["bfloat16 products: 450 TFLOP/s, the reference 750", "1,200 of 1,980 MHz"]),
    "another card, which may well be slower": (on_card(SUNK, name="NVIDIA L4"), healthy_gpu(), None, []),
}  # fmt: skip


@pytest.mark.parametrize(
    ("mine", "reference", "cause", "says"), (ON_A_CPU | PLANTED).values(), ids=ON_A_CPU | PLANTED
)
def test_a_planted_cause_is_named_and_no_other(mine, reference, cause, says):
    assert named(mine, reference) == ([cause] if cause else [])
    assert all(words in evidence(mine, reference, cause) for words in says)


def test_a_fixed_time_in_each_step():
    """The share of the limit is a third of the reference's; most of the step is there without anything to compute."""

    def machine(one, many, **details):
        return report(
            Measurement("itl-tales-b1", one, "ms", "lower", 0.6, "bandwidth", details),
            Measurement("itl-tales-b32", many, "ms", "lower", 3.0, "arithmetic"),
            Measurement("throughput-tales-b1", 1000 / one, "tok/s", "higher", 1000 / 0.6, "bandwidth"),
        )

    theirs = machine(2.0, 4.7)
    (finding,) = find_causes(machine(5.8, 20.0, fixed_ms=4.9), theirs)
    assert finding.cause.name == "a fixed time in each step" and "4.9 ms" in finding.evidence
    assert finding.names == ("itl-tales-b1", "throughput-tales-b1")  # 17 ms are missing in the other
    assert named(machine(5.8, 20.0, fixed_ms=1.5), theirs) == []
    # As good as the reference: nothing to explain.
    assert named(machine(2.1, 4.7, fixed_ms=1.4), theirs) == []


def test_evidence_knows_which_figures_it_explains():
    mine = changed("decode-b64-4k", value=9.0)
    (finding,) = find_causes(mine)
    assert finding.explains("decode-b64-4k") and not finding.explains("itl-gpt2-b1")
    assert find_causes(on_card(power_limit_w=350.0))[0].explains("itl-gpt2-b1")
