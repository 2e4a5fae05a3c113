"""What the kernels do not take: one line that names the value and the remedy, before anything is launched."""

import pytest
import torch

from phase5_real_gpu.kernels import kernel_checks, paged_decode, paged_prefill, write_kv
from phase5_real_gpu.kernels.triton_setup import INTERPRETED

pytest.importorskip("triton")

CACHES = ("k_cache", "v_cache")


def changed(tensor, place, value):
    tensor = tensor.clone()
    tensor[place] = value
    return tensor


def transposed(x, a, b):
    """The same numbers, in memory in another order."""
    return x.transpose(a, b).contiguous().transpose(a, b)


def starts(x, *values):
    return dict(cu_query_lens=torch.tensor(values, dtype=torch.int32, device=x["q"].device))


def with_head_dim(x, dim):
    return with_block_size(x, 16, dim) | dict(q=torch.zeros(len(x["q"]), 4, dim, device=x["q"].device))


def with_block_size(x, size, dim=32):
    return {c: torch.zeros(4, size, 2, dim, device=x[c].device) for c in CACHES}


# name: (what is changed, what the message says); here for paged_decode and paged_prefill alike.
ATTENTION = {
    "head_dim too small": (lambda x: with_head_dim(x, 8), r"head_dim 8 is out of range.* 16 to 256"),
    "q of another head_dim": (lambda x: dict(q=x["q"][..., :16]), "q has head_dim 16, the cache 32"),
    "q without heads": (lambda x: dict(q=x["q"][:, 0]), r"q has shape .*give \[tokens, num_heads, head_dim\]"),
    "heads that do not divide": (lambda x: dict(q=x["q"][:, :3]), "3 query heads on 2 KV heads"),
    "too many queries a KV head": (lambda x: dict(q=x["q"].repeat(1, 33, 1)), "132 query heads on 2 KV heads.* 1 to 64"),
    "a cache in float64": (lambda x: {c: x[c].double() for c in CACHES}, "k_cache is torch.float64.*use one of"),
    "a cache in another fp8": (lambda x: {c: x[c].to(torch.float8_e5m2) for c in CACHES}, "float8_e5m2.*use one of"),
    "keys and values in two formats": (
        lambda x: dict(v_cache=x["v_cache"].half()), "k_cache is torch.float32, v_cache torch.float16"),
    "keys and values of two shapes": (
        lambda x: dict(v_cache=x["v_cache"][:-1]), r"both must be \[num_blocks, block_size"),
    "keys and values that lie differently": (
        lambda x: dict(v_cache=transposed(x["v_cache"], 1, 2)), "lie alike in memory"),
    "a head scattered in memory": (lambda x: {c: transposed(x[c], 2, 3) for c in CACHES}, "side by side"),
    "values elsewhere": (lambda x: dict(v_cache=x["v_cache"].to("meta")), "k_cache.* v_cache.* meta.*: move"),
    "lengths elsewhere": (lambda x: dict(context_lens=x["context_lens"].to("meta")), "context_lens is on meta"),
    "tables of fractions": (
        lambda x: dict(block_tables=x["block_tables"].float()), "block_tables is torch.float32: .*int32 or int64"),
    "a length too many": (
        lambda x: dict(context_lens=x["context_lens"].repeat(2)), r"block_tables \[2, 4\] and context_lens \[4\]"),
    "tables that lie by columns": (
        lambda x: dict(block_tables=transposed(x["block_tables"], 0, 1)), "block_tables must lie row by row"),
    "lengths with gaps": (
        lambda x: dict(context_lens=x["context_lens"].repeat_interleave(2)[::2]), "context_lens must lie in a row"),
    "a result of another shape": (lambda x: dict(out=torch.empty_like(x["q"].repeat(1, 2, 1))), "out"),
}  # fmt: skip

DECODE = {
    "splits: 0": (lambda x: dict(num_splits=0), "num_splits is 0: .*1 to 128"),
    "splits: 129": (lambda x: dict(num_splits=129), "num_splits is 129: .*1 to 128"),
    "more rows than requests": (lambda x: dict(q=x["q"].repeat(2, 1, 1)), "q has 4 requests, block_tables 2"),
}

PREFILL = {
    "query lengths too few": (lambda x: starts(x, 0, 12), r"cu_query_lens has shape \[2\].*need \[3\]")
}

WRITE = {
    "keys of another shape": (
        lambda x: dict(k=x["k"][:, :1]),
        r"k has shape \[12, 1, 32\].*need \[12, 2, 32\]",
    ),
    "a slot too few": (lambda x: dict(slot_mapping=x["slot_mapping"][1:]), r"need \[11, 2, 32\]"),
    "keys in another format": (
        lambda x: dict(k=x["k"].half()),
        "k is torch.float16, the cache torch.float32",
    ),
    "keys elsewhere": (lambda x: dict(k=x["k"].to("meta")), "k is on meta"),
    "slots of fractions": (
        lambda x: dict(slot_mapping=x["slot_mapping"].float()),
        "slot_mapping is torch.float32",
    ),
    "a key scattered in memory": (lambda x: dict(k=transposed(x["k"], 1, 2)), "k: .*side by side"),
    "block size too large": (lambda x: with_block_size(x, 512), "block size 512"),
}

# ---------------------------------------------------------------------- entries of the tables

# 8 blocks; request 0 has 20 tokens in 2 of them, request 1 has 7 in 1. Tables are 4 wide.
TABLES = {
    "a block behind the pool": (
        lambda x: dict(block_tables=changed(x["block_tables"], (0, 1), 6)),
        r"block_tables\[0, 1\] is 6: the pool has blocks 0 to 5"),
    "a block before the pool": (
        lambda x: dict(block_tables=changed(x["block_tables"], (1, 0), -1)), r"block_tables\[1, 0\] is -1"),
    "a negative length": (lambda x: dict(context_lens=changed(x["context_lens"], 1, -3)), r"context_lens\[1\] is -3"),
    "a table too short": (
        lambda x: dict(context_lens=changed(x["context_lens"], 0, 65)),
        "request 0 has 65 tokens and needs 5 blocks, its table holds 4"),
}  # fmt: skip

QUERY_LENS = {
    "does not begin with 0": (lambda x: starts(x, 1, 5, 12), "cu_query_lens runs from 1 to 12: from 0 to the 12"),
    "does not end with the last": (lambda x: starts(x, 0, 5, 13), "cu_query_lens runs from 0 to 13"),
    "falls": (lambda x: starts(x, 0, 13, 12), "request 1 has -1 new tokens|request 0 has 13 new tokens"),
    "more new ones than all": (lambda x: starts(x, 0, 4, 12), "request 1 has 8 new tokens in a context of 7"),
}  # fmt: skip

SLOTS = {
    "behind the pool": (lambda x: dict(slot_mapping=changed(x["slot_mapping"], 3, 96)), r"slot_mapping\[3\] is 96: .* 0 to 95"),
    "before it": (lambda x: dict(slot_mapping=changed(x["slot_mapping"], 0, -2)), r"slot_mapping\[0\] is -2"),
    "twice": (lambda x: dict(slot_mapping=changed(x["slot_mapping"], 3, x["slot_mapping"][4])), "names a slot twice"),
}  # fmt: skip

REFUSALS = [
    pytest.param(kernel, *case, id=f"{kernel.__name__}: {name}")
    for kernels, table in (
        ((paged_decode, paged_prefill), ATTENTION),
        ((paged_decode,), DECODE),
        ((paged_prefill,), PREFILL),
        ((write_kv,), WRITE),
        # Read back in the interpreter alone: on a GPU that would mean waiting for it.
        ((paged_decode, paged_prefill) if INTERPRETED else (), TABLES),
        ((paged_prefill,) if INTERPRETED else (), QUERY_LENS),
        ((write_kv,) if INTERPRETED else (), SLOTS),
    )
    for kernel in kernels
    for name, case in table.items()
]


@pytest.mark.parametrize(("kernel", "change", "message"), REFUSALS)
def test_a_kernel_refuses(inputs, kernel, change, message):
    """One line with the message in it, and the caches as they were."""
    given = inputs[kernel.__name__]
    before = [given[c].clone() for c in CACHES]
    with pytest.raises(ValueError, match=message) as stop:
        kernel(**given | change(given))
    assert "\n" not in str(stop.value) and len(str(stop.value)) < 200
    for cache, old in zip(CACHES, before):
        assert torch.equal(given[cache].nan_to_num(7.0), old.nan_to_num(7.0))


def test_what_is_never_read_may_be_anything(lab, inputs):
    """Behind a request's blocks anything may stand, and a token without a slot is no mistake."""
    for kernel in (paged_decode, paged_prefill):
        given = inputs[kernel.__name__]
        kernel(**given | dict(block_tables=changed(given["block_tables"], (0, 2), 10**9)))
    case = lab.Case([4], [4])
    slots = torch.tensor([-1, 0, -1, 95 % (case.num_blocks * 16)], device=lab.device)
    write_kv(*(case.new(t) for t in case.given), case.k_cache, case.v_cache, slots)


@pytest.mark.parametrize("kernel", [paged_decode, paged_prefill, write_kv])
def test_a_compiled_kernel_refuses_tensors_of_the_cpu(inputs, monkeypatch, kernel):
    """It would read the GPU's memory at their addresses."""
    monkeypatch.setattr(kernel_checks, "INTERPRETED", False)
    monkeypatch.setattr(kernel_checks, "card_problem", lambda dtype: None)
    given = {name: tensor.cpu() for name, tensor in inputs[kernel.__name__].items()}
    with pytest.raises(ValueError, match="k_cache is on the CPU, and the kernels run on the GPU"):
        kernel(**given)
