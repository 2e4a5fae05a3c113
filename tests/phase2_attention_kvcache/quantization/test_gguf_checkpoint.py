"""GGUF files, end to end: what a folder holds is the same model as a file, and a file in few bits is run as it is."""

import json
import shutil

import gguf
import numpy as np
import pytest
import tokenizers
import torch
from tokenizers.processors import TemplateProcessing

from phase1_tokens_embeddings.chat import chat_settings_of_folder, chat_settings_of_gguf
from phase1_tokens_embeddings.tokens import BPETokenizer
from phase1_tokens_embeddings.weights import read_gguf_header
from phase1_tokens_embeddings.weights.gguf_model import load_first_tokens, load_tokenizer, read_blocks
from phase1_tokens_embeddings.weights.gguf_writer import write_gguf, write_out
from phase2_attention_kvcache.model import Transformer, checkpoint
from phase2_attention_kvcache.model.config import read_config
from phase2_attention_kvcache.quantization.gguf_checkpoint import rope_factors
from phase2_attention_kvcache.quantization.quantized_linear import (
    QuantizedWeight,
    is_quantized,
    weight_bytes_of,
)
from tests.phase2_attention_kvcache.conftest import logits_of

LLAMA3 = dict(
    rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
    original_max_position_embeddings=16,
)  # fmt: skip
TEXT = "the dog bites the man and the man bites the dog"


@pytest.fixture(scope="module")
def tokenizer():
    return BPETokenizer.train([TEXT], 270)


@pytest.fixture(scope="module")
def folders(make_gpt2, make_llama, tokenizer):
    """Models whose rows divide into blocks of 32, with more rows in their tables than tokens."""
    sizes = dict(vocab_size=290, eos_token_id=269, bos_token_id=269)
    made = {
        "gpt2": make_gpt2(n_embd=64, n_head=4, **sizes),
        "llama": make_llama(attention_bias=True, **sizes),
        "llama-wide-heads": make_llama(head_dim=24, num_attention_heads=4, tie_word_embeddings=True, **sizes),
        "llama3": make_llama(rope_parameters=LLAMA3, **sizes),
        "super-blocks": make_llama(
            hidden_size=256, intermediate_size=256, num_attention_heads=4, num_hidden_layers=2, **sizes
        ),
    }
    for folder, _ in made.values():
        tokenizer.save(folder / "tokenizer.json")
    return {name: folder for name, (folder, _) in made.items()}


def convert(folder, path, kind="F32"):
    write_gguf(folder, path, kind, rope_factors(read_config(folder)))
    return path


@pytest.mark.parametrize("name", ["gpt2", "llama", "llama-wide-heads", "llama3"])
def test_a_file_is_the_same_model_as_its_folder(tmp_path, folders, name, tokenizer):
    file = convert(folders[name], tmp_path / "x.gguf")
    plain, read = Transformer.from_pretrained(folders[name]), Transformer.from_pretrained(file)
    expected = logits_of(plain)
    assert (logits_of(read) - expected).abs().max() < 1e-4 * expected.abs().max()
    assert not is_quantized(read) and read.config.eos_token_ids[0] == 269
    found = load_tokenizer(file)
    assert found.token_bytes == tokenizer.token_bytes and found.merges == tokenizer.merges
    assert found.special_tokens == tokenizer.special_tokens and found.encode(TEXT) == tokenizer.encode(TEXT)


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0"])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_file_in_fewer_bits_computes_with_the_numbers_that_the_package_reads(tmp_path, folders, name, kind):
    file = convert(folders[name], tmp_path / "x.gguf", kind)
    read, expected = Transformer.from_pretrained(file), as_the_package_reads(file, tmp_path / "plain.gguf")
    torch.testing.assert_close(logits_of(read), logits_of(expected), rtol=1e-4, atol=1e-4)
    assert is_quantized(read) == (kind in ("Q8_0", "Q4_0"))
    if is_quantized(read):  # and it stays small: matrices take what they take in the file
        stored = sum(t.nbytes for t in read_gguf_header(file).tensors.values() if t.type == kind)
        in_memory = sum(m.nbytes for m in read.modules() if isinstance(m, QuantizedWeight))
        shared = read.token_table.weight.nbytes if read.config.tied else 0  # table and head are one
        assert in_memory in (stored, stored + shared) and weight_bytes_of(read) < 0.4 * weight_bytes_of(
            expected
        )


def rewritten(source, path, change, keys=True):
    """A GGUF file again, by the package. change: gives of a tensor its data and, if they are bytes, their type."""
    source = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(path, source.get_field("general.architecture").contents())
    for name, field in source.fields.items() if keys else ():
        if not name.startswith("GGUF.") and name != "general.architecture":
            inner = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(name, field.contents(), field.types[0], inner)
    for t in source.tensors:
        data, kind = change(t)
        writer.add_tensor(t.name, data, raw_dtype=kind)
    write_out(writer)
    return path


def as_the_package_reads(file, path) -> Transformer:
    """The same file with all tensors turned to F32 by the package."""
    rewritten(file, path, lambda t: (gguf.quants.dequantize(t.data, t.tensor_type), None))
    return Transformer.from_pretrained(path)


def with_blocks(folder, path, kinds):
    """A file whose matrices are random super-blocks, as the package writes them: names end in -> kind."""
    rng = np.random.default_rng(0)

    def random_blocks(t):
        kind = next((k for ending, k in kinds.items() if t.name.endswith(ending)), None)
        if kind is None:
            return t.data, None
        size, nbytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
        rows, width = t.data.shape
        raw = rng.integers(0, 256, (rows, width // size, nbytes), dtype=np.uint8)
        for at in {"Q4_K": [0, 2], "Q6_K": [208]}[kind]:
            scale = rng.uniform(1e-4, 3e-4, (rows, width // size, 1)).astype(np.float16)
            raw[:, :, at : at + 2] = scale.view(np.uint8)
        return raw.reshape(rows, -1), gguf.GGMLQuantizationType[kind]

    return rewritten(convert(folder, path.with_name("base.gguf")), path, random_blocks)


def test_super_blocks_and_mixed_types_as_in_q4_k_m(tmp_path, folders):
    """Q4_K for most matrices, Q6_K for some, so that queries, keys and values of one layer differ in type."""
    kinds = {"attn_v.weight": "Q6_K", "output.weight": "Q6_K", "ffn_down.weight": "Q6_K", "ffn_up.weight": "Q4_K",
             "ffn_gate.weight": "Q4_K", "attn_q.weight": "Q4_K", "attn_k.weight": "Q4_K", "token_embd.weight": "Q4_K"}  # fmt: skip
    file = with_blocks(folders["super-blocks"], tmp_path / "x.gguf", kinds)
    read, expected = Transformer.from_pretrained(file), as_the_package_reads(file, tmp_path / "plain.gguf")
    torch.testing.assert_close(logits_of(read), logits_of(expected), rtol=1e-3, atol=1e-3)
    assert [p.kind for p in read.blocks[0].attention.qkv.parts] == ["Q4_K", "Q4_K", "Q6_K"]


# ------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    "template", ["{{ eos_token }}", [{"name": "default", "template": "{{ eos_token }}"}]]
)
def test_the_way_to_chat_survives_the_way_into_the_file(tmp_path, folders, template):
    """A template that stands in tokenizer_config.json, the tokens that it names, and all tokens that end an answer."""
    folder = shutil.copytree(folders["llama"], tmp_path / "folder")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": 269}))
    (folder / "generation_config.json").write_text('{"eos_token_id": [269, 268]}')
    tokenizer = BPETokenizer.train([TEXT], 270, special_tokens=("<|end|>", "<|endoftext|>"))
    assert tokenizer.special_tokens == {"<|end|>": 268, "<|endoftext|>": 269}
    tokenizer.save(folder / "tokenizer.json")
    hub = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert load_first_tokens(convert(folder, tmp_path / "x.gguf")) == load_first_tokens(folder) == []
    hub.post_processor = TemplateProcessing("<|endoftext|> $A", None, [("<|endoftext|>", 269)])
    hub.save(str(folder / "tokenizer.json"))
    settings = {"chat_template": template, "eos_token": {"content": "<|end|>"}, "bos_token": None}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    file = convert(folder, tmp_path / "x.gguf")
    read = chat_settings_of_gguf(read_gguf_header(file).metadata)
    assert chat_settings_of_folder(folder) == {"chat_template": "{{ eos_token }}", "eos_token": "<|end|>"}
    assert read == {"chat_template": "{{ eos_token }}", "eos_token": "<|end|>", "bos_token": "<|endoftext|>"}
    assert set(read_config(file).eos_token_ids) == {268, 269}
    assert load_first_tokens(file) == load_first_tokens(folder) == [269]
    (folder / "chat_template.jinja").write_text("a file of its own comes first")
    assert chat_settings_of_folder(folder)["chat_template"] == "a file of its own comes first"


def spoil(file, old: bytes, new: bytes) -> None:
    raw = file.read_bytes()
    assert raw.count(old) and len(old) == len(new)
    file.write_bytes(raw.replace(old, new))


def refusal(call, *arguments) -> str:
    with pytest.raises(ValueError) as error:
        call(*arguments)
    assert str(error.value).isprintable()
    return str(error.value)


def test_an_unknown_architecture_or_tokenizer(tmp_path, folders):
    file = convert(folders["gpt2"], tmp_path / "x.gguf")
    spoil(file, b"\4\0\0\0\0\0\0\0gpt2", b"\4\0\0\0\0\0\0\0gpt3")
    assert "architecture is 'gpt3'; this course runs 'gpt2' and 'llama'" in refusal(
        Transformer.from_pretrained, file
    )
    file = convert(folders["gpt2"], tmp_path / "z.gguf")
    spoil(file, b"tokenizer.ggml.model", b"tokenizer.ggml.modem")
    assert "holds no tokenizer" in refusal(load_tokenizer, file)
    file = convert(folders["gpt2"], tmp_path / "z.gguf")
    spoil(file, b"gpt-2", b"gpt-9")
    assert "split pattern is called 'gpt-9'; known here: gpt-2, llama-bpe" in refusal(load_tokenizer, file)


def test_a_type_that_is_not_read_here(tmp_path, folders):
    def to_q5_1(t):
        if not t.name.endswith("ffn_up.weight"):
            return t.data, None
        return gguf.quants.quantize(t.data, gguf.GGMLQuantizationType.Q5_1), gguf.GGMLQuantizationType.Q5_1

    plain = convert(folders["super-blocks"], tmp_path / "x.gguf")
    other = rewritten(plain, tmp_path / "y.gguf", to_q5_1, keys=False)
    said = refusal(read_blocks, other, read_gguf_header(other), "blk.0.ffn_up.weight")
    assert "'blk.0.ffn_up.weight' is Q5_1; read here are F32, F16, BF16, Q8_0, Q4_0, Q4_K, Q6_K" in said


@pytest.mark.parametrize(("scale", "message"), [(float("inf"), "NaN or infinite"), (0.0, "all zero")])
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
def test_scales_that_are_no_scales(tmp_path, folders, kind, scale, message):
    file = convert(folders["gpt2"], tmp_path / "x.gguf", kind)
    header, name = read_gguf_header(file), "blk.1.ffn_up.weight"
    data = np.memmap(file, np.uint8, "r+", header.data_start + header.tensors[name].offset)
    size = {"Q8_0": 34, "Q4_0": 18}[kind]
    blocks = data[: header.tensors[name].nbytes].reshape(-1, size)
    blocks[3 if scale else slice(None), :2] = np.frombuffer(np.float16(scale).tobytes(), np.uint8)
    data.flush()
    assert f"'{name}' are {message}: the file is damaged" in refusal(Transformer.from_pretrained, file)


def test_rows_that_do_not_divide_into_blocks_leave_no_file(tmp_path, make_gpt2, tokenizer):
    folder, _ = make_gpt2(vocab_size=290)  # 48 wide
    tokenizer.save(folder / "tokenizer.json")
    said = refusal(convert, folder, tmp_path / "y.gguf", "Q4_0")
    assert "48 weights does not divide into Q4_0 blocks of 32: use F16" in said
    assert not (tmp_path / "y.gguf").exists()


def test_a_file_larger_than_the_memory_is_refused_before_it_is_read(folders, tmp_path, monkeypatch):
    """Matrices in few bits stay in few bits; what is plain takes `dtype`."""
    file = convert(folders["gpt2"], tmp_path / "m.gguf", "Q8_0")
    weights = weight_bytes_of(Transformer.from_pretrained(file))
    monkeypatch.setattr(checkpoint, "memory_bytes", lambda device: weights - 1)
    with pytest.raises(ValueError, match=r"m\.gguf: its weights take .* in float32, and this machine has"):
        Transformer.from_pretrained(file)
    monkeypatch.setattr(checkpoint, "memory_bytes", lambda device: weights)
    assert is_quantized(Transformer.from_pretrained(file))
