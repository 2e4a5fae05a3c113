"""Windows in an engine: attached without a setting where every layer of the model has one."""

from phase2_attention_kvcache.model import SamplingParams
from phase3_paged_attention.paging import BlockManager, BlockTable
from phase3_paged_attention.sharing import SwappingBlockManager, WindowedBlockManager
from phase4_scheduler.engine import LLMEngine
from tests.fuzzing.engine import make_model


def test_a_request_longer_than_the_cache_runs_where_all_layers_have_a_window():
    model = make_model("mistral", (5, 9))
    prompt, params = list(range(20, 44)), SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    limits = dict(block_size=2, max_num_batched_tokens=4, max_num_seqs=2)
    small, large = (LLMEngine(model, num_blocks=n, **limits) for n in (14, 60))  # 26 and 118 tokens
    assert small.generate([prompt], params)[0].token_ids == large.generate([prompt], params)[0].token_ids


def test_no_prefix_hits_the_null_block_of_a_table_that_came_back_from_swap():
    kind = type("Manager", (SwappingBlockManager, WindowedBlockManager, BlockManager), {})
    manager = kind(20, 2, num_swap_blocks=9, sliding_window=3, max_new_tokens=9)
    table, ids = BlockTable(), list(range(9))
    assert manager.allocate(table, ids, 8) and manager.swap_out(table) and manager.swap_in(table)
    assert manager.allocate(table, ids, 9) and table.block_ids[:3] == [0, 0, 0]
    assert 0 not in {block.block_id for _, block in manager.prefix_cache}
