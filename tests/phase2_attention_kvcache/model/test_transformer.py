"""The transformer against Hugging Face's, and what it says of folders that do not fit."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GPT2Model

from labkit.models import find_model
from phase2_attention_kvcache.model.caches import ContiguousKVCache, NoCache
from phase2_attention_kvcache.model.transformer import Transformer
from phase2_attention_kvcache.story.inside_the_tower import guesses_by_layer
from tests.phase2_attention_kvcache.conftest import logits_of


def assert_equals_theirs(folder, theirs, length=100):
    """Our logits for random tokens equal transformers' within 1e-4. Returns our model."""
    ours = Transformer.from_pretrained(folder)
    ids = torch.randint(0, ours.config.vocab_size, (length,), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        expected = theirs(ids[None]).logits[0]
    assert expected.std() > 0.05  # logits that are all alike would agree with anything
    torch.testing.assert_close(logits_of(ours, ids), expected, atol=1e-4, rtol=0)
    return ours


@pytest.mark.parametrize("name", ["tales", "tales-draft"])
def test_embedded_models_equal_transformers(name):
    folder = find_model(name)
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    assert_equals_theirs(folder, theirs, 1024)


def test_shards_give_the_same_model(make_llama):
    folder, theirs = make_llama(shard_size="50KB")
    assert len(list(folder.glob("*.safetensors"))) > 2
    assert_equals_theirs(folder, theirs)


def test_names_without_prefix_and_old_mask_tensors(make_gpt2, tmp_path):
    folder, theirs = make_gpt2()
    GPT2Model.from_pretrained(folder).save_pretrained(tmp_path)  # "h.0..." instead of "transformer.h.0..."
    tensors = load_file(tmp_path / "model.safetensors")
    assert "wte.weight" in tensors
    save_file(tensors | {"h.0.attn.bias": torch.ones(1, 1, 4, 4)}, tmp_path / "model.safetensors")
    assert_equals_theirs(tmp_path, theirs)


@pytest.fixture
def broken(tmp_path):
    """A folder to break: `broken(change)` lets `change` edit the tensors, then returns the folder."""

    def make(change, made):
        folder, _ = made
        shutil.copytree(folder, tmp_path / "model")
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, tmp_path / "model" / "model.safetensors")
        return tmp_path / "model"

    return make


def put(name, tensor):
    """A change: this tensor in place of another."""
    return lambda tensors: tensors.update({name: tensor})


QUERIES, KEYS = (f"model.layers.1.self_attn.{p}_proj.weight" for p in "qk")


@pytest.mark.parametrize(
    ("family", "change", "message"),
    [
        (
            "gpt2",
            lambda t: t.update({"transformer.h.1.extra": t.pop("transformer.h.1.ln_1.weight")}),
            r"missing h\.1\.ln_1\.weight; unexpected h\.1\.extra",
        ),
        (
            "gpt2",
            put("transformer.wpe.weight", torch.zeros(5, 48)),
            r"wpe\.weight has the wrong shape: \[5, 48\] found.*\[128, 48\]",
        ),
        (
            "gpt2",
            lambda t: t.update({"wte.weight": t["transformer.wte.weight"] + 1}),
            r"holds the same weights twice: transformer\.wte\.weight and wte\.weight",
        ),
        (
            "gpt2",
            put("transformer.ln_f.weight", torch.ones(48, dtype=torch.int64)),
            r"transformer\.ln_f\.weight is I64, but weights are F64, F32, F16, BF16, F8",
        ),
        (  # of each other's size: together they would have the right number of rows
            "llama",
            lambda t: t.update({QUERIES: t[KEYS], KEYS: t[QUERIES]}),
            r"q_proj\.weight has the wrong shape: \[16, 64\] found, \[64, 64\] needed",
        ),
        *(("llama", put(KEYS, torch.zeros(shape)), "has the wrong shape") for shape in ((7, 9), (3,), ())),
    ],
)
def test_tensors_that_do_not_fit_are_named(make_gpt2, make_llama, broken, family, change, message):
    made = make_gpt2() if family == "gpt2" else make_llama()
    with pytest.raises(ValueError, match=message):
        Transformer.from_pretrained(broken(change, made))


REFUSED = {
    "gpt2": [
        ({"activation_function": "relu"}, "activation 'relu'"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scaling attention"),
        ({"layer_norm_epsilon": "x"}, "layer_norm_epsilon is 'x'"),
        ({"eos_token_id": "end"}, "eos_token_id"),
        ({"eos_token_id": 211}, "eos_token_id is 211: token ids of this model go from 0 to 210"),
        ({"eos_token_id": [0, 50256]}, r"eos_token_id is \[0, 50256\]"),
        ({"bos_token_id": 10**9}, "bos_token_id is 1000000000"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings is 'no', true or false"),
        ({"activation_function": "\x1b[2J" * 9999}, r"activation '\\x1b\[2J"),
        ({"model_type": "\x1b[2J" * 9999}, r"model_type is '\\x1b\[2J"),
        ({"n_embd": 0}, "n_embd is 0, a whole number from 1 to"),
        ({"n_layer": "six"}, "n_layer is 'six'"),
        ({"n_head": 5}, "n_embd 48 does not divide into 5 heads"),
        # A page of text that asks for all memory, or all time.
        ({"n_positions": 10**10}, "n_positions is 10000000000, a whole number from 1 to 16,777,216"),
        ({"n_layer": 1000}, "asks for 1000 layers, and 40 tensors are there"),
        ({"n_layer": 40}, "missing h.3.ln_1.weight, .* more"),
        (
            {"n_embd": 2**18, "n_head": 1},
            r"wte\.weight has the wrong shape: \[211, 48\] found, \[211, 262144\]",
        ),
    ],
    "llama": [
        ({"max_position_embeddings": 2**23}, "8,388,608 positions x head_dim 8 make rotary tables of 0.3 GB"),
        ({"max_position_embeddings": 2**22, "head_dim": 4096}, "tables of 68.7 GB, more than all weights"),
        ({"head_dim": 2**30}, "head_dim is 1073741824"),
        ({"head_dim": 7}, "head_dim is 7: numbers turn in pairs"),
        ({"rope_parameters": []}, "groups of settings"),
        ({"rope_parameters": {"rope_type": "\x1b[2J"}}, r"rotary scaling '\\x1b\[2J' is not supported"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 1e-300}}, "needs factor above 0, got 1e-300"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e-300}}, "rope_theta is 1e-300"),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps is 1000"),
    ],
}


@pytest.mark.parametrize(
    ("family", "change", "message"), [(family, *row) for family, rows in REFUSED.items() for row in rows]
)
def test_a_config_that_is_not_ours_is_refused(make_gpt2, make_llama, broken, family, change, message):
    folder = broken(lambda tensors: None, make_gpt2() if family == "gpt2" else make_llama())
    raw = json.loads((folder / "config.json").read_text()) | change
    (folder / "config.json").write_text(json.dumps(raw))
    with pytest.raises(ValueError, match=message) as error:
        Transformer.from_pretrained(folder)
    assert str(error.value).isprintable() and len(str(error.value)) < len(str(folder)) + 300


def test_a_long_context_of_a_real_model_is_no_fault(make_llama):
    """1,048,576 positions: tables of 32 MB beside tiny weights."""
    folder, _ = make_llama(max_position_embeddings=2**20)
    assert Transformer.from_pretrained(folder).cos.shape == (2**20, 4)


@pytest.mark.parametrize("text", ["[]", "{", "\\x00", '{"model_type": "llama", "rope_parameters": "x"}'])
def test_a_config_that_is_no_config_is_named(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=r"config\.json cannot be used"):
        Transformer.from_pretrained(tmp_path)


def test_an_unknown_dtype():
    with pytest.raises(ValueError, match="unknown dtype 'int4'"):
        Transformer.from_pretrained("tales", dtype="int4")


@pytest.mark.parametrize(
    ("ids", "positions", "message"),
    [
        ([0, 8192], [0, 1], "token id 8192 is out of range: this model takes 0 to 8191"),
        ([-1], [0], "token id -1"),
        ([1], [1024], "position 1024"),
        ([1, 2], [0], "equal length"),
    ],
)
def test_ids_and_positions_out_of_range(ids, positions, message):
    model = Transformer.from_pretrained("tales-draft")
    with pytest.raises(ValueError, match=message):
        model(torch.tensor(ids), torch.tensor(positions), NoCache())


def test_bfloat16_stays_close(make_llama):
    folder, theirs = make_llama(initializer_range=0.05)
    ours = Transformer.from_pretrained(folder, dtype="bfloat16")
    ids = torch.arange(50)
    assert ours.dtype == torch.bfloat16 and ours.cos.dtype == torch.float32
    with torch.inference_mode():
        expected = theirs.to(torch.bfloat16)(ids[None]).logits[0].float()
    assert (logits_of(ours, ids).float() - expected).abs().max() < 0.05 * expected.abs().max()


def test_random_models_are_seeded():
    config = Transformer.from_pretrained("tales").config
    a, b, c = (Transformer.random(config, seed=seed).blocks[2].mlp.up.weight for seed in (3, 3, 4))
    assert torch.equal(a, b) and not torch.equal(a, c)


def test_the_last_row_of_the_layer_lens_is_the_model_itself():
    model = Transformer.from_pretrained("tales")
    ids = torch.tensor([5, 600, 7000, 12])
    rows = guesses_by_layer(model, ids)
    assert rows.shape == (model.config.num_layers + 1, model.config.vocab_size)
    torch.testing.assert_close(rows[-1], logits_of(model, ids)[-1].softmax(-1))
    assert not torch.allclose(rows[0], rows[-1])
    # The hooks are gone: a later call adds nothing.
    model(ids, torch.arange(4), ContiguousKVCache(model.config))
