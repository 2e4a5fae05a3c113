"""Drafts for the next step, proposed after each step; what they are made with; and the counts of how they fared."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from phase1_tokens_embeddings.weights import kv_per_token
from phase2_attention_kvcache.model.transformer import Transformer
from phase4_scheduler.assembly.build import load_model, make_runner
from phase4_scheduler.assembly.feature import Feature
from phase4_scheduler.engine.config import EngineConfig
from phase4_scheduler.engine.core import EngineCore, EngineCoreOutputs
from phase4_scheduler.engine.model_runner import Sampled
from phase4_scheduler.engine.request import Request
from phase4_scheduler.engine.scheduler import SchedulerOutput
from phase4_scheduler.features.speculation.config import SpeculativeConfig
from phase4_scheduler.features.speculation.draft_model import DraftModel
from phase4_scheduler.features.speculation.proposers import (
    Drafter,
    DraftInput,
    DraftOneByOne,
    Drafts,
    NgramProposer,
    Proposer,
)
from phase4_scheduler.features.speculation.rejection_sampler import SpeculativeRunner
from phase4_scheduler.features.speculation.scheduler import PADDING, Speculated, SpeculativeScheduler


@dataclass
class SpecDecodingStats:
    """Counts since the start. A draft, in the singular, is what one request verifies in one step.

    Source: vllm/v1/spec_decode/metrics.py.
    """

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_accepted_tokens_per_pos: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, num_speculative_tokens: int) -> "SpecDecodingStats":
        return cls(num_accepted_tokens_per_pos=[0] * num_speculative_tokens)

    def observe(self, num_drafts: int, num_accepted: int) -> None:
        """Count a request that had drafts verified in a step."""
        self.num_drafts += 1
        self.num_draft_tokens += num_drafts
        self.num_accepted_tokens += num_accepted
        for position in range(num_accepted):
            self.num_accepted_tokens_per_pos[position] += 1


class SpeculativeCore(EngineCore):
    """Its scheduler is a `SpeculativeScheduler`.

    Args:
        speculative_config: how many drafts. feature: makes what proposes them.

    Attributes:
        spec_decoding_stats: counts since the start.
    """

    def __init__(
        self, *args, speculative_config: SpeculativeConfig, feature: "Speculation", **kwargs
    ) -> None:
        super().__init__(*args, **kwargs)
        self.drafter, draft_runner = feature.make_drafter(self)
        if draft_runner is not None:
            self.kv_caches.append(draft_runner.kv_cache)
        self._most = speculative_config.num_speculative_tokens
        self.spec_decoding_stats = SpecDecodingStats.of(self._most)

    def execute(self, output: SchedulerOutput) -> list[Sampled]:
        results = super().execute(output)
        # Before the scheduler takes in what was sampled: requests that end still hold their blocks, and a draft model
        # must have read all that those will be remembered for.
        for s, result in zip(output.scheduled, results, strict=True):
            if result.token_ids and s.drafts.token_ids and s.drafts.token_ids[0] != PADDING:
                self.spec_decoding_stats.observe(len(s.drafts.token_ids), len(result.token_ids) - 1)
        inputs = [self._input(s, r) for s, r in zip(output.scheduled, results, strict=True)]
        try:
            found = self.drafter.draft(inputs)
        except Exception as error:  # a guess is no more than that: the requests go on without
            why = f"{type(error).__name__}: {error}"
            warnings.warn(f"no drafts in this step: the drafter failed ({why})", stacklevel=2)
            return results
        with self.deciding:
            for s, result, drafts in zip(output.scheduled, results, found, strict=True):
                drafts = self.useful_drafts(s.request, result.token_ids, drafts)
                if drafts.token_ids and not s.request.finished:
                    s.request.extras["drafts"] = drafts
        return results

    def useful_drafts(self, request: Request, sampled: Sequence[int], drafts: Drafts) -> Drafts:
        """The drafts worth verifying, behind what has just been `sampled`. For features that refuse some."""
        return drafts

    def _input(self, s: Speculated, result: Sampled) -> DraftInput:
        request, sampled = s.request, result.token_ids
        token_ids = [*request.token_ids[: s.num_certain], *sampled]
        longest = self.scheduler.max_model_len
        if request.max_tokens is not None:
            longest = min(longest, request.num_prompt_tokens + request.max_tokens)
        useful = longest - len(token_ids) - 1  # the step that verifies them brings one token by itself
        num_drafts = max(0, min(self._most, useful)) if sampled else 0
        return DraftInput(
            request.request_id, token_ids, s.num_computed, num_drafts, request.params, request.block_table
        )

    def step_event(self, step: EngineCoreOutputs) -> dict[str, Any]:
        """A recorded step says also, by request, drafted (tokens verified; -1 is padding) and accepted (how many)."""
        parts = {s.request.request_id: s for s in step.scheduler_output.scheduled}
        drafted = {name: list(s.drafts.token_ids) for name, s in parts.items()}
        accepted = {name: s.num_accepted for name, s in parts.items()}
        return super().step_event(step) | {"drafted": drafted, "accepted": accepted}


class Speculation(Feature):
    """Settings: `speculative_config` (a `SpeculativeConfig`, or its fields as a dict), and with the method "custom" a
    `proposer`.
    """

    settings = {"speculative_config": None, "proposer": None}
    scheduler, runner, core = SpeculativeScheduler, SpeculativeRunner, SpeculativeCore
    refuses = {"KVTransfer": "drafts are not scheduled beside blocks that are on their way"}

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.config = SpeculativeConfig.of(self.speculative_config)
        self.needs_whole_text = self.config is not None and self.config.method == "draft_model"
        self._draft_model: Transformer | None = None

    def is_on(self, model: Transformer, config: EngineConfig, features: Sequence[Feature]) -> bool:
        """Raises ValueError: a proposer without the method "custom" or the other way round; more drafts than a request
        may hold; a draft model with a shorter context or another vocabulary. LabError: no such model.
        """
        own, longest = self.config, config.max_model_len
        custom = own is not None and own.method == "custom"
        if self.proposer is not None and not custom:
            raise ValueError(
                "a proposer of your own needs speculative_config=dict(method='custom', num_speculative_tokens=3)"
            )
        if own is None:
            return False
        if custom and self.proposer is None:
            raise ValueError("speculative_config: method is 'custom': give the engine your own, proposer=...")
        if own.num_speculative_tokens >= longest:
            raise ValueError(
                f"speculative_config: num_speculative_tokens is {own.num_speculative_tokens:,}, and a request holds "
                f"at most {longest:,} tokens: a few are enough, such as 3"
            )
        if own.method == "draft_model":
            self._draft_model = self._load(model, longest)
        return True

    def _load(self, model: Transformer, longest: int) -> Transformer:
        """The small model, in the number format and on the device of `model`."""
        draft_model = load_model(
            self.config.model, str(model.dtype).removeprefix("torch."), model.device.type
        )
        ours, theirs = model.config.vocab_size, draft_model.config.vocab_size
        if ours != theirs:
            raise ValueError(
                f"the draft model {str(self.config.model)!r} has a vocabulary of {theirs:,} tokens, the model one of "
                f"{ours:,}: an id must mean the same to both, so take a model with the same tokenizer"
            )
        if (context := draft_model.config.max_context) < longest:
            raise ValueError(
                f"the draft model's context is {context:,}, and requests may hold {longest:,} tokens: set "
                f"max_model_len to {context:,} or less"
            )
        return draft_model

    def kv_bytes_per_token(self, model: Transformer, nbytes: int) -> int:
        draft = self._draft_model
        return nbytes if draft is None else nbytes + kv_per_token(draft.config, draft.dtype.itemsize)

    def arguments(self, part: str) -> dict[str, Any]:
        return {
            "scheduler": {"speculative_config": self.config},
            "core": {"speculative_config": self.config, "feature": self},
        }.get(part, {})

    def make_drafter(self, core: EngineCore) -> tuple[Drafter, Any]:
        """What makes the drafts, and the runner of a draft model, if there is one."""
        if self._draft_model is None:
            own = self.config
            proposer: Proposer = self.proposer or NgramProposer(own.prompt_lookup_min, own.prompt_lookup_max)
            return DraftOneByOne(proposer, core.model.config.vocab_size), None
        manager, scheduler = core.block_manager, core.scheduler
        config = EngineConfig(
            max_num_seqs=scheduler.config.max_num_seqs,
            max_model_len=scheduler.max_model_len,
            block_size=manager.block_size,
            enforce_eager=getattr(scheduler.config, "enforce_eager", False),
        )
        runner = make_runner(self._draft_model, config, manager.num_blocks)
        return DraftModel(runner, self.config.draft_sample_method == "probabilistic"), runner
