"""Debugging lab 4b: a kernel that fills a copy, memory with old data, and the symptom in the engine."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import cycle, groupby, islice

import torch
from torch import Tensor

from exercises.judging.engine_runs import passed, same_or_stop, tales
from exercises.judging.sources import handed_out
from phase2_attention_kvcache.model import SampledTokens, Sampler, SamplingParams
from phase4_scheduler.engine import EngineConfig, LLMEngine

NAME = "p4d2_temperature_from_nowhere"
# The old data in the memory: token ids and positions of another step.
LEFT_BEHIND = (812, 37, 1904, 5, 260, 77, 431)


def used_memory(size: int, dtype: torch.dtype) -> Tensor:
    """Return [size] uninitialised numbers: the old data of this memory."""
    return torch.tensor(list(islice(cycle(LEFT_BEHIND), size)), dtype=dtype)


def expand_kernel(
    output: Tensor, values: Tensor, cu_num_tokens: Tensor, replace_from: int, replace_to: int
) -> None:
    """Write each request's value into its rows of `output`. As the kernel in C++: of int64 only, and it returns nothing.

    Args:
        output: [num_tokens]. values, cu_num_tokens: [batch_size].
    """
    for tensor in (output, values, cu_num_tokens):
        if tensor.dtype != torch.int64:
            raise TypeError(f"expand_kernel reads int64 only, not {tensor.dtype}")
    start = 0
    for value, end in zip(values.tolist(), cu_num_tokens.tolist(), strict=True):
        output[start:end] = replace_to if value == replace_from else value
        start = end


class LabSampler(Sampler):
    """The course's sampler. In a step that verifies drafts, the learner's function returns the temperature of each row."""

    def __init__(self, eos_token_ids: Sequence[int], expand: Callable) -> None:
        super().__init__(eos_token_ids)
        self._expand = expand

    def sample(self, logits, params, prompt_ids, output_ids, generators) -> SampledTokens:
        rows = [len(list(group)) for _, group in groupby(map(id, prompt_ids))]  # of each request
        if len(rows) < len(params):
            firsts = [sum(rows[:i]) for i in range(len(rows))]
            temperatures = torch.tensor([params[i].temperature for i in firsts])
            by_row = self._expand(temperatures, torch.tensor(rows).cumsum(0), 0, 1)
            logits = logits / by_row[:, None]
            params = [p if p.greedy else replace(p, temperature=1.0) for p in params]
        return super().sample(logits, params, prompt_ids, output_ids, generators)


# ---------------------------------------------------------------------- the symptom

PROMPTS = {
    "The king said no. The queen said no. The king said": SamplingParams(temperature=0.0, max_tokens=20),
    "Once upon a time there was a king. Once upon a time": SamplingParams(temperature=0.6, seed=3, max_tokens=20),
    "The old woman went to the door. The old woman went": SamplingParams(temperature=0.8, seed=5, max_tokens=20),
}  # fmt: skip


def serve(expand: Callable | None) -> list[str]:
    """Return the answers with drafts copied from the text, and with this function. None: without drafts."""
    model, tokenizer = tales()
    drafts = dict(method="ngram", num_speculative_tokens=3, prompt_lookup_min=1, prompt_lookup_max=3)
    engine = LLMEngine(
        model, tokenizer, EngineConfig(num_blocks=100), speculative_config=drafts if expand else None
    )
    if expand:
        engine.core.runner.sampler = LabSampler(model.config.eos_token_ids, expand)
    return [output.text for output in engine.generate(list(PROMPTS), list(PROMPTS.values()))]


def show_symptom() -> None:
    """Print three answers without drafts, and with drafts and the planted bug."""
    buggy = handed_out(NAME, "expand_batch_to_tokens")
    for (prompt, params), well, ill in zip(PROMPTS.items(), serve(None), serve(buggy), strict=True):
        print(f"{prompt} ... (temperature {params.temperature})")
        print(f"  without drafts: {well!r}")
        print(f"  with drafts:    {ill!r}")


def repair_in_the_engine(expand: Callable, colleague: Sequence[float]) -> None:
    """The same, with the learner's repair: with a seed, drafts change no word."""
    passed(NAME, expand, colleague)
    mine, without = serve(expand), serve(None)
    same_or_stop(mine, without, "with your repair an answer still depends on whether there are drafts")
    for prompt, answer in zip(PROMPTS, mine, strict=True):
        print(f"{prompt}{answer}")
    print("\nEvery answer equals the answer without drafts, word for word.")
