"""Contiguous against paged: how much memory is wasted, and how many users fit.

How long an answer will be is not known when it begins. An engine that keeps each request's cache in one
row must reserve a row for the longest answer there could be. Most answers are short, so most of the memory
is reserved for tokens that never come: four requests fill the GPU.

A paged cache allocates blocks as the text grows. A request wastes at most the rest of its last block.

You will see ten requests stored both ways, slot by slot; 26 requests in place of four; the gain for each kind
of traffic; what changes when a block leaves the free list; and models with a sliding window, where a request
stops taking blocks.
"""

from labkit.lab import Lab, run_lab
from phase3_paged_attention.story import memory_waste_figures as figures
from phase3_paged_attention.story import memory_waste_story as chapters
from phase3_paged_attention.story.window_story import draw_windows, windows


def story(lab: Lab) -> None:
    rng = lab.rng()
    chapters.ten_requests(lab)
    lengths = chapters.four_become_26(lab, rng)
    lab.figure(figures.draw_memory(lengths, lab.seed), "memory_contiguous_paged")
    chapters.which_traffic(lab, rng)
    shares = chapters.memory_at_work(lab, rng)
    lab.figure(figures.draw_shares(shares), "memory_shares")
    chapters.block_sizes(lab, rng)
    chapters.constant_time(lab)
    lab.figure(draw_windows(windows(lab)), "sliding_window")


def main(argv: list[str] | None = None) -> int:
    return run_lab(story, __doc__, options=("seed", "quick"), argv=argv)


if __name__ == "__main__":
    raise SystemExit(main())
