"""From logits to a token: the most probable one, or a random sample.

Penalties and everything else that can change a greedy choice are in `logits_processors.py`; temperature, min-p, top-k and top-p in
`truncation.py`.

Source: vllm/v1/sample/sampler.py for the order in which they apply.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from phase2_attention_kvcache.model.logits_processors import apply_logits_processors
from phase2_attention_kvcache.model.logprobs import report_logprobs
from phase2_attention_kvcache.model.sampling_params import SamplingParams
from phase2_attention_kvcache.model.truncation import to_probs

BROKEN, BANNED, INFINITE = -1, -2, -3
MISTAKES = {
    BROKEN: "NaN, infinity or nothing allowed; the model's numbers broke down",
    BANNED: "every token that is left is banned: allow another one",
    INFINITE: "penalties made them infinite: choose smaller ones",
}
Generator = torch.Generator | float | None  # a number that was drawn already; None: the common generator


class BadLogitsError(ValueError):
    """Logits from which no token can be sampled. `rows` lists their rows: an engine can drop these requests and continue."""

    def __init__(self, rows: list[int], reason: str) -> None:
        self.rows = rows
        many = f"rows {', '.join(map(str, rows))}" if len(rows) > 1 else f"row {rows[0]}"
        super().__init__(f"{many} of the logits: {reason}")


@dataclass(frozen=True)
class SampledTokens:
    """One token for each row, and log probabilities where they were asked for.

    `logprobs[i]` maps a token id to the natural logarithm of its probability: the chosen token first, then the
    most probable ones. They are computed from the model's own logits, before any parameter applies.
    """

    token_ids: list[int]
    logprobs: list[dict[int, float] | None]


class Sampler:
    """Picks the next token of each request of a step.

    Args:
        eos_token_id: the model's end-of-text token(s), banned until a request has its `min_tokens`.
        generator: the random generator for requests without a seed; None: torch's default generator.

    Order, as in vLLM: log probabilities to report; logit_bias and min_tokens; repetition, frequency and
    presence penalties; then greedy rows are done. For the others: temperature, min_p, top_k, top_p, draw.
    """

    def __init__(
        self, eos_token_id: int | Collection[int] | None = None, generator: Generator = None
    ) -> None:
        self.generator = generator
        self.eos_token_ids = {eos_token_id} if isinstance(eos_token_id, int) else set(eos_token_id or ())

    def sample(
        self,
        logits: torch.Tensor,
        params: Sequence[SamplingParams],
        prompt_ids: Sequence[Sequence[int]],
        output_ids: Sequence[Sequence[int]],
        generators: Sequence[Generator],
    ) -> SampledTokens:
        """Pick one token for each row.

        Args:
            logits: [B, vocab], one row per request; not changed. A token with minus infinity is never chosen.
            params: how to pick, for each row.
            prompt_ids, output_ids: tokens of the prompt, and of the answer so far.
            generators: `params.make_generator()` for a request with a seed, kept from step to step; None: the
                common generator. A row with its own generator is drawn independently of all others.

        Raises:
            BadLogitsError: a row holds NaN or plus infinity, or bans every token. No random number has been drawn
                yet, so the other rows can be sampled again without this row.
            ValueError: the lists do not fit the rows, or `params` name a token outside the vocabulary.
        """
        _check_rows(logits, params, prompt_ids, output_ids, generators)
        changed, _, token_ids = self._process(logits, params, prompt_ids, output_ids)
        if drawn := [i for i, p in enumerate(params) if not p.greedy]:
            rows = changed if len(drawn) == len(params) else changed[drawn]
            probs = to_probs(rows, [params[i] for i in drawn])
            tokens = draw(probs, [generators[i] for i in drawn], self.generator)
            for i, token in zip(drawn, tokens.tolist(), strict=True):
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
        changed, likeliest, _ = self._process(logits, params, prompts, outputs)
        probs = to_probs(changed, params)
        if greedy := [i for i, p in enumerate(params) if p.greedy]:
            probs[greedy] = F.one_hot(likeliest[greedy], logits.shape[1]).to(probs.dtype)
        return probs

    def _process(
        self,
        logits: torch.Tensor,
        params: Sequence[SamplingParams],
        prompt_ids: Sequence[Sequence[int]],
        output_ids: Sequence[Sequence[int]],
    ) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
        """The logits after `logits_processors.py`, and the most probable token of each row, on the device and here.

        Refuses broken rows. The device returns an error code in place of their token, so that the host waits only once.
        """
        best, likeliest = logits.max(-1)  # the largest of a row with a NaN is NaN
        broken = ~torch.isfinite(best)
        changed, found = logits, likeliest
        if rows := [i for i, p in enumerate(params) if p.changes_logits(len(output_ids[i]))]:
            changed = apply_logits_processors(
                logits, rows, params, prompt_ids, output_ids, self.eos_token_ids
            )
            best, likeliest = changed.max(-1)
            found = likeliest.masked_fill(~torch.isfinite(best), INFINITE)
            found = found.masked_fill(best == -math.inf, BANNED)
        token_ids = found.masked_fill(broken, BROKEN).tolist()
        for mistake, reason in MISTAKES.items():
            if rows := [i for i, token in enumerate(token_ids) if token == mistake]:
                raise BadLogitsError(rows, reason)
        return changed, likeliest, token_ids


def _check_rows(logits: torch.Tensor, params: Sequence[SamplingParams], *lists_of_rows: Sequence) -> None:
    """Raise a ValueError unless there is one of each for every row, and every token named is in the vocabulary."""
    if logits.dim() != 2:
        raise ValueError(f"logits are {list(logits.shape)}: [requests, vocabulary] is needed")
    for name, items in zip(("params", "prompt_ids", "output_ids", "generators"), (params, *lists_of_rows)):
        if len(items) != len(logits):
            raise ValueError(f"{len(items)} {name} for {len(logits)} rows of logits: one for each is needed")
    for p in params:
        p.check_vocabulary(logits.shape[1])


def draw(probs: torch.Tensor, generators: Sequence[Generator], common: Generator = None) -> torch.Tensor:
    """Draw one token from each row of `probs` [B, vocab]: a tensor [B] on its device.

    Lay the tokens side by side on a line of length 1, each as wide as its probability, and pick one point. A row takes
    one random number from its own generator, so its token does not depend on other rows, the device or the vocabulary's size.
    """
    ends = probs.cumsum(-1, dtype=torch.float64)  # where each token's piece of the line ends
    # The line is 1 long, but for rounding. A piece of width 0 never is the first that ends behind the point.
    at = draw_points(generators, common)[:, None].to(probs.device) * ends[:, -1:]
    return torch.searchsorted(ends, at, right=True).flatten()


def draw_points(generators: Sequence[Generator], common: Generator = None) -> torch.Tensor:
    """A random number for each row, from 0 to 1: float64 [B]."""
    points = torch.rand(len(generators), dtype=torch.float64, generator=common)
    for i, g in enumerate(generators):
        if g is not None:
            given = isinstance(g, float)
            points[i] = g if given else torch.rand(1, dtype=torch.float64, generator=g, device=g.device)
    return points
