# %% [markdown]
# # 5.4 A benchmark that lies
#
# A colleague reports "decode attention in 5 microseconds". Is that possible? A decode step has to read every key and every value once, and the card
# has a limited bandwidth. Bytes divided by bandwidth is the **floor**: no kernel can be faster. Compare each time with its floor:
#
# - far **below** the floor: the clock did not measure what the author claims
# - **near** the floor: a good kernel
# - far **above** the floor: a slow kernel, and a true figure
#
# Here are records of benchmarks on one card (simulated: its main memory reads 2,000 GB/s; its L2 cache holds 50 MB and reads
# 6,000 GB/s). A record holds the shape, every repeat in order, and the author's figures: microseconds of a decode step, and GB/s.
# %%
from statistics import median

from exercises.grading import check, hint
from exercises.phase5.benchmark_records import Card, Record, make_record

for kind in ("nothing", "no wait", "bytes"):
    print(f"what is wrong: {kind}\n{make_record(kind, 1)[0]}\n")
# %% [markdown]
# By hand, the floor of a step with 64 requests of 4,096 tokens, 8 KV heads, head_dim 128, 2 bytes per number. Keys and values:
# 2 x 64 x 4,096 x 8 x 128 x 2 bytes = 1,074 million. At 2,000 million bytes per 1,000 microseconds that takes 537 microseconds.
# (Queries and results are small and left out. 1 GB is 10^9 bytes, 1 MB is 10^6.)
#
# Each record has one fault, or none:
#
# | answer | what happened |
# |---|---|
# | `"no wait"` | Python continues while a GPU computes. The clock was stopped without waiting for it (no *synchronise*), and shows the time of *launching* the work. No memory and no cache is so fast. |
# | `"cache"` | The repeats use the same few requests: all their keys and values fit into the L2 cache, and came from there. The time is too short for the main memory, but not for the cache. In a real step other layers run in between. |
# | `"compile"` | The first repeat compiles the kernel and takes many times as long as the others. The author reports a mean with it. |
# | `"outlier"` | One repeat in the middle took many times as long, because another program ran. The author reports a mean with it. |
# | `"prefill"` | Some repeats also computed a prompt (more tokens than one per request) and took longer. The author reports a mean with them, and calls it decode. |
# | `"bytes"` | The microseconds are right. The GB/s are not: the author counted other bytes than a step has to read. |
# | `"nothing"` | The author's figures are right. A slow repeat does no harm if the author reports the median. |
#
# The cases are clear: honest repeats vary by 3%, no honest median is below its floor, and wrong figures are wrong by a factor of 1.5 or more.
#
# Write `floor_us`, and with its help `what_is_wrong`. Use the record and the card, not the author's figures (`check` also uses another card). Fields of a record:
# `requests`, `context_len`, `num_heads`, `num_kv_heads`, `head_dim`, `itemsize`, `repeats_us`, `new_tokens` (one number for each repeat), `says_us`,
# `says_gb_s`. Fields of a card: `memory_gb_s`, `cache_mb`, `cache_gb_s`.


# %% tags=["answer"]
def floor_us(record: Record, card: Card) -> float:
    """Compute the microseconds in which the card's main memory can deliver all keys and values of a step."""
    # BEGIN SOLUTION
    numbers = 2 * record.requests * record.context_len * record.num_kv_heads * record.head_dim
    return numbers * record.itemsize / (card.memory_gb_s * 1e3)
    # END SOLUTION


def what_is_wrong(record: Record, card: Card) -> str:
    """Return one of the answers in the table."""
    # BEGIN SOLUTION
    floor, usual = floor_us(record, card), median(record.repeats_us)
    size = floor * card.memory_gb_s * 1e3  # bytes
    if usual < 0.9 * floor:
        from_cache = size <= card.cache_mb * 1e6 and usual > 0.9 * size / (card.cache_gb_s * 1e3)
        return "cache" if from_cache else "no wait"
    if record.says_us > 1.2 * usual:  # slow repeats have raised a mean
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
# makes the same check. Is one of the course's own figures below its floor?
# %% tags=["engine"]
from exercises.phase5.real_records import beside_the_floor

beside_the_floor(floor_us, what_is_wrong)
