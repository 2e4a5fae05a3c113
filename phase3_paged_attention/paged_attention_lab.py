"""Attention over scattered blocks, three times: in plain loops, in tensors, and fast.

The keys of a request are in scattered blocks. Attention needs every one of them, in order. It does not need a
copy of them in one row: the loop goes over the request's block table, and computes the scores of each physical
block where the block is.

Softmax divides by the sum over all tokens, and the loop has seen only some of them. The online softmax keeps
three running values: the largest score, the sum of the weights, and the weighted sum of the values. When a
larger score appears, both sums are scaled down.

You will see a walk over a block table by hand, three implementations that agree with plain attention, a proof
that the content of unused slots cannot matter, and the time of each implementation.

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
