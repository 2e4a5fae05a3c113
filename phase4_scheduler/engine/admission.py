"""What may enter the engine: a user's prompt and parameters, checked; and whether a request can ever be served."""

from collections.abc import Iterable, Sequence
from numbers import Integral, Real

from labkit.foreign import quoted
from phase1_tokens_embeddings.tokens import Tokenizer
from phase2_attention_kvcache.model.config import ModelConfig
from phase2_attention_kvcache.model.sampling_params import SamplingParams
from phase3_paged_attention.paging.block_manager import BlockManager
from phase4_scheduler.engine.config import SchedulerConfig
from phase4_scheduler.engine.request import Request


def make_request(
    request_id: str,
    prompt: str | Sequence[int],
    params: SamplingParams | None,
    priority: int,
    arrival_time: float,
    config: ModelConfig,
    tokenizer: Tokenizer | None,
) -> Request:
    """A request as a user gives it, checked before anything is started.

    Raises:
        ValueError: the prompt is empty, or this model cannot serve it or its parameters.
    """
    params = SamplingParams() if params is None else params
    if not isinstance(params, SamplingParams):
        raise ValueError(f"params are {quoted(params)}: give SamplingParams(...)")
    if not isinstance(request_id, str):
        raise ValueError(f"request id {quoted(request_id)} is no text: give a string")
    if not isinstance(priority, Integral):
        raise ValueError(
            f"priority is {quoted(priority)}: it must be a whole number, the smallest goes first"
        )
    if not (isinstance(arrival_time, Real) and -1e300 < arrival_time < 1e300):
        raise ValueError(f"arrival_time is {quoted(arrival_time)}: it must be a number of seconds, or None")
    token_ids = _token_ids(prompt, tokenizer)
    vocab = config.vocab_size
    if wrong := [i for i in token_ids if not 0 <= i < vocab]:
        raise ValueError(f"token id {quoted(wrong[0])} is out of range: this model takes 0 to {vocab - 1}")
    params.check_vocabulary(vocab)
    if (params.stop or params.bad_words) and tokenizer is None:
        raise ValueError(
            "stop strings need text (so do bad_words), and this engine has no tokenizer: use token ids"
        )
    if params.bad_words:
        params = params.with_bad_words(tokenizer.encode)
    return Request(request_id, token_ids, params, arrival_time, priority, config.eos_token_ids)


def _token_ids(prompt: str | Sequence[int], tokenizer: Tokenizer | None) -> list[int]:
    if isinstance(prompt, str):
        if tokenizer is None:
            raise ValueError("this engine has no tokenizer: give the prompt as token ids")
        return tokenizer.encode(prompt)
    if not isinstance(prompt, Iterable) or isinstance(prompt, bytes):
        raise ValueError(f"the prompt is {quoted(prompt)}: give a text or a list of token ids")
    token_ids = list(prompt)
    if wrong := [i for i in token_ids if not isinstance(i, Integral) or isinstance(i, bool)]:
        raise ValueError(f"the prompt holds {quoted(wrong[0])}: token ids are whole numbers")
    return [int(i) for i in token_ids]


def check_size(request: Request, config: SchedulerConfig, max_model_len: int, manager: BlockManager) -> None:
    """Refuse a request that could never be served under these limits.

    Raises:
        ValueError: it is longer than the context, larger than the whole cache, has more sequences than may
            run, or has a prompt over the token budget that may not be cut. The message names the limit.
    """
    prompt = request.num_prompt_tokens
    if prompt >= max_model_len:
        raise ValueError(
            f"the prompt has {prompt:,} tokens, the context holds {max_model_len:,} with at least one "
            "of an answer: shorten the prompt"
        )
    if request.num_seqs > config.max_num_seqs:
        raise ValueError(f"n is {request.num_seqs}: at most max_num_seqs, {config.max_num_seqs}")
    longest = max_model_len
    if request.max_tokens is not None:
        longest = min(longest, prompt + request.max_tokens)
    stored = longest - 1  # nothing follows the last token, so its key and value are never computed
    budget, drafts = config.max_num_batched_tokens, ""
    if (
        speculation := config.speculative_config
    ):  # drafts are stored, too, and a draft model's own behind them
        slots = speculation.num_draft_slots
        num_drafts = speculation.num_speculative_tokens * (1 + slots)
        stored = min(stored + num_drafts, max_model_len - 1 + slots)
        budget, drafts = budget - slots, f" (and {num_drafts} drafts)"
    room = (manager.num_blocks - 1) * manager.block_size
    if manager.most_blocks(stored, budget) >= manager.num_blocks:
        raise ValueError(
            f"{prompt:,} prompt tokens and an answer of {longest - prompt:,}{drafts} do not fit the KV cache of "
            f"{room:,} tokens: shorten the prompt, lower max_tokens, or raise num_blocks"
        )
    if not config.chunked_prefill and longest - 1 > budget:
        raise ValueError(
            f"{longest:,} tokens are over the budget of {budget:,} a step: allow "
            "chunked_prefill, or raise max_num_batched_tokens"
        )
