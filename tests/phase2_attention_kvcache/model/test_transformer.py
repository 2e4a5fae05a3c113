"""The transformer against Hugging Face's, and what it says of folders that do not fit."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GPT2Model

from labkit.errors import LabError
from labkit.models import find_model
from phase2_attention_kvcache.model.caches import ContiguousKVCache, NoCache
from phase2_attention_kvcache.model.config import GPT2_124M
from phase2_attention_kvcache.model.transformer import Transformer
from phase2_attention_kvcache.story.inside_the_tower import guesses_by_layer, parts_of


def logits_of(model: Transformer, ids: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return model.logits(model(ids, torch.arange(len(ids)), NoCache()))


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


def test_gpt2_at_full_size_equals_transformers(make_gpt2):
    folder, theirs = make_gpt2(
        vocab_size=50257, n_positions=1024, n_embd=768, n_layer=12, n_head=12, initializer_range=0.02
    )
    ours = assert_equals_theirs(folder, theirs, 64)
    for field in [
        "vocab_size",
        "d_model",
        "num_layers",
        "num_heads",
        "head_dim",
        "d_ff",
        "max_context",
        "tied",
    ]:
        assert getattr(ours.config, field) == getattr(GPT2_124M, field)
    assert sum(p.numel() for p in ours.parameters()) == GPT2_124M.num_parameters == 124_439_808


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie_word_embeddings": True},
        {"num_key_value_heads": 8},
        {"num_key_value_heads": 1, "head_dim": 32},
        {"attention_bias": True, "mlp_bias": True},
        {"rms_norm_eps": 1e-2},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
                             "high_freq_factor": 4.0, "original_max_position_embeddings": 32}},
    ],
    ids=lambda changes: "-".join(changes) or "gqa",
)  # fmt: skip
def test_llama_equals_transformers(make_llama, changes):
    assert_equals_theirs(*make_llama(**changes))


def test_llama_with_the_field_names_of_older_files(make_llama, tmp_path):
    folder, theirs = make_llama(rope_parameters={"rope_type": "default", "rope_theta": 5000.0})
    shutil.copytree(folder, tmp_path / "old")
    raw = json.loads((folder / "config.json").read_text())
    del raw["rope_parameters"]
    raw |= {"rope_theta": 5000.0, "rope_scaling": None}
    (tmp_path / "old" / "config.json").write_text(json.dumps(raw))
    assert_equals_theirs(tmp_path / "old", theirs)


def test_gpt2_untied_and_with_its_own_mlp_width(make_gpt2):
    assert_equals_theirs(*make_gpt2(tie_word_embeddings=False, n_inner=100))


def test_shards_give_the_same_model(make_llama):
    folder, theirs = make_llama(shard_size="50KB")
    assert len(list(folder.glob("*.safetensors"))) > 2
    assert_equals_theirs(folder, theirs)


def test_a_missing_shard_is_named(make_llama, tmp_path):
    folder, _ = make_llama(shard_size="50KB")
    shutil.copytree(folder, tmp_path / "m")
    gone = sorted((tmp_path / "m").glob("*.safetensors"))[1]
    gone.unlink()
    with pytest.raises(FileNotFoundError, match=gone.name):
        Transformer.from_pretrained(tmp_path / "m")


def test_names_without_prefix_and_old_mask_tensors(make_gpt2, tmp_path):
    folder, theirs = make_gpt2()
    GPT2Model.from_pretrained(folder).save_pretrained(tmp_path)  # "h.0..." instead of "transformer.h.0..."
    tensors = load_file(tmp_path / "model.safetensors")
    assert "wte.weight" in tensors
    save_file(tensors | {"h.0.attn.bias": torch.ones(1, 1, 4, 4)}, tmp_path / "model.safetensors")
    assert_equals_theirs(tmp_path, theirs)


@pytest.fixture
def broken(make_gpt2, tmp_path):
    """A folder to break: `broken(change)` lets `change` edit the tensors, then returns the folder."""

    def make(change, made=None):
        folder, _ = made or make_gpt2()
        shutil.copytree(folder, tmp_path / "model")
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, tmp_path / "model" / "model.safetensors")
        return tmp_path / "model"

    return make


def test_missing_and_unexpected_tensors_are_named(broken):
    def change(tensors):
        tensors["transformer.h.1.extra"] = tensors.pop("transformer.h.1.ln_1.weight")

    with pytest.raises(ValueError, match=r"missing h\.1\.ln_1\.weight; unexpected h\.1\.extra"):
        Transformer.from_pretrained(broken(change))


def test_a_wrong_shape_is_named(broken):
    def change(tensors):
        tensors["transformer.wpe.weight"] = torch.zeros(5, 48)

    with pytest.raises(ValueError, match=r"wpe\.weight has the wrong shape: \[5, 48\] found.*\[128, 48\]"):
        Transformer.from_pretrained(broken(change))


def test_a_truncated_file_is_named(broken):
    folder = broken(lambda tensors: None)
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"model\.safetensors"):
        Transformer.from_pretrained(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "bert"}, "model_type is 'bert'"),
        ({"activation_function": "relu"}, "activation 'relu'"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scaling attention"),
        ({"n_embd": None}, "n_embd is None"),
        ({"n_head": 0}, "n_head is 0"),
        ({"n_layer": "4"}, "n_layer is '4'"),
        ({"layer_norm_epsilon": "x"}, "layer_norm_epsilon is 'x'"),
        ({"eos_token_id": "end"}, "eos_token_id"),
        ({"n_positions": 10**10}, "context of 10,000,000,000 tokens"),
    ],
)
def test_a_config_that_is_not_ours_is_refused(broken, change, message):
    folder = broken(lambda tensors: None)
    raw = json.loads((folder / "config.json").read_text()) | change
    (folder / "config.json").write_text(json.dumps({k: v for k, v in raw.items() if v is not None}))
    with pytest.raises(ValueError, match=message):
        Transformer.from_pretrained(folder)


@pytest.mark.parametrize("text", ["[]", "{", "\\x00", '{"model_type": "llama", "rope_parameters": "x"}'])
def test_a_config_that_is_no_config_is_named(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=r"config\.json cannot be used"):
        Transformer.from_pretrained(tmp_path)


@pytest.mark.parametrize("name", ["1.self_attn.k_proj", "0.mlp.up_proj"])
@pytest.mark.parametrize("shape", [(7, 9), (3,), ()])
def test_a_joined_tensor_of_the_wrong_shape_is_named(make_llama, broken, name, shape):
    wrong = {f"model.layers.{name}.weight": torch.zeros(shape)}
    folder = broken(lambda tensors: tensors.update(wrong), make_llama())
    with pytest.raises(ValueError, match="has the wrong shape"):
        Transformer.from_pretrained(folder)


def test_bad_names_and_dtypes():
    with pytest.raises(LabError, match="no model folder"):
        Transformer.from_pretrained("./nothing/here")
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


def test_parts_add_up_and_random_models_are_seeded():
    model = Transformer.from_pretrained("tales")
    assert sum(n for _, n in parts_of(model)) == sum(p.numel() for p in model.parameters())
    a, b, c = (Transformer.random(model.config, seed=seed).blocks[2].mlp.up.weight for seed in (3, 3, 4))
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
