"""Requests that are legal and as large as they may be, beside 16 others: those get what they asked for. Prints how long they wait."""

import asyncio
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from phase4_scheduler.server.client import RunningServer, send_all
from tests.phase4_scheduler.server.test_server import running

pytestmark = pytest.mark.proof
VOCAB, ANSWERS, TOKENS, LONGER = 8192, 16, 80, 400
OTHER = {"prompt": "Once upon a time", "max_tokens": LONGER, "ignore_eos": True, "temperature": 0}
PLAIN = {
    "prompt": "The sea was",
    "n": ANSWERS,
    "max_tokens": TOKENS,
    "ignore_eos": True,
    "seed": 1,
    "stream": True,
}
ALL = list(range(VOCAB))
AT_ITS_LIMITS = {
    "every token allowed, 16 times": {"allowed_token_ids": ALL * 15},
    "a bias for every token": {"logit_bias": dict.fromkeys(map(str, ALL), 1.5)},
    "every token but one ends it, late": {"stop_token_ids": ALL[1:], "min_tokens": TOKENS, "ignore_eos": False},
    "4,096 bad words": {"bad_words": [f"{i:04x}" for i in range(4096)]},
    "4 stop strings of 200 kB": {"stop": [f"{i}" * 200_000 for i in range(4)]},
    "20 log probabilities": {"logprobs": 20},
    "everything that changes logits": {
        "repetition_penalty": 1.1, "presence_penalty": 0.5, "frequency_penalty": 0.5, "top_p": 0.9, "top_k": 4000, "min_p": 1e-6,
        "logit_bias": dict.fromkeys(map(str, ALL), 1.5), "min_tokens": TOKENS, "prompt": "word " * 700,
    },
    "a report on a prompt of 900 tokens": {"prompt": [5] * 900, "prompt_logprobs": 20, "stream": False},
    "a prompt of 1 MB, cut to fit": {"prompt": "word " * 200_000, "truncate_prompt_tokens": 900},
    "1,024 prompts": {"prompt": ["Once"] * 1024, "n": 1, "max_tokens": 2},
    "16,384 answers": {"n": 16_384, "max_tokens": 1},
    "1,500 choices": {"structured_outputs": {"choice": [f"{i} " * 40 for i in range(1500)]}, "ignore_eos": False},
    "a grammar of 1,500 rules": {
        "structured_outputs": {"grammar": "start: " + " | ".join(f"a{i}" for i in range(1500))
                               + "".join(f'\na{i}: "{i}" start' for i in range(1500))},
        "ignore_eos": False,
    },
}  # fmt: skip


def ask(address, request):
    """In a process of its own: to read and decode 20 MB would hold up the clients whose times are taken."""
    status, text = RunningServer(address, None).call("/v1/completions", request)
    return status == 200 and '"error"' not in text, text[:300]


async def beside(server, request, pool):
    """Answers to 16 requests beside this one, and when it was asked and answered."""
    others = asyncio.create_task(send_all(server.address, [OTHER] * 16))
    await asyncio.sleep(0.2)  # they run
    asked = time.perf_counter()
    good, text = await asyncio.get_running_loop().run_in_executor(pool, ask, server.address, request)
    answered = time.perf_counter()
    assert good, text
    return await others, asked, answered


@pytest.mark.timeout(900)
def test_a_legal_request_at_its_limits_costs_no_other_its_answer():
    plain, p99 = {"plain": {}, "plain, of 900 tokens": {"prompt": [5] * 900}}, {}
    pool = ProcessPoolExecutor(1, get_context("spawn"))
    with pool, running("--max-num-seqs", "32") as server:
        for name, fields in {"warm-up": {}, **plain, **AT_ITS_LIMITS}.items():
            others, asked, answered = asyncio.run(beside(server, PLAIN | fields, pool))
            assert {answer.error for answer in others} == {None}
            assert {answer.usage["completion_tokens"] for answer in others} == {LONGER}
            # While it is served: from each piece of text to the next.
            pairs = [pair for other in others for pair in zip(other.times, other.times[1:])]
            gaps = [1000 * (after - before) for before, after in pairs if asked < after and before < answered]
            p99[name] = statistics.quantiles(gaps, n=100)[98]
            times = f"{p99[name] / p99.get('plain', p99[name]):4.2f} times a plain one's"
            print(
                f"{name:<40} ITL p99 {p99[name]:6.1f} ms, {times}, at most {max(gaps):6.0f} ms, of {len(gaps):,}"
            )
