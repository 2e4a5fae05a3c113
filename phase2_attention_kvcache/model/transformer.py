"""The model: GPT-2 and Llama from one set of blocks.

Tokens are flat: a call takes N tokens, whoever they belong to, and there is no batch dimension. The
model does not know where its keys and values live; it hands them to `kv.attend`, and a cache object
answers. Each phase of the course brings another such object.

Sources: Radford et al. 2019 (GPT-2), section 2.3; Touvron et al. 2023 (Llama), section 2.2.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from phase1_tokens_embeddings.weights.model_shapes import SHAPES
from phase2_attention_kvcache.model.blocks import Block, KVCache, ModelConfig, make_norm
from phase2_attention_kvcache.model.positions import rotary_frequencies, rotary_tables

GPT2_124M = ModelConfig(**vars(SHAPES["gpt2"]))
"""The shape of GPT-2 "small". With random weights it is as fast as the real one, and needs no download."""


class Transformer(nn.Module):
    """The whole model: token ids in, one vector a token out; `logits` turns vectors into scores.

    >>> model = Transformer.from_pretrained("tales")
    >>> hidden = model(torch.tensor([412, 77]), torch.tensor([0, 1]), NoCache())   # [2, d_model]
    >>> scores = model.logits(hidden[-1:])                                         # [1, vocab_size]
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.token_table = make_table(config.vocab_size, config.d_model)
        if config.family == "gpt2":
            self.position_table = make_table(config.max_context, config.d_model)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.final_norm = make_norm(config)
        # A tied model has no head of its own: its token table serves a second time.
        self.head = None if config.tied else nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.register_buffer("cos", None, persistent=False)
        self.register_buffer("sin", None, persistent=False)

    @classmethod
    def from_pretrained(
        cls, path_or_hub_name: str | Path, dtype: str | torch.dtype = "float32", device: str = "cpu"
    ) -> Transformer:
        """Load an embedded model, a folder in the Hugging Face layout, or a model from the hub.

        Raises:
            LabError: no such model. ValueError: a folder that does not hold what it should; the
            message names what is missing, unexpected or of the wrong shape.
        """
        from phase2_attention_kvcache.model.checkpoint import load_checkpoint

        return load_checkpoint(path_or_hub_name, dtype, device)

    @classmethod
    def random(
        cls, config: ModelConfig, dtype: str | torch.dtype = "float32", device: str = "cpu", seed: int = 0
    ) -> Transformer:
        """A model with random weights. Its text is noise; its speed is that of a real model."""
        from phase2_attention_kvcache.model.checkpoint import parse_dtype

        with torch.device("meta"):
            model = cls(config)
        model = model.to(parse_dtype(dtype)).to_empty(device=device)
        generator = torch.Generator(device).manual_seed(seed)
        for name, parameter in model.named_parameters():
            with torch.no_grad():
                if parameter.ndim == 2:
                    parameter.normal_(0.0, 0.02, generator=generator)
                else:
                    parameter.fill_(0.0 if name.endswith("bias") else 1.0)
        return model.finish_loading()

    def finish_loading(self) -> Transformer:
        """Work out the tables that no checkpoint holds, and switch off what only training needs."""
        if self.config.family == "llama":
            frequencies = rotary_frequencies(
                self.config.head_dim, self.config.rope_theta, self.config.rope_scaling
            )
            # In float32 whatever the model's dtype: at position 100,000 a bfloat16 angle is off by turns.
            self.cos, self.sin = (
                t.to(self.device) for t in rotary_tables(self.config.max_context, frequencies, torch.float32)
            )
        return self.requires_grad_(False).eval()

    @property
    def device(self) -> torch.device:
        return self.token_table.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.token_table.weight.dtype

    @property
    def num_parameters(self) -> int:
        return sum(p.numel() for p in self.parameters())

    def forward(self, token_ids: Tensor, positions: Tensor, kv: KVCache) -> Tensor:
        """Run all blocks.

        Args:
            token_ids: [N] integers. positions: [N], each token's place in its own sequence.
            kv: stores keys and values and attends.

        Returns:
            hidden [N, d_model], after the last norm.

        Raises:
            ValueError: ids or positions out of range. (On a GPU this would mean waiting for it, so
            there the caller checks, with `check_tokens`, before the ids leave Python.)
        """
        if token_ids.device.type == "cpu":
            self.check_tokens(token_ids, positions)
        x = F.embedding(token_ids, self.token_table.weight)
        rotary = None
        if self.config.family == "gpt2":
            x = x + F.embedding(positions, self.position_table.weight)
        else:
            rotary = self.cos[positions], self.sin[positions]
        for layer, block in enumerate(self.blocks):
            x = block(x, layer, rotary, kv)
        return self.final_norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores for the next token: hidden [N, d_model] -> [N, vocab_size]."""
        return F.linear(hidden, self.token_table.weight) if self.head is None else self.head(hidden)

    def check_tokens(self, token_ids: Tensor, positions: Tensor) -> None:
        """Raise a ValueError that names the first id or position out of range."""
        if token_ids.ndim != 1 or token_ids.shape != positions.shape:
            raise ValueError(
                f"token_ids and positions must be two rows of equal length, not "
                f"{list(token_ids.shape)} and {list(positions.shape)}"
            )
        for name, values, limit in (
            ("token id", token_ids, self.config.vocab_size),
            ("position", positions, self.config.max_context),
        ):
            if values.numel() and not (int(values.min()) >= 0 and int(values.max()) < limit):
                wrong = next(i for i in values.tolist() if not 0 <= i < limit)
                raise ValueError(f"{name} {wrong} is out of range: this model takes 0 to {limit - 1}")


def make_table(rows: int, width: int) -> nn.Embedding:
    """A table of vectors, not filled yet: the weights are read from a file or drawn afterwards.

    (Left to itself `nn.Embedding` draws them. On the "meta" device, where shapes are made without memory, that
    makes torch load its compiler, and costs every script a second.)
    """
    return nn.Embedding(rows, width, _weight=torch.empty(rows, width))
