"""Log probabilities of a prompt's own tokens, for requests that ask for them (`SamplingParams.prompt_logprobs`).

Changes: such a request reuses no cached block, since each of its tokens must be computed; with its first token it returns
`prompt_logprobs`, one dict a prompt token (None for the first).
Attaches to: `ModelRunner.sample`, `EngineCore.add` and `hand_out`.

Source: vllm/v1/worker/gpu_model_runner.py, _get_prompt_logprobs_dict.
"""

from collections.abc import Sequence

from torch import Tensor

from phase2_attention_kvcache.model.logprobs import report_logprobs
from phase2_attention_kvcache.model.sampling_params import SamplingParams
from phase4_scheduler.assembly import Feature
from phase4_scheduler.engine.core import EngineCore, EngineCoreOutput
from phase4_scheduler.engine.model_runner import ModelRunner, Sampled, StepBatch
from phase4_scheduler.engine.request import Request
from phase4_scheduler.engine.scheduler import Scheduled

ROWS_AT_ONCE = 256  # logits of a whole prompt would take a gigabyte with a large vocabulary


class PromptLogprobsRunner(ModelRunner):
    """Computes them. `request.extras["prompt_logprobs"]` holds them as far as the prompt is computed."""

    def sample(self, scheduled: Sequence[Scheduled], batch: StepBatch, hidden: Tensor) -> list[Sampled]:
        for s, first in zip(scheduled, batch.first_rows, strict=True):
            if "prompt_logprobs" in s.request.extras:
                self._note(s, first, hidden)
        return super().sample(scheduled, batch, hidden)

    def _note(self, s: Scheduled, first: int, hidden: Tensor) -> None:
        """Each row of a prompt predicts the prompt's next token: note how likely that was."""
        prompt = s.request.prompt_token_ids
        wanted = SamplingParams(logprobs=s.request.params.prompt_logprobs)
        num_rows = min(s.num_tokens, len(prompt) - 1 - s.num_computed)
        for start in range(0, num_rows, ROWS_AT_ONCE):
            count = min(ROWS_AT_ONCE, num_rows - start)
            logits = self.logits(hidden, range(first + start, first + start + count))
            at = s.num_computed + 1 + start  # where in the prompt the predicted tokens stand
            reports = report_logprobs(logits, [wanted] * count, prompt[at : at + count])
            s.request.extras["prompt_logprobs"][at : at + count] = reports


class PromptLogprobsCore(EngineCore):
    def add(self, request: Request) -> None:
        if request.params.prompt_logprobs is not None:
            request.skip_reading_prefix_cache = True
            request.extras["prompt_logprobs"] = [None] * request.num_prompt_tokens
        super().add(request)

    def hand_out(self, s: Scheduled, result: Sampled, token_ids: list[int]) -> EngineCoreOutput:
        output = super().hand_out(s, result, token_ids)
        if len(s.request.output_token_ids) == len(token_ids):  # its first
            output.extras["prompt_logprobs"] = s.request.extras.pop("prompt_logprobs", None)
        return output


class PromptLogprobs(Feature):
    runner, core = PromptLogprobsRunner, PromptLogprobsCore
