# %% [markdown]
# # Phase 5: the same engine on real silicon, with your hands on it
#
# This notebook goes beside the [README of Phase 5](../phase5_real_gpu/README.md). You need no GPU for it. Kernels run in an
# interpreter, and a compiler shows their machine code for cards that are not there. The last cells need a card. Without
# one they say so, and show nothing: what was not measured is not shown.
#
# Put your guess in place of the dots, where a cell says `guess = ...`, and run it. Outputs that would tell an answer are
# folded until you run their cells. The kernels of sections 2 to 4 need Triton, which exists for Linux only. Elsewhere
# read those three, and run the rest.
#
# **Run the folded cell below first** (click it, then Shift+Enter): it imports what the others use.

# %% tags=["plumbing"]
import inspect
import math
from dataclasses import replace

import torch

from notebooks.widgets import Guesses, show_bars, show_figure, show_table, splits_piece
from phase1_tokens_embeddings.weights import CARDS, SHAPES
from phase5_real_gpu.comparing import CAUSES, compare, find_causes, imagine
from phase5_real_gpu.compiling import compile_cases
from phase5_real_gpu.compiling.machine_code import LIMITS
from phase5_real_gpu.kernels.split_rule import choose_splits
from phase5_real_gpu.kernels.triton_setup import INTERPRETED, require_triton, tl, triton
from phase5_real_gpu.ladder.counted_loads import SMALL, count_loads, expected, random_step
from phase5_real_gpu.ladder.ladder_kernels import one_head_kernel
from phase5_real_gpu.ladder.ladder_rungs import FULL_BATCH, LADDER, ONE_LONG, run_rung
from phase5_real_gpu.measuring import find_reference, step_bytes
from phase5_real_gpu.story.ladder_figures import draw_work
from phase5_real_gpu.story.memory_figures import draw_steps

guesses = Guesses("phase5_real_gpu")
DEVICE = "cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu"
print("kernels are", "compiled for your GPU" if DEVICE == "cuda" else "interpreted on the CPU")

# %% [markdown]
# ## 1. Distance
#
# Think of a nanosecond as a metre. What is in the first cache is on the desk. Main memory is a walk around the block. These
# figures were measured on the machine of this course, two cores of a server without a GPU; `memory_hierarchy.py`
# measures yours.

# %%
here = find_reference("cpu-epyc-2core")
show_table(
    ["cache", "KiB", "reads in order, GB/s", "waits for a number from an unknown place, ns"],
    [
        [
            name.upper(),
            here.get(f"cache-{name}").details["bytes"] // 1024,
            here.get(f"cache-{name}").value,
            here.get(f"cache-{name}").details["jump_ns"],
        ]
        for name in ("l1", "l2", "l3")
    ],
)
print(f"main memory, both cores together: {here.limits.read_gb_s:.0f} GB/s")

# %% [markdown]
# No cache holds a real model. For each token that a user waits for, all weights come from main memory, and the keys and
# values of that user. Bytes divided by **bandwidth** is the shortest time, the **floor**: no kernel can do better.

# %%
h200 = CARDS["h200"]
one = step_bytes(SHAPES["llama-3-8b"], users=1, context=4096)

guess = ...  # tokens a second, at most, for one user of Llama-3 8B (15 GB a token) on an H200 (4,800 GB/s)

guesses.reveal(
    "tokens-a-second", guess, measured=round(1 / one.seconds(h200.bandwidth_gb_s)), gb=one.from_memory / 1e9
)

# %%
many = step_bytes(SHAPES["llama-3-8b"], users=32, context=4096)

guess = ...  # 32 users with 4,096 tokens each share a step. How many times as long does it take as for one?

guesses.reveal(
    "step-for-32",
    guess,
    measured=round(many.seconds(h200.bandwidth_gb_s) / one.seconds(h200.bandwidth_gb_s), 2),
    gb=many.kv / 1e9,
)

# %% tags=["after-guess"]
steps = [
    (SHAPES[name], users, context, step_bytes(SHAPES[name], users, context))
    for name, users, context in [
        ("gpt2", 1, 1024), ("gpt2", 32, 1024), ("llama-3-8b", 1, 4096), ("llama-3-8b", 32, 4096)
    ]
]  # fmt: skip
show_figure(draw_steps(steps, [("H200", h200.bandwidth_gb_s)]))

# %% [markdown]
# The floor is also a lie detector. An article says that TinyLlama writes 180 tokens a second for one user on a T4, whose
# memory delivers at most 320 GB a second:

# %%
tiny = step_bytes(SHAPES["tinyllama-1.1b"], users=1, context=1)
print(f"at most {1 / tiny.seconds(CARDS['t4'].bandwidth_gb_s):.0f} tokens a second, in plain 16 bit")

# %% [markdown]
# ## 2. One function, many programs
#
# A **kernel** is a function that is started as many copies at once, the **programs**. Each asks for its number and finds its
# own part of the work. Here is a whole kernel. Each program writes its number into four places:


# %%
require_triton()


@triton.jit
def who_was_here(out, length, PLACES: tl.constexpr):
    number = tl.program_id(0)
    places = number * PLACES + tl.arange(0, PLACES)
    tl.store(out + places, number, mask=places < length)


out = torch.full((16,), -1, dtype=torch.int32, device=DEVICE)
who_was_here[3,](out, 10, PLACES=4)

guess = ...  # three programs of four places, and a length of 10: how many of the 16 places are still -1?

guesses.reveal("unwritten", guess, measured=int((out == -1).sum()))

# %% tags=["after-guess"]
print("what lies in the places now:", out.tolist(), sep="\n")

# %% [markdown]
# Without a GPU this ran in Triton's **interpreter**, line by line on the CPU. It is slow and exact, and a change of a line
# takes effect at once. (Forget the mask, and a
# program writes into memory that is not its own, without a word, here as on a GPU.)
#
# ## 3. The ladder
#
# Decode attention reads all keys and values of each request. The ladder is that kernel in seven versions, each with one
# idea more. The first one is Phase 3's loops, almost word for word. Look for `block = tl.load(tables_ptr ...)`: the line
# that makes it paged.

# %%
require_triton()
print(inspect.getsource(one_head_kernel.fn))

# %%
show_table(
    ["rung", "", "the idea"],
    [[number, rung.name, rung.title] for number, rung in enumerate(LADDER, 1)],
)

# %% [markdown]
# A small step: contexts of 70, 0 and 129 tokens, 8 query heads on 2 KV heads. All memory outside their blocks is NaN,
# "not a number". If one number of it were read, the result would show it. The interpreter also counts what a kernel loads.

# %%
require_triton()
step = random_step(SMALL, torch.float32, DEVICE, seed=0)
right = expected(step)  # Phase 3's attention, in float64
loaded, rows = {}, []
for number, rung in enumerate(LADDER, 1):
    if INTERPRETED:
        with count_loads(keys=step[1], values=step[2], page_ids=step[3]) as counted:
            result = run_rung(rung, *step)
        loaded[rung.name] = counted.loaded["keys"] + counted.loaded["values"]
    else:  # a GPU does not say what it loaded; the code does
        result = run_rung(rung, *step)
        loaded[rung.name] = rung.work(SMALL).kv_bytes
    error = float((result.double().cpu() - right).abs().max())
    assert error < 1e-4, rung.name
    rows.append(
        [number, rung.name, rung.work(SMALL).programs, rung.work(SMALL).turns, loaded[rung.name], "yes"]
    )

guess = ...  # rung 2: heads that share keys share a program. What does that divide the bytes by?

guesses.reveal("packed-heads", guess, measured=loaded["head"] / loaded["packed"])

# %% tags=["after-guess"]
show_table(
    ["rung", "", "programs", "turns of the longest", "bytes loaded", "equal to float64 attention"], rows
)

# %% [markdown]
# Is the test any good? Let the first request believe that it has one token more than it has. Its last block has room, so
# nothing crashes:

# %%
q, k_cache, v_cache, tables, lens = step
one_too_many = lens.clone()
one_too_many[0] += 1
wrong = run_rung(LADDER[-1], q, k_cache, v_cache, tables, one_too_many)
print("numbers of the first request that are NaN now:", f"{float(wrong[0].isnan().float().mean()):.0%}")
assert wrong[0].isnan().all() and not wrong[2].isnan().any()

# %% [markdown]
# What each rung is for shows at the two extremes of a server: 64 requests of 4,096 tokens, and one of 32,768.

# %% tags=["after-guess"]
show_figure(draw_work())

# %% [markdown]
# What a rung gains *in time*, only a card can tell. See section 7.
#
# ## 4. What the compiler made of it
#
# A compiler writes instructions; it does not run them. So it needs no card. Here are kernels of the engine as machine code
# for four kinds of card.

# %%
require_triton()
CASES = [("decode", 75), ("decode", 80), ("decode", 90), ("decode", 100), ("prefill", 90)]
LOOPS = [("ladder, tile", 90), ("ladder, hoisted", 90)]
compiled = list(
    compile_cases(
        {"case": case, "capability": card, "dtype": "bfloat16" if card >= 80 else "float16"}
        for case, card in CASES + LOOPS
    )
)
assert not any(c.error for c in compiled)
tile, hoisted = (next(c for c in compiled if c.case == case) for case, _ in LOOPS)

# %% [markdown]
# A program should fetch the next keys while it computes on these. For that it has to know their address, and the address
# comes out of the block table, a load itself:
#
#     tile        turn i:  load ids(i) -> load keys(i) -> multiply
#     hoisted     turn i:  load ids(i+1), load keys(i) -> multiply          (ids(i) came a turn ago)
#
# Triton's compiler fetches ahead by itself, in stages: while the keys of one turn are multiplied, those of the next turns are on
# their way. A chain of two loads costs it one of those stages.

# %%
guess = ...  # tiles of keys that have a place in fast memory at the same time: tile, hoisted; such as [3, 3]

guesses.reveal("buffers", guess, measured=[tile.buffers, hoisted.buffers])

# %% tags=["after-guess"]
show_table(
    ["kernel", "card", "registers", "spills in loops", "shared KiB", "matrix instructions", "cp.async",
     "buffers", "fit"],
    [
        [c.case, LIMITS[c.capability].cards, c.registers, c.spills_in_loops, c.shared // 1024,
         max(c.mma, c.wgmma, c.tcgen05) or "none", c.async_copies or "none", c.buffers or "none",
         c.programs_per_multiprocessor]
        for c in compiled
    ],
)  # fmt: skip

# %% [markdown]
# Read it like this:
#
# - **Registers** hold a thread's numbers, 255 at most. A **spill** is one that had to go to slow memory. In a loop that would
#   hurt; there are none.
# - **Shared memory** is the fast memory that a program's threads share. With the registers it decides how many programs
#   **fit** on a multiprocessor. More programs hide more waiting.
# - **Matrix instructions** and **cp.async**, loads that run ahead, are counted as they stand in the code. `cp.async` came with
#   the A100, so the T4 has none, and Triton writes no matrix instructions for it. The kernel is right there, and not fast.
#
# And what the compiler cannot see: how long anything takes. `compile_report.py` ends with that list.
#
# ## 5. Keep the whole card busy
#
# One user with 8 KV heads gives work to 8 programs. An H100 has 132 multiprocessors, and the engine reckons with two
# programs on each (as many as fit for every shape): 264 at a time. So a long context is cut into **splits**, merged at the end with the online softmax. How many?

# %%
rule = choose_splits([32768], num_kv_heads=8, resident=264, tile=64)

guess = ...  # splits for one user with 32,768 tokens, 264 programs at a time

guesses.reveal("splits", guess, measured=rule.num_splits, splits=rule.num_splits, size=rule.split_tokens)

# %% [markdown]
# Move the sliders. One square is one of the programs that can run at a time, green ones are busy.
#
# - One user on an H100: at which length does cutting begin to pay?
# - 64 users: why is nothing cut?
# - Take the tick away. How many tokens pass one after another now?
# - The same on a T4 with its 80 programs at a time.

# %% tags=["after-guess"]
splits_piece(card="H100", users=1, tokens=32768)

# %% [markdown]
# Splits are exact, not an approximation. Each split hands over its result and the logarithm of its sum of weights:

# %%
scores, values = torch.randn(2, 100, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
whole = float(scores.softmax(0) @ values)
splits = [
    (float(s.softmax(0) @ v), float(s.logsumexp(0))) for s, v in zip(scores.split(37), values.split(37))
]
top = max(log for _, log in splits)
merged = sum(math.exp(log - top) * out for out, log in splits) / sum(math.exp(log - top) for _, log in splits)
print(f"whole {whole:.12f}, in {len(splits)} splits {merged:.12f}")
assert math.isclose(whole, merged, rel_tol=1e-12)

# %% [markdown]
# ## 6. Why is my number different?
#
# Milliseconds of two machines cannot be compared. Fractions of each machine's own floor can. These were measured on the
# course's CPU machine: one layer of attention for 16 users with 512 tokens each, in three ways, and one token of the whole
# engine.

# %%
shown = {
    "decode attention, in place": "cpu-decode-b16-512",
    "the same, copied together first": "gather-cpu-decode-b16-512",
    "the same, torch's own": "sdpa-cpu-decode-b16-512",
    "engine: one token, 1 user": "itl-gpt2-b1",
    "engine: one token each, 64 users": "itl-gpt2-b64",
    "engine: first token, prompt of 1,000": "ttft-gpt2-isl1000",
}
figures = {label: here.get(name) for label, name in shown.items()}
show_bars(
    "Milliseconds belong to a machine, fractions to the code",
    "Share of its own limit that each figure reaches; two cores of an AMD EPYC, GPT-2's size",
    "% of what this machine allows",
    {label: 100 * m.share_of_limit for label, m in figures.items()},
    labels=[f"{m.share_of_limit:.0%}, {m.limit}" for m in figures.values()],
    orange=[label for label, m in figures.items() if m.limit == "arithmetic"],
)

# %%
slower = compare(imagine(here, 3.0), here)  # the same machine, three times as slow in everything
with_floor = [line for line in slower.lines if line.mine.share_of_limit]
print(f"{len(with_floor)} figures, all three times as slow")

guess = ...  # how many of them need an explanation beyond that machine's own limits?

guesses.reveal("three-times-slower", guess, measured=sum(line.is_off for line in with_floor))

# %% [markdown]
# A figure that *is* off has a cause, and a cause leaves a trace. Here is an invented report of a T4: the article's, with all
# times a tenth. Which of the ten known causes would do that?

# %% tags=["after-guess"]
article = find_reference("t4-article")
too_good = replace(
    article,
    measurements=tuple(
        replace(m, value=m.value / 10 if m.better == "lower" else m.value * 10) for m in article.measurements
    ),
)
print("what fits this report:\n")
for finding in find_causes(too_good):
    print(f"{finding.cause.name}: {finding.trace.text}\n")
    print(finding.cause.explanation, f"Remedy: {finding.cause.remedy}.", sep="\n")
assert [f.cause.name for f in find_causes(too_good)] == ["missing synchronise"]

# %%
show_table(["cause", "how it makes a figure wrong"], [[c.name, c.explanation] for c in CAUSES])

# %% [markdown]
# ## 7. On a card
#
# The next two cells need a GPU. Nothing stands below them here, for nothing was measured. On your card they time the
# ladder, and hold it against what the card reads at most.

# %% tags=["gpu"]
gb_s = {}
if DEVICE == "cuda":
    from phase5_real_gpu.kernels.triton_setup import card_problem
    from phase5_real_gpu.measuring import time_call

    dtype = torch.float16 if card_problem(torch.bfloat16) else torch.bfloat16
    for name, shape in {"b64-4k": FULL_BATCH, "b1-32k": ONE_LONG}.items():
        big = random_step(shape, dtype, DEVICE, seed=0)
        times = [
            time_call(lambda rung=rung, big=big: run_rung(rung, *big), DEVICE).median_us for rung in LADDER
        ]
        gb_s[name] = [shape.kv_bytes / us / 1e3 for us in times]
else:
    print("This cell needs a GPU.")

# %% tags=["gpu"]
if gb_s:
    from phase5_real_gpu.measuring import measure_limits
    from phase5_real_gpu.story.ladder_figures import draw_staircase

    reads = measure_limits(DEVICE, (), quick=True).read_gb_s
    show_figure(draw_staircase(gb_s, reads, torch.cuda.get_device_name()))
else:
    print("This cell needs a GPU.")

# %% [markdown]
# Your whole machine beside ours, GPU or not: `python phase5_real_gpu/compare_to_reference.py`.
#
# ## 8. Your score, and what next

# %%
guesses.score()

# %% [markdown]
# - In section 2, start eight programs of two places each. What does `out` look like? Guess first.
# - In section 3, spoil a key that does belong: `k_cache[tables[2, 0], 5, 1] = math.nan`. Which requests notice, and which of
#   their heads?
# - In section 5, what would the rule do on a card with 1,000 multiprocessors?
#
# Then build the pieces yourself. Each exercise has a check that says what is wrong, and hints where you want them:
#
# - [5.1 A kernel of your own: paged decode](exercises/p5e1_paged_decode.ipynb)
# - [5.2 Merging the splits of a context](exercises/p5e2_merge_splits.ipynb)
# - [5.3 Pages for a tile, one round ahead](exercises/p5e3_page_ids.ipynb)
# - [5.4 A benchmark that lies](exercises/p5e4_lying_benchmark.ipynb)
# - [5.5 A block of Llama on two devices](exercises/p5e5_split_block.ipynb)
# - [5.6 Reading blocks from a side that may die](exercises/p5e6_block_transfer.ipynb)
# - [Debugging lab 5: stray tokens](exercises/p5d1_words_of_the_departed.ipynb)
# - [Debugging lab 5b: somebody else's words](exercises/p5d2_blocks_still_written.ipynb)
