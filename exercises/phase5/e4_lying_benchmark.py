# %% [markdown]
# # 5.4 A benchmark that lies
#
# A colleague sends figures: "decode attention, 5 microseconds!" Is that possible? A decode step has to read every key and every value once, and the card
# reads only so many bytes per second. Bytes divided by bandwidth is the **floor**: no kernel can be faster. How a figure relates to its floor says more
# than the figure:
#
# - far **below** the floor: the clock did not measure what the author says
# - **near** it: a good kernel
# - far **above**: a slow kernel, and no lie
#
# Here are records of benchmarks on one card (a simulated one: its main memory reads 2,000 GB/s; its L2 cache holds 50 MB and reads
# 6,000 GB/s). A record holds the shape, every repeat in order, and what its author says: microseconds of a decode step, and GB/s.
# %%
from statistics import median

from exercises.grading import check, hint
from exercises.phase5.benchmark_records import Card, Record, make_record

for kind in ("nothing", "no wait", "bytes"):
    print(f"what is wrong: {kind}\n{make_record(kind, 1)[0]}\n")
# %% [markdown]
# By hand, the floor of a step with 64 requests of 4,096 tokens, 8 KV heads, head_dim 128, 2 bytes per number. Keys and values:
# 2 x 64 x 4,096 x 8 x 128 x 2 bytes = 1,074 million. At 2,000 million bytes per 1,000 microseconds that takes 537 microseconds.
# (Queries and results are so few that we leave them out. 1 GB is 10^9 bytes, 1 MB is 10^6.)
#
# Each record has one thing wrong with it, or nothing:
#
# | answer | what happened |
# |---|---|
# | `"no wait"` | Python continues while a GPU computes. The clock was stopped without waiting for it (no *synchronise*), and shows the time of *asking* for the work. No memory and no cache is so fast. |
# | `"cache"` | The same few requests again and again: all their keys and values fit into the L2 cache, and came from there. Too fast for the main memory, not too fast for the cache. In a real step other layers come in between. |
# | `"compile"` | The first repeat compiles the kernel and takes many times as long as the others. The author reports a mean with it. |
# | `"outlier"` | One repeat in the middle took many times as long, because another program ran. The author reports a mean with it. |
# | `"prefill"` | Some repeats also computed a prompt (more tokens than one per request) and took longer. The author reports a mean with them, and calls it decode. |
# | `"bytes"` | The microseconds are right. The GB/s are not: the author counted other bytes than a step has to read. |
# | `"nothing"` | The author is right. What goes wrong in a repeat does no harm if the author reports the median. |
#
# The cases are clear: honest repeats vary by 3%, no honest median is below its floor, and what is wrong is wrong by a factor of 1.5 or more.
#
# Write `floor_us`, and with its help `what_is_wrong`. Ask the record and the card, not the author (`check` also brings another card). Fields of a record:
# `requests`, `context_len`, `num_heads`, `num_kv_heads`, `head_dim`, `itemsize`, `repeats_us`, `new_tokens` (one number for each repeat), `says_us`,
# `says_gb_s`. Fields of a card: `memory_gb_s`, `cache_mb`, `cache_gb_s`.


# %% tags=["answer"]
def floor_us(record: Record, card: Card) -> float:
    """Microseconds in which the card's main memory can deliver all keys and values of a step."""
    # BEGIN SOLUTION
    numbers = 2 * record.requests * record.context_len * record.num_kv_heads * record.head_dim
    return numbers * record.itemsize / (card.memory_gb_s * 1e3)
    # END SOLUTION


def what_is_wrong(record: Record, card: Card) -> str:
    """One of the words in the table."""
    # BEGIN SOLUTION
    floor, usual = floor_us(record, card), median(record.repeats_us)
    size = floor * card.memory_gb_s * 1e3  # bytes
    if usual < 0.9 * floor:
        from_cache = size <= card.cache_mb * 1e6 and usual > 0.9 * size / (card.cache_gb_s * 1e3)
        return "cache" if from_cache else "no wait"
    if record.says_us > 1.2 * usual:  # a mean that something pulled up: what?
        if max(record.new_tokens) > record.requests:
            return "prefill"
        return "compile" if record.repeats_us[0] == max(record.repeats_us) else "outlier"
    gb_s = size / (record.says_us * 1e3)
    return "nothing" if 0.8 < record.says_gb_s / gb_s < 1.25 else "bytes"
    # END SOLUTION


# %% tags=["check"]
check("p5e4_lying_benchmark", floor_us, what_is_wrong)
# %% [markdown]
# ## On real records
#
# `phase5_real_gpu/reference/` holds figures of real machines, each with its floor. `times_beyond_the_limit` in `phase5_real_gpu/comparing/causes.py`
# asks the same question. Does any of the course's own figures beat its floor?
# %% tags=["engine"]
from exercises.phase5.real_records import beside_the_floor

beside_the_floor(floor_us, what_is_wrong)
