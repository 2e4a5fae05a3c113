"""Several answers to one prompt as in the paper of 2023: computed once, forked, and copied on the first write.

The engine does not fork (n answers are n requests, which share full blocks through the prefix cache). So exercise 3.5
has this driver: one prompt, its table forked, a row for each answer in every decode step.
"""

from exercises.judging.engine_runs import Answers, cache_for, tales
from phase2_attention_kvcache.model import SamplingParams
from phase3_paged_attention.sharing import ForkingBlockManager, SwapSpace
from phase4_scheduler.engine import ModelRunner, Request, Scheduled, SchedulerOutput, StepBatch


def forked_answers(manager: ForkingBlockManager, prompt: str, params: SamplingParams) -> tuple[Answers, int]:
    """(`params.n` answers of `params.max_tokens` tokens, how many blocks were copied)."""
    model, tokenizer = tales()
    num_copied = 0
    runner = ModelRunner(model, cache_for(manager))
    runner.kv_cache.storage.data.zero_()  # so that a copy that was not made gives the same words everywhere
    space = SwapSpace(runner.kv_cache.storage)
    prompt_ids = tokenizer.encode(prompt)
    requests = [Request(str(i), prompt_ids, params.for_answer(i)) for i in range(params.n)]
    first, length = requests[0], len(prompt_ids)
    # The prompt once: one row of logits, from which every answer draws its first token.
    manager.reserve(first.block_table, length)
    batch = StepBatch.build([Scheduled(first, length, 0)], manager.block_size)
    logits = runner.logits(runner.execute(batch), [length - 1])
    new = runner.next_tokens(logits.expand(params.n, -1), requests).token_ids
    for request in requests[1:]:
        request.block_table = manager.fork(first.block_table)
    for position in range(length, length + params.max_tokens):
        for request, token in zip(requests, new, strict=True):
            request.append(token)
        if len(first.output_token_ids) == params.max_tokens:
            break
        for request in requests:
            manager.reserve(request.block_table, position + 1)
        copies = manager.take_copies()
        num_copied += len(copies)
        space.apply(copies)
        results = runner.run(SchedulerOutput(scheduled=[Scheduled(r, 1, position) for r in requests]))
        new = [result.token_ids[0] for result in results]
    for request in requests:
        manager.free(request.block_table)
    manager.check_integrity()
    tokens = [request.output_token_ids for request in requests]
    text = f"{prompt}{tokenizer.decode(tokens[0])} ..."
    return Answers(tokens, text), num_copied
