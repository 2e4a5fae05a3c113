"""Sliding windows: where every layer of a model looks back a limited number of tokens, blocks are given back early.

Changes: a request holds no more blocks than its window and a step need, so requests longer than the cache can run.
Attaches to: the block manager (phase 3, sharing/sliding_window.py). The mask belongs to the model, and needs no feature.
"""

from collections.abc import Sequence
from typing import Any

from phase2_attention_kvcache.model.transformer import Transformer
from phase3_paged_attention.sharing import WindowedBlockManager, widest_window
from phase4_scheduler.assembly import Feature
from phase4_scheduler.engine.config import EngineConfig


class Windows(Feature):
    block_manager = WindowedBlockManager
    optional = True  # a block manager of your own keeps every block, which is right as well

    def is_on(self, model: Transformer, config: EngineConfig, features: Sequence[Feature]) -> bool:
        self._window = widest_window(model.config)
        # Some features read a text from its beginning: a draft model, and an engine that computes prompts for others.
        whole = any(getattr(feature, "needs_whole_text", False) for feature in features)
        self._max_new_tokens = config.max_num_batched_tokens
        return self._window is not None and not whole

    def arguments(self, part: str) -> dict[str, Any]:
        if part != "block_manager":
            return {}
        return {"sliding_window": self._window, "max_new_tokens": self._max_new_tokens}
