"""Quantization: the same model in fewer bits, what it saves and what it loses.

A trained weight has 16 bits. Stored as an integer of 8 or 4 bits, with a scale that many weights share, the model takes
half or a quarter of the memory. Decode is limited by memory, so fewer bytes can mean faster tokens, and the memory that
becomes free holds the KV cache of more requests.

You will see a matrix rounded in five formats, the bits per byte of the whole model in each format, how much of the loss GPTQ recovers, and keys and values in 8 bits. Then the claim that all this is free is checked.

The texts (texts/valid.txt, and one to calibrate with) were written by `tales` itself, token by token as its probabilities say. On
average no model can predict such a text better than the one that wrote it. So what a format loses on it is what the
rounding made the model forget.
"""

from labkit.lab import Lab, run_lab
from phase2_attention_kvcache.story import quantization_story as chapters


def story(lab: Lab) -> None:
    chapters.tell_formats(lab)
    texts = chapters.load_texts(lab)
    results = chapters.tell_quality(lab, texts)
    chapters.tell_gptq(lab, results)
    chapters.tell_cache(lab, texts, results)
    chapters.tell_memory(lab, results)
    chapters.tell_speed(lab, results)
    lab.figure(chapters.draw_quality(lab.args.model, results), "quantization_quality")


def main(argv: list[str] | None = None) -> int:
    return run_lab(story, __doc__, ("model", "seed", "quick"), argv=argv)


if __name__ == "__main__":
    raise SystemExit(main())
