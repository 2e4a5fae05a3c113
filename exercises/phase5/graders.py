"""The exercises of phase 5: what each asks for, its hints, and which grader judges it."""

from __future__ import annotations

from exercises.grading import Exercise
from exercises.phase5.grade_benchmark import grade_benchmark
from exercises.phase5.grade_decode import grade_decode
from exercises.phase5.grade_lab import grade_lab
from exercises.phase5.grade_merge import grade_merge
from exercises.phase5.grade_pages import grade_pages

EXERCISES = [
    Exercise(
        name="p5e1_paged_decode",
        asks=("paged_decode",),
        grade=grade_decode,
        seconds=40.0,
        hints=(
            "First get it right for a request that fits into one block: load the block's number, then its keys, as a table "
            "[BLOCK_SIZE, HEAD_DIM] of places. Then the loop, and what has to shrink. The mask goes into three places: both loads and the "
            "scores.",
            "places of keys = physical * block_stride + t * token_stride\n"
            "                 + (head // GROUP) * head_stride + d\n"
            "                 t as a column, d as a row\n"
            "scores         = sum over d of query * keys, times scale;\n"
            "                 -infinity where there is no token\n"
            "shrink         = exp(largest - new)\n"
            "total          = total * shrink + sum of exp(scores - new)\n"
            "acc            = acc * shrink\n"
            "                 + sum over t of exp(scores - new) * values",
            "context_len = load my length\n"
            "largest, total, acc = -infinity, 0, zeros\n"
            "places = 0, 1, ..., BLOCK_SIZE - 1\n"
            "for logical = 0 to context_len / BLOCK_SIZE, rounded up:\n"
            "    physical = load entry `logical` of my row of block_tables, as int64\n"
            "    is_mine = logical * BLOCK_SIZE + places < context_len\n"
            "    where = (physical, places, my KV head) as a column\n"
            "            + dims as a row\n"
            "    keys, values = load at `where`, masked with is_mine as a column\n"
            "    scores = sum(query as a row * keys, axis=1) * scale,\n"
            "             and -infinity where not is_mine\n"
            "    new = maximum(largest, max of scores)\n"
            "    shrink total and acc by exp(largest - new)\n"
            "    weights = exp(scores - new)\n"
            "    add their sum to total,\n"
            "    and sum(weights as a column * values, axis=0) to acc\n"
            "    largest = new\n"
            "result = acc / total",
        ),
    ),
    Exercise(
        name="p5e2_merge_splits",
        asks=("merge",),
        grade=grade_merge,
        hints=(
            "Each part counts in proportion to exp(log_sum). Only proportions matter, so all of these may be made smaller by the same factor: "
            "which one makes the largest of them 1?",
            "weight[p] = exp(log_sum[p] - largest)\n"
            "out       = sum of weight[p] * out[p] / sum of weight[p]\n"
            "log_sum   = largest + log(sum of weight[p])",
            "largest = the largest of log_sums\n"
            "if that is -infinity: return zeros, -infinity\n"
            "weights = exp(log_sums - largest)\n"
            "put 0 in place of `out` where the weight is 0 (it may be NaN)\n"
            "total = sum of the weights\n"
            "return sum of weights * outs, divided by total; and largest + log(total)",
        ),
    ),
    Exercise(
        name="p5e3_page_ids",
        asks=("tile_places", "walk"),
        grade=grade_pages,
        hints=(
            "For `tile_places`, write down the numbers of the tile's tokens first; everything else comes from them. For `walk`, think of two "
            "hands: one holds the pages of this tile, the other those of the next.",
            "tokens  = start + 0, 1, ..., tile - 1\n"
            "logical = tokens // block_size\n"
            "offsets = tokens % block_size\n"
            "valid   = tokens < context_len\n"
            "order of calls: load(tile 0), load(tile 1), fetch(tile 0),\n"
            "                load(tile 2), fetch(tile 1), ...",
            "walk:\n"
            "    places of tile 0; pages = load(its logical, its valid)\n"
            "    for start = 0, tile, 2 * tile, ... below context_len:\n"
            "        places of the tile that begins at start + tile\n"
            "        next_pages = load(its logical, its valid)\n"
            "        fetch(pages, offsets and valid of the tile at start)\n"
            "        the next tile's pages, offsets and valid become this one's",
        ),
    ),
    Exercise(
        name="p5e4_lying_benchmark",
        asks=("floor_us", "what_is_wrong"),
        grade=grade_benchmark,
        hints=(
            "Two questions, one after the other. Could the median of the repeats be true at all? Compare it with the floor. If it could: does what the "
            "author says follow from it? Whether somebody is slow is not the question.",
            "bytes = 2 (keys and values) * requests * context_len\n"
            "        * num_kv_heads * head_dim * itemsize\n"
            "floor = bytes / (memory_gb_s * 1000)               microseconds\n"
            "floor of the cache = bytes / (cache_gb_s * 1000)\n"
            "                     only if bytes <= cache_mb * 10^6\n"
            "GB/s that belong to a time = bytes / (microseconds * 1000)",
            "usual = median of the repeats\n"
            "if usual is well below the floor:\n"
            "    'cache' if the bytes fit into the cache\n"
            "            and usual is not below the cache's floor, else 'no wait'\n"
            "if says_us is well above usual (somebody reports a mean):\n"
            "    'prefill' if a repeat computed more tokens than there are requests\n"
            "    'compile' if the first repeat is the slowest, else 'outlier'\n"
            "if says_gb_s is not bytes / (says_us * 1000): 'bytes'\n"
            "'nothing'",
        ),
    ),
    Exercise(
        name="p5d1_words_of_the_departed",
        asks=("Runner", "cause"),
        grade=grade_lab,
        hints=(
            "Print `self.tokens` and `self.slots` at the end of `fill`, in each step of the symptom. All four rows of them are replayed.",
            "In the last step of the symptom there are three users. What\n"
            "stands in the fourth row, and to whom does that slot belong by now?\n"
            "rows 0 to n - 1: the users of this step\n"
            "rows n to 3:     padding. A slot below 0 is not stored\n"
            "                 (and block 0 is nobody's)",
            "n = how many users there are\n"
            "copy the tokens into the first n rows of self.tokens\n"
            "copy the slots into the first n rows of self.slots\n"
            "give all the other rows of self.slots a value that stores nothing",
        ),
    ),
]
