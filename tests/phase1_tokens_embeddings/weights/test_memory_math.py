"""Shapes, parameter counts, KV cache bytes and users: against transformers and against published counts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import GPT2Config

from labkit.errors import LabError
from labkit.models import find_model
from phase1_tokens_embeddings.weights.cards import CARDS, find_card
from phase1_tokens_embeddings.weights.memory_math import kv_of_text, kv_per_token, users_that_fit
from phase1_tokens_embeddings.weights.model_shapes import SHAPES, find_shape, read_shape
from phase1_tokens_embeddings.weights.weight_formats import PRECISIONS, weight_bytes

PUBLISHED = {  # the exact counts that the hub shows for each checkpoint
    "gpt2": 124_439_808, "gpt2-medium": 354_823_168, "gpt2-large": 774_030_080, "gpt2-xl": 1_557_611_200,
    "tinyllama-1.1b": 1_100_048_384, "llama-3.2-1b": 1_235_814_400, "llama-3.2-3b": 3_212_749_824,
    "llama-2-7b": 6_738_415_616, "mistral-7b": 7_248_023_552, "qwen2.5-7b": 7_615_616_512,
    "llama-3-8b": 8_030_261_248, "llama-3-70b": 70_553_706_496, "smollm2-135m": 134_515_008,
    "qwen2.5-0.5b": 494_032_768, "qwen3-0.6b": 596_049_920, "gemma-3-1b": 999_885_952, "olmo-2-1b": 1_484_916_736,
    "gemma-2-2b": 2_614_341_888, "smollm3-3b": 3_075_098_624, "phi-3-mini": 3_821_079_552,
    "mistral-7b-v0.1": 7_241_732_096, "olmoe-1b-7b": 6_919_161_856, "qwen3-8b": 8_190_735_360,
    "qwen3-30b-a3b": 30_532_122_624, "mixtral-8x7b": 46_702_792_704,
}  # fmt: skip


def test_parameter_counts_equal_the_published_ones():
    assert {name: shape.num_parameters for name, shape in SHAPES.items()} == PUBLISHED


# ------------------------------------------------------------------ KV cache and users


def test_layers_with_a_window_keep_its_tokens():
    gemma = SHAPES["gemma-3-1b"]  # 22 of 26 layers see 512 tokens
    assert kv_of_text(gemma, 300) == 300 * kv_per_token(gemma)
    assert kv_of_text(gemma, 32768) == (22 * 512 + 4 * 32768) * 2 * 256 * 2
    assert kv_of_text(SHAPES["qwen3-0.6b"], 5000) == 5000 * kv_per_token(SHAPES["qwen3-0.6b"])


def test_a_token_meets_few_of_the_experts():
    """The figures that are in the models' names: 30B-A3B, 8x7B of which 12.9, 1B-7B."""
    billions = {
        n: SHAPES[n].active_parameters / 1e9
        for n in ("qwen3-30b-a3b", "mixtral-8x7b", "olmoe-1b-7b", "qwen3-8b")
    }
    assert billions == pytest.approx(
        {"qwen3-30b-a3b": 3.35, "mixtral-8x7b": 12.88, "olmoe-1b-7b": 1.28, "qwen3-8b": 8.19}, abs=0.01
    )


@given(
    shape=st.sampled_from(list(SHAPES.values())),
    card=st.sampled_from(list(CARDS.values())),
    context=st.integers(1, 1024),
    precision=st.sampled_from(PRECISIONS),
    kv=st.sampled_from([1, 2]),
)
def test_one_more_user_would_not_fit(shape, card, context, precision, kv):
    users = users_that_fit(shape, card, context, precision, kv)
    room = card.memory_bytes * 0.9 - weight_bytes(shape, precision)
    each = kv_of_text(shape, context, kv)
    assert users >= 0
    assert users == 0 or users * each <= room
    assert room < (users + 1) * each


@pytest.mark.parametrize(("context", "message"), [(0, "context is 0"), (1025, "reads at most 1,024")])
def test_impossible_questions_are_refused(context, message):
    with pytest.raises(ValueError, match=message):
        users_that_fit(SHAPES["gpt2"], CARDS["t4"], context)


def test_cards_and_shapes_are_found_by_name(tmp_path):
    assert find_card("A100 80").title == "A100 80 GB" and find_card("rtx4090") is CARDS["rtx4090"]
    with pytest.raises(LabError, match="unknown card 'k80': choose one of t4, l4"):
        find_card("k80")
    assert find_shape("Llama-3-8B") is SHAPES["llama-3-8b"]
    assert find_shape("tales") == read_shape(find_model("tales") / "config.json", "tales")
    GPT2Config(n_embd=8, n_head=2, n_layer=3).save_pretrained(tmp_path / "mine")
    assert find_shape(str(tmp_path / "mine")).num_layers == 3
    with pytest.raises(LabError, match=r"unknown model 'llama-9'.* llama-3-8b"):
        find_shape("llama-9")
    with pytest.raises(LabError, match=r"no config\.json"):
        find_shape(str(tmp_path))
