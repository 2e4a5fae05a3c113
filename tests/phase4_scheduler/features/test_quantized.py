"""The engine with weights and caches in few bits: chosen by name, from files, and with twice the users in the same memory."""

import pytest

from labkit.models import find_model
from phase1_tokens_embeddings.weights.gguf_writer import write_gguf
from phase2_attention_kvcache.model import SamplingParams
from phase4_scheduler.assembly.build import default_num_blocks
from phase4_scheduler.engine import EngineConfig, LLMEngine
from phase4_scheduler.features.quantized import QuantizedKVCache

GREEDY = SamplingParams(temperature=0, max_tokens=12)


def test_a_gguf_file_serves_text(tmp_path):
    write_gguf(find_model("tales"), tmp_path / "tales.gguf", "Q8_0")
    engine = LLMEngine.from_pretrained(tmp_path / "tales.gguf", device="cpu", max_num_seqs=2, num_blocks=40)
    (output,) = engine.generate(["Once upon a time there was a king who"], GREEDY)
    assert output.text.startswith(" had a") and len(output.token_ids) == 12
    with pytest.raises(ValueError, match="this model is quantized already: leave quantization out"):
        LLMEngine.from_pretrained(tmp_path / "tales.gguf", quantization="int4")


@pytest.mark.parametrize("kind", ["fp8", "int8_per_token_head"])
def test_a_narrow_cache_serves_the_same_whatever_the_engine_does_meanwhile(
    tiny, make_prompts, kind, assert_empty
):
    """Chunks, prefix hits and preemption change nothing: every answer is as if it had been alone."""
    prompts = make_prompts(8, 400)
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    alone = []
    for prompt in prompts:
        engine = tiny.engine(kv_cache_dtype=kind, num_blocks=40)
        alone += [o.token_ids for o in engine.generate([prompt], params)]
    for settings in (
        dict(num_blocks=40, max_num_batched_tokens=16),
        dict(num_blocks=9),
        dict(num_blocks=200),
    ):
        engine = tiny.engine(kv_cache_dtype=kind, max_num_seqs=8, **settings)
        assert [o.token_ids for o in engine.generate(prompts, params)] == alone
        assert_empty(engine)
    swapping = tiny.engine(kv_cache_dtype=kind, num_blocks=9, preemption="swap", num_swap_blocks=20)
    assert [o.token_ids for o in swapping.generate(prompts, params)] == alone


def test_twice_the_blocks_in_the_same_memory(tiny, monkeypatch):
    monkeypatch.setattr("phase4_scheduler.assembly.build.memory_bytes", lambda: 2**22)
    found = {}
    for kind in ("auto", "fp8", "int8_per_token_head"):
        features = [QuantizedKVCache(kv_cache_dtype=kind)] if kind != "auto" else []
        config = EngineConfig(max_num_seqs=10**6, max_model_len=tiny.model.config.max_context)
        found[kind] = default_num_blocks(tiny.model, config, features) - 1
    # float32 here: four bytes a number become one; a head of 16 numbers has a scale of two bytes.
    assert found["fp8"] == pytest.approx(4 * found["auto"], abs=4)
    assert found["int8_per_token_head"] == pytest.approx(64 / 18 * found["auto"], abs=4)


def test_a_wrong_name_is_one_line():
    with pytest.raises(ValueError, match="unknown quantization 'int5'"):
        LLMEngine.from_pretrained("tales", quantization="int5")
    with pytest.raises(ValueError, match="unknown kv_cache_dtype 'int5'"):
        LLMEngine.from_pretrained("tales", kv_cache_dtype="int5")
