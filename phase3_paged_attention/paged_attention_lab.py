"""Attention over scattered blocks, three times: in plain loops, in tensors, and fast.

The keys of a request lie in blocks all over the memory. Attention needs every one of them, in the right
order. Nothing has to be copied together for that: go over the request's block table, and at each physical
block compute the scores of its tokens.

One trick makes it work. Softmax divides by the sum over all tokens, and we have seen only some of them. The
online softmax keeps three running things: the largest score so far, the sum of weights so far, and the
weighted values so far. When a larger score turns up, what was summed before is scaled down.

You will see a block table walked by hand, the three readings agree with plain attention, that what lies in
unused blocks cannot matter, and what each reading costs.

Sources: Kwon et al. (2023), section 4.1; Milakov and Gimelshein, "Online normalizer calculation for
softmax" (2018), section 3; vllm/v1/attention/ops/.
"""

from labkit.lab import Lab, run_lab
from phase3_paged_attention.story.paged_attention_by_hand import by_hand
from phase3_paged_attention.story.paged_attention_story import costs, three_readings


def story(lab: Lab) -> None:
    by_hand(lab)
    three_readings(lab)
    costs(lab)


def main(argv: list[str] | None = None) -> int:
    return run_lab(story, __doc__, options=("device", "dtype", "seed", "quick"), argv=argv)


if __name__ == "__main__":
    raise SystemExit(main())
