"""From GPT-2 to Qwen3 in twelve changes: the families of models in use.

GPT-2 (2019) and Qwen3 (2025) differ in a dozen parts of one structure. This script goes through the differences, runs a
small model of each family from one set of layers, and compares every logit with Hugging Face's implementation. Then it
shows what the changes do to memory: to the KV cache per token, and to the weights that a token uses in a mixture of
experts. Last, it compares small models that were trained with all changes, and without each.

Sources: Radford et al. 2019 (GPT-2); Zhang and Sennrich 2019 (RMSNorm); Shazeer 2020 (SwiGLU); Su et al. 2021
(rotary positions); Ainslie et al. 2023 (grouped heads); Jiang et al. 2023 and 2024 (Mistral, Mixtral); the reports
of Gemma 2 (2024), Gemma 3, OLMo 2 and Qwen3 (2025).
"""

from collections.abc import Sequence

from labkit.lab import Lab, run_lab
from phase2_attention_kvcache.story import families_story as chapters
from phase2_attention_kvcache.story.trained_without_story import tell_trained_without


def story(lab: Lab) -> None:
    chapters.tell_changes(lab)
    chapters.tell_agreement(lab)
    chapters.tell_kv(lab)
    chapters.tell_mixtures(lab)
    tell_trained_without(lab)


def main(argv: Sequence[str] | None = None) -> int:
    return run_lab(story, __doc__, options=("seed", "quick"), argv=argv)


if __name__ == "__main__":
    raise SystemExit(main())
