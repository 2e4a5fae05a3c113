"""The model: GPT-2, from its file of weights to the next token.

Tokens are flat: a call takes N tokens, of any number of requests. Where their keys and values are stored is for `attend` to
know, which the caller brings along.
"""

import json
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from exercises.capstone.parts import course_part

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]  # layer and q, k, v [N, heads, d] -> [N, heads, d]

may_see = course_part("p2e1_causal_mask")
one_head = course_part("p2e2_one_head")
keep_top_p = course_part("p2e6_top_p")


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """All heads, causal. q: [N, heads, d], the last N of the M tokens in k and v, [M, heads, d] -> [N, heads, d]."""
    mask = may_see(len(q), len(k))
    heads = (one_head(q[:, h], k[:, h], v[:, h], mask) for h in range(q.shape[1]))
    return torch.stack(list(heads), dim=1).to(q.dtype)


def choose(logits: Tensor, temperature: float, top_p: float, generator: torch.Generator | None) -> int:
    """The next token: the likeliest at temperature 0, else one that is drawn. logits: [vocab]."""
    if temperature == 0:
        return int(logits.argmax())
    probs = torch.softmax(logits / temperature, dim=-1)
    if top_p < 1:
        probs = keep_top_p(probs, top_p)
    # The tokens side by side on a line, each as wide as it is likely; one point of the line is drawn.
    ends = probs.double().cumsum(-1)
    point = torch.rand(1, dtype=torch.float64, generator=generator) * ends[-1]
    return int(torch.searchsorted(ends, point, right=True))


class Model:
    """GPT-2 in float32. `config` holds its sizes under the names of Llama's config.json (exercise 1.5)."""

    def __init__(self, folder: Path) -> None:
        raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        if raw["model_type"] != "gpt2":
            raise ValueError(f"this model is a {raw['model_type']}: only GPT-2 is computed here")
        sizes = {"num_hidden_layers": "n_layer", "num_attention_heads": "n_head", "hidden_size": "n_embd"}
        self.config = {name: raw[gpt2] for name, gpt2 in sizes.items()}
        self.num_layers, self.num_heads, width = self.config.values()
        self.head_dim = width // self.num_heads
        self.max_context, self.eos_token_id = raw["n_positions"], raw["eos_token_id"]
        stored = load_file(folder / "model.safetensors")
        self.weights = {name.removeprefix("transformer."): w.float() for name, w in stored.items()}

    def forward(self, token_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Token ids [N] and their positions [N] -> vectors [N, width]."""
        n, linear, norm = len(token_ids), self.linear, self.norm
        x = self.weights["wte.weight"][token_ids] + self.weights["wpe.weight"][positions]
        for layer in range(self.num_layers):
            name = f"h.{layer}"
            qkv = linear(norm(x, f"{name}.ln_1"), f"{name}.attn.c_attn")
            q, k, v = qkv.view(n, 3, self.num_heads, -1).unbind(1)
            x = x + linear(attend(layer, q, k, v).reshape(n, -1), f"{name}.attn.c_proj")
            wide = F.gelu(linear(norm(x, f"{name}.ln_2"), f"{name}.mlp.c_fc"), approximate="tanh")
            x = x + linear(wide, f"{name}.mlp.c_proj")
        return norm(x, "ln_f")

    def logits(self, hidden: Tensor) -> Tensor:
        """Vectors [N, width] -> scores of the next token [N, vocab]. The table of tokens serves a second time."""
        return hidden @ self.weights["wte.weight"].T

    def linear(self, x: Tensor, name: str) -> Tensor:
        return torch.addmm(self.weights[f"{name}.bias"], x, self.weights[f"{name}.weight"])  # [in, out]

    def norm(self, x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])
