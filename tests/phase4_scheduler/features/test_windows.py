"""Windows in an engine: found without a setting where every layer of the model has one."""

import pytest

from phase2_attention_kvcache.model import SamplingParams
from phase3_paged_attention.sharing import WindowedBlockManager
from phase4_scheduler.engine import LLMEngine
from tests.fuzzing.engine import make_model


@pytest.mark.parametrize("windows", [(5, 9), (5, None)])
def test_a_request_longer_than_the_cache_runs_where_all_layers_have_a_window(windows):
    model = make_model("mistral", windows)
    prompt, params = list(range(20, 44)), SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    limits = dict(block_size=2, max_num_batched_tokens=4, max_num_seqs=2)
    engine = LLMEngine(model, None, num_blocks=14, **limits)  # 26 tokens
    assert isinstance(engine.core.block_manager, WindowedBlockManager) == (None not in windows)
    if None in windows:
        with pytest.raises(ValueError, match="raise num_blocks"):
            engine.generate([prompt], params)
        return
    [answer] = engine.generate([prompt], params)
    [alone] = LLMEngine(model, None, num_blocks=60, **limits).generate([prompt], params)
    assert answer.token_ids == alone.token_ids
