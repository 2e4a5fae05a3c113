"""The whole model: GPT-2, Llama, Qwen, Gemma and similar families from one set of layers.

Tokens are flat: a call takes N tokens of any number of requests, and there is no batch dimension. The model
does not know where its keys and values are stored; it passes them to `kv.attend` of a cache object.
Later phases add other such objects.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.models import find_model
from phase2_attention_kvcache.model.caches import NoCache
from phase2_attention_kvcache.model.checkpoint import load_checkpoint, random_model
from phase2_attention_kvcache.model.config import ModelConfig, Rotation, find_reader
from phase2_attention_kvcache.model.layers import Angles, Block, Blocks, KVCache, make_norm


class Transformer(nn.Module):
    """The whole model: token ids in, one vector per token out; `logits` turns vectors into scores.

    >>> model = Transformer.from_pretrained("tales")
    >>> hidden = model(torch.tensor([412, 77]), torch.tensor([0, 1]), NoCache())   # [2, d_model]
    >>> scores = model.logits(hidden[-1:])                                         # [1, vocab_size]
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.token_table = make_table(config.vocab_size, config.d_model)
        learned = config.choices.positions == "learned"
        self.position_table = make_table(config.max_context, config.d_model) if learned else None
        self.blocks = Blocks(Block(config, layer) for layer in range(config.num_layers))
        self.final_norm = make_norm(config)
        # A tied model uses its token table as the head.
        self.head = None if config.tied else nn.Linear(config.d_model, config.vocab_size, bias=False)
        # Worked out when the weights are there (`finish_loading`): [max_context, head_dim / 2], and one number.
        for name in ("cos", "sin", "local_cos", "local_sin", "embedding_scale"):
            self.register_buffer(name, None, persistent=False)

    @classmethod
    def from_pretrained(
        cls, path_or_hub_name: str | Path, dtype: str | torch.dtype = "float32", device: str = "cpu"
    ) -> Transformer:
        """Load an embedded model, a folder in the Hugging Face layout, a model from the hub, or a checkpoint in another form
        (`CHECKPOINT_FORMATS` in this phase's `__init__.py`). `dtype`: of weights and vectors.

        Raises:
            LabError: no such model. ValueError: files that do not hold what they should; the message says what.
        """
        path = find_model(path_or_hub_name)
        reader = find_reader(path)
        return (load_checkpoint if reader is None else reader.load)(cls, path, dtype, device)

    @classmethod
    def random(
        cls, config: ModelConfig, dtype: str | torch.dtype = "float32", device: str = "cpu", seed: int = 0
    ) -> Transformer:
        """A model with random weights. Its text is noise; its speed is that of a real model."""
        return random_model(cls, config, dtype, device, seed)

    @property
    def device(self) -> torch.device:
        return self.final_norm.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.final_norm.weight.dtype

    def forward(self, token_ids: Tensor, positions: Tensor, kv: KVCache) -> Tensor:
        """Run all layers.

        Args:
            token_ids: [N] integers. positions: [N], each token's place in its own sequence.
            kv: stores keys and values and attends.

        Returns:
            hidden [N, d_model], after the last norm.

        Raises:
            ValueError: a `NoCache` without this model's rules of attention; ids or positions out of range.
                (On a GPU the second check would have to wait for the device, so there the caller checks, with
                `check_tokens`, before the ids leave Python.)
        """
        if token_ids.device.type == "cpu":
            self.check_tokens(token_ids, positions)
        if isinstance(kv, NoCache):
            kv.check(self.config)
        return self.final_norm(self.blocks(self.embed(token_ids, positions), self.rotary(positions), kv))

    def embed(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        """The input of the first layer: [N, d_model]."""
        x = self.token_table(token_ids)
        if self.embedding_scale is not None:
            x = x * self.embedding_scale
        if self.position_table is not None:
            x = x + F.embedding(positions, self.position_table.weight)
        return x

    def rotary(self, positions: Tensor) -> dict[Rotation | None, Angles | None]:
        """The tables that rotate queries and keys (see `apply_rotary`), for each rotation that some layer uses."""
        angles: dict[Rotation | None, Angles | None] = {None: None}
        if self.cos is not None:
            angles["full"] = self.cos[positions], self.sin[positions]
        if self.local_cos is not None:
            angles["local"] = self.local_cos[positions], self.local_sin[positions]
        return angles

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores for the next token: hidden [N, d_model] -> [N, vocab_size]."""
        scores = F.linear(hidden, self.token_table.weight) if self.head is None else self.head(hidden)
        cap = self.config.final_softcap
        return scores if cap is None else cap * torch.tanh(scores / cap)

    def check_tokens(self, token_ids: Tensor, positions: Tensor) -> None:
        """Raise a ValueError that names the first id or position out of range."""
        if token_ids.ndim != 1 or token_ids.shape != positions.shape:
            shapes = f"{list(token_ids.shape)} and {list(positions.shape)}"
            raise ValueError(f"token_ids and positions must be two rows of equal length, not {shapes}")
        vocab, context = self.config.vocab_size, self.config.max_context
        for name, values, limit in (("token id", token_ids, vocab), ("position", positions, context)):
            if len(wrong := values[(values < 0) | (values >= limit)]):
                raise ValueError(f"{name} {wrong[0]} is out of range: this model takes 0 to {limit - 1}")


def make_table(rows: int, width: int) -> nn.Embedding:
    """A table of vectors, not initialized. (`nn.Embedding` would draw them, and on the "meta" device, where shapes
    are made without memory, load torch's compiler for it: a second for every script.)
    """
    return nn.Embedding(rows, width, _weight=torch.empty(rows, width))
