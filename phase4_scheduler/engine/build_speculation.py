"""What makes an engine's drafts, built from `speculative_config`; and whether it fits the engine."""

from phase2_attention_kvcache.model.transformer import Transformer
from phase4_scheduler.engine.build import load_model, make_runner
from phase4_scheduler.engine.config import SchedulerConfig
from phase4_scheduler.engine.draft_model import DraftModel
from phase4_scheduler.engine.proposers import DraftOneByOne, NgramProposer, Proposer
from phase4_scheduler.engine.scheduler import Scheduler
from phase4_scheduler.engine.speculation import Speculation


def load_draft_model(config: SchedulerConfig, model: Transformer) -> Transformer | None:
    """The small model, where one is asked for: in the number format and on the device of `model`.

    Raises:
        LabError: no such model. ValueError: its vocabulary is another one.
    """
    speculation = config.speculative_config
    if speculation is None or speculation.method != "draft_model":
        return None
    dtype = str(model.dtype).removeprefix("torch.")
    draft_model = load_model(speculation.model, dtype, model.device.type)
    ours, theirs = model.config.vocab_size, draft_model.config.vocab_size
    if ours != theirs:
        raise ValueError(
            f"the draft model {str(speculation.model)!r} has a vocabulary of {theirs:,} tokens, the model one of "
            f"{ours:,}: an id must mean the same to both, so take a model with the same tokenizer"
        )
    return draft_model


def build_speculation(
    scheduler: Scheduler,
    model: Transformer,
    draft_model: Transformer | None,
    proposer: Proposer | None,
    enforce_eager: bool,
) -> Speculation | None:
    """What makes the drafts; None where nobody does.

    Raises:
        ValueError: a proposer without the method "custom" or the other way round; more drafts than a request may hold;
            a draft model with a shorter context.
    """
    config, longest = scheduler.config.speculative_config, scheduler.max_model_len
    custom = config is not None and config.method == "custom"
    if proposer is not None and not custom:
        raise ValueError(
            "a proposer of your own needs speculative_config=dict(method='custom', num_speculative_tokens=3)"
        )
    if config is None:
        return None
    if custom and proposer is None:
        raise ValueError("speculative_config: method is 'custom': give the engine your own, proposer=...")
    if config.num_speculative_tokens >= longest:
        raise ValueError(
            f"speculative_config: num_speculative_tokens is {config.num_speculative_tokens:,}, and a request holds "
            f"at most {longest:,} tokens: a few are enough, such as 3"
        )
    if draft_model is None:
        proposer = proposer or NgramProposer(config.prompt_lookup_min, config.prompt_lookup_max)
        drafter = DraftOneByOne(proposer, model.config.vocab_size)
    else:
        context = draft_model.config.max_context
        if context < longest:
            raise ValueError(
                f"the draft model's context is {context:,}, and requests may hold {longest:,} tokens: set "
                f"max_model_len to {context:,} or less"
            )
        manager, max_num_seqs = scheduler.block_manager, scheduler.config.max_num_seqs
        runner = make_runner(draft_model, manager, max_num_seqs, longest, enforce_eager)
        drafter = DraftModel(runner, config.draft_sample_method == "probabilistic")
    return Speculation(drafter, config.num_speculative_tokens, longest)
