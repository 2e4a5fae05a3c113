"""From logits to a token: temperature, min-p, top-k, top-p, and a draw.

What can change even a greedy choice (penalties and the like) is in `logits_processors.py`.

Source: vllm/v1/sample/sampler.py for the order in which they apply.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from phase2_attention_kvcache.model.logits_processors import apply_logits_processors
from phase2_attention_kvcache.model.logprobs import report_logprobs
from phase2_attention_kvcache.model.sampling_params import SamplingParams

LOWEST_TEMPERATURE = 0.01  # a smaller one is raised to this, as in vLLM: dividing by less overflows
SURE_HEAD = 256  # top_p looks at this many of the likeliest tokens before it sorts a whole vocabulary


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
        best, likeliest = logits.max(dim=-1)  # the largest of a row with a NaN is NaN
        _refuse(~torch.isfinite(best), "NaN, infinity or nothing allowed; the model's numbers broke down")

        changed = logits
        if asking := [i for i, p in enumerate(params) if _changes_logits(p, len(output_ids[i]))]:
            changed = apply_logits_processors(
                logits, asking, params, prompt_ids, output_ids, self.eos_token_ids
            )
            best, likeliest = changed.max(dim=-1)
            _refuse(best == -math.inf, "min_tokens bans every token that is left: allow another one")
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
        """The probabilities [B, vocab] from which `sample` would draw. A greedy row holds a single 1."""
        prompts, outputs = (ids or [[] for _ in params] for ids in (prompt_ids, output_ids))
        _check_rows(logits, params, prompts, outputs, params)
        rows = range(len(params))
        changed = apply_logits_processors(logits, rows, params, prompts, outputs, self.eos_token_ids)
        one_hot = torch.zeros_like(changed).scatter_(1, changed.argmax(-1, keepdim=True), 1.0)
        greedy = torch.tensor([p.greedy for p in params], device=logits.device)
        return torch.where(greedy[:, None], one_hot, to_probs(changed, params))


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
        if p.logit_bias or p.stop_token_ids:
            p.check_vocabulary(logits.shape[1])


def _changes_logits(p: SamplingParams, num_output: int) -> bool:
    penalised = p.repetition_penalty != 1 or p.frequency_penalty != 0 or p.presence_penalty != 0
    return penalised or bool(p.logit_bias) or num_output < p.min_tokens


def _refuse(bad: torch.Tensor, reason: str) -> None:
    if bad.any():
        raise BadLogitsError(bad.nonzero().flatten().tolist(), reason)


def to_probs(logits: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    """Temperature, min_p, top_k, top_p: logits [B, vocab] -> probabilities [B, vocab].

    Tokens exactly as likely as the last one kept are kept as well, in top_k (as in vLLM) and in top_p: so the
    outcome never depends on the order of equals, and 16-bit logits have many equals.
    """

    def column(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, device=logits.device)[:, None]

    logits = logits / column([1.0 if p.greedy else max(p.temperature, LOWEST_TEMPERATURE) for p in params])
    if any(p.min_p > 0 for p in params):
        # p_token < min_p x p_best is the same as logit < best logit + log(min_p).
        below = column([math.log(p.min_p) if p.min_p > 0 else -math.inf for p in params])
        logits = logits.masked_fill(logits < logits.amax(-1, keepdim=True) + below, -math.inf)
    vocab = logits.shape[1]
    ks = [p.top_k if 0 < p.top_k < vocab else vocab for p in params]
    if largest := max((k for k in ks if k < vocab), default=0):
        kth = logits.topk(largest, dim=-1).values.gather(1, column(ks).clamp(max=largest) - 1)
        kth = kth.masked_fill(column(ks) == vocab, -math.inf)
        logits = logits.masked_fill(logits < kth, -math.inf)
    probs = logits.softmax(-1)
    if rows := [i for i, p in enumerate(params) if p.top_p < 1]:
        kept = apply_top_p(probs[rows], column([p.top_p for p in params])[rows])
        probs[rows] = kept / kept.sum(-1, keepdim=True)
    return probs


def apply_top_p(probs: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Set all but the likeliest tokens that reach `top_p` [B, 1] to 0. The rest is not made to add up to 1."""
    # Sorting a whole vocabulary is the slowest part of a sampler, and few tokens are mostly enough. So look
    # at a few hundred of the likeliest, and sort everything only for the rows where these do not reach top_p.
    head = probs.topk(min(SURE_HEAD, probs.shape[1]), dim=-1).values
    lowest = _lowest_kept(head, top_p)
    if flat := (head.sum(-1) < top_p[:, 0]).nonzero().flatten().tolist():
        lowest[flat] = _lowest_kept(probs[flat].sort(dim=-1, descending=True).values, top_p[flat])
    return probs.masked_fill(probs < lowest, 0.0)


def _lowest_kept(descending: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """The probability [B, 1] of the token with which sorted probabilities [B, n] reach `top_p` [B, 1]."""
    before = descending.cumsum(-1) - descending  # what the likelier ones hold together
    last = (before < top_p).sum(-1, keepdim=True) - 1
    return descending.gather(1, last)


def draw(probs: torch.Tensor, generators: Sequence[torch.Generator | None]) -> list[int]:
    """Draw one token from each row of `probs` [B, vocab].

    Lay the tokens side by side on a line of length 1, each as wide as it is likely, and throw one dart. A row
    takes exactly one random number, from its own generator: what it gets cannot depend on its neighbours, on
    the size of the vocabulary or on the device.
    """
    darts = torch.rand(len(probs), dtype=torch.float64)
    for i, generator in enumerate(generators):
        if generator is not None:
            darts[i] = torch.rand(1, dtype=torch.float64, generator=generator, device=generator.device)
    ends = probs.double().cumsum(-1)  # where each token's piece of the line ends
    hits = darts[:, None].to(probs.device) * ends[:, -1:]  # the line is 1 long, but for rounding
    # The first piece that ends behind the dart. A piece of width 0 never does.
    return torch.searchsorted(ends, hits, right=True).flatten().tolist()
