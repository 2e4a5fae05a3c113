"""From logits to a token: the likeliest one, or a draw.

What can change even a greedy choice (penalties and the like) is in `logits_processors.py`; temperature, min-p,
top-k and top-p are in `truncation.py`.

Source: vllm/v1/sample/sampler.py for the order in which they apply.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from phase2_attention_kvcache.model.logits_processors import apply_logits_processors
from phase2_attention_kvcache.model.logprobs import report_logprobs
from phase2_attention_kvcache.model.sampling_params import SamplingParams
from phase2_attention_kvcache.model.truncation import to_probs


class BadLogitsError(ValueError):
    """Logits from which nothing can be drawn. `rows` says whose: an engine can drop these and go on."""

    def __init__(self, rows: list[int], reason: str) -> None:
        self.rows = rows
        many = f"rows {', '.join(map(str, rows))}" if len(rows) > 1 else f"row {rows[0]}"
        super().__init__(f"{many} of the logits: {reason}")


@dataclass(frozen=True)
class SampledTokens:
    """One token for each row, and log probabilities where they were asked for.

    `logprobs[i]` maps token id to natural logarithm of its probability: the token picked first, then the
    likeliest ones. They come from the model's own logits, before any knob.
    """

    token_ids: list[int]
    logprobs: list[dict[int, float] | None]


class Sampler:
    """Picks the next token of each request of a step.

    Args:
        eos_token_id: the model's end-of-text token(s), banned until a request has its `min_tokens`.

    Order, as in vLLM: log probabilities to report; logit_bias and min_tokens; repetition, frequency and
    presence penalties; then greedy rows are done. For the others: temperature, min_p, top_k, top_p, draw.
    """

    def __init__(self, eos_token_id: int | Collection[int] | None = None) -> None:
        self.eos_token_ids = {eos_token_id} if isinstance(eos_token_id, int) else set(eos_token_id or ())

    def sample(
        self,
        logits: torch.Tensor,
        params: Sequence[SamplingParams],
        prompt_ids: Sequence[Sequence[int]],
        output_ids: Sequence[Sequence[int]],
        generators: Sequence[torch.Generator | None],
    ) -> SampledTokens:
        """Pick one token for each row.

        Args:
            logits: [B, vocab], one row a request. Not changed. Minus infinity means: never.
            params: how to pick, for each row.
            prompt_ids, output_ids: tokens of the prompt, and of the answer so far.
            generators: `params.make_generator()` for a request with a seed, kept from step to step; None: the
                common source of chance. A row with its own generator is drawn independently of all others.

        Raises:
            BadLogitsError: a row holds NaN or plus infinity, or bans every token. No generator has moved yet,
                so the other rows can be sampled again without it.
            ValueError: the lists do not fit the rows, or `params` name a token outside the vocabulary.
        """
        _check_rows(logits, params, prompt_ids, output_ids, generators)
        likeliest = _refuse_broken(logits)
        changed = logits
        if asking := [i for i, p in enumerate(params) if _changes_logits(p, len(output_ids[i]))]:
            changed = apply_logits_processors(
                logits, asking, params, prompt_ids, output_ids, self.eos_token_ids
            )
            likeliest = _refuse_changed(changed)
        token_ids = likeliest.tolist()

        if drawn := [i for i, p in enumerate(params) if not p.greedy]:
            rows = changed if len(drawn) == len(params) else changed[drawn]
            probs = to_probs(rows.float(), [params[i] for i in drawn])
            for i, token in zip(drawn, draw(probs, [generators[i] for i in drawn]), strict=True):
                token_ids[i] = token
        logprobs: list[dict[int, float] | None] = [None] * len(params)
        if any(p.logprobs is not None for p in params):
            logprobs = report_logprobs(logits, params, token_ids)
        return SampledTokens(token_ids, logprobs)

    def probabilities(
        self,
        logits: torch.Tensor,
        params: Sequence[SamplingParams],
        prompt_ids: Sequence[Sequence[int]] | None = None,
        output_ids: Sequence[Sequence[int]] | None = None,
    ) -> torch.Tensor:
        """The probabilities [B, vocab] from which `sample` would draw. A greedy row holds a single 1.

        Raises:
            BadLogitsError, ValueError: as `sample`.
        """
        prompts, outputs = (ids or [[] for _ in params] for ids in (prompt_ids, output_ids))
        _check_rows(logits, params, prompts, outputs, params)
        _refuse_broken(logits)
        changed = logits.float()
        if asking := [i for i, p in enumerate(params) if _changes_logits(p, len(outputs[i]))]:
            changed = apply_logits_processors(logits, asking, params, prompts, outputs, self.eos_token_ids)
            _refuse_changed(changed)
        probs = to_probs(changed, params)
        if greedy := [i for i, p in enumerate(params) if p.greedy]:
            probs[greedy] = torch.zeros_like(probs[greedy]).scatter_(
                1, changed[greedy].argmax(-1, keepdim=True), 1.0
            )
        return probs


def _check_rows(
    logits: torch.Tensor,
    params: Sequence[SamplingParams],
    prompt_ids: Sequence,
    output_ids: Sequence,
    generators: Sequence,
) -> None:
    """Raise a ValueError unless there is one of each for every row, and every token named is in the vocabulary."""
    if logits.dim() != 2:
        raise ValueError(f"logits are {list(logits.shape)}: [requests, vocabulary] is needed")
    lists = dict(params=params, prompt_ids=prompt_ids, output_ids=output_ids, generators=generators)
    for name, items in lists.items():
        if len(items) != len(logits):
            raise ValueError(f"{len(items)} {name} for {len(logits)} rows of logits: one for each is needed")
    for p in params:
        if p.logit_bias or p.stop_token_ids or p.allowed_token_ids:
            p.check_vocabulary(logits.shape[1])


def _changes_logits(p: SamplingParams, num_output: int) -> bool:
    penalised = p.repetition_penalty != 1 or p.frequency_penalty != 0 or p.presence_penalty != 0
    banned = p.allowed_token_ids is not None or bool(p.bad_words_token_ids)
    return penalised or banned or bool(p.logit_bias) or num_output < p.min_tokens


def _refuse_broken(logits: torch.Tensor) -> torch.Tensor:
    """Look at the rows as the model gave them. Returns the likeliest token of each."""
    best, likeliest = logits.max(dim=-1)  # the largest of a row with a NaN is NaN
    _refuse(~torch.isfinite(best), "NaN, infinity or nothing allowed; the model's numbers broke down")
    return likeliest


def _refuse_changed(changed: torch.Tensor) -> torch.Tensor:
    """Look at the rows again, after bans and penalties. Returns the likeliest token of each."""
    best, likeliest = changed.max(dim=-1)
    _refuse(best == -math.inf, "every token that is left is banned: allow another one")
    _refuse(~torch.isfinite(best), "penalties made them infinite: choose smaller ones")
    return likeliest


def _refuse(bad: torch.Tensor, reason: str) -> None:
    if bad.any():
        raise BadLogitsError(bad.nonzero().flatten().tolist(), reason)


def draw(probs: torch.Tensor, generators: Sequence[torch.Generator | None]) -> list[int]:
    """Draw one token from each row of `probs` [B, vocab].

    Lay the tokens side by side on a line of length 1, each as wide as it is likely, and pick one point. A row
    takes exactly one random number, from its own generator: what it gets cannot depend on its neighbours, on
    the size of the vocabulary or on the device.
    """
    points = torch.rand(len(probs), dtype=torch.float64)
    for i, generator in enumerate(generators):
        if generator is not None:
            points[i] = torch.rand(1, dtype=torch.float64, generator=generator, device=generator.device)
    ends = probs.double().cumsum(-1)  # where each token's piece of the line ends
    at = points[:, None].to(probs.device) * ends[:, -1:]  # the line is 1 long, but for rounding
    # The first piece that ends behind the point. A piece of width 0 never does.
    return torch.searchsorted(ends, at, right=True).flatten().tolist()
