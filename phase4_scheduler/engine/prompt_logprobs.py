"""Log probabilities of a prompt's own tokens, for requests that ask for them (`prompt_logprobs`)."""

from collections.abc import Callable, Sequence

from torch import Tensor

from phase2_attention_kvcache.model.logprobs import report_logprobs
from phase2_attention_kvcache.model.sampling_params import SamplingParams
from phase4_scheduler.engine.fault_isolation import Fault, reason
from phase4_scheduler.engine.scheduler_output import Scheduled

ROWS_AT_ONCE = 256  # logits of a whole prompt would take a gigabyte with a large vocabulary


def note_prompt_logprobs(
    logits_of: Callable[[Tensor, Sequence[int]], Tensor], hidden: Tensor, first_row: int, s: Scheduled
) -> list[Fault]:
    """Each row of a prompt predicts the prompt's next token; note in the request how likely it was.

    Args:
        logits_of: hidden states and rows to logits, as `ModelRunner.logits`.
        first_row: where the request's rows begin in `hidden` [N, d_model].
    """
    request = s.request
    prompt, wanted = request.prompt_token_ids, SamplingParams(logprobs=request.params.prompt_logprobs)
    num_rows = min(s.num_tokens, len(prompt) - 1 - s.num_computed)
    try:
        for start in range(0, num_rows, ROWS_AT_ONCE):
            count = min(ROWS_AT_ONCE, num_rows - start)
            rows = range(first_row + start, first_row + start + count)
            at = s.num_computed + 1 + start  # where in the prompt the predicted tokens stand
            logits = logits_of(hidden, rows)
            request.prompt_logprobs[at : at + count] = report_logprobs(
                logits, [wanted] * count, prompt[at : at + count]
            )
    except Exception as error:
        return [(request, reason(error))]
    return []
