"""Virtual memory for the KV cache: block tables, reference counts, prefix caching, copy-on-write, swap.

A request believes that its keys and values lie in one long row. They lie in blocks, scattered over the
memory, and a table says where: exactly what an operating system does for a process.

    operating system            here
    page frame                  PhysicalBlock: room for the keys and values of 16 tokens
    free list                   BlockAllocator
    page table                  BlockTable: block 0 of the request is physical block 7, block 1 is 3, ...
    shared library              prefix caching: the same system prompt, stored once
    fork and copy-on-write      parallel samples of one prompt
    swap space                  blocks moved to main memory and back

You will see a table fill up, two requests share a prompt, a fork that copies only when it writes, and the
evictions when memory runs short.

Sources: Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention"
(2023), sections 4.2 to 4.5; vllm/v1/core/block_pool.py and single_type_kv_cache_manager.py.
"""

from labkit.lab import Lab, run_lab
from phase3_paged_attention.story import block_manager_story as chapters
from phase3_paged_attention.story.word_memory import WordMemory


def story(lab: Lab) -> None:
    memory = WordMemory(num_blocks=17, block_size=4, num_swap_blocks=6)
    lab.say("""A token here is a word, a block has room for four, and the memory has 16 blocks. A word
        represents its keys and values, so that you can read what is stored.""")
    chapters.tables_fill_up(lab, memory)
    chapters.share_a_prompt(lab, memory)
    chapters.fork_and_write(lab, memory)
    chapters.free_and_evict(lab, memory)
    chapters.swap(lab, memory)


def main(argv: list[str] | None = None) -> int:
    return run_lab(story, __doc__, argv=argv)


if __name__ == "__main__":
    raise SystemExit(main())
