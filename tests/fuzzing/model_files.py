"""An attacker of model files: small ones, damaged on purpose, read with the course's public readers.

A case is made from its random numbers alone: a small sound file, then a few changes of the kinds that break
parsers. A process of its own reads it, in 5 s and little more memory than the file has bytes. Either the file is read, as
other programs read it, or it is refused in one line. Everything else is a finding.
"""

import contextlib
import copy
import json
import math
import random
import struct
import tempfile
import traceback
import warnings
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
import safetensors
import safetensors.numpy
import tokenizers

from exercises.judging.sandbox import limit_memory, run_apart
from labkit.errors import LabError
from phase1_tokens_embeddings.tokens import BPETokenizer
from phase1_tokens_embeddings.tokens.bpe import SPLIT_PATTERNS
from phase1_tokens_embeddings.weights import (
    CARDS,
    find_shape,
    read_gguf_header,
    read_safetensors_header,
    users_that_fit,
)
from phase1_tokens_embeddings.weights.embeddings import load_embeddings
from phase1_tokens_embeddings.weights.ggml_blocks import READABLE, dequantize_blocks
from phase1_tokens_embeddings.weights.gguf_model import read_blocks
from phase1_tokens_embeddings.weights.gguf_writer import write_out
from phase2_attention_kvcache.model import SamplingParams
from phase2_attention_kvcache.story.small_families import OWN, write_small_model
from phase4_scheduler.engine import LLMEngine

SECONDS = 5.0  # of computing
SPARE_BYTES = 256 * 2**20  # what reading may take beyond twice the files
LONGEST_MESSAGE = 600  # characters, the paths in it included
REFUSALS = (ValueError, FileNotFoundError, LabError)
CONTROL = "\x1b[2J\x1b[31merror: all is lost\r\n\u202e"


# ------------------------------------------------------------------ changes that break parsers

EDGES = [
    None, True, False, 0, -1, 1, 2, 7, 255, 2**16, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**30,
    0.0, -0.5, 1.5, 1e-300, 1e300, math.inf, math.nan, "", "x", "0", "\ud800", "é", CONTROL, "x" * 100_000, "../x", "\0",
    [], [[]], [None], [0] * 2000, {}, {"a": {}}, {CONTROL: CONTROL}, "@deep", "@digits", "@huge", "@minus",
]  # fmt: skip
RAW = {"@deep": "[" * 5000 + "]" * 5000, "@digits": "9" * 5000, "@huge": "1e999", "@minus": "-0"}
"""Texts of JSON that Python would not write."""


def changed_json(rng: random.Random, document: Any) -> bytes:
    """A JSON document after a few changes, as it could stand in a file."""
    document = json.loads(json.dumps(document))
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        place, key = random_place(rng, document)
        match rng.randrange(6):
            case 0 if isinstance(place, dict):
                place[rng.choice([key + "x", CONTROL, "", "model." + key])] = place.pop(key)
            case 1:
                del place[key]
            case 2 if type(place[key]) is int:
                n = place[key]
                place[key] = rng.choice([n + 1, n - 1, -n, 2 * n, float(n)])
            case 3:
                place[key] = rng.choice([[place[key]], str(place[key]), {"a": place[key]}])
            case _:
                place[key] = copy.deepcopy(rng.choice(EDGES))
        if not document:
            break
    text = json.dumps(document, ensure_ascii=rng.random() < 0.8 or "\ud800" in str(document))
    for word, raw in RAW.items():
        text = text.replace(json.dumps(word), raw)
    return text.encode("utf-8", errors="surrogatepass")


def random_place(rng: random.Random, document: Any) -> tuple[Any, Any]:
    """A container within the document, and a key or an index of it."""
    key = rng.choice(list(document) if isinstance(document, dict) else range(len(document)))
    if isinstance(document[key], dict | list) and document[key] and rng.random() < 0.75:
        return random_place(rng, document[key])
    return document, key


def changed_bytes(rng: random.Random, raw: bytes, header: int) -> bytes:
    """Bytes after a few changes, most of them in the first `header`."""
    data = bytearray(raw)
    for _ in range(rng.choice([1, 1, 2, 4])):
        at = rng.randrange(min(header, len(data)) or 1)
        match rng.randrange(6):
            case 0:
                data[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                del data[at : at + rng.randint(1, 9)]
            case 2:
                some = rng.randbytes(rng.randint(1, 9))
                data[at:at] = rng.choice([some, b"\x1b[2J", b'"', b"0", b"-", b"[", b"{"])
            case 3:
                size = rng.choice([0, 1, 7, 2**31, 2**32 - 1, 2**32, 2**60, 2**63, 2**64 - 1, len(data)])
                data[at : at + 8] = struct.pack("<Q", size)
            case 4:
                data[at : at + 4] = struct.pack("<I", rng.choice([0, 1, 5, 8, 9, 2**16, 2**31, 2**32 - 1]))
            case 5:
                del data[rng.randrange(len(data) + 1) :]
    return bytes(data)


def with_header(header: bytes, data: bytes) -> bytes:
    """A safetensors file."""
    return struct.pack("<Q", len(header)) + header + data


# ------------------------------------------------------------------ safetensors


def make_safetensors(rng: random.Random, folder: Path, sound: bool) -> None:
    kinds = ["f4", "f2", "f8", "i8", "u1", "?"]
    tensors = {}
    for _ in range(rng.randint(1, 4)):
        name = "".join(rng.choices("ab.é", k=5))
        tensors[name] = np.zeros(rng.choices(range(4), k=rng.randrange(4)), rng.choice(kinds))
    raw = safetensors.numpy.save(tensors, rng.choice([None, {"format": "pt"}]))
    end = 8 + struct.unpack("<Q", raw[:8])[0]
    kind = rng.random()
    if not sound and kind < 0.5:
        raw = with_header(changed_json(rng, json.loads(raw[8:end])), raw[end:])
    elif not sound:
        raw = changed_bytes(rng, raw, end)
    (folder / "x.safetensors").write_bytes(raw)


def read_safetensors(folder: Path) -> None:
    header = read_safetensors_header(folder / "x.safetensors")
    raw = (folder / "x.safetensors").read_bytes()
    if b"-0" in raw:
        return  # a whole number to Python, and none to the package
    theirs = {name: (t["dtype"], tuple(t["shape"])) for name, t in safetensors.deserialize(raw)}
    ours = {name: (t.dtype, t.shape) for name, t in header.tensors.items()}
    assert ours == theirs, "the package reads otherwise"


# ------------------------------------------------------------------ GGUF


def make_gguf(rng: random.Random, folder: Path, sound: bool) -> None:
    path = folder / "x.gguf"
    writer = gguf.GGUFWriter(path, "gpt2")
    writer.add_block_count(rng.randint(1, 9))
    writer.add_token_list(["a", "bc", "é"])
    writer.add_array("x.numbers", [1, 2, 3])
    writer.add_bool("x.yes", True)
    if rng.random() < 0.3:
        writer.add_custom_alignment(rng.choice([8, 16, 64, 4096]))
    for i in range(rng.randrange(4)):
        shape = rng.choices(range(1, 5), k=rng.randint(1, 3))
        writer.add_tensor(f"t{i}", np.zeros(shape, rng.choice(["f4", "f2", "i4"])))
        kind = gguf.GGMLQuantizationType[rng.choice(["Q8_0", "Q4_0", "Q4_K", "Q6_K"])]
        blocks = np.full((2, gguf.GGML_QUANT_SIZES[kind][1]), 60, "u1")  # as F16 two such bytes are about 1
        writer.add_tensor(f"q{i}", blocks, raw_dtype=kind)
    write_out(writer)
    if not sound:
        path.write_bytes(changed_bytes(rng, path.read_bytes(), 400))


def read_gguf(folder: Path) -> None:
    path = folder / "x.gguf"
    header = read_gguf_header(path)
    theirs = gguf.GGUFReader(path)
    ours = {(n, t.dims, header.data_start + t.offset, t.nbytes) for n, t in header.tensors.items()}
    same = {(t.name, tuple(t.shape.tolist()), t.data_offset, t.n_bytes) for t in theirs.tensors}
    assert ours == same, "the package reads otherwise"
    for tensor, entry in zip(theirs.tensors, map(header.tensors.get, (t.name for t in theirs.tensors))):
        if entry.type in READABLE[3:] and len(entry.dims) == 2:
            ours = dequantize_blocks(entry.type, read_blocks(path, header, tensor.name)).numpy()
            same = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            assert np.array_equal(ours, same, equal_nan=True), "the package reads other numbers"


# ------------------------------------------------------------------ tokenizer.json

TEXTS = ["the dog's  12 dogs\n\n bit", "é\u0301 漢字 👍", "a" * 50, " \t x"]


SMALL = BPETokenizer.train(["the dog bites the man, the man bites the dog's dogs 12 12 "], 290)


def make_tokenizer(rng: random.Random, folder: Path, sound: bool) -> None:
    path = folder / "tokenizer.json"
    SMALL.save(path)
    document = json.loads(path.read_text(encoding="utf-8"))
    if rng.random() < 0.3:
        split = {"type": "Split", "pattern": {"Regex": SPLIT_PATTERNS["llama-bpe"]}}
        split |= {"behavior": "Isolated", "invert": False}
        level = document["pre_tokenizer"] | {"use_regex": False}
        document["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, level]}
        document["normalizer"] = rng.choice([None, {"type": "NFC"}])
    if sound:
        path.write_text(json.dumps(document), encoding="utf-8")
    elif rng.random() < 0.8:
        path.write_bytes(changed_json(rng, document))
    else:
        path.write_bytes(changed_bytes(rng, json.dumps(document).encode(), 10_000))


def read_tokenizer(folder: Path) -> None:
    path = folder / "tokenizer.json"
    tok = BPETokenizer.from_file(path)
    ours = [tok.encode(text) for text in TEXTS]
    assert [tok.decode(ids) for ids in ours] == TEXTS or tok.unicode_form, "text got lost"
    try:
        theirs = tokenizers.Tokenizer.from_file(str(path))
    except Exception:
        return  # stricter than we are, about parts that this course does not read
    if not tok.unicode_form:
        assert ours == [theirs.encode(text, add_special_tokens=False).ids for text in TEXTS], "other ids"


# ------------------------------------------------------------------ a folder: config.json, weights, index

FAMILIES = {
    "gpt2": OWN["gpt2"],
    "llama": dict(
        rope_parameters=dict(
            rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
            original_max_position_embeddings=16,
        )
    ),
}  # fmt: skip


@cache
def sound_model(family: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """config.json and the tensors of a small model, as transformers writes them."""
    with tempfile.TemporaryDirectory() as top:
        write_small_model(family, Path(top), FAMILIES[family] | {"vocab_size": SMALL.vocab_size})
        config = json.loads((Path(top) / "config.json").read_text(encoding="utf-8"))
        return config, safetensors.numpy.load_file(Path(top) / "model.safetensors")


def make_folder(rng: random.Random, folder: Path, sound: bool) -> None:
    config, tensors = sound_model(rng.choice(list(FAMILIES)))
    harm = "" if sound else rng.choice(["config", "config", "header", "index", "tokenizer"])
    raw = changed_json(rng, config) if harm == "config" else json.dumps(config).encode()
    (folder / "config.json").write_bytes(raw)
    if harm == "tokenizer":
        make_tokenizer(rng, folder, sound)
    else:
        SMALL.save(folder / "tokenizer.json")
    if harm == "index" or (not harm and rng.random() < 0.5):
        names = list(tensors)
        weight_map = {name: f"model-{i % 2}.safetensors" for i, name in enumerate(names)}
        for shard in set(weight_map.values()):
            raw = safetensors.numpy.save({n: tensors[n] for n in names if weight_map[n] == shard})
            (folder / shard).write_bytes(raw)
        index = {"metadata": {"total_size": 4}, "weight_map": weight_map}
        raw = changed_json(rng, index) if harm else json.dumps(index).encode()
        (folder / "model.safetensors.index.json").write_bytes(raw)
        return
    raw = safetensors.numpy.save(tensors, {"format": "pt"})
    end = 8 + struct.unpack("<Q", raw[:8])[0]
    if harm == "header":
        raw = with_header(changed_json(rng, json.loads(raw[8:end])), raw[end:])
    (folder / "model.safetensors").write_bytes(raw)


def read_folder(folder: Path) -> None:
    """All that the course makes of a model folder, up to the engine: three tokens, no end of text before the second."""
    refused: list[Exception] = []
    for use in (use_shape, load_embeddings, use_engine):
        try:
            use(folder)
        except REFUSALS as error:
            refused.append(error)
    if refused:
        raise max(refused, key=no_short_line)


def use_shape(folder: Path) -> None:
    shape = find_shape(str(folder))
    assert shape.num_parameters > 0
    users_that_fit(shape, CARDS["h200"], 1, "Q4_K_M")


def use_engine(folder: Path) -> None:
    limits = dict(num_blocks=4, max_num_seqs=2, max_num_batched_tokens=32)
    engine = LLMEngine.from_pretrained(folder, "float32", "cpu", **limits)
    (output,) = engine.generate([[1, 2]], SamplingParams(max_tokens=3, min_tokens=2, temperature=0))
    assert 2 <= len(output.token_ids) <= 3, "a text of another length"


# ------------------------------------------------------------------ the judge


class Target(NamedTuple):
    make: Callable[[random.Random, Path, bool], None]  # writes files into a folder, sound ones if so asked
    read: Callable[[Path], None]
    share: int  # of 100 cases


TARGETS = {
    "safetensors": Target(make_safetensors, read_safetensors, 30),
    "gguf": Target(make_gguf, read_gguf, 26),
    "tokenizer": Target(make_tokenizer, read_tokenizer, 33),
    "folder": Target(make_folder, read_folder, 11),
}


def no_short_line(error: Exception) -> str:
    """What is wrong with the message of a refusal; "" if nothing is."""
    text = str(error)
    if text and text.isprintable() and len(text) <= LONGEST_MESSAGE:
        return ""
    return f"no short line: {text[:200]!a} ({len(text)} characters)"


def judged(read: Callable[[Path], None], folder: Path, sound: bool) -> bytes:
    """ "read", "refused", or what is wrong. For a process of its own, whose memory it limits."""
    limit_memory(2 * sum(file.stat().st_size for file in folder.iterdir()) + SPARE_BYTES)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # it would be printed
            read(folder)
        verdict = "read"
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        verdict = f"{type(error).__name__} in {where.name}, line {where.lineno}: {ascii(str(error))[:300]}"
        if isinstance(error, REFUSALS):
            verdict = f"a sound file is refused: {error}" if sound else no_short_line(error) or "refused"
    return verdict.encode(errors="replace")


def what_is_wrong(
    read: Callable[[Path], None], folder: Path, sound: bool, seconds: float = SECONDS
) -> list[str]:
    """Of a reader of these files; empty if it reads or refuses them as it should."""
    ended = run_apart(partial(judged, read, folder, sound), seconds)
    how = f"no answer in {seconds} s" if ended.code is None else f"ended by code {ended.code}"
    verdict = ended.told.decode() or how
    return [] if verdict in ("read", "refused") else [verdict]


@cache
def warm_up() -> None:
    """Read sound files: what libraries load and compile for a first file is no matter of a later one."""
    for target in TARGETS.values():
        with tempfile.TemporaryDirectory() as folder, contextlib.suppress(REFUSALS):
            target.make(random.Random(0), Path(folder), True)
            target.read(Path(folder))


def try_file(rng: random.Random) -> list[str]:
    """A file, sound or damaged, and its reader. Returns what did not hold."""
    warm_up()
    name, sound = rng.choices(list(TARGETS), [t.share for t in TARGETS.values()])[0], rng.random() < 0.05
    with tempfile.TemporaryDirectory() as folder:
        TARGETS[name].make(rng, Path(folder), sound)
        return [f"{name}: {wrong}" for wrong in what_is_wrong(TARGETS[name].read, Path(folder), sound)]
