"""One system prompt, many users: what is computed once need not be computed again.

Most requests to a service begin with the same text: instructions, examples, a document, the conversation
so far. The keys and values of a token depend only on the tokens up to it. So equal beginnings have equal keys
and values, and the blocks of one request can serve the next.

The time to first token (TTFT) shrinks, because only the new part of the prompt is computed. The memory holds
the shared part once.

You will see the hit rate of many users behind one prompt; TTFT cold and warm against the shared part of the
prompt; the cost of one changed letter at different positions; and evictions when memory is short.

Sources: Kwon et al. (2023), section 4.4; vllm/v1/core/kv_cache_utils.py (hashes of blocks).
"""

from labkit.lab import Lab, run_lab
from phase3_paged_attention.story import prefix_caching_story as chapters


def story(lab: Lab) -> None:
    model, tokenizer = chapters.load(lab)
    chapters.many_users(lab, model, tokenizer)
    chapters.ttft_against_share(lab, model)
    chapters.one_letter(lab, model, tokenizer)
    chapters.memory_is_short(lab, model, tokenizer)


def main(argv: list[str] | None = None) -> int:
    return run_lab(story, __doc__, options=("model", "device", "dtype", "seed", "quick"), argv=argv)


if __name__ == "__main__":
    raise SystemExit(main())
