"""The chapters of the anatomy of a model file."""

import tempfile
from pathlib import Path

from matplotlib.axes import Axes

from labkit.figures import BLUE, GREEN, GREY, MUTED, ORANGE, PURPLE, RED, TEAL, YELLOW, new_figure
from labkit.foreign import quoted, visible
from labkit.lab import Lab
from labkit.models import find_model
from phase1_tokens_embeddings.weights import (
    CARDS,
    SHAPES,
    ModelShape,
    checkpoint_files,
    model_box,
    read_gguf_header,
    read_safetensors_header,
    read_shape,
    weight_bytes,
)
from phase1_tokens_embeddings.weights.gguf_file import GGUFHeader
from phase1_tokens_embeddings.weights.gguf_writer import write_gguf
from phase1_tokens_embeddings.weights.model_box import Box
from phase1_tokens_embeddings.weights.model_shapes import PARTS
from phase1_tokens_embeddings.weights.weight_formats import bits_per_weight, q4_k_m_type

PART_COLORS = {"header": GREY, "vocabulary": RED, "embedding": BLUE, "positions": TEAL, "attention": ORANGE,
               "MLP": GREEN, "norms": PURPLE, "head": YELLOW, "other": MUTED}  # fmt: skip


def layers_from_total(shape: ModelShape, total: float) -> int:
    """The number of layers that a published parameter count leaves room for."""
    per_layer = sum(t.size for t in shape.tensors() if t.layer == 0)
    outside = sum(t.size for t in shape.tensors() if t.layer is None)
    return round((total - outside) / per_layer)


def tell_the_model(lab: Lab, folder: Path, name: str) -> dict[str, Box]:
    """A model folder: the same numbers as safetensors and as GGUF."""
    files, shape = checkpoint_files(folder), read_shape(folder / "config.json", name)
    lab.say(f"""The config of {name} has {shape.num_layers} layers of width {shape.d_model} and a
        vocabulary of {shape.vocab_size:,} tokens. That fixes every tensor.""")
    box = model_box.open_safetensors(files)
    stored = sum(n for part, n in box.parameters.items() if part != "other")  # old files also hold masks
    if stored != shape.num_parameters:
        raise ValueError(
            f"{visible(folder)}: its config.json asks for {shape.num_parameters:,} numbers, and its weights are "
            f"{stored:,}: files of two models, or one of a kind that this page does not count"
        )
    lab.predict(
        "parameters-from-config",
        f"how many numbers (parameters) are in {name}?",
        predicted=shape.num_parameters,
        measured=stored,
        note="Predicted from config.json alone; measured from the shapes in the file's header.",
    )

    gguf_folder = folder
    if shape.family != "gpt2":
        gguf_folder = find_model("tales")
        lab.say(
            "A Llama's GGUF file also needs the rotary positions of phase 2; the one below holds the model tales."
        )
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "model.gguf"
        write_gguf(gguf_folder, file)
        lab.say("""Here are the first 32 bytes of the model as a safetensors file, and of a GGUF file that
            gguf_writer.py wrote a moment ago. safetensors begins with the length of its header (8 bytes) and
            then JSON. GGUF begins with its own name, its version 3, and how many tensors and keys follow.""")
        show_first_bytes(lab, files[0], "safetensors")
        header = read_safetensors_header(files[0])
        first = min(header.tensors, key=lambda tensor: header.tensors[tensor].offsets)
        lab.say(f"""The header of {files[0].name} is {header.header_bytes:,} bytes long. So its first weight, of
            {visible(first)}, lies at byte {header.data_start:,}.""")
        show_first_bytes(lab, file, "GGUF")
        predict_layout(lab, read_gguf_header(file))
        boxes = {"safetensors": box}
        if gguf_folder == folder:
            boxes["GGUF"] = model_box.open_gguf(file)
    show_boxes(lab, boxes)
    return boxes


def tell_the_file(lab: Lab, file: Path, name: str) -> dict[str, Box]:
    """A single GGUF file."""
    boxes = {"GGUF": model_box.open_gguf(file)}
    predict_layout(lab, read_gguf_header(file))
    show_first_bytes(lab, file, "GGUF")
    show_boxes(lab, boxes)
    return boxes


def predict_layout(lab: Lab, header: GGUFHeader) -> None:
    arch = header.metadata.get("general.architecture")
    lab.predict(
        "file-layout",
        "GGUF: do architecture, vocabulary and hyperparameters all stand before the first weight?",
        predicted=True,
        measured=sum(header.metadata_bytes.values()) < header.data_start
        and {f"{arch}.block_count", "tokenizer.ggml.tokens"} <= header.metadata.keys(),
        note=f"{header.data_start:,} bytes describe the model; the other "
        f"{header.file_bytes - header.data_start:,} are its weights.",
    )


def show_first_bytes(lab: Lab, file: Path, what: str) -> None:
    with file.open("rb") as f:
        raw = f.read(32)
    text = "".join(chr(b) if 32 <= b < 127 else "." for b in raw)
    lab.show(f"{what:12} {raw[:16].hex(' ')}  {text[:16]}\n{'':12} {raw[16:].hex(' ')}  {text[16:]}")


def show_boxes(lab: Lab, boxes: dict[str, Box]) -> None:
    facts = [b.facts() for b in boxes.values()]
    rows = [[key, *(f[key] for f in facts)] for key in facts[0]]
    lab.table(
        "The parts of the file",
        ["", *boxes],
        rows,
        note="Layers, heads and MLP are the parts of a model: phase 2 builds them.",
    )
    sections = [s for s in ("header", "vocabulary", *PARTS) if any(b.sizes[s] for b in boxes.values())]
    rows = []
    for section in sections:
        row = [section]
        for b in boxes.values():
            row += [b.sizes[section], f"{b.sizes[section] / b.total_bytes:6.1%}"]
        rows.append(row)
    columns = [c for kind in boxes for c in (f"bytes in {kind}", "share")]
    note = "header: names, shapes and offsets of the tensors (for safetensors with config.json)"
    lab.table("The parts of each file, in bytes", ["part", *columns], rows, note)
    largest = next(iter(boxes.values())).largest
    rows = [[visible(n), quoted(list(s)), visible(t), size] for n, s, t, size in largest]
    lab.table(f"The largest tensors ({next(iter(boxes))})", ["name", "shape", "type", "bytes"], rows)


def tell_published_shapes(lab: Lab) -> None:
    lab.title("The shape determines the size: two models of later phases")
    small, large = SHAPES["llama-3.2-3b"], SHAPES["llama-3-70b"]
    lab.predict(
        "llama32-3b-layers",
        "how many layers has Llama 3.2 3B? (its model card: 3.21 billion parameters)",
        predicted=layers_from_total(small, 3.21e9),
        measured=small.num_layers,
        source_says=32,
        note="Predicted: 3.21 billion minus the embedding, divided by the size of one layer. "
        "Measured: its config.json. With 32 layers it would have 3.62 billion.",
    )
    lab.predict(
        "llama70b-shape",
        "layers and heads of Llama 70B? (its model card: 70.6 billion parameters; heads of 128)",
        predicted=[layers_from_total(large, 70.6e9), large.d_model // 128],
        measured=[large.num_layers, large.num_heads],
        note=f"Only {large.num_kv_heads} heads own keys and values; 8 query heads share each (see phase 2).",
    )


def tell_precisions(lab: Lab, shapes: list[ModelShape]) -> None:
    lab.title("Sizes by precision")
    llama7b = SHAPES["llama-2-7b"]
    q4_k, q6_k = bits_per_weight("Q4_K"), bits_per_weight("Q6_K")
    lab.say(f"""Bytes = parameters x bits / 8. Below 8 bits weights come in blocks that share a scale: {q4_k} bits a
        weight in a Q4_K block, {q6_k} in a Q6_K block. Q4_K_M is a mixture: Q4_K for most matrices, Q6_K where
        rounding hurts most.""")
    in_q6_k = sum(t.size for t in llama7b.tensors() if q4_k_m_type(t, llama7b) == "Q6_K")
    share = in_q6_k / llama7b.num_parameters
    mixed = (1 - share) * q4_k + share * q6_k
    sizes = [weight_bytes(llama7b, p) for p in ("FP16", "INT8", "Q4_K_M")]
    lab.predict(
        "7b-by-precision",
        "size of a 7B model (Llama-2 7B) in FP16, INT8 and Q4_K_M",
        predicted=[7.0 * bits / 8 for bits in (16, 8, mixed)],
        measured=[n / 1e9 for n in sizes],
        source_says=[14.0, 7.0, 4.0],
        unit="GB",
        tolerance=0.05,
        note="Predicted for 7.0 billion weights; a '7B' has 6.74 billion. GB is 10^9 bytes. In GiB (2^30 "
        "bytes): " + " / ".join(f"{n / 2**30:.2f}" for n in sizes),
    )
    rows = []
    for s in shapes:
        in_gb = [weight_bytes(s, p) / 1e9 for p in ("FP32", "FP16", "INT8", "Q4_K_M")]
        rows.append([s.name, s.num_parameters / 1e9, *in_gb, 8e9 * in_gb[-1] / s.num_parameters])
    lab.table(
        "Weights in GB (10^9 bytes)",
        ["model", "10^9 weights", "FP32", "FP16/BF16", "FP8/INT8", "Q4_K_M", "bits per weight in Q4_K_M"],
        rows,
        note="8-bit sizes leave out the scales (under 1%). GPT-2 and the small Llamas get more bits in "
        "Q4_K_M: their embedding is also the output matrix, hence Q6_K. 1 GiB = 1.074 GB.",
    )
    card = CARDS["t4"]
    fp16, q4 = (1e3 * n / (card.bandwidth_gb_s * 1e9) for n in (sizes[0], sizes[2]))
    cents = card.dollars_per_hour / 36  # of 1,000 tokens at 1 ms each: dollars an hour to cents a second
    lab.say(f"""What it costs: to generate one token, a GPU reads nearly every weight once. A T4 ({card.bandwidth_gb_s}
        GB/s) needs {fp16:.0f} ms for that with Llama-2 7B in FP16, and {q4:.0f} ms in Q4_K_M. At a rough
        ${card.dollars_per_hour:.2f} per hour and one user, 1,000 tokens cost {fp16 * cents:.2f} cents in FP16
        and {q4 * cents:.2f} in Q4_K_M, at least.""")


def draw(lab: Lab, name: str, boxes: dict[str, Box], shapes: list[ModelShape]) -> None:
    """Left: the bytes of this model. Right: the same parts in models of all sizes."""
    first = next(iter(boxes.values()))
    own = first.parameters["embedding"] / max(1, sum(first.parameters.values()))
    giant = shapes[-1].parameters_by_part()["embedding"] / shapes[-1].num_parameters
    fig, (left, right) = new_figure(
        f"The embedding is {own:.1%} of {name}'s parameters and {giant:.0%} of {shapes[-1].name}: large models are mostly MLP",
        f"Above: bytes of {name} on disk; below: parameters of published models, from their shapes",
        panels=2,
        size=(7.2, 8.4),
        height_ratios=(1, 2.4),
    )

    def stack(ax: Axes, y: int, widths: dict[str, float], total: float, label: str) -> None:
        at = 0.0
        for part, color in PART_COLORS.items():
            width = widths.get(part, 0.0)
            ax.barh(y, width, left=at, color=color, height=0.55)
            if width > 0.07 * total:
                text = format(width, label)
                ax.text(at + width / 2, y, text, color="white", ha="center", va="center", fontsize=9)
            at += width

    largest = max(b.total_bytes for b in boxes.values())
    scale, unit = (1e9, "GB") if largest > 2e9 else (1e6, "MB")
    for y, b in enumerate(reversed(boxes.values())):
        stack(left, y, {p: n / scale for p, n in b.sizes.items()}, largest / scale, ".1f")
    left.set_yticks(range(len(boxes)), list(reversed(boxes)))
    left.set_ylim(-0.7, len(boxes) - 0.3)
    left.set_xlabel(f"size on disk ({unit})")
    for y, shape in enumerate(reversed(shapes)):
        shares = {p: 100 * n / shape.num_parameters for p, n in shape.parameters_by_part().items()}
        stack(right, y, shares, 100, ".0f")
    right.set_yticks(range(len(shapes)), [s.name for s in reversed(shapes)])
    right.set(xlabel="share of the parameters (%)", xlim=(0, 100))
    for ax in (left, right):
        ax.grid(axis="y", visible=False)
    drawn = [p for p in PART_COLORS if any(b.sizes[p] for b in boxes.values()) or p == "head"]
    handles = [left.barh(0, 0, color=PART_COLORS[p]) for p in drawn]
    fig.legend(handles, drawn, loc="outside lower center", ncols=4)
    lab.figure(fig, "model_file_anatomy")
