"""The way into the engine for exercises 4.4, 4.7, 4.8 and 4.11: step numbers, drafts, the rule that accepts them, a mask."""

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from exercises.judging.engine_runs import passed, same_or_stop, tales
from phase2_attention_kvcache.model import NoCache, Sampler, SamplingParams
from phase4_scheduler.engine import EngineConfig, LLMEngine
from phase4_scheduler.features.speculation.rejection_sampler import RejectionSampler
from phase4_scheduler.features.structured_output import StructuredSamplingParams
from phase4_scheduler.features.structured_output.grammar import GrammarCompiler, RequestGrammar
from phase4_scheduler.simulator import Job, serve_continuously, serve_statically


def predict_the_engine(static: Callable, continuous: Callable) -> None:
    """Exercise 4.4: the learner's step numbers beside the engine's."""
    passed("p4e4_static_continuous", static, continuous)
    lengths, max_num_seqs = [20, 3, 28, 9, 14, 5, 22], 3
    predicted = {
        "static": static(list(lengths), max_num_seqs),
        "continuous": continuous(list(lengths), max_num_seqs),
    }
    model, tokenizer = tales()
    engine = LLMEngine(model, tokenizer, EngineConfig(max_num_seqs=max_num_seqs, num_blocks=100))
    jobs = [Job(str(i), [100 + i], length) for i, length in enumerate(lengths)]
    served = {
        "static": serve_statically(engine, jobs, max_num_seqs, pad=False),
        "continuous": serve_continuously(engine, jobs),
    }
    print(f"max_num_seqs {max_num_seqs}, answers of {lengths} tokens")
    for way, run in served.items():
        measured = [run.done_step[job.name] for job in jobs]
        same_or_stop(
            predicted[way], measured, f"{way}: the engine hands answers out in other steps than you say"
        )
        print(f"{way:>10}: {measured}, as you said; {run.steps} steps in all")
    same = served["static"].token_ids == served["continuous"].token_ids
    print("The answers are the same in both ways." if same else "The answers differ!")


def copied_drafts_in_the_engine(propose: Callable) -> None:
    """Exercise 4.7: the learner's drafts in the engine, beside none."""
    passed("p4e7_copied_drafts", propose)
    model, tokenizer = tales()
    prompts = ["The king said no. The queen said yes. The king said", "one two three one two three one two"]
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)

    class Yours:
        def propose(self, token_ids: list[int], num_drafts: int) -> list[int]:
            return propose(list(token_ids), 1, 3, num_drafts)

    plain = LLMEngine(model, tokenizer, EngineConfig(num_blocks=100))
    config = dict(method="custom", num_speculative_tokens=4)
    drafted = LLMEngine(
        model, tokenizer, EngineConfig(num_blocks=100), speculative_config=config, proposer=Yours()
    )
    wanted, got = plain.generate(prompts, params), drafted.generate(prompts, params)
    for prompt, ours, theirs in zip(prompts, got, wanted, strict=True):
        same_or_stop(ours.token_ids, theirs.token_ids, says="with your drafts the engine writes other tokens")
        print(f"{prompt}{ours.text}")
    stats = drafted.core.spec_decoding_stats
    print(f"The same words in {drafted.core.num_steps} steps instead of {plain.core.num_steps}: {stats.num_accepted_tokens} of "
          f"{stats.num_draft_tokens} drafts were accepted.")  # fmt: skip


def verified_drafts_in_the_engine(verify: Callable) -> None:
    """Exercise 4.8: the learner's function accepts drafts; count the second token of many answers."""
    passed("p4e8_verified_drafts", verify)
    model, tokenizer = tales()

    class Yours(RejectionSampler):
        def verify(
            self, p: Tensor, q: Tensor, drafts: Sequence[int], generator: torch.Generator
        ) -> list[int]:
            points = torch.rand(len(drafts) + 1, dtype=torch.float64, generator=generator).tolist()
            return [int(token) for token in verify(p.tolist(), q.tolist(), list(drafts), points)]

    speculation = dict(model="tales-draft", num_speculative_tokens=2, draft_sample_method="probabilistic")
    config = EngineConfig(num_blocks=400, max_num_seqs=16)
    engine = LLMEngine(model, tokenizer, config, speculative_config=speculation)
    engine.core.runner.rejection_sampler = Yours
    prompt, number = tokenizer.encode("Once upon a"), 600
    # The first token is sampled when the prompt is computed, without a draft. The second token is drafted.
    params = SamplingParams(max_tokens=2 + speculation["num_speculative_tokens"], top_k=5, ignore_eos=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sixteen at a time
        answers = [output.token_ids for output in engine.generate([prompt] * number, params)]
    first = Counter(answer[0] for answer in answers).most_common(1)[0][0]
    seconds = Counter(answer[1] for answer in answers if answer[0] == first)
    hidden = model(torch.tensor([*prompt, first]), torch.arange(len(prompt) + 1), NoCache())
    exact = Sampler().probabilities(model.logits(hidden[-1:]), [params])[0]
    total = seconds.total()
    print(f"Behind {tokenizer.decode([*prompt, first])!r}, {total} answers:")
    for token, probability in sorted(enumerate(exact.tolist()), key=lambda pair: -pair[1])[:5]:
        print(
            f"{tokenizer.decode([token])!r:>12}: {seconds[token] / total:.1%}, the model alone {probability:.1%}"
        )
    off = max(abs(seconds[token] / total - p) for token, p in enumerate(exact.tolist()))
    # Five standard deviations: never by chance.
    same_or_stop(off < 5 * (0.25 / total) ** 0.5, True, "the shares are not those of the model")


DIGITS = "0123456789"
# Hours 0 to 23, a colon, minutes 00 to 59.
MOVES = {
    0: dict.fromkeys("01", 1) | {"2": 2} | dict.fromkeys(DIGITS[3:], 3),
    1: dict.fromkeys(DIGITS, 3) | {":": 4},
    2: dict.fromkeys(DIGITS[:4], 3) | {":": 4},
    3: {":": 4},
    4: dict.fromkeys(DIGITS[:6], 5),
    5: dict.fromkeys(DIGITS, 6),
    6: {},
}
TIME = "([01]?[0-9]|2[0-3]):[0-5][0-9]"


def mask_in_the_engine(mask: Callable) -> None:
    """Exercise 4.11: answers under the learner's mask, beside those under the engine's."""
    passed("p4e11_mask", mask)
    model, tokenizer = tales()
    end, special = max(model.config.eos_token_ids), set(tokenizer.special_tokens.values())
    # A character for each byte: those of other scripts have no moves.
    texts = ["" if i in special else t.decode("latin-1") for i, t in enumerate(tokenizer.token_bytes)]

    def read(answer: RequestGrammar, token_ids: Sequence[int], *_: Any) -> None:
        answer.state = 0
        for character in "".join(texts[token] for token in token_ids):
            answer.state = MOVES[answer.state][character]

    def allowed(_: Any, asked: Sequence[tuple[RequestGrammar, Sequence[int]]]) -> np.ndarray:
        masks = [mask(MOVES, {6}, answer.state, texts, end) for answer, _ in asked]
        return np.packbits(masks, axis=1, bitorder="little")

    def answers() -> list[list[int]]:
        engine = LLMEngine(model, tokenizer, EngineConfig(num_blocks=100), structured_tokenizer=tokenizer)
        wanted = {"regex": TIME}
        params = [StructuredSamplingParams(seed=i, max_tokens=8, structured_outputs=wanted) for i in range(6)]
        return [output.token_ids for output in engine.generate(["They will meet at"] * 6, params)]

    course = answers()
    with patch.object(RequestGrammar, "read", read), patch.object(GrammarCompiler, "allowed", allowed):
        yours = answers()
    for one, other in zip(yours, course, strict=True):
        same_or_stop(one, other, says="under your mask other tokens came out")
    print(
        "They will meet at:", ", ".join(tokenizer.decode(ids).removesuffix("<|endoftext|>") for ids in yours)
    )
