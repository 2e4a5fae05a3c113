"""The core of phase 2: the model, its caches, its sampler, and how it generates text."""

from phase2_attention_kvcache.model.caches import ContiguousKVCache, NoCache, causal_attention
from phase2_attention_kvcache.model.config import GPT2_124M, ModelConfig
from phase2_attention_kvcache.model.generation import Generation, generate_cached, generate_naive
from phase2_attention_kvcache.model.layers import KVCache
from phase2_attention_kvcache.model.sampling import BadLogitsError, SampledTokens, Sampler
from phase2_attention_kvcache.model.sampling_params import SamplingParams
from phase2_attention_kvcache.model.transformer import Transformer
