"""The readers of safetensors and GGUF: they agree with the packages, and no file can fool or exhaust them."""

import json
import shutil
import struct
import tracemalloc

import gguf
import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from phase1_tokens_embeddings.weights.gguf_file import read_gguf_header
from phase1_tokens_embeddings.weights.gguf_writer import write_gguf, write_out
from phase1_tokens_embeddings.weights.model_box import open_gguf, open_safetensors, part_of
from phase1_tokens_embeddings.weights.model_shapes import SHAPES
from phase1_tokens_embeddings.weights.safetensors_file import checkpoint_files, read_safetensors_header
from phase1_tokens_embeddings.weights.weight_formats import weight_bytes

U8 = {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}


def by_message(value):
    """A hostile file is named in the list of tests by the message it gets, not by its bytes."""
    return value if isinstance(value, str) else ""


def write(path, raw: bytes):
    path.write_bytes(raw)
    return path


def with_header(header, data=b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


# ------------------------------------------------------------------ safetensors


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "announces a header"),
        (struct.pack("<Q", 2**60) + b"{}", "announces a header of 1152921504606846976 bytes"),
        (struct.pack("<Q", 2**64 - 1) + b"{}", "announces a header"),
        (with_header({"a": U8}, b"12")[:-20], "announces a header"),
        (with_header(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"), "sound safetensors"),
        (with_header(b'{"\\ud800":%b}' % json.dumps(U8).encode(), b"12"), "sound safetensors"),
        (with_header({"a": U8 | {"dtype": "I4"}}, b"12"), "unknown variant `I4`"),
        (with_header({"\n\x1b[2Jerror: \u202e" * 1000: U8 | {"shape": [3]}}, b"12"), "sound safetensors"),
    ],
    ids=by_message,
)
def test_a_hostile_safetensors_file_gets_one_clear_line(tmp_path, raw, message):
    with pytest.raises(ValueError, match=message) as error:
        read_safetensors_header(write(tmp_path / "x.safetensors", raw))
    text = str(error.value)
    assert "\n" not in text and "\x1b" not in text and len(text) < len(str(tmp_path)) + 250


def peak_of(read, path) -> int:
    tracemalloc.start()
    try:
        with pytest.raises(ValueError):
            read(path)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_header_of_fifty_megabytes_is_refused_before_it_is_read(tmp_path):
    header = b'{"a":[' + b"[]," * 17_000_000 + b"[]]}"
    path = write(tmp_path / "x.safetensors", with_header(header))
    assert peak_of(read_safetensors_header, path) < 200_000
    with pytest.raises(ValueError, match=r"announces a header of 51000010 bytes: 8000000 are plenty"):
        read_safetensors_header(path)


def test_an_index_may_name_anything_but_reaches_nothing(tmp_path):
    index = tmp_path / "model.safetensors.index.json"
    (tmp_path / "\x1b[2J").mkdir()
    for name in ("\x1b[2J", "..", ".", "a" * 5000, "\x1b[31m" * 50, "nul\0", "half \ud800"):
        index.write_text(json.dumps({"weight_map": {"a": name}}))
        with pytest.raises((ValueError, FileNotFoundError)) as error:
            checkpoint_files(tmp_path)
        text = str(error.value)
        assert text.isprintable() and len(text) < len(str(tmp_path)) + 200


def test_checkpoint_files_finds_one_file_or_shards(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no model\.safetensors"):
        checkpoint_files(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(
        json.dumps({"weight_map": {"a": "2.safetensors", "b": "1.safetensors", "c": "2.safetensors"}})
    )
    with pytest.raises(FileNotFoundError, match=r"lacks 1.safetensors"):
        checkpoint_files(tmp_path)
    for name in ("1.safetensors", "2.safetensors"):
        (tmp_path / name).touch()
    assert [p.name for p in checkpoint_files(tmp_path)] == ["1.safetensors", "2.safetensors"]
    for bad in ("[]", "{}", '{"weight_map": []}', '{"weight_map": {}}', '{"weight_map": {"a": 1}}', "{",
                '{"weight_map": {"a": "../1.safetensors"}}', '{"weight_map": {"a": "/etc/passwd"}}'):  # fmt: skip
        index.write_text(bad)
        with pytest.raises(ValueError, match="not an index of shards"):
            checkpoint_files(tmp_path)
    (tmp_path / "model.safetensors").touch()
    assert checkpoint_files(tmp_path) == [tmp_path / "model.safetensors"]


# ------------------------------------------------------------------ GGUF


def test_gguf_header_agrees_with_the_package(tmp_path):
    path = tmp_path / "x.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for name in ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"):
        getattr(writer, f"add_{name}")(f"x.{name}", 7)
    writer.add_float32("x.f32", 0.5)
    writer.add_float64("x.f64", -0.25)
    writer.add_bool("x.bool", True)
    writer.add_string("x.text", "naïve")
    writer.add_array("x.texts", ["a", "", "ü"])
    writer.add_array("x.ints", [1, -2, 3])
    writer.add_array("x.floats", [1.0, 2.5])
    writer.add_array("x.bools", [True, False])
    writer.add_custom_alignment(64)
    writer.add_tensor("a.weight", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.add_tensor("b.weight", np.ones((3, 5), dtype=np.float16))
    rows = np.zeros((2, 2 * 144), dtype=np.uint8)  # two rows of two Q4_K blocks
    writer.add_tensor("c.weight", rows, raw_dtype=gguf.GGMLQuantizationType.Q4_K)
    writer.add_tensor(
        "d.weight", np.zeros((1, 210), dtype=np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q6_K
    )
    write_out(writer)
    header, theirs = read_gguf_header(path), gguf.GGUFReader(path)
    found = [(n, t.dims, t.type, header.data_start + t.offset, t.nbytes) for n, t in header.tensors.items()]
    assert found == [
        (t.name, tuple(t.shape.tolist()), t.tensor_type.name, t.data_offset, t.n_bytes)
        for t in sorted(theirs.tensors, key=lambda t: (t.data_offset, t.n_bytes))
    ]
    for key, value in header.metadata.items():
        np.testing.assert_equal(np.asarray(value).tolist(), theirs.get_field(key).contents(), err_msg=key)
    assert len(header.metadata) == len(theirs.fields) - 3  # theirs has three fields of its own
    assert header.alignment == 64 and header.tensors["c.weight"].dims == (512, 2)
    assert header.metadata["x.bools"].dtype == bool and header.metadata["x.text"] == "naïve"


def test_another_family_is_not_written(tmp_path, gpt2_folder):
    folder = shutil.copytree(gpt2_folder, tmp_path / "other")
    (folder / "config.json").write_text(json.dumps({"model_type": "t5"}))
    with pytest.raises(ValueError, match="model_type is 't5'"):
        write_gguf(folder, tmp_path / "x")
    assert not (tmp_path / "x").exists()


def text(s: str | bytes) -> bytes:
    raw = s if isinstance(s, bytes) else s.encode()
    return struct.pack("<Q", len(raw)) + raw


def gguf_file(tensors=b"", keys=b"", counts=(0, 0), version=3, magic=b"GGUF", data=b"") -> bytes:
    head = magic + struct.pack("<IQQ", version, *counts) + keys + tensors
    return head + (b"\0" * (-len(head) % 32) + data if data else b"")


def info(name="t", dims=(4,), kind=0, offset=0) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def key(name: str | bytes, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def of_tensors(infos: bytes, data: int) -> bytes:
    return gguf_file(infos, counts=(1, 0), data=bytes(data))


def of_key(keys: bytes) -> bytes:
    return gguf_file(counts=(0, 1), keys=keys)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "begin with the letters GGUF"),
        (b"GGUF", "the version needs 4 bytes"),
        (gguf_file(version=1), "version is 1;"),
        (gguf_file(version=3 << 24), "a big-endian file"),
        (gguf_file(counts=(2**60, 0)), "a table of 0 keys and 1152921504606846976 tensors"),
        (of_key(struct.pack("<Q", 2**60) + bytes(20)), "a key is 1152921504606846976 bytes"),
        (of_key(key(b"\xff", 0, b"1") + bytes(9)), "a key is not UTF-8"),
        (of_key(key("k", 99, b"1") + bytes(9)), "unknown kind 99"),
        (of_key(key("k", 8, struct.pack("<Q", 2**62)) + bytes(9)), "needs 46116860184273"),
        (of_key(key("k", 9, struct.pack("<IQ", 4, 2**61))), "a list of 23058430092136"),
        (of_key(key("k", 9, struct.pack("<IQ", 8, 2**61))), "a list of 23058430092136"),
        (of_key(key("k", 9, struct.pack("<IQ", 33, 1) + b"\5")), "unknown kind 33"),
        (of_key(key("k", 9, struct.pack("<IQ", 9, 1) * 10_000)), "a list of the unknown kind 9"),
        (gguf_file(counts=(0, 2), keys=key("k", 0, b"1") * 2), "'k' occurs twice"),
        (of_key(key("general.alignment", 4, struct.pack("<I", 48))), "a power of two"),
        (of_key(key("general.alignment", 8, text("32"))), "'32': a power of two"),
        (of_tensors(info("t" * 65), data=16), "65 bytes long, 64 at most"),
        (of_tensors(info(), data=15), "take 16 bytes, the file holds 15"),
        (of_tensors(info(), data=33), "17 bytes after the last tensor"),
        (gguf_file(counts=(0, 0), data=bytes(9)), "belong to no tensor"),
        (of_tensors(info(dims=(1,) * 5), data=16), "5 dimensions"),
        (of_tensors(info(dims=(2**32, 2**32)), data=16), "negative, or larger"),
        (of_tensors(info(dims=(2**60,)), data=16), "take 4611686018427387904 bytes"),
        (of_tensors(info(kind=5), data=16), "unknown type 5"),
        (of_tensors(info(dims=(100,), kind=12), data=144), "do not divide into Q4_K blocks of 256"),
        (of_tensors(info(offset=32), data=64), "begins at 32, not at the end"),
        (gguf_file(info() + info(), counts=(2, 0), data=bytes(64)), "'t' occurs twice"),
        (gguf_file(info() + info("u"), counts=(2, 0), data=bytes(64)), "begins at 0, inside"),
    ],
    ids=by_message,
)
def test_a_hostile_gguf_file_gets_one_clear_line(tmp_path, raw, message):
    with pytest.raises(ValueError, match=message) as error:
        read_gguf_header(write(tmp_path / "x.gguf", raw))
    assert "\n" not in str(error.value) and len(str(error.value)) < len(str(tmp_path)) + 250
    assert peak_of(read_gguf_header, tmp_path / "x.gguf") < 400_000


@pytest.mark.parametrize("alignment", [None, 8, 64, 4096])
def test_a_gguf_file_without_tensors_as_the_package_writes_it(tmp_path, alignment):
    """A vocabulary alone: the package pads its end as if tensors followed."""
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "gpt2")
    if alignment:
        writer.add_custom_alignment(alignment)
    writer.add_token_list(["a", "bc"])
    write_out(writer)
    header = read_gguf_header(tmp_path / "x.gguf")
    assert header.metadata["tokenizer.ggml.tokens"] == ["a", "bc"] and not header.tensors
    assert header.data_start == header.file_bytes == (tmp_path / "x.gguf").stat().st_size


# ------------------------------------------------------------------ the box and the sizes


def test_every_tensor_of_the_families_belongs_to_a_part():
    with torch.device("meta"):
        models = [
            GPT2LMHeadModel(GPT2Config(n_layer=1)),
            LlamaForCausalLM(LlamaConfig(num_hidden_layers=1, tie_word_embeddings=False)),
        ]
    for model in models:
        parts = {part_of(name) for name in model.state_dict()}
        assert {"embedding", "attention", "MLP", "norms"} <= parts and "other" not in parts
    assert part_of("h.3.attn.bias") == "other"
    for shape in (SHAPES["gpt2"], SHAPES["qwen2.5-7b"]):
        assert all(part_of(t.name) == t.part for t in shape.tensors())


def test_boxes_of_both_formats_hold_the_same_model(tmp_path, gpt2_folder):
    write_gguf(gpt2_folder, tmp_path / "x.gguf")
    ours, theirs = open_safetensors(checkpoint_files(gpt2_folder)), open_gguf(tmp_path / "x.gguf")
    assert ours.parameters == theirs.parameters
    assert ours.vocabulary + 3 == theirs.vocabulary  # GGUF has a token for each row of the table
    assert ours.shape == theirs.shape
    assert ours.total_bytes == sum(
        f.stat().st_size for f in gpt2_folder.iterdir() if f.name != "generation_config.json"
    )
    assert theirs.total_bytes == (tmp_path / "x.gguf").stat().st_size


@pytest.mark.parametrize(
    ("name", "gigabytes"),  # sizes of published Q4_K_M files, which also hold a vocabulary of up to 8 MB
    [("llama-2-7b", 4.08), ("mistral-7b", 4.37), ("llama-3-8b", 4.92), ("llama-3-70b", 42.52),
     ("llama-3.2-3b", 2.02), ("tinyllama-1.1b", 0.669), ("qwen2.5-7b", 4.68),
     ("olmoe-1b-7b", 4.21), ("qwen3-30b-a3b", 18.6), ("mixtral-8x7b", 28.4)],
)  # fmt: skip
def test_sizes_of_q4_k_m_are_those_of_published_files(name, gigabytes):
    size = weight_bytes(SHAPES[name], "Q4_K_M") / 1e9
    slack = 0.05 if gigabytes == round(gigabytes, 1) else 0.006  # some are published to a tenth of a GB only
    assert gigabytes - 2 * slack < size < gigabytes + slack


def test_plain_precisions_are_parameters_times_bytes():
    shape = SHAPES["llama-3-8b"]
    for precision, size in {"FP32": 4, "fp16": 2, "BF16": 2, "int8": 1, "FP8": 1}.items():
        assert weight_bytes(shape, precision) == size * shape.num_parameters
    with pytest.raises(ValueError, match="unknown precision 'INT3'"):
        weight_bytes(shape, "INT3")
