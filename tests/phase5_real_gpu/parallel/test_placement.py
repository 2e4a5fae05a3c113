"""Who holds what: nothing is lost, and nothing is held twice that need not be."""

from dataclasses import replace
from itertools import product

import pytest
import torch

from phase2_attention_kvcache.model import Transformer
from phase5_real_gpu.parallel import Place, check_split
from phase5_real_gpu.parallel.placement import columns_of_rank, config_of_rank, rows_of_rank
from tests.phase5_real_gpu.parallel.conftest import FAMILIES


@pytest.mark.parametrize(
    ("family", "expert_parallel", "t", "p"),
    [*product(FAMILIES, [False], (1, 2, 4), (1, 2, 3)), *product(["qwen3_moe"], [True], (2, 4), (1, 2))],
)
def test_every_number_of_a_model_is_held_as_often_as_it_should_be(configs, family, expert_parallel, t, p):
    config = configs[family]
    check_split(config, t, p, expert_parallel)
    with torch.device("meta"):
        whole = {name: x.shape for name, x in Transformer(config).state_dict().items()}
    held = {name: torch.zeros(shape) for name, shape in whole.items()}
    for rank in range(t * p):
        place = Place(rank, t, p, expert_parallel)
        layers = place.layers(config.num_layers)
        assert len(layers) == config_of_rank(config, place).num_layers
        for name in whole:
            if name.startswith("blocks.") and int(name.split(".")[1]) not in layers:
                continue
            if ".experts." in name and int(name.split(".")[4]) not in place.experts(config.num_experts):
                continue
            rows, columns = rows_of_rank(config, name, place), columns_of_rank(config, name, place)
            assert rows is None or columns is None
            for part in rows or [slice(None)]:
                chosen = slice(part.start, part.stop)
                if columns is None:
                    held[name][chosen] += 1
                else:
                    held[name][:, columns.start : columns.stop] += 1
    for name, times in held.items():
        if not name.startswith("blocks"):
            times = times / p  # where a stage does not need it, the model leaves it out
        first = Place(0, t, p, expert_parallel)
        cut = rows_of_rank(config, name, first) or columns_of_rank(config, name, first)
        kv_copies = max(1, t // config.num_kv_heads)
        if name.split(".")[-2] == "qkv":
            q = config.num_heads * config.head_dim
            assert (times[:q] == 1).all()
            assert (times[q:] == kv_copies).all()
        elif name.split(".")[-2] == "k_norm" and cut:
            assert (times == kv_copies).all()
        else:
            assert (times == (1 if cut else t)).all(), name


@pytest.mark.parametrize(
    ("family", "change", "split", "message"),
    [
        ("llama", {}, (3, 1), "tensor_parallel_size is 3, and the model has 4 query heads"),
        ("llama", {"d_ff": 66}, (4, 1), "the model has 66 numbers inside its MLP"),
        ("llama", {"num_heads": 12, "num_kv_heads": 3}, (2, 1), "the model has 3 KV heads"),
        ("llama", {}, (1, 4), "pipeline_parallel_size is 4, and the model has 3 layers"),
        ("llama", {}, (2, 1, True), "distributes experts over 2 ranks, and the model has none"),
        ("qwen3_moe", {}, (8, 1, True), "distributes experts over 8 ranks, and the model has 6"),
    ],
)
def test_what_cannot_be_split_is_refused(configs, family, change, split, message):
    with pytest.raises(ValueError, match=message):
        check_split(replace(configs[family], **change), *split)


def test_experts_that_do_not_divide():
    shares = [Place(rank, 4, 1, enable_expert_parallel=True).experts(6) for rank in range(4)]
    assert shares == [range(2), range(2, 4), range(4, 5), range(5, 6)]  # vLLM's determine_expert_map
