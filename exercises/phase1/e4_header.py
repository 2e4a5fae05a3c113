# %% [markdown]
# # 1.4 Where in the file is that tensor?
#
# A safetensors file has three parts:
#
# | bytes | content |
# |---|---|
# | 8 | N, the length of the header: an unsigned integer of 64 bits, little-endian (lowest byte first) |
# | N | the header, JSON |
# | the rest | the numbers of all tensors |
#
# The header names each tensor with its dtype, its shape and two offsets: its first byte, and the byte after its last.
# The offsets **count from the end of the header**, not from the beginning of the file:
#
#     {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}, "__metadata__": {"format": "pt"}}
#
# The entry `__metadata__` is no tensor: it holds free text, and may be missing.
#
# By hand: if the header above takes 95 bytes, the data begins at byte 8 + 95 = 103, and tensor `a` takes the bytes
# 103 to 111 of the file. So `read_header` returns `{"a": ("F32", [2], 103, 111)}`.
#
# A downloaded file is untrusted. Raise a `ValueError` if the file is too short for its 8 bytes or for the header
# length in them, if a tensor ends behind the end of the file, or if it begins below 0 or after its own end. Check each
# number *before* you use it.
# %%
import json
import struct

from exercises.grading import check, hint


# %% tags=["answer"]
def read_header(data: bytes) -> dict[str, tuple[str, list[int], int, int]]:
    """List the tensors of a safetensors file.

    Args:
        data: the bytes of the whole file.

    Returns:
        name -> (dtype, shape, first byte in the file, byte after the last in the file).

    Raises:
        ValueError: the header, or a tensor, does not fit into the file.
    """
    # BEGIN SOLUTION
    if len(data) < 8:
        raise ValueError(f"{len(data)} bytes: too short for a safetensors file")
    (length,) = struct.unpack("<Q", data[:8])
    start = 8 + length
    if start > len(data):
        raise ValueError(f"the header should take {length} bytes, the file has {len(data)}")
    tensors = {}
    for name, entry in json.loads(data[8:start]).items():
        if name == "__metadata__":
            continue
        first, end = entry["data_offsets"]
        if not 0 <= first <= end <= len(data) - start:
            raise ValueError(f"tensor {name} lies outside the file")
        tensors[name] = (entry["dtype"], entry["shape"], start + first, start + end)
    return tensors
    # END SOLUTION


# %% tags=["check"]
check("p1e4_header", read_header)
# %% [markdown]
# ## Into the engine
#
# That is enough to load a model. The engine reads each tensor of `tales` at the bytes that you found. It must write the same story
# as with the course's own loader.
# %% tags=["engine"]
from unittest.mock import patch

import torch

from exercises.judging.engine_runs import passed, same_or_stop
from phase2_attention_kvcache.model import SamplingParams, checkpoint
from phase4_scheduler.engine import LLMEngine

passed("p1e4_header", read_header)
FORMATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def your_tensors(stored):
    """Read all tensors of a model with your `read_header`. stored: short name -> file, and name in that file."""
    tensors = {}
    for file in {entry.file for entry in stored.values()}:
        data = bytearray(file.read_bytes())
        header = read_header(bytes(data))
        for short, entry in stored.items():
            if entry.file == file:
                dtype, shape, first, end = header[entry.name]
                tensors[short] = torch.frombuffer(data[first:end], dtype=FORMATS[dtype]).view(shape)
    return tensors


def story():
    engine = LLMEngine.from_pretrained(
        "tales", dtype="float32", device="cpu", max_num_seqs=1, max_model_len=128
    )
    return engine.generate("The king had three sons, and", SamplingParams(temperature=0, max_tokens=24))[0]


course = story()
with patch.object(checkpoint, "read_tensors", your_tensors):
    mine = story()
same_or_stop(mine.token_ids, course.token_ids, says="with your tensors the model writes something else")
print("The same story from your tensors:")
print(mine.prompt + mine.text)
