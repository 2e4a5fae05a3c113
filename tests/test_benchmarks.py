"""The benchmarks' workloads are those that the other engines were timed on."""

import importlib.util

import pytest

from labkit.paths import ROOT


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_workloads_are_those_of_the_other_engines(data):
    theirs = data.parent / "peers" / "workloads.py"
    if not theirs.is_file():
        pytest.skip(f"needs the other engines' workloads, {theirs.name}")
    ours, theirs = load(ROOT / "benchmarks" / "serving_workloads.py"), load(theirs)
    assert ours.MAX_NUM_SEQS == theirs.MAX_NUM_SEQS
    assert list(ours.WORKLOADS) == list(theirs.ALL)
    for name, make in theirs.ALL.items():
        assert ours.WORKLOADS[name]() == make()


def test_workloads_have_the_sizes_they_promise():
    workloads = load(ROOT / "benchmarks" / "serving_workloads.py").WORKLOADS
    assert [len(workloads[n]()) for n in ("batch1", "batch4", "batch16", "batch64")] == [1, 4, 16, 64]
    assert all(16 <= len(p) <= 256 and 16 <= osl <= 256 for p, osl in workloads["mixed64"]())
    heads = {tuple(prompt[:256]) for prompt, _ in workloads["prefix64"]()}
    assert len(heads) == 1
