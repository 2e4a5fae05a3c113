"""Graders of top-p and of the roofline."""

from collections.abc import Callable

import torch

from exercises.judging.judge import Exercise

# ---------------------------------------------------------------------- 2.6 top-p

KEPT, SHARES = "before < p", "return kept / kept.sum()"
PUT_BACK = "kept[places] = ordered.where(before < p, 0.0)"
TOP_P = Exercise(
    "p2e6_top_p",
    keep_top_p={
        "top-p-cuts-the-crossing-token": (
            {KEPT: "before + ordered <= p"},
            {KEPT: "(before + ordered <= p).index_fill(0, torch.tensor(0), True)"},
        ),
        "top-p-keeps-one-too-many": (
            {KEPT: "torch.arange(len(ordered)) < (ordered.cumsum(0) < p).sum() + 2"},
            {KEPT: "before <= p"},
        ),
        # Cuts what lies above p, moved on by one place; the first place got lost.
        "top-p-empty": {KEPT: "~torch.cat(((above := ordered.cumsum(0) > p)[:1], above[:-1]))"},
        "top-p-softmax-again": (
            {SHARES: "return torch.softmax(kept, dim=0)"},
            {SHARES: "return torch.softmax(kept.masked_fill(kept == 0, -torch.inf), dim=0)"},
        ),
        "top-p-not-divided": {SHARES: "return kept"},
        "top-p-divided-by-p": {SHARES: "return kept / p"},
        "top-p-order-lost": (
            {"kept[places] =": "kept[:] ="},
            {"kept[places] =": "kept[:] =", KEPT: "before + ordered <= p"},
        ),
        "top-p-put-back-wrongly": {PUT_BACK: "kept = ordered.where(before < p, 0.0)[places]"},
        # The largest p, the tail 1 - p, or a share of the likeliest (min-p) as a limit for each.
        "top-p-single-probability": (
            {KEPT: "ordered >= p"},
            {KEPT: "ordered >= 1 - p"},
            {KEPT: "ordered >= p * ordered[0]"},
        ),
        "top-p-least-likely-first": {"descending=True": "descending=False"},
        "top-p-not-sorted": {"probs.sort(descending=True)": "probs, torch.arange(len(probs))"},
        "top-p-nothing-cut": {KEPT: "before < 2"},
    },
)


@TOP_P.grader
def grade_top_p(keep_top_p: Callable) -> None:
    random = torch.Generator().manual_seed(8)
    four = torch.tensor([0.15, 0.5, 0.05, 0.3])
    cases = [(four, 0.7), (four, 0.4), (four, 0.9), (four, 0.97), (torch.tensor([0.6, 0.1, 0.3]), 0.65)]
    cases += [(torch.tensor([1.0]), 0.5), (four, 1.0), (torch.tensor([0.02, 0.9, 0.03, 0.05]), 0.1)]
    # A set that holds exactly p is enough. (These fractions are exact in binary, so rounding cannot matter.)
    cases += [(torch.tensor([0.25, 0.5, 0.125, 0.125]), p) for p in (0.5, 0.75)]
    for size, p in ((10, 0.3), (50, 0.5), (200, 0.8), (1000, 0.9)):
        cases.append((torch.randn(size, generator=random).mul(2).softmax(0), p))
    # The input may change: a sampler needs the whole of them no more.
    TOP_P.judge("keep_top_p", keep_top_p, cases, keeps_input=False)


# ---------------------------------------------------------------------- 2.7 the roofline

SLOWER, BYTES = "max(computing, fetching)", "num_parameters * bytes_per_parameter"
FREE = "bytes_per_parameter * rate / (2 * bandwidth)"
TTFT = Exercise(
    "p2e7_ttft",
    step_seconds={
        "roofline-adds": {SLOWER: "computing + fetching"},
        "roofline-takes-the-faster": {SLOWER: "min(computing, fetching)"},
        "roofline-one-operation": {"2 * num_parameters": "num_parameters"},
        "roofline-weights-for-each-token": {BYTES: f"num_tokens * {BYTES}"},
        "roofline-bytes-forgotten": {BYTES: "num_parameters"},
        "roofline-bits": {BYTES: f"8 * {BYTES}"},
        "roofline-milliseconds": {SLOWER: f"1e3 * {SLOWER}"},
        "roofline-only-memory": {SLOWER: "fetching"},
        "roofline-only-arithmetic": {SLOWER: "computing"},
        "roofline-one-token": {" * num_tokens": ""},
        "roofline-exchanged": {
            "num_tokens / rate": "num_tokens / bandwidth",
            f"{BYTES} / bandwidth": f"{BYTES} / rate",
        },
    },
    tokens_for_free={
        "free-tokens-without-two": {"(2 * bandwidth)": "bandwidth"},
        "free-tokens-bytes-forgotten": {FREE: "rate / (2 * bandwidth)"},
        "free-tokens-only-ridge": {FREE: "rate / bandwidth"},
        "free-tokens-bits": {FREE: f"8 * {FREE}"},
        "free-tokens-rounded": ({FREE: f"int({FREE})"}, {FREE: f"round({FREE})"}, {FREE: f"-(-{FREE} // 1)"}),
        "free-tokens-upside-down": {FREE: "2 * bandwidth / rate / bytes_per_parameter"},
    },
)


@TTFT.grader
def grade_ttft(step_seconds: Callable, tokens_for_free: Callable) -> None:
    card = (1e12, 1e14)
    cases = [(n, 8e9, 2, *card) for n in (1, 1000, 100, 50, 200, 80, 120)]
    cases += [(3, 1e9, 1, 1e12, 1e12), (1, 8e9, 1, *card), (300, 124e6, 4, 20e9, 120e9)]
    cases += [(2, 124e6, 4, 20e9, 120e9), (12, 70e9, 0.5, 3e12, 9e14)]
    TTFT.judge("step_seconds", step_seconds, cases)
    cards = [(2, *card), (4, 20e9, 120e9), (1, 3e12, 9e14), (0.5, 3e12, 9e14), (2, 3.35e12, 989e12)]
    TTFT.judge("tokens_for_free", tokens_for_free, cards)
