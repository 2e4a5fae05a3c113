"""Speculative decoding: draft tokens are guessed, computed in one step, and accepted or rejected.

Changes: a request may get several tokens in a step, distributed exactly as without drafts.
Attaches to: `Scheduler` (draft tokens are scheduled like tokens that a request has), `ModelRunner.sample` (verifies them),
`EngineCore.execute` (has new ones proposed after each step). Its config is `speculative_config`, with vLLM's names.

Read: config.py, proposers.py, draft_model.py, scheduler.py, rejection_sampler.py, core.py.
"""

from phase4_scheduler.features.speculation.config import SpeculativeConfig
from phase4_scheduler.features.speculation.core import SpecDecodingStats, Speculation, SpeculativeCore
from phase4_scheduler.features.speculation.proposers import NgramProposer, Proposer
from phase4_scheduler.features.speculation.rejection_sampler import verify_drafts
from phase4_scheduler.features.speculation.scheduler import PADDING, Speculated, SpeculativeScheduler
