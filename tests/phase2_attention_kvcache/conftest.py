"""Small random checkpoints, made by transformers itself."""

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from phase1_tokens_embeddings.tokens import BPETokenizer
from phase2_attention_kvcache.model import NoCache, Transformer


@torch.inference_mode()
def logits_of(model: Transformer, ids: torch.Tensor | None = None) -> torch.Tensor:
    """[N, vocab], of these tokens or of 40 others."""
    ids = torch.arange(40) * 7 % model.config.vocab_size if ids is None else ids
    return model.logits(model(ids, torch.arange(len(ids)), NoCache()))


LLAMA = dict(
    vocab_size=211, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=8,
    num_key_value_heads=2, max_position_embeddings=128, tie_word_embeddings=False, eos_token_id=[2, 3],
    initializer_range=0.2,
)  # fmt: skip
GPT2 = dict(
    vocab_size=211, n_positions=128, n_embd=48, n_layer=3, n_head=3, bos_token_id=0, eos_token_id=0,
    initializer_range=0.2,
)  # fmt: skip


def maker(folders, model_kind, config_kind, usual):
    """A small random model in a folder; keyword arguments override its configuration."""

    def make(shard_size="5GB", **changes):
        torch.manual_seed(0)
        model = model_kind(config_kind(**usual | changes)).eval()
        folder = folders.mktemp("model")
        model.save_pretrained(folder, max_shard_size=shard_size)
        return folder, model

    return make


@pytest.fixture(scope="session")
def make_llama(tmp_path_factory):
    return maker(tmp_path_factory, LlamaForCausalLM, LlamaConfig, LLAMA)


@pytest.fixture(scope="session")
def make_gpt2(tmp_path_factory):
    return maker(tmp_path_factory, GPT2LMHeadModel, GPT2Config, GPT2)


@pytest.fixture(scope="session")
def other_model(make_gpt2):
    """A model with random weights, and more logits than its tokenizer has tokens, as some models have."""
    folder, _ = make_gpt2(vocab_size=290, n_layer=1, n_embd=16, n_head=2)
    BPETokenizer.train(["the cat and the dog and the cow " * 9], vocab_size=280).save(
        folder / "tokenizer.json"
    )
    return str(folder)
