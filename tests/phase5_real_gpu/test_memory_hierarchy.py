"""The levels of memory: working sets, walks, names of levels; the bytes of a step against a real model; the script."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from phase2_attention_kvcache.model import ContiguousKVCache, Transformer
from phase5_real_gpu import memory_hierarchy
from phase5_real_gpu.kernels.triton_setup import INTERPRETED  # first: it decides how Triton runs
from phase5_real_gpu.measuring import memory_cpu, memory_gpu
from phase5_real_gpu.measuring.memory_cpu import KIB, MIB, Point, by_level, cache_sizes, circle, level_of
from phase5_real_gpu.measuring.memory_step import numbers_between, step_bytes

CACHES = {"L1": 32 * KIB, "L2": MIB, "L3": 32 * MIB}


def test_cache_sizes_as_linux_tells_them(tmp_path):
    kinds = [
        ("1", "Data", "48K"),
        ("1", "Instruction", "32K"),
        ("2", "Unified", "1280K"),
        ("3", "Unified", "30M"),
    ]
    odd = [("one", "Data", "32K"), ("1", "Data", ""), ("1", "Data", "lots")]
    for folder, entries in (("linux", kinds), ("odd", odd)):
        for i, entry in enumerate(entries):
            (tmp_path / folder / f"index{i}").mkdir(parents=True)
            for name, text in zip(("level", "type", "size"), entry):
                (tmp_path / folder / f"index{i}" / name).write_text(text + "\n")
    assert cache_sizes(tmp_path / "linux") == {"L1": 48 * KIB, "L2": 1280 * KIB, "L3": 30 * MIB}
    assert cache_sizes(tmp_path / "odd") == cache_sizes(tmp_path / "no such folder") == {}


@given(st.integers(64, 100_000), st.integers(0, 5))
def test_a_walk_touches_every_line_once_and_comes_back(size, seed):
    following = circle(size, seed)
    lines = len(following) // 8
    place, seen = 0, set()
    while place not in seen:
        seen.add(place)
        place = int(following[place])
    assert place == 0 and seen == {8 * line for line in range(lines)} and lines == max(2, size // 64)


def test_reading_adds_up_and_jumping_jumps():
    assert memory_cpu._read(np.ones(1000, dtype=np.int64), 3) == 3000
    assert memory_cpu._jump(np.array([2, 0, 1]), 0, 4) == 2


@pytest.mark.parametrize(
    ("size", "level"),
    [(4 * KIB, "L1"), (16 * KIB, "L1"), (24 * KIB, None), (48 * KIB, None), (64 * KIB, "L2"), (512 * KIB, "L2"),
     (MIB, None), (2 * MIB, "L3"), (16 * MIB, "L3"), (32 * MIB, None), (64 * MIB, None), (96 * MIB, "DRAM")],
)  # fmt: skip
def test_a_level_is_named_only_where_it_is_sure(size, level):
    assert level_of(size, CACHES) == level
    assert level_of(size, {}) is None


def test_levels_are_the_medians_of_their_points():
    points = [Point(4 * KIB, 200.0, 2.0), Point(8 * KIB, 100.0, 1.0), Point(16 * KIB, 150.0, 3.0), Point(MIB, 90.0, 8.0),
              Point(128 * MIB, 20.0, 90.0)]  # fmt: skip
    assert by_level(points, CACHES) == {"L1": Point(32 * KIB, 150.0, 2.0), "DRAM": Point(0, 20.0, 90.0)}
    assert by_level(points, {}) == {}


# ---------------------------------------------------------------------- the bytes of a step


def test_the_bytes_of_a_step_are_those_of_a_real_model():
    """Activations: every matrix product, norm and activation of one token, counted as its result passes."""
    model = Transformer.from_pretrained("tales")
    c, seen = model.config, []

    def count(module, inputs, output):
        if isinstance(output, torch.Tensor):
            seen.append(output.numel())

    for module in model.modules():
        if not list(module.children()) and not isinstance(module, torch.nn.Embedding):
            module.register_forward_hook(count)
    cache = ContiguousKVCache(c)
    model.logits(model(torch.tensor([1]), torch.tensor([0]), cache))
    # What hooks do not see: attention's result, both sums of a layer, the bent vector in the MLP; the vector at
    # the bottom; the scores at the top.
    unseen = c.num_layers * (c.num_heads * c.head_dim + 2 * c.d_model + c.d_ff) + c.d_model + c.vocab_size
    assert numbers_between(c) == sum(seen) + unseen
    step = step_bytes(c, 7, 100, bytes_per_number=4)
    assert step.activations == 7 * 2 * 4 * numbers_between(c) and step.kv == 7 * 100 * cache.bytes_used
    assert step.weights == sum(
        p.nbytes for n, p in model.named_parameters() if p.ndim == 2 and "position" not in n
    )
    assert step.seconds(4800) == (step.weights + step.kv) / 4800e9


# ---------------------------------------------------------------------- a GPU's kernels, interpreted

interpreted = pytest.mark.skipif(not INTERPRETED, reason="needs Triton's interpreter")


@interpreted
@pytest.mark.parametrize(("blocks", "programs", "turns"), [(1, 2, 3), (4, 3, 5), (8, 2, 11)])
def test_every_program_reads_what_it_should(blocks, programs, turns):
    numbers = torch.randint(0, 9, (blocks * memory_gpu.BLOCK,), dtype=torch.int32)
    found = memory_gpu.sweep(numbers, programs, turns)
    sums = numbers.view(blocks, memory_gpu.BLOCK).sum(1)
    stride = max(37, blocks // programs)
    for program in range(programs):
        assert found[program] == sum(sums[(program * stride + t) % blocks] for t in range(turns))


@interpreted
def test_jumps_of_a_gpu():
    following, out = torch.from_numpy(circle(20 * 64)), torch.zeros(1, dtype=torch.int64)
    memory_gpu.jump_kernel[(1,)](out, following, 13)
    place = 0
    for _ in range(13):
        place = int(following[place])
    assert int(out) == place
    assert all(size & (size - 1) == 0 for size in memory_gpu.sweep_sizes(MIB))


# ---------------------------------------------------------------------- the script


@pytest.mark.parametrize("caches", [CACHES, {}], ids=["Linux", "a system that reports none"])
def test_script_on_a_cpu(run_script, monkeypatch, caches):
    monkeypatch.setattr(memory_cpu, "cache_sizes", lambda: caches)
    if not caches:  # one sweep of the real length is enough
        monkeypatch.setattr(memory_cpu, "sweep_sizes", lambda largest, quick: [4 * KIB, MIB])
    figures = ("memory_hierarchy", "decode_step_bytes")
    report = run_script(memory_hierarchy, "--device", "cpu", "--quick", figures=figures)
    names = {m["name"] for m in report["results"]["measurements"]}
    assert names == {"read-bandwidth", "copy-bandwidth", "launch", "matmul-float32"} | {
        f"cache-{name.lower()}" for name in caches
    }
    claims = report["claims"]
    assert claims["step-kv-share"]["kind"] == "structure" and claims["step-kv-share"]["holds"]
    assert ("l1-against-memory" in claims) == bool(caches)
    assert ("does not report the sizes of its caches" in report["out"]) != bool(caches)
