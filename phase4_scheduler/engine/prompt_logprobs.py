"""Log probabilities of a prompt's own tokens, for requests that ask for them (`prompt_logprobs`)."""

from collections.abc import Callable, Sequence

from torch import Tensor

from phase2_attention_kvcache.model.logprobs import report_logprobs
from phase2_attention_kvcache.model.sampling_params import SamplingParams
from phase4_scheduler.engine.output_processor import RequestState, StepResult
from phase4_scheduler.engine.scheduler import Scheduled

ROWS_AT_ONCE = 256  # logits of a whole prompt would take a gigabyte with a large vocabulary


def note_prompt_logprobs(
    logits_of: Callable[[Tensor, Sequence[int]], Tensor], step: StepResult, s: Scheduled, state: RequestState
) -> None:
    """Each row of a prompt predicts the prompt's next token; note how likely it was.

    Args:
        logits_of: hidden states and rows to logits, as `ModelRunner.logits`.
    """
    parent = state.parent
    prompt, wanted = parent.prompt_token_ids, SamplingParams(logprobs=parent.params.prompt_logprobs)
    first_row = step.first_row[s.request.request_id]
    num_rows = min(s.num_tokens, len(prompt) - 1 - s.num_computed)
    try:
        for start in range(0, num_rows, ROWS_AT_ONCE):
            count = min(ROWS_AT_ONCE, num_rows - start)
            rows = range(first_row + start, first_row + start + count)
            at = s.num_computed + 1 + start  # where in the prompt the predicted tokens stand
            logits = logits_of(step.hidden, rows)
            parent.prompt_logprobs[at : at + count] = report_logprobs(
                logits, [wanted] * count, prompt[at : at + count]
            )
    except Exception as error:
        step.faults.append((s.request, f"{type(error).__name__}: {error}"))
