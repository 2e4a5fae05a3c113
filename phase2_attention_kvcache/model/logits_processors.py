"""Changes of logits that can affect even a greedy choice: allowed tokens, bad words, logit_bias, min_tokens, penalties for repeating.

Source: vllm/v1/sample/sampler.py, apply_logits_processors, for the order; vllm/v1/sample/ops/penalties.py.
"""

import math
from collections.abc import Collection, Sequence
from functools import partial

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
    """Logits [B, vocab] with these rows changed as their requests ask: a copy in float32."""
    changed = logits.float().clone()
    for i in rows:
        row, p, output = changed[i], params[i], output_ids[i]
        banned, ends, biased, bias, last_tokens = masks_of(p, eos_token_ids, logits)
        row.masked_fill_(banned, -math.inf)
        for length, found in last_tokens.items():  # of bad words, by the number of tokens before the last
            if (last := found.get(tuple(output[max(0, len(output) - length) :]))) is not None:
                row[last] = -math.inf
        row[biased] += bias
        if len(output) < p.min_tokens:
            row.masked_fill_(ends, -math.inf)
        apply_penalties(row, p, prompt_ids[i], output)
    return changed


def masks_of(p: SamplingParams, eos_token_ids: Collection[int], logits: Tensor) -> tuple:
    """The tokens that a request bans and biases, built once: a step costs the same for 1 token id and for 100,000."""
    if p.cache.get("masks of") != (key := (frozenset(eos_token_ids), logits.shape[1], logits.device)):
        ids = partial(torch.tensor, dtype=torch.long, device=logits.device)
        ends, banned = torch.zeros(2, logits.shape[1], dtype=torch.bool, device=logits.device)
        ends[ids([*eos_token_ids, *p.stop_token_ids])] = True
        if p.allowed_token_ids is not None:
            banned.fill_(True)[ids(p.allowed_token_ids)] = False
        last_tokens: dict[int, dict[tuple[int, ...], list[int]]] = {}
        for *before, last in p.bad_words_token_ids:
            last_tokens.setdefault(len(before), {}).setdefault(tuple(before), []).append(last)
        bias = ids(list((p.logit_bias or {}).values()), dtype=torch.float32)
        bad = {n: {k: ids(last) for k, last in found.items()} for n, found in last_tokens.items()}
        p.cache.update({"masks of": key, "masks": (banned, ends, ids(list(p.logit_bias or ())), bias, bad)})
    return p.cache["masks"]


def apply_penalties(row: Tensor, p: SamplingParams, prompt: Sequence[int], output: Sequence[int]) -> None:
    """Make tokens that occurred already less likely, in `row` [vocab]: in prompt and answer, or in the answer alone."""
    if p.repetition_penalty != 1 and (prompt or output):
        seen = torch.tensor([*prompt, *output], device=row.device).unique()
        logits = row[seen]
        # Dividing a negative logit would make its token likelier, so that one is multiplied.
        row[seen] = torch.where(logits > 0, logits / p.repetition_penalty, logits * p.repetition_penalty)
    if output and (p.frequency_penalty or p.presence_penalty):
        ids, counts = torch.tensor(output, device=row.device).unique(return_counts=True)
        row[ids] -= p.frequency_penalty * counts
        row[ids] -= p.presence_penalty
