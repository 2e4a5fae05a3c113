"""Small random models, made by transformers itself, with a tokenizer of their own."""

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from phase1_tokens_embeddings.tokens import BPETokenizer

TEXT = (
    "the dog bites the man and the man bites the dog; the cat and the horse said: two three four red green "
    * 3
)
VOCAB = 300  # ids of the tokenizer; the GPT-2 below has three rows more, as padded models do


@pytest.fixture(scope="session")
def tokenizer():
    tokenizer = BPETokenizer.train([TEXT], VOCAB)
    assert tokenizer.vocab_size == VOCAB
    return tokenizer


@pytest.fixture(scope="session")
def gpt2_folder(tmp_path_factory, tokenizer):
    folder = tmp_path_factory.mktemp("models") / "tiny-gpt2"
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=VOCAB + 3, n_embd=24, n_layer=2, n_head=3, n_positions=16,
                        bos_token_id=VOCAB - 1, eos_token_id=VOCAB - 1)  # fmt: skip
    model = GPT2LMHeadModel(config)
    torch.nn.init.normal_(model.transformer.ln_f.bias)  # biases are zero at first: a mix-up would not show
    for block in model.transformer.h:
        torch.nn.init.normal_(block.attn.c_attn.bias)
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save(folder / "tokenizer.json")
    return folder


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory, tokenizer):
    folder = tmp_path_factory.mktemp("models") / "llama"
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=VOCAB, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2)  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save(folder / "tokenizer.json")
    return folder
