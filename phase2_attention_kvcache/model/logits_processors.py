"""What can change even a greedy choice: allowed tokens, bad words, logit_bias, min_tokens, penalties for repeating.

Source: vllm/v1/sample/sampler.py, apply_logits_processors, for the order; vllm/v1/sample/ops/penalties.py.
"""

import math
from collections.abc import Collection, Sequence

import torch

from phase2_attention_kvcache.model.sampling_params import SamplingParams


def apply_logits_processors(
    logits: torch.Tensor,
    rows: Sequence[int],
    params: Sequence[SamplingParams],
    prompt_ids: Sequence[Sequence[int]],
    output_ids: Sequence[Sequence[int]],
    eos_token_ids: Collection[int],
) -> torch.Tensor:
    """A copy of logits [B, vocab] in float32, with these rows changed as their requests ask."""
    changed = logits.float().clone()
    for i in rows:
        row, p, output = changed[i], params[i], output_ids[i]
        if p.allowed_token_ids is not None:
            allowed = list(p.allowed_token_ids)
            kept = row[allowed]
            row.fill_(-math.inf)
            row[allowed] = kept
        for *before, last in p.bad_words_token_ids:
            if list(output[len(output) - len(before) :]) == before:  # one more token, and it would be there
                row[last] = -math.inf
        if p.logit_bias:
            row[list(p.logit_bias)] += torch.tensor(list(p.logit_bias.values()), device=row.device)
        if len(output) < p.min_tokens and (ends := {*eos_token_ids, *p.stop_token_ids}):
            row[list(ends)] = -math.inf
        apply_penalties(row, p, prompt_ids[i], output)
    return changed


def apply_penalties(
    row: torch.Tensor, p: SamplingParams, prompt: Sequence[int], output: Sequence[int]
) -> None:
    """Make tokens that occurred already less likely. Writes into `row` [vocab].

    The repetition penalty counts prompt and answer, the other two the answer alone: it is no fault of a
    question to hold the words of its answer.
    """
    if p.repetition_penalty != 1 and (seen := sorted({*prompt, *output})):
        logits = row[seen]
        # Dividing a negative logit would make its token likelier, so that one is multiplied.
        row[seen] = torch.where(logits > 0, logits / p.repetition_penalty, logits * p.repetition_penalty)
    if output and (p.frequency_penalty or p.presence_penalty):
        ids, counts = torch.tensor(output, device=row.device).unique(return_counts=True)
        row[ids] -= p.frequency_penalty * counts
        row[ids] -= p.presence_penalty
