"""Changes of logits that can affect even a greedy choice: allowed tokens, bad words, logit_bias, min_tokens, penalties for repeating.

Source: vllm/v1/sample/sampler.py, apply_logits_processors, for the order; vllm/v1/sample/ops/penalties.py.
"""

import math
from collections.abc import Collection, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from phase2_attention_kvcache.model.sampling_params import SamplingParams


def apply_logits_processors(
    logits: Tensor,
    rows: Sequence[int],
    params: Sequence[SamplingParams],
    prompt_ids: Sequence[Sequence[int]],
    output_ids: Sequence[Sequence[int]],
    eos_token_ids: Collection[int],
) -> Tensor:
    """A float32 copy of the logits [B, vocab], in which these rows are changed as their requests ask."""
    changed = logits.float().clone()
    for i in rows:
        row, p, output = changed[i], params[i], output_ids[i]
        always, early, last_tokens = shifts_of(p, eos_token_ids, logits)
        row += early if len(output) < p.min_tokens else always
        for length, found in last_tokens.items():  # of bad words, by the number of tokens before the last
            if (last := found.get(tuple(output[max(0, len(output) - length) :]))) is not None:
                row[last] = -math.inf
        apply_penalties(row, p, prompt_ids[i], output)
    return changed


def shifts_of(p: SamplingParams, eos_token_ids: Collection[int], logits: Tensor) -> tuple:
    """The numbers added to a request's logits [vocab], always and before `min_tokens`, and the last tokens of its bad words. Built once."""
    if p.cache.get("shifts of") != (key := (frozenset(eos_token_ids), logits.shape[1], logits.device)):
        ids = partial(torch.tensor, dtype=torch.long, device=logits.device)
        always, early = torch.zeros(2, 1, device=logits.device)
        if p.allowed_token_ids is not None or p.logit_bias or p.min_tokens:
            always, early = torch.zeros(2, logits.shape[1], device=logits.device)
            if p.allowed_token_ids is not None:
                always.fill_(-math.inf)[ids(p.allowed_token_ids)] = 0
            bias = p.logit_bias or {}
            always[ids(list(bias))] += ids(list(bias.values()), dtype=torch.float32)
            early.copy_(always)[ids([*eos_token_ids, *p.stop_token_ids])] = -math.inf
        last_tokens: dict[int, dict[tuple[int, ...], list[int]]] = {}
        for *before, last in p.bad_words_token_ids:
            last_tokens.setdefault(len(before), {}).setdefault(tuple(before), []).append(last)
        bad = {n: {k: ids(last) for k, last in found.items()} for n, found in last_tokens.items()}
        p.cache.update({"shifts of": key, "shifts": (always, early, bad)})
    return p.cache["shifts"]


def apply_penalties(row: Tensor, p: SamplingParams, prompt: Sequence[int], output: Sequence[int]) -> None:
    """Lower the logits in `row` [vocab] of tokens that have occurred in prompt and answer, or in the answer alone."""
    if p.repetition_penalty != 1 and (prompt or output):
        # Through numpy: torch takes five times as long for a list of a thousand.
        seen = torch.from_numpy(np.array([*prompt, *output])).to(row.device)
        logits = row[seen]
        # Dividing a negative logit would make its token likelier, so that one is multiplied.
        row[seen] = torch.where(logits > 0, logits / p.repetition_penalty, logits * p.repetition_penalty)
    if output and (p.frequency_penalty or p.presence_penalty):
        ids, counts = torch.from_numpy(np.array(output)).to(row.device).unique(return_counts=True)
        row[ids] -= p.frequency_penalty * counts
        row[ids] -= p.presence_penalty
