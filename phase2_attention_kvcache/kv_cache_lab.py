"""Naive against cached generation: the same tokens, a fiftieth of the work.

To generate a token, a model attends to all tokens before it. The naive loop computes all of them again for
every new token. But keys and values of a token never change once they are computed, because a token
attends only to earlier ones. The KV cache stores them. A step then computes one token.

The price is memory. Every token of every user keeps its keys and values in every layer.

You will see: the same tokens both ways; the work counted; the time of the first token (TTFT, time to
first token) and of the next ones (ITL, inter-token latency) as the text grows; the memory it takes.
"""

from labkit.lab import Lab, run_lab
from phase2_attention_kvcache.story import kv_cache_story as chapters


def story(lab: Lab) -> None:
    chapters.same_tokens(lab)
    chapters.timed_at_gpt2_size(lab)
    chapters.memory(lab)


def main(argv: list[str] | None = None) -> int:
    return run_lab(story, __doc__, options=("model", "device", "dtype", "seed", "quick"), argv=argv)


if __name__ == "__main__":
    raise SystemExit(main())
