"""Checkpoints of compressed-tensors: the numbers that its own formula gives, and one line for what is not read."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from phase1_tokens_embeddings.weights.gguf_writer import write_gguf
from phase2_attention_kvcache.model import Transformer
from phase2_attention_kvcache.quantization.quantized_linear import QuantizedLinear, weight_bytes_of
from tests.phase2_attention_kvcache.conftest import logits_of

W4 = {"num_bits": 4, "type": "int", "symmetric": False, "strategy": "group", "group_size": 32}
W8 = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}


def scheme(weights, kind):
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    return {
        "quant_method": "compressed-tensors", "format": kind, "ignore": ["lm_head"],
        "config_groups": {"group_0": group},
    }  # fmt: skip


def packed(codes):
    """Codes from -8 to 7 [rows, n] -> int32 [rows, n / 8], number by number."""
    rows = []
    for row in (codes + 8).tolist():
        numbers = [sum(c << 4 * i for i, c in enumerate(row[j : j + 8])) for j in range(0, len(row), 8)]
        rows.append([n - 2**32 if n >= 2**31 else n for n in numbers])
    return torch.tensor(rows, dtype=torch.int32)


def compress(folder, to, kind, symmetric=False, group=32):
    """A checkpoint with the linear layers of its blocks in few bits, and one with the same numbers in full."""
    for place in (to / "few", to / "full"):
        shutil.copytree(folder, place)
    few, full = {}, {}
    for name, weight in load_file(folder / "model.safetensors").items():
        if not name.endswith("_proj.weight"):
            few[name] = full[name] = weight
        elif kind == "int-quantized":
            scales = (weight.abs().amax(1, keepdim=True) / 127).bfloat16()
            codes = (weight / scales.float()).round().clamp(-128, 127)
            few |= {name: codes.to(torch.int8), f"{name}_scale": scales}
            full[name] = codes * scales.float()
        else:
            groups = weight.unflatten(1, (-1, group))
            low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
            scales = ((high - low) / 15).bfloat16()
            zeros = torch.zeros_like(scales) if symmetric else (-8 - low / scales).round().clamp(-8, 7)
            codes = (groups / scales.float() + zeros).round().clamp(-8, 7)
            few |= {
                f"{name}_packed": packed(codes.flatten(1).int()),
                f"{name}_scale": scales.squeeze(-1),
                f"{name}_shape": torch.tensor(weight.shape),
            }
            if not symmetric:
                few[f"{name}_zero_point"] = packed(zeros.squeeze(-1).t().int()).t().contiguous()
            full[name] = ((codes - zeros) * scales.float()).flatten(1)
    save_file(few, to / "few" / "model.safetensors")
    save_file(full, to / "full" / "model.safetensors")
    weights = W8 if kind == "int-quantized" else W4 | {"symmetric": symmetric, "group_size": group}
    change_config(to / "few", scheme(weights, kind))
    return to / "few", to / "full"


def change_config(folder, scheme):
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(raw | {"quantization_config": scheme}))


@pytest.fixture
def small(make_llama):
    return make_llama(intermediate_size=128, num_hidden_layers=2)[0]


@pytest.mark.parametrize(
    ("kind", "options", "bits"),
    [
        ("pack-quantized", {}, 4.75),
        ("pack-quantized", {"symmetric": True}, 4.75),
        ("pack-quantized", {"group": 64}, 4.75),
        ("int-quantized", {}, 8.4),
    ],
)
def test_few_bits_are_the_numbers_that_they_stand_for(small, tmp_path, kind, options, bits):
    few, full = (Transformer.from_pretrained(f) for f in compress(small, tmp_path, kind, **options))
    layers = [m for m in few.modules() if isinstance(m, QuantizedLinear)]
    assert len(layers) == 2 * 4 and [len(m.parts) for m in layers[:4]] == [3, 1, 2, 1]
    nbytes = sum(part.nbytes for m in layers for part in m.parts)
    assert 8 * nbytes / sum(m.shape[0] * m.shape[1] for m in layers) == pytest.approx(bits, abs=0.2)
    assert weight_bytes_of(few) < 0.5 * weight_bytes_of(full)
    torch.testing.assert_close(logits_of(few), logits_of(full), atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "changed",
    [
        {"quant_method": "awq"},
        {"config_groups": {"group_0": {"weights": W4 | {"num_bits": 3}}}},
        {"config_groups": {"group_0": {"weights": W4 | {"group_size": 48}}}},
        {"config_groups": {"group_0": {"weights": W4}, "group_1": {"weights": W8}}},
    ],
)
def test_another_scheme_is_one_line(small, tmp_path, changed):
    few, _ = compress(small, tmp_path, "pack-quantized")
    change_config(few, scheme(W4, "pack-quantized") | changed)
    with pytest.raises(ValueError, match="quantization_config is of a kind that is not read here") as error:
        Transformer.from_pretrained(few)
    assert "W4A16" in str(error.value) and str(error.value).isprintable()


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        ("scale", lambda t: t * float("nan"), "NaN, infinite or all zero"),
        ("scale", lambda t: t[:, :0].contiguous(), "scales are missing, or not in rows"),
        (
            "scale",
            lambda t: t[:, :3].contiguous(),
            "a row's 128 weights have 3 scales; one for a multiple of 32",
        ),
        ("zero_point", lambda t: t[:, :1].contiguous(), "zero points, and"),
        ("packed", lambda t: t[:, :-1].contiguous(), "wrong shape"),
        ("packed", None, "missing layers.1.mlp.down_proj.weight"),
    ],
)
def test_parts_that_do_not_fit_are_one_line(small, tmp_path, part, change, message):
    few, _ = compress(small, tmp_path, "pack-quantized")
    tensors = load_file(few / "model.safetensors")
    name = f"model.layers.1.mlp.down_proj.weight_{part}"
    tensor = tensors.pop(name)
    if change is not None:
        tensors[name] = change(tensor)
    save_file(tensors, few / "model.safetensors")
    with pytest.raises(ValueError, match=message):
        Transformer.from_pretrained(few)


def test_codes_without_an_announcement_and_a_second_conversion_are_refused(small, tmp_path):
    few, _ = compress(small, tmp_path, "int-quantized")
    with pytest.raises(ValueError, match="in few bits already: give the model in full"):
        write_gguf(few, tmp_path / "x.gguf")
    tensors = load_file(few / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight_scale"
    save_file(tensors | {name: tensors[name].repeat(1, 2)}, few / "model.safetensors")
    with pytest.raises(ValueError, match="weights have 2 scales; one is needed"):
        Transformer.from_pretrained(few)
    change_config(few, None)
    with pytest.raises(ValueError, match="is I8, but weights are"):
        Transformer.from_pretrained(few)
