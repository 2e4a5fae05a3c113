"""What property-based tests share beyond the profile that conftest.py loads, and attention by its definition."""

from types import SimpleNamespace

import torch
from hypothesis import Phase, settings
from hypothesis import strategies as st

from phase2_attention_kvcache.model.caches import AttentionRule
from phase2_attention_kvcache.model.config import ModelConfig
from phase2_attention_kvcache.model.transformer import Transformer

unshrunk = settings(phases=[Phase.explicit, Phase.generate])
"""For kernels: looking for a smaller example would take Triton's interpreter minutes."""

windows = st.one_of(st.none(), st.integers(1, 70))
"""Smaller, equal and larger than blocks, tiles and contexts."""
softcaps = st.sampled_from([None, None, 1.5, 50.0])
rules = st.builds(AttentionRule, scale=st.sampled_from([0.1, 0.25, 0.6]), window=windows, softcap=softcaps)


def with_rules(config: ModelConfig, rules: list[AttentionRule]) -> SimpleNamespace:
    """The same shape with a rule for each layer, of which there are as many. (One soft cap and scale for all.)"""
    scale, _, softcap = rules[0]
    own = dict(num_layers=len(rules), attn_softcap=softcap, attention_scale=scale)
    return SimpleNamespace(**vars(config) | own, window=lambda layer: rules[layer].window)


def plain_attention(q, keys, values, rule: AttentionRule | None = None) -> torch.Tensor:
    """The definition in float64, query by query: q [n, H, D], the last n of the m tokens of keys, values [m, KV, D]."""
    rule = rule or AttentionRule(q.shape[2] ** -0.5)
    share = q.shape[1] // keys.shape[1]
    q, keys, values = q.double(), *(x.double().repeat_interleave(share, dim=1) for x in (keys, values))
    out = torch.empty_like(q)
    for i in range(len(q)):
        last = len(keys) - len(q) + i
        sees = slice(max(0, last - (rule.window or len(keys)) + 1), last + 1)
        scores = torch.einsum("hd,khd->hk", q[i], keys[sees]) * rule.scale
        if rule.softcap:
            scores = rule.softcap * torch.tanh(scores / rule.softcap)
        out[i] = torch.einsum("hk,khd->hd", scores.softmax(-1), values[sees])
    return out


def contrasted(model: Transformer) -> Transformer:
    """A random model with matrices ten times as large: attention is far from uniform, and what came before decides what comes."""
    for parameter in model.parameters():
        if parameter.ndim == 2:
            parameter *= 10
    return model
