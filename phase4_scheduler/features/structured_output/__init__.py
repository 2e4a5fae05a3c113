"""Structured output: answers that are certain to match a choice, a regex, a JSON schema or a grammar.

Changes: of a request with `StructuredSamplingParams`, only tokens with which its answer can still match may be sampled.
Attaches to: `EngineCore.add` (has the grammar compiled, in a thread), `Scheduler.add` (queues the request up when that is
done), `ModelRunner.sample` and `logits` (mask what the grammar refuses), and `SpeculativeCore.useful_drafts`.

Read: params.py, grammar.py, core.py, feature.py.
"""

from phase4_scheduler.features.structured_output.feature import StructuredOutput
from phase4_scheduler.features.structured_output.grammar import GrammarCompiler
from phase4_scheduler.features.structured_output.params import (
    StructuredOutputsParams,
    StructuredSamplingParams,
)
