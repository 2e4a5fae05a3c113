"""Structured output as a feature of the engine: its settings, and the parts that it replaces."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from phase2_attention_kvcache.model.transformer import Transformer
from phase4_scheduler.assembly import Feature
from phase4_scheduler.engine.config import EngineConfig
from phase4_scheduler.features.structured_output.core import (
    StructuredCore,
    StructuredRunner,
    StructuredScheduler,
)
from phase4_scheduler.features.structured_output.grammar import LazyCompiler


class StructuredOutput(Feature):
    """Settings: `structured_tokenizer`, where the model was not loaded by name."""

    settings = {"structured_tokenizer": None}
    scheduler, runner, core = StructuredScheduler, StructuredRunner, StructuredCore
    optional = True  # with a scheduler of your own, the first step of a request waits for its grammar

    def load_model(self, path: Path, dtype: str, device: str) -> Transformer | None:
        self.structured_tokenizer = self.structured_tokenizer or path

    def is_on(self, model: Transformer, config: EngineConfig, features: Sequence[Feature]) -> bool:
        self._compiler = LazyCompiler(self.structured_tokenizer, model)
        return True

    def arguments(self, part: str) -> dict[str, Any]:
        return {"compiler": self._compiler} if part == "core" else {}
