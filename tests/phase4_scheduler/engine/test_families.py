"""Every family through the engine: chunks, a prefix hit, preemption, and still transformers' tokens."""

import pytest
import torch

from phase1_tokens_embeddings.weights.families import FAMILIES
from phase2_attention_kvcache.model import SamplingParams
from phase2_attention_kvcache.story.small_families import write_small_model
from phase4_scheduler.engine import EngineConfig, LLMEngine

CONFIG = EngineConfig(max_num_seqs=3, max_num_batched_tokens=7, num_blocks=7, block_size=4, max_model_len=48)
START = [11, 42, 7, 93, 5, 60, 31, 8, 77]


@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_greedy_tokens_equal_those_of_transformers(tmp_path, family):
    theirs = write_small_model(family, tmp_path)
    engine = LLMEngine.from_pretrained(tmp_path, "float32", "cpu", **vars(CONFIG))
    prompts = [[*START, 20 + i] for i in range(3)]
    outputs = engine.generate(prompts, SamplingParams(temperature=0, max_tokens=14, ignore_eos=True))
    for prompt, output in zip(prompts, outputs, strict=True):
        # What transformers would write is what it finds likeliest at each place of what was written.
        logits = theirs(torch.tensor([prompt + output.token_ids])).logits[0, len(prompt) - 1 : -1]
        assert output.token_ids == logits.argmax(-1).tolist()
        assert len(output.token_ids) == 14
    metrics = [output.metrics for output in outputs]
    assert sum(m.num_preemptions for m in metrics) > 0 and sum(m.num_cached_tokens for m in metrics) > 0
