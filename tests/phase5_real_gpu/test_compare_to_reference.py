"""Reference files read with suspicion, figures judged by their own limits, and the script's answers."""

import gzip
import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.errors import LabError
from phase1_tokens_embeddings.weights import find_card
from phase4_scheduler.simulator.kernel_table import FOLDER as RECORDED
from phase5_real_gpu import compare_to_reference
from phase5_real_gpu.comparing import quick_measurements
from phase5_real_gpu.comparing.comparison import compare, judge, like_cards, pick_reference
from phase5_real_gpu.measuring.engine_cases import plan_for
from phase5_real_gpu.measuring.kernel_cases import DECODE_B64
from phase5_real_gpu.measuring.measurements import Limits, Measurement, as_records
from phase5_real_gpu.measuring.reference_files import (
    REFERENCES,
    Part,
    Reference,
    find_reference,
    known_references,
    parse_reference,
    read_reference,
    write_reference,
)
from tests.fuzzing.model_files import changed_bytes, changed_json

CPU = {"cpu": "Some CPU", "cores": 2, "threads": 2, "packages": {"torch": "2.13.0"}, "gpu": None}


def a_reference(**changes) -> Reference:
    rows = (
        Measurement("itl-tales-b1", 2.0, "ms", "lower", 0.5, "bandwidth", {"dtype": "bfloat16"}),
        Measurement("throughput-tales-b1", 450.0, "tok/s", "higher", 1800.0, "bandwidth"),
        Measurement("throughput-tales-b8", 2400.0, "tok/s", "higher", 9000.0, "bandwidth"),
        Measurement("read-bandwidth", 20.0, "GB/s", "higher"),
    )
    fields = dict(
        name="some-cpu", title="Some CPU, 2 cores", origin="measured", environment=CPU, measured_at="2026-11-21",
        limits=Limits(20.0, 15.0, {"bfloat16": 0.4}, 2.0), measurements=rows,
        parts=(Part("engine_benchmark.py", "ok", 12.5), Part("vllm_comparison.py", "skipped", 0.0, "no vLLM")),
    )  # fmt: skip
    return Reference(**fields | changes)


def as_file(tmp_path, text: str | bytes, name="my.json"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


# ---------------------------------------------------------------------- reading and writing


def test_what_is_written_is_read_back(tmp_path):
    reference = a_reference(note="a note", quick=True)
    write_reference(reference, tmp_path / "x.json")
    assert read_reference(tmp_path / "x.json") == reference
    with pytest.raises(LabError, match="choose a file that you may write"):
        write_reference(reference, tmp_path / "x.json" / "y.json")


def change(*path, to=...) -> str:
    """The file with one value replaced; `...`: removed."""
    whole = tree = a_reference().to_json()
    for key in path[:-1]:
        tree = tree[key]
    tree[path[-1]] = to
    if to is ...:
        del tree[path[-1]]
    return json.dumps(whole)


def figure(**fields) -> str:
    return change("measurements", 0, to=a_reference().to_json()["measurements"][0] | fields)


WRONG = {
    "cut": (change("title", to="x")[:-40], "it is not JSON"),
    "another program's": ('{"a": 1}', "no reference file of the course"),
    "newer": (change("schema", to=2), "update the course"),
    "no date": (change("measured_at"), "'measured_at' is missing"),
    "a date that is none": (change("measured_at", to="yesterday"), "'measured_at': Invalid isoformat string"),
    "a card without a name": (change("environment", "gpu", to={}), "'gpu' in it has no name"),
    "a bad name": (change("name", to="My Laptop"), "'name': String should match pattern"),
    "text": (figure(value="2 ms"), "Input should be a valid number; it is '2 ms'"),
    "zero": (figure(value=0), "'measurements.0.value': Input should be greater"),
    "twice": (change("measurements", 1, "name", to="itl-tales-b1"), "itl-tales-b1 is in it twice"),
    "without figures": ('{"script": "x.py", "results": {}}', "the report of x.py has no measurements"),
}


@pytest.mark.parametrize(("text", "says"), WRONG.values(), ids=WRONG.keys())
def test_a_bad_file_gets_one_line_and_exit_code_2(tmp_path, mistake_of, text, says):
    path = as_file(tmp_path, text)
    said = mistake_of(compare_to_reference, path)
    assert says in said and str(path) in said and "measure again" in said


@given(st.randoms(use_true_random=False), st.booleans())
@settings(max_examples=300)
def test_a_mutilated_file_is_read_or_refused_in_one_line(tmp_path, rng, in_the_text):
    """Any value replaced or removed, or the text cut or overwritten somewhere: no other kind of end."""
    text = changed_json(rng, a_reference().to_json())
    if in_the_text:
        text = changed_bytes(rng, text, len(text))
    try:
        reference = read_reference(as_file(tmp_path, text))
    except LabError as error:
        assert "\n" not in str(error) and str(error).isprintable() and len(str(error)) < 1000
        return
    # What was accepted can be used: compared, searched for causes, and written again.
    compare(reference, a_reference())
    compare(a_reference(), reference)
    assert all(m.value > 0 for m in reference.measurements) and reference.title.isprintable()
    assert parse_reference(json.loads(json.dumps(reference.to_json()))) == reference


@pytest.mark.parametrize(("device", "kind"), [("auto", "gpu"), ("cuda", "gpu"), ("cpu", "cpu")])
def test_the_report_of_one_script_is_read_as_well(tmp_path, device, kind):
    """On the CPU beside a card, the card is not what was measured."""
    limits = {"read_gb_s": 20.0, "device_name": "x", "h2d_gb_s": None}
    facts = CPU | {"when": "2026-11-21T10:00:00+00:00", "gpu": {"name": "NVIDIA H200"}}
    results = dict(measurements=as_records(a_reference().measurements[:1]), limits=limits)
    report = dict(
        script="x.py", arguments=dict(quick=True, device=device), environment=facts, results=results
    )
    mine = read_reference(as_file(tmp_path, json.dumps(report), "My Laptop.json"))
    assert (mine.name, mine.quick, mine.limits.read_gb_s) == ("my-laptop", True, 20.0)
    assert mine.get("itl-tales-b1").value == 2.0 and mine.device == kind


def test_texts_cannot_move_the_cursor(tmp_path, capsys):
    path = as_file(tmp_path, change("title", to="fine\x1b[2J\nerror: all is lost"))
    assert "\x1b" not in read_reference(path).title and "\n" not in read_reference(path).title
    write_reference(a_reference(environment=CPU | {"cpu": "[red]CPU[/] \x1b[2J"}), path)
    assert compare_to_reference.main([str(path)]) == 0
    said = capsys.readouterr().out
    assert "\x1b" not in said and "[red]CPU[/]" in said


# ---------------------------------------------------------------------- the files of the course


def test_published_files_name_their_source_and_hold_what_was_published():
    known = known_references()
    assert "t4-article" in {r.name for r in known} and all(
        (REFERENCES / f"{r.name}.json").is_file() for r in known
    )
    published = [r for r in known if r.origin == "published"]
    assert len(published) == 5
    for r in published:
        assert "not measured by this course" in r.note and r.environment["gpu"]["name"]
        assert all("https://" in m.details["source"] for m in r.measurements if m.name != DECODE_B64.name)
    for name, folder in (("rtx-4090-published", "rtx4090"), ("rtx-pro-6000-published", "rtxpro6000")):
        decode = find_reference(name).get(DECODE_B64.name)
        assert find_reference(name).limits.read_gb_s == find_card(folder).bandwidth_gb_s
        with gzip.open(RECORDED / folder / "attention.csv.gz", "rt") as file:
            # No prompt; 64 users, 4,096 tokens each.
            assert f"0,0,64,4096,{decode.value}\n" in file.readlines()
        nbytes = 64 * 4096 * 2 * 8 * 128 * 2  # keys and values of one layer; queries and tables are 0.1% more
        assert decode.floor == pytest.approx(nbytes / find_reference(name).limits.read_gb_s / 1e3, rel=0.003)


def test_a_reference_is_found_by_its_name_or_its_file(tmp_path):
    write_reference(a_reference(), tmp_path / "some-cpu.json")
    for name in ("some-cpu", str(tmp_path / "some-cpu.json")):
        assert find_reference(name, tmp_path).name == "some-cpu"
    with pytest.raises(LabError, match="use one of some-cpu"):
        find_reference("other", tmp_path)


# ---------------------------------------------------------------------- judging


def m(value, floor, better="lower", unit="ms") -> Measurement:
    return Measurement("itl-tales-b1", value, unit, better, floor, "bandwidth")


GOOD = m(2.0, 1.0)
JUDGED = {
    "equal": (GOOD, GOOD, "as expected", 2.0),
    "ten times as slow, half its limit too": (m(20.0, 10.0), GOOD, "slower, as your limits are", 20.0),
    "ten times as fast": (m(0.2, 0.1), GOOD, "as expected", 0.2),
    "equal times, half the fraction": (m(2.0, 0.5), GOOD, "slower than your limits explain", 1.0),
    "at its limit": (m(1.0, 1.0), GOOD, "faster than expected", 2.0),
    "rates, a tenth of the limit": (
        m(100.0, 400.0, "higher"), m(1000.0, 4000.0, "higher"), "slower, as your limits are", 100.0),
    "rates, a smaller fraction": (
        m(100.0, 1000.0, "higher"), m(50.0, 100.0, "higher"), "slower than your limits explain", 500.0),
    "no floor": (m(2.0, None), GOOD, "not comparable", None),
    "other units": (GOOD, m(2.0, 1.0, unit="us"), "not comparable", None),
}  # fmt: skip


@pytest.mark.parametrize(("mine", "theirs", "verdict", "expected"), JUDGED.values(), ids=JUDGED)
def test_fractions_decide_and_milliseconds_do_not(mine, theirs, verdict, expected):
    line = judge(mine, theirs)
    assert (line.verdict, line.expected) == (verdict, expected and pytest.approx(expected))


def test_without_floors_only_the_same_device_is_judged():
    slow, usual = m(4.0, None), m(2.0, None)
    assert judge(slow, usual, same=True).verdict == "slower than your limits explain"
    assert judge(slow, usual, same=False).verdict == "not comparable"


def a_gpu(name, **changes) -> Reference:
    return a_reference(environment={"gpu": {"name": name}}, **changes)


def test_the_most_similar_machine_is_picked():
    t4, published = find_reference("t4-article"), find_reference("rtx-4090-published")
    other, twin = a_reference(name="other", environment=CPU | {"cpu": "Other"}), a_reference(name="twin")
    slower, faster = (replace(published, name=n, limits=Limits(r)) for n, r in (("t", 300.0), ("h", 4800.0)))
    gpu, h200 = a_gpu("GPU", measurements=t4.measurements), a_gpu("NVIDIA H200", limits=Limits(4300.0))
    for mine, references, picked in (
        (a_reference(), [t4, other, twin], twin),
        (a_reference(), [t4, other], other),
        (gpu, [twin, t4], t4),
        (gpu, [twin, t4, published], published),  # though the article has more in common,
        (t4, [twin, t4, published], published),  # or is of the same card
        (h200, [slower, published, t4, faster], faster),
        (gpu, [], None),
    ):
        assert pick_reference(mine, references) is picked


def test_like_cards_are_shown_and_an_article_is_never_a_verdict():
    known, t4 = known_references(), find_reference("t4-article")
    for name, like in (("NVIDIA H100 PCIe", ["h100-published"]), ("NVIDIA A100-SXM4-40GB", ["a100-published"]),
                       ("NVIDIA RTX PRO 4000 Blackwell", [])):  # fmt: skip
        assert [r.name for r in like_cards(a_gpu(name), known)] == like
    assert like_cards(a_reference(), known) == [] == like_cards(t4, known)
    slow = tuple(replace(x, value=x.value * (2 if x.unit == "ms" else 0.5)) for x in t4.measurements)
    lines = compare(replace(t4, measurements=slow), t4).lines
    assert lines and {line.verdict for line in lines} == {"not comparable"}


# ---------------------------------------------------------------------- the script


def two_files(folder, **details) -> list[str]:
    """Mine, with an ITL that is too slow and these details, and theirs."""
    itl, *others = a_reference().measurements
    slow = replace(itl, value=9.0, details=details)
    write_reference(a_reference(name="mine", measurements=(slow, *others)), folder / "mine.json")
    write_reference(a_reference(name="theirs"), folder / "theirs.json")
    return [str(folder / "mine.json"), "--against", str(folder / "theirs.json")]


def test_script_with_two_files(tmp_path, run_script, mistake_of):
    files = two_files(tmp_path, path="gather")
    data = run_script(compare_to_reference, *files)
    said = data["out"]
    assert "SLOWER (1)" in said and "Eager fallback" in said and "no vLLM" in said
    assert "itl-from-reference" in data["claims"] and "read-bandwidth" not in said
    verdicts = {x["name"]: x["verdict"] for x in data["results"]["lines"]}
    assert verdicts["itl-tales-b1"] == "slower than your limits explain"
    assert [c["cause"] for c in data["results"]["causes"]] == ["eager fallback"]
    # Its own report holds the figures, so it can be compared as well.
    run_script(compare_to_reference, tmp_path / "report.json", *files[1:])
    (tmp_path / "report.json").unlink()
    assert "'h9000'" in mistake_of(compare_to_reference, *files[:2], "h9000")


def test_script_with_a_figure_that_nothing_explains(tmp_path, run_script):
    said = " ".join(run_script(compare_to_reference, *two_files(tmp_path))["out"].split())
    assert "SLOWER: why?" in said and "none of the 7 known causes left a trace (itl-tales-b1)" in said
    theirs = tmp_path / "theirs.json"  # and beside itself
    assert "Nothing stands out" in run_script(compare_to_reference, theirs, "--against", theirs)["out"]


def test_script_beside_an_article_and_what_others_published(tmp_path, run_script):
    mine = a_gpu("NVIDIA H200", measurements=find_reference("t4-article").measurements)
    write_reference(mine, tmp_path / "mine.json")
    said = run_script(compare_to_reference, tmp_path / "mine.json", "--against", "t4-article")["out"]
    assert "the figures of an article" in said and "SLOWER" not in said
    assert "TensorRT-LLM 1.0, Llama 3.1 8B FP8" in " ".join(said.split()) and "12,194" in said


@pytest.mark.proof  # the engine and a kernel are compiled and timed: 16 s
def test_script_measures_this_machine(tmp_path, run_script, monkeypatch):
    few = replace(plan_for("cpu", quick=True), isls=(10, 100), batches=(1, 8), mixed=(1, 4, 4))
    monkeypatch.setattr(quick_measurements, "plan_for", lambda *_, **__: few)
    data = run_script(compare_to_reference, "--quick", "--device", "cpu")
    assert "itl-from-its-parts" in data["claims"]
    names = {x.name for x in read_reference(tmp_path / "report.json").measurements}
    assert {"read-bandwidth", "ttft-tales-isl10", "throughput-tales-b1", "cpu-decode-b16-512"} <= names
    assert {line["name"] for line in data["results"]["lines"]} >= {"itl-tales-b1", "cpu-decode-b16-512"}
