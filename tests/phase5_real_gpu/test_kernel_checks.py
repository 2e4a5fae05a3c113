"""What the kernels do not take: one line that names the value and the remedy, before anything is launched."""

import re
import subprocess
import sys

import pytest
import torch

from labkit.errors import LabError
from phase5_real_gpu.kernels import triton_setup
from phase5_real_gpu.kernels.triton_setup import HAS_TRITON, card_problem

needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="needs Triton")
FP8 = torch.float8_e4m3fn


@pytest.fixture
def decode_inputs(lab):
    """Keyword arguments of a paged_decode that works."""
    case = lab.decode_case([20, 7])
    return dict(
        q=case.q, k_cache=case.k_cache, v_cache=case.v_cache, block_tables=case.block_tables(),
        context_lens=case.lens(),
    )  # fmt: skip


@pytest.fixture
def prefill_inputs(lab):
    case = lab.Case([5, 7], [20, 7]).fill()
    return dict(
        q=case.q, k_cache=case.k_cache, v_cache=case.v_cache, block_tables=case.block_tables(),
        cu_query_lens=case.cu_query_lens, context_lens=case.lens(),
    )  # fmt: skip


@pytest.fixture
def write_inputs(lab):
    case = lab.Case([5, 7], [20, 7])
    return dict(
        k=case.new(case.given[0]), v=case.new(case.given[1]), k_cache=case.k_cache, v_cache=case.v_cache,
        slot_mapping=case.new_slots,
    )  # fmt: skip


def changed(tensor, place, value):
    tensor = tensor.clone()
    tensor[place] = value
    return tensor


def refused(function, inputs, change, message):
    """One line with the message in it, and the caches as they were."""
    function(**inputs)
    before = [inputs[c].clone() for c in ("k_cache", "v_cache")]
    with pytest.raises(ValueError, match=message) as stop:
        function(**inputs | change(inputs))
    assert "\n" not in str(stop.value) and len(str(stop.value)) < 200
    for cache, old in zip(("k_cache", "v_cache"), before):
        assert torch.equal(inputs[cache].nan_to_num(7.0), old.nan_to_num(7.0))


def with_head_dim(x, dim):
    caches = {c: torch.zeros(4, 16, 2, dim, device=x[c].device) for c in ("k_cache", "v_cache")}
    return caches | dict(q=torch.zeros(len(x["q"]), 4, dim, device=x["q"].device))


def with_block_size(x, size):
    return {c: torch.zeros(4, size, 2, 32, device=x[c].device) for c in ("k_cache", "v_cache")}


# name: (what is changed, what the message says); for paged_decode and paged_prefill alike.
ATTENTION = {
    "head_dim too small": (lambda x: with_head_dim(x, 8), r"head_dim 8 is out of range.* 16 to 256"),
    "head_dim too large": (lambda x: with_head_dim(x, 264), r"head_dim 264 is out of range.* 16 to 256"),
    "block size 0": (lambda x: with_block_size(x, 0), r"block size 0 is out of range.* 1 to 256"),
    "block size too large": (lambda x: with_block_size(x, 512), r"block size 512 is out of range.* 1 to 256"),
    "q of another head_dim": (lambda x: dict(q=x["q"][..., :16]), "q has head_dim 16, the cache 32"),
    "q without heads": (lambda x: dict(q=x["q"][:, 0]), r"q has shape .*give \[tokens, num_heads, head_dim\]"),
    "heads that do not divide": (lambda x: dict(q=x["q"][:, :3]), "3 query heads on 2 KV heads"),
    "fewer heads than KV heads": (lambda x: dict(q=x["q"][:, :0]), "0 query heads on 2 KV heads"),
    "too many queries a KV head": (
        lambda x: dict(q=x["q"].repeat(1, 33, 1)), "132 query heads on 2 KV heads.* 1 to 64"
    ),
    "q in another format": (
        lambda x: dict(q=x["q"].half()), "q is torch.float16, the cache torch.float32: convert"
    ),
    "q in float64": (lambda x: dict(q=x["q"].double()), "q is torch.float64"),
    "a cache in float64": (
        lambda x: dict(k_cache=x["k_cache"].double(), v_cache=x["v_cache"].double()),
        "k_cache is torch.float64.*use one of",
    ),
    "keys and values in two formats": (
        lambda x: dict(v_cache=x["v_cache"].half()), "k_cache is torch.float32, v_cache torch.float16"
    ),
    "keys and values of two shapes": (
        lambda x: dict(v_cache=x["v_cache"][:-1]), r"both must be \[num_blocks, block_size"
    ),
    "a cache without heads": (
        lambda x: dict(k_cache=x["k_cache"][:, :, 0], v_cache=x["v_cache"][:, :, 0]), "both must be"
    ),
    "keys and values that lie differently": (
        lambda x: dict(v_cache=x["v_cache"].transpose(1, 2).contiguous().transpose(1, 2)), "lie alike in memory"
    ),
    "a head scattered in memory": (
        lambda x: {
            c: x[c].transpose(2, 3).contiguous().transpose(2, 3) for c in ("k_cache", "v_cache")
        },
        "side by side",
    ),
    "a query scattered in memory": (
        lambda x: dict(q=x["q"].transpose(1, 2).contiguous().transpose(1, 2)), r"q: .*call \.contiguous\(\)"
    ),
    "q elsewhere": (lambda x: dict(q=x["q"].to("meta")), "q is on meta, the cache on .*: move one"),
    "values elsewhere": (lambda x: dict(v_cache=x["v_cache"].to("meta")), "k_cache.* v_cache.* meta.*: move"),
    "tables elsewhere": (lambda x: dict(block_tables=x["block_tables"].to("meta")), "block_tables is on meta"),
    "lengths elsewhere": (lambda x: dict(context_lens=x["context_lens"].to("meta")), "context_lens is on meta"),
    "tables of fractions": (
        lambda x: dict(block_tables=x["block_tables"].float()), "block_tables is torch.float32: .*int32 or int64"
    ),
    "short lengths": (lambda x: dict(context_lens=x["context_lens"].short()), "context_lens is torch.int16"),
    "a length too many": (
        lambda x: dict(context_lens=x["context_lens"].repeat(2)), r"block_tables \[2, 4\] and context_lens \[4\]"
    ),
    "tables in one row": (lambda x: dict(block_tables=x["block_tables"][0]), r"block_tables \[4\]"),
    "tables that lie by columns": (
        lambda x: dict(block_tables=x["block_tables"].t().contiguous().t()), "block_tables must lie row by row"
    ),
    "lengths with gaps": (
        lambda x: dict(context_lens=x["context_lens"].repeat_interleave(2)[::2]), "context_lens must lie in a row"
    ),
    "a result of another shape": (lambda x: dict(out=torch.empty_like(x["q"].repeat(1, 2, 1))), "out"),
    "a result in another format": (lambda x: dict(out=torch.empty_like(x["q"]).half()), "out"),
    "a result with gaps": (lambda x: dict(out=torch.empty_like(x["q"].repeat(1, 1, 2))[..., :32]), "out"),
}  # fmt: skip


@needs_triton
@pytest.mark.parametrize("name", ATTENTION)
def test_decode_refuses(name, decode_inputs):
    from phase5_real_gpu.kernels.decode_kernel import paged_decode

    refused(paged_decode, decode_inputs, *ATTENTION[name])


@needs_triton
@pytest.mark.parametrize("name", ATTENTION)
def test_prefill_refuses(name, prefill_inputs):
    from phase5_real_gpu.kernels.prefill_kernel import paged_prefill

    refused(paged_prefill, prefill_inputs, *ATTENTION[name])


@needs_triton
@pytest.mark.parametrize("num_splits", [0, -1, 129])
def test_decode_refuses_a_number_of_parts(num_splits, decode_inputs):
    from phase5_real_gpu.kernels.decode_kernel import paged_decode

    refused(
        paged_decode, decode_inputs, lambda x: dict(num_splits=num_splits), f"num_splits is {num_splits}: .*1 to 128"
    )  # fmt: skip


@needs_triton
def test_decode_refuses_more_rows_than_requests(decode_inputs):
    from phase5_real_gpu.kernels.decode_kernel import paged_decode

    refused(
        paged_decode, decode_inputs, lambda x: dict(q=x["q"].repeat(2, 1, 1)), "q has 4 requests, block_tables 2"
    )  # fmt: skip


WRITE = {
    "keys of another shape": (lambda x: dict(k=x["k"][:, :1]), r"k has shape \[12, 1, 32\].*need \[12, 2, 32\]"),
    "values of another shape": (lambda x: dict(v=x["v"][..., :16]), r"v has shape \[12, 2, 16\]"),
    "a slot too few": (lambda x: dict(slot_mapping=x["slot_mapping"][1:]), "11 slots"),
    "keys in another format": (lambda x: dict(k=x["k"].half()), "k is torch.float16, the cache torch.float32"),
    "values in another format": (lambda x: dict(v=x["v"].bfloat16()), "v is torch.bfloat16"),
    "keys elsewhere": (lambda x: dict(k=x["k"].to("meta")), "k is on meta"),
    "slots elsewhere": (lambda x: dict(slot_mapping=x["slot_mapping"].to("meta")), "slot_mapping is on meta"),
    "slots of fractions": (lambda x: dict(slot_mapping=x["slot_mapping"].float()), "slot_mapping is torch.float32"),
    "a key scattered in memory": (
        lambda x: dict(k=x["k"].transpose(1, 2).contiguous().transpose(1, 2)), "k: .*side by side"
    ),
    "block size too large": (lambda x: with_block_size(x, 512), "block size 512"),
}  # fmt: skip


@needs_triton
@pytest.mark.parametrize("name", WRITE)
def test_write_refuses(name, write_inputs):
    from phase5_real_gpu.kernels.write_kv_kernel import write_kv

    inputs = {k: v.clone() if "cache" in k else v for k, v in write_inputs.items()}
    refused(write_kv, inputs, *WRITE[name])


@needs_triton
def test_an_fp8_cache_takes_no_fp8_queries(lab):
    from phase5_real_gpu.kernels.decode_kernel import paged_decode

    case = lab.decode_case([5], cache_dtype=FP8)
    with pytest.raises(ValueError, match=r"q is torch\.float8_e4m3fn"):
        paged_decode(case.q.to(FP8), case.k_cache, case.v_cache, case.block_tables(), case.lens())


# ---------------------------------------------------------------------- checked mode


# 8 blocks; request 0 has 20 tokens in 2 of them, request 1 has 7 in 1. Tables are 4 wide.
TABLES = {
    "a block behind the pool": (
        lambda x: dict(block_tables=changed(x["block_tables"], (0, 1), 6)),
        r"block_tables\[0, 1\] is 6: the pool has blocks 0 to 5",
    ),
    "a block before the pool": (
        lambda x: dict(block_tables=changed(x["block_tables"], (1, 0), -1)), r"block_tables\[1, 0\] is -1"
    ),
    "a negative length": (lambda x: dict(context_lens=changed(x["context_lens"], 1, -3)), r"context_lens\[1\] is -3"),
    "a table too short": (
        lambda x: dict(context_lens=changed(x["context_lens"], 0, 65)),
        "request 0 has 65 tokens and needs 5 blocks, its table holds 4",
    ),
}  # fmt: skip


@needs_triton
@pytest.mark.parametrize("name", TABLES)
def test_checked_attention_finds(name, decode_inputs, prefill_inputs):
    from phase5_real_gpu.kernels.decode_kernel import paged_decode
    from phase5_real_gpu.kernels.prefill_kernel import paged_prefill

    refused(paged_decode, decode_inputs | dict(checked=True), *TABLES[name])
    refused(paged_prefill, prefill_inputs | dict(checked=True), *TABLES[name])


def starts(x, *values):
    return dict(cu_query_lens=torch.tensor(values, dtype=torch.int32, device=x["q"].device))


QUERY_LENS = {
    "does not begin with 0": (lambda x: starts(x, 1, 5, 12), "cu_query_lens runs from 1 to 12: from 0 to the 12"),
    "does not end with the last": (lambda x: starts(x, 0, 5, 13), "cu_query_lens runs from 0 to 13"),
    "falls": (lambda x: starts(x, 0, 13, 12), "request 1 has -1 new tokens|request 0 has 13 new tokens"),
    "more new ones than all": (lambda x: starts(x, 0, 4, 12), "request 1 has 8 new tokens and a context of 7"),
}  # fmt: skip


@needs_triton
@pytest.mark.parametrize("name", QUERY_LENS)
def test_checked_prefill_finds(name, prefill_inputs):
    from phase5_real_gpu.kernels.prefill_kernel import paged_prefill

    refused(paged_prefill, prefill_inputs | dict(checked=True), *QUERY_LENS[name])


@needs_triton
def test_prefill_refuses_a_wrong_number_of_query_lens(prefill_inputs):
    from phase5_real_gpu.kernels.prefill_kernel import paged_prefill

    refused(
        paged_prefill, prefill_inputs, lambda x: starts(x, 0, 12), r"cu_query_lens has shape \[2\].*need \[3\]"
    )  # fmt: skip
    refused(
        paged_prefill, prefill_inputs, lambda x: dict(cu_query_lens=x["cu_query_lens"].float()),
        "cu_query_lens is torch.float32",
    )  # fmt: skip


SLOTS = {
    "behind the pool": (lambda x: dict(slot_mapping=changed(x["slot_mapping"], 3, 96)), r"slot_mapping\[3\] is 96: .* 0 to 95"),
    "before it": (lambda x: dict(slot_mapping=changed(x["slot_mapping"], 0, -2)), r"slot_mapping\[0\] is -2"),
    "twice": (lambda x: dict(slot_mapping=changed(x["slot_mapping"], 3, x["slot_mapping"][4])), "names a slot twice"),
}  # fmt: skip


@needs_triton
@pytest.mark.parametrize("name", SLOTS)
def test_checked_write_finds(name, write_inputs):
    from phase5_real_gpu.kernels.write_kv_kernel import write_kv

    inputs = {k: v.clone() if "cache" in k else v for k, v in write_inputs.items()}
    refused(write_kv, inputs | dict(checked=True), *SLOTS[name])


@needs_triton
def test_checked_lets_through_what_is_never_read(lab, decode_inputs, prefill_inputs):
    """Behind a request's blocks anything may stand, and a token without a slot is no mistake."""
    from phase5_real_gpu.kernels.decode_kernel import paged_decode
    from phase5_real_gpu.kernels.prefill_kernel import paged_prefill
    from phase5_real_gpu.kernels.write_kv_kernel import write_kv

    for inputs in (decode_inputs, prefill_inputs):
        inputs["block_tables"] = changed(inputs["block_tables"], (0, 2), 10**9)
    paged_decode(**decode_inputs, checked=True)
    paged_prefill(**prefill_inputs, checked=True)
    case = lab.Case([4], [4])
    slots = torch.tensor([-1, 0, -1, 95 % (case.num_blocks * 16)], device=lab.device)
    write_kv(*(case.new(t) for t in case.given), case.k_cache, case.v_cache, slots, checked=True)


# ---------------------------------------------------------------------- what is let through compiles

COMPILE = """
import os
os.environ["TRITON_INTERPRET"] = "0"
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from phase5_real_gpu.kernels.decode_kernel import decode_kernel
from phase5_real_gpu.kernels.prefill_kernel import prefill_kernel

tensors = dict.fromkeys(["out", "q", "k_cache", "v_cache"], "*fp16")
tensors |= dict.fromkeys(["partial_out", "partial_lse"], "*fp32") | {"split_tokens": "*i32"}
tensors |= dict.fromkeys(["block_tables", "context_lens", "starts"], "*i64")
tensors |= dict.fromkeys(["score_scale", "value_scale"], "fp32")
sizes = dict(QUERIES_PER_KV=4, HEAD_DIM=64, BLOCK_SIZE=16, DIMS=64, TILE=32, UPCAST=False)
for kernel, more in (
    (decode_kernel, dict(ROWS=16, IS_SPLIT=True)),
    (decode_kernel, dict(ROWS=16, IS_SPLIT=False)),
    (prefill_kernel, dict(ROWS=64, RUN=16)),
):
    fixed = sizes | more
    names = kernel.arg_names
    types = {n: "constexpr" if n in fixed else tensors.get(n, "i32") for n in names}
    source = ASTSource(kernel, types, {(names.index(n),): value for n, value in fixed.items()}, {})
    triton.compile(source, target=GPUTarget("cuda", 90, 32), options=dict(num_warps=4, num_stages=3))
print("compiled")
"""


@needs_triton
def test_tables_of_64_bits_compile():
    """The checks take int32 and int64. The interpreter does not mind mixing them; the compiler does, in a loop."""
    done = subprocess.run([sys.executable, "-c", COMPILE], capture_output=True, text=True, timeout=240)
    assert done.stdout == "compiled\n", done.stderr[-2000:]


# ---------------------------------------------------------------------- machines


@needs_triton
def test_without_triton_the_kernels_say_so(monkeypatch, lab, decode_inputs, prefill_inputs, write_inputs):
    from phase5_real_gpu.kernels.decode_kernel import paged_decode
    from phase5_real_gpu.kernels.prefill_kernel import paged_prefill
    from phase5_real_gpu.kernels.triton_kv_cache import TritonPagedKVCache
    from phase5_real_gpu.kernels.write_kv_kernel import write_kv

    monkeypatch.setattr(triton_setup, "HAS_TRITON", False)
    calls = [
        lambda: paged_decode(**decode_inputs),
        lambda: paged_prefill(**prefill_inputs),
        lambda: write_kv(**write_inputs),
        lambda: TritonPagedKVCache(lab.model_config(4, 2, 32), 8),
    ]
    for call in calls:
        with pytest.raises(LabError, match=r"Triton is not installed .*still run") as stop:
            call()
        assert "\n" not in str(stop.value)
    assert "not installed" in card_problem(torch.float32)


NO_TRITON = """
import sys
sys.modules["triton"] = None  # as if it were not there
import torch
from labkit.errors import LabError
from phase5_real_gpu.kernels import decode_kernel, gpu_runner, prefill_kernel, triton_kv_cache, write_kv_kernel
from phase2_attention_kvcache.model.blocks import ModelConfig
config = ModelConfig(name="test", family="llama", vocab_size=97, d_model=32, num_layers=1, num_heads=2,
                     num_kv_heads=1, head_dim=32, d_ff=48, max_context=256, tied=True)
cache = torch.zeros(4, 16, 1, 32)
table, one = torch.zeros(1, 2, dtype=torch.int32), torch.ones(1, dtype=torch.int32)
for call in (
    lambda: decode_kernel.paged_decode(cache[0, :1], cache, cache, table, one),
    lambda: prefill_kernel.paged_prefill(cache[0, :1], cache, cache, table, one, one),
    lambda: write_kv_kernel.write_kv(cache[0, :1], cache[0, :1], cache, cache, one),
    lambda: triton_kv_cache.TritonPagedKVCache(config, 4),
):
    try:
        call()
    except LabError as error:
        print(error)
"""


def test_on_a_machine_without_triton():
    """Everything can be imported; whoever launches a kernel is told what still runs."""
    done = subprocess.run([sys.executable, "-c", NO_TRITON], capture_output=True, text=True, timeout=240)
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and len(lines) == 4, done.stderr[-2000:]
    assert all(line.startswith("Triton is not installed") for line in lines)


@pytest.mark.parametrize(
    ("capability", "dtype", "problem"),
    [
        ((7, 0), torch.float16, "capability 7.0, Triton needs 7.5"),
        ((7, 5), torch.float16, None),
        ((7, 5), torch.bfloat16, "capability 7.5, bfloat16 needs 8.0 or more: use --dtype float16"),
        ((8, 0), torch.bfloat16, None),
        ((8, 6), FP8, "capability 8.6, an fp8 KV cache needs 8.9 or more"),
        ((8, 9), FP8, None),
        ((9, 0), FP8, None),
        ((10, 0), torch.bfloat16, None),
    ],
    ids=str,
)
def test_cards(monkeypatch, capability, dtype, problem):
    """What each card can do; of a card that is not here, by its number."""
    monkeypatch.setattr(triton_setup, "HAS_TRITON", True)
    monkeypatch.setattr(triton_setup, "INTERPRETED", False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(triton_setup, "_card", lambda: (capability, "Some Card", None))
    found = card_problem(dtype)
    if problem is None:
        assert found is None
    else:
        assert found.startswith("Some Card has compute") and re.search(problem, found)


def test_what_triton_needs_to_start_kernels(monkeypatch, tmp_path):
    """The first launch on a card compiles a small piece of C. Better to say beforehand what is missing."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "Some Card")
    monkeypatch.delenv("CC", raising=False)
    look = triton_setup._card.__wrapped__
    monkeypatch.setattr(triton_setup.shutil, "which", lambda name: None)
    assert "install gcc" in look()[2]
    monkeypatch.setattr(triton_setup.shutil, "which", lambda name: "/usr/bin/" + name)
    paths = triton_setup.sysconfig
    monkeypatch.setattr(paths, "get_paths", lambda scheme: {"include": str(tmp_path / scheme)})
    for scheme, where in (
        ("posix_local", "posix_prefix"),
        ("venv", "venv"),
    ):  # Debian's own Python, and the usual
        monkeypatch.setattr(paths, "get_default_scheme", lambda scheme=scheme: scheme)
        assert "Python.h" in look()[2]
        (tmp_path / where).mkdir()
        (tmp_path / where / "Python.h").touch()
        assert look() == ((9, 0), "Some Card", None)
