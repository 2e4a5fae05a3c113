"""Bytes: copies between blocks and main memory."""

import torch

from phase3_paged_attention.paging import KVStorage
from phase3_paged_attention.sharing import BlockCopy, SwapSpace
from tests.paged_case import model_config


def test_copies_are_made_in_order():
    storage = KVStorage(model_config(2, 1, 8, num_layers=3), num_blocks=6, block_size=2)
    storage.data.copy_(torch.arange(6.0)[:, None, None, None].expand(6, 2, 1, 8))
    space = SwapSpace(storage, num_swap_blocks=3)
    [(_, swap)] = space._pairs
    swap.copy_(torch.arange(10.0, 13.0).view(3, 1, 1, 1, 1, 1).expand(swap.shape))
    space.apply(
        [
            BlockCopy("copy", 1, 2),  # 1 1
            BlockCopy("out", 2, 0),  # what arrived a moment ago goes on
            BlockCopy("in", 1, 1),
            BlockCopy("in", 0, 4),
            BlockCopy("copy", 1, 5),
        ]
    )
    assert storage.data[:, :, :, 0, 0, 0].unique(dim=1).tolist() == [[[0, 11, 1, 3, 1, 11]]] * 2
    assert swap.flatten(1).unique(dim=1).tolist() == [[1], [11], [12]]
    for block in range(6):  # whole blocks: all tokens, heads, numbers, in all layers
        assert storage.data[:, :, block].unique().numel() == 1
