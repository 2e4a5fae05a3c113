"""Bits per byte of a model on a text: its average code length."""

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

from phase2_attention_kvcache.model import KVCache, Transformer
from phase2_attention_kvcache.model.caches import NoCache


@torch.inference_mode()
def bits_per_byte(
    model: Transformer,
    token_ids: Sequence[int],
    num_bytes: int,
    make_cache: Callable[[], KVCache] | None = None,
) -> float:
    """Bits that the model needs on average to write down a byte of a text: -log2 p(text) / bytes.

    Plain text has 8, `gzip` needs about 3. Unlike the loss a token it can be compared between tokenizers, and
    between a model and the same model in fewer bits: what rounding has made it forget costs bits here.

    Args:
        token_ids: the text, from a token that begins it (not counted) to its last.
        num_bytes: of the text in UTF-8.
        make_cache: makes the object behind `kv.attend`, `NoCache` if not given; a quantized cache loses a little as well.
    """
    window = model.config.max_context  # read in one go, without knowledge of the window before
    ids, nats = torch.tensor(token_ids, device=model.device), 0.0
    for start in range(0, len(ids) - 1, window):
        piece = ids[start : start + window + 1]
        places = torch.arange(len(piece) - 1, device=model.device)
        hidden = model(piece[:-1], places, make_cache() if make_cache else NoCache(model.config))
        for rows in range(0, len(hidden), 256):  # scores of a whole window would fill much memory
            scores = model.logits(hidden[rows : rows + 256]).float()
            wanted = piece[1 + rows : 1 + rows + len(scores)]
            nats += F.cross_entropy(scores, wanted, reduction="sum").item()
    return nats / math.log(2) / num_bytes
