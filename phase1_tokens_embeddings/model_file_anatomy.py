"""Open a model file by hand: its parts, and its size in each precision.

A model file is a header with names and shapes, then numbers. Two formats are common: safetensors (numbers
only; the configuration and the vocabulary are files beside it) and GGUF (everything in one file). This script
opens the same model in both, byte by byte, and shows the size of each part: the embedding, attention, the
MLP. Then it computes the size of models from GPT-2 to Llama 70B at 32, 16, 8 and about 4 bits per weight. The readers are in weights/safetensors_file.py and weights/gguf_file.py; the
arithmetic of Q4_K_M is in weights/weight_formats.py.

    python phase1_tokens_embeddings/model_file_anatomy.py --model a_llama.gguf    # or of GPT-2
"""

from pathlib import Path

from labkit.foreign import visible
from labkit.lab import Lab, run_lab
from labkit.models import find_model
from phase1_tokens_embeddings.story import anatomy_story as chapters
from phase1_tokens_embeddings.weights import SHAPES
from phase1_tokens_embeddings.weights.gguf_model import is_gguf

FEW = ["gpt2", "llama-3.2-3b", "llama-2-7b", "llama-3-70b"]
DRAWN = [*FEW, "gpt2-medium", "gpt2-large", "gpt2-xl", "tinyllama-1.1b", "llama-3.2-1b", "mistral-7b", "qwen2.5-7b",
         "llama-3-8b"]  # fmt: skip


def story(lab: Lab) -> None:
    lab.title("The parts of the file")
    model = find_model(lab.args.model)
    name = Path(lab.args.model).name or model.resolve().name
    tell = chapters.tell_the_file if is_gguf(model) else chapters.tell_the_model
    boxes = tell(lab, model, name)
    names = FEW if lab.quick else list(SHAPES)
    chapters.tell_published_shapes(lab)
    chapters.tell_precisions(lab, [SHAPES[n] for n in names])
    lab.title("The picture")
    chapters.draw(lab, visible(name), boxes, [SHAPES[n] for n in names if n in DRAWN])


def main(argv: list[str] | None = None) -> int:
    return run_lab(story, __doc__, options=("model", "quick"), argv=argv)


if __name__ == "__main__":
    raise SystemExit(main())
