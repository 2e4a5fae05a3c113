"""The runner for a GPU over fused layers, a cache in fp8 and quantized weights: the same tokens as torch computes, from kernels."""

import random

import pytest
import torch

from phase2_attention_kvcache.model.sampling_params import SamplingParams
from phase2_attention_kvcache.model.transformer import Transformer
from phase2_attention_kvcache.quantization.quantized_linear import QuantizedLinear, quantize_model
from phase3_paged_attention.paging import PagedKVCache
from phase3_paged_attention.sharing import QuantizedKVStorage
from phase4_scheduler.engine import EngineConfig, LLMEngine
from phase5_real_gpu.fused import FP8PagedKVCache, runner
from phase5_real_gpu.fused.runner import FusedRunner, KernelLinear
from phase5_real_gpu.kernels.triton_setup import card_problem
from tests.phase5_real_gpu.conftest import FP8, repeat_in_python
from tests.properties import contrasted

pytest.importorskip("triton")

CONFIG = EngineConfig(max_num_seqs=4, max_model_len=64, num_blocks=40, block_size=4)
GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)


@pytest.fixture
def model(request, lab):
    more = getattr(request, "param", {})
    config = lab.model_config(2, 1, 16, **{"d_ff": 64} | more)
    return contrasted(Transformer.random(config, device=lab.device))


def storage(model, kind):
    sizes = (CONFIG.num_blocks, CONFIG.block_size, model.dtype, model.device)
    return QuantizedKVStorage(model.config, *sizes, kv_cache_dtype=kind)


def tokens(model, own_runner=None, kv_cache=None):
    """Of four requests that run together."""
    rng = random.Random(1)
    prompts = [[rng.randrange(97) for _ in range(n)] for n in (3, 11, 1, 7)]
    engine = LLMEngine(model, None, CONFIG, kv_cache=kv_cache)
    if own_runner is not None:
        own_runner._record = repeat_in_python
        engine.core.runner.execute = own_runner.execute
        engine.core.runner.logits = own_runner.logits
    return [o.token_ids for o in engine.generate(prompts, GREEDY)]


GEMMA = dict(family="gemma3_text", windows=(8, None), local_rope_theta=1000.0)


@pytest.mark.parametrize("model", [{}, GEMMA, dict(family="qwen3")], indirect=True)
def test_fused_layers_write_the_same_tokens(model):
    """Both activations, two rotations, norms of queries and keys. No linear layer is another one."""
    own = FusedRunner.create(model, CONFIG, CONFIG.num_blocks)
    wanted = tokens(model)
    assert tokens(model, own, own.kv_cache) == wanted and len({tuple(t) for t in wanted}) == 4
    assert tokens(own.model) == wanted  # any other cache gets its keys turned, as before
    linear = {m for m in model.modules() if isinstance(m, torch.nn.Linear)}
    assert linear <= set(own.model.modules())


@pytest.mark.skipif(card_problem(FP8) is not None, reason=str(card_problem(FP8)))
def test_a_cache_in_fp8_is_read_in_place_and_steps_are_recorded(model):
    """Its memory is the one that the engine gave it: there is no second cache beside it."""
    memory = storage(model, "fp8")
    own = FusedRunner.create(model, CONFIG, CONFIG.num_blocks, memory)
    assert isinstance(own.kv_cache, FP8PagedKVCache) and own.kv_cache.storage is memory
    assert own._record is not None
    sizes = (CONFIG.num_blocks, CONFIG.block_size, model.dtype, model.device)
    gathered = PagedKVCache(model.config, *sizes, storage=storage(model, "fp8"), use_kernel=False)
    assert tokens(model, own, own.kv_cache) == tokens(model, kv_cache=gathered)
    assert own.recordings


def test_other_formats_of_the_cache_and_older_cards_are_told(model, monkeypatch):
    with pytest.warns(
        UserWarning, match="no kernel reads keys and values in int8_per_token_head. The engine gathers"
    ):
        assert FusedRunner.create(model, CONFIG, 40, storage(model, "int8_per_token_head")) is None
    monkeypatch.setattr(runner, "card_problem", lambda dtype: "this card has compute capability 8.0")
    with pytest.warns(UserWarning, match="compute capability 8.0. The engine gathers keys with torch"):
        assert FusedRunner.create(model, CONFIG, 40, storage(model, "fp8")) is None


# ---------------------------------------------------------------------- quantized weights


@pytest.mark.parametrize("method", runner.READ)
def test_a_quantized_layer_is_one_kernel_a_part(lab, model, method, monkeypatch):
    """Its weights are not copied, and the model that was given stays as it was."""
    quantize_model(model, method)
    launches = []
    gemm = runner.quantized_gemm
    monkeypatch.setattr(runner, "quantized_gemm", lambda x, **planes: launches.append(1) or gemm(x, **planes))
    own = FusedRunner.create(model, CONFIG, CONFIG.num_blocks)
    layers = [m for m in own.model.modules() if isinstance(m, QuantizedLinear)]
    assert len(layers) > 4 and all(type(layer) is KernelLinear for layer in layers)
    assert type(model.head) is QuantizedLinear
    theirs = {t.data_ptr() for t in model.buffers() if t.numel()}
    assert {t.data_ptr() for t in own.model.buffers() if t.numel()} == theirs

    x = torch.randn(3, layers[0].shape[1], device=lab.device)
    got = layers[0](x)
    assert len(launches) == len(layers[0].parts)
    plain = QuantizedLinear(layers[0].parts, layers[0].bias)
    lab.assert_near(got, plain(x), 1e-4)
    assert tokens(model, own, own.kv_cache) == tokens(model)


def test_a_format_without_a_kernel_is_told(model):
    quantize_model(model, "fp8")
    with pytest.warns(
        UserWarning, match="no kernel on a GPU multiplies with weights in fp8.*slower than 16 bits"
    ):
        own = FusedRunner.create(model, CONFIG, CONFIG.num_blocks)
    assert tokens(model, own, own.kv_cache) == tokens(model)
