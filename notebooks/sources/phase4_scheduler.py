# %% [markdown]
# # Phase 4: many users, one model, with your hands on it
#
# This notebook goes beside the [README of Phase 4](../phase4_scheduler/README.md). Many users want to be served at once,
# and each wants to feel alone. You will see who computes what in each step, and replay a run of the real engine.
#
# Put your guess in place of the dots, where a cell says `guess = ...`, and run it. Outputs that would tell an answer are
# folded until you run their cells.
#
# **Run the folded cell below first** (click it, then Shift+Enter): it imports what the others use.

# %% tags=["plumbing"]
import textwrap

from notebooks.widgets import Guesses, Recording, replay_piece, show_lines, show_table
from phase1_tokens_embeddings.weights import CARDS, SHAPES
from phase2_attention_kvcache.model import SamplingParams
from phase4_scheduler.engine import LLMEngine, SchedulerConfig
from phase4_scheduler.simulator import (
    ROUTERS,
    ComputedCost,
    Job,
    ReplicaConfig,
    draw_traffic,
    percentiles,
    serve_continuously,
    serve_fleet,
    serve_statically,
    simulate,
    summarise,
)
from phase4_scheduler.story.capacity_story import conversations
from phase4_scheduler.story.scheduler_story import ask, draw, play

guesses = Guesses("phase4_scheduler")

# %% [markdown]
# ## 1. Why decide before every step?
#
# A wants 50 tokens, B 1 and C 80. A **static batch** runs to the end of its longest answer, and hands out all of them
# then. **Continuous batching** decides anew before every step. Both on the real engine:

# %%
engine = LLMEngine.from_pretrained("tales", dtype="float32", device="cpu", max_num_seqs=3)
jobs = [Job("A", [100], 50), Job("B", [101], 1), Job("C", [102], 80)]
static, continuous = serve_statically(engine, jobs, batch_size=3), serve_continuously(engine, jobs)

guess = ...  # steps that B's finished answer waits in the static batch

guesses.reveal("static-wait", guess, measured=static.done_step["B"] - static.written_step["B"])

# %% tags=["after-guess"]
show_table(
    ["user", "tokens", "static: done in step", "continuous: done in step"],
    [[j.name, j.osl, static.done_step[j.name], continuous.done_step[j.name]] for j in jobs],
)
assert static.token_ids == continuous.token_ids  # the same words

# %% [markdown]
# ## 2. One budget for all
#
# A step computes at most so many tokens: the **token budget**, 16 here. Ann and Ben are in the middle of their answers.
# In step 3 Lea comes with a prompt of 40 tokens. Running requests go first, and each needs one token. Lea gets the rest.

# %%
budget = 16
arrivals = {1: [ask("Ann", 3, 12), ask("Ben", 4, 12)], 3: [ask("Lea", 40, 4)]}
shared = play(arrivals, max_num_batched_tokens=budget)
lea = [step["Lea"] for step in shared.steps if "Lea" in step]

guess = ...  # Lea's tokens in her first three steps, such as [16, 16, 8]

guesses.reveal("budget", guess, measured=lea[:3])

# %% tags=["after-guess"]
print(draw(shared, ["Ann", "Ben", "Lea"], 1, 8, budget))
assert all(sum(step.values()) <= budget for step in shared.steps)

# %% [markdown]
# Nothing here says "prefill" or "decode". Each request has tokens that are not computed yet, Lea's 40, Ann's 1, and one
# rule serves both.
#
# ## 3. Memory runs short
#
# Now the memory has 10 blocks of 4 tokens. Ann and Ben bring 14 tokens each and write one a step. At some point both need
# a new block, and none is left. The last one to come is **preempted**, and computed again later.

# %%
# One block more than is said: block 0 is the null block.
tight = play({1: [ask("Ann", 14, 10), ask("Ben", 14, 12)]}, num_blocks=11, max_model_len=40, caching=False)

guess = ...  # the step in which a request is preempted

guesses.reveal("memory-runs-out", guess, measured=tight.preempted[0][0])

# %% tags=["after-guess"]
print(draw(tight, ["Ann", "Ben"], 5, 18))

# %% [markdown]
# ## 4. Replay the engine
#
# Now the real engine with the embedded model: three running requests at most, a budget of 12 tokens, 13 blocks of 4 tokens. That is cruelly
# small, so that everything happens within a few steps. Ann and Ben begin their stories with the same words. Zoe comes when
# all is over.

# %%
engine = LLMEngine.from_pretrained(
    "tales", dtype="float32", device="cpu",
    max_num_seqs=3, max_num_batched_tokens=12, num_blocks=14, block_size=4, max_model_len=48,
)  # fmt: skip
common = "Once upon a time there was a king who "
wants = {"Ann": 18, "Ben": 16, "Lea": 14, "Zoe": 6}
params = {n: SamplingParams(temperature=0, max_tokens=k, ignore_eos=True) for n, k in wants.items()}
run = Recording.of(
    engine,
    [
        (1, "Ann", common + "lived in a castle by the sea and", params["Ann"]),
        (1, "Ben", common + "had", params["Ben"]),
        (3, "Lea", "The cat looked at the moon and", params["Lea"]),
        (60, "Zoe", common + "slept", params["Zoe"]),
    ],
)
print(f"{len(run.events)} steps for {sum(wants.values())} words")

# %%
back = next(e for e in run.events if e["hit"] and "Zoe" in e["tokens"])

guess = ...  # Zoe's prompt has 10 tokens or so. How many are computed in her first step?

guesses.reveal("prefix-hit", guess, measured=back["tokens"]["Zoe"], found=back["computed"]["Zoe"])

# %% [markdown]
# Step through the run, forwards and backwards. Look for these moments:
#
# - Ann's prompt takes the whole budget of step 1, and Ben has to wait.
# - A request is preempted. Which, and what did the others need?
# - A few blocks are free again, and that request still waits: it needs room for all tokens of its next step at once.
# - That request comes back, and computes fewer tokens than it has. Where are the others from?
# - Most of Zoe's prompt is found in the cache, though no request is running.

# %% tags=["after-guess"]
replay_piece(run)

# %% [markdown]
# What did the users see of all this? Nothing. Each story, computed again with one user alone, comes out the same:

# %%
quiet = LLMEngine.from_pretrained("tales", dtype="float32", device="cpu")
for name, request in run.requests.items():
    alone = quiet.generate(request["prompt"], params[name])[0].text
    assert alone == run.texts[name]
    print(textwrap.fill(f"{name}: {request['prompt']}{alone}", 100))

# %% [markdown]
# One thing more. With **speculative decoding** a small model guesses the next tokens, and a step checks all of them (section 10 of
# the README). Watch the column *this step*: green words stood, red ones fell. The text is the one that comes without guesses.

# %%
guessing = LLMEngine.from_pretrained(
    "tales", dtype="float32", device="cpu", num_blocks=60,
    speculative_config=dict(model="tales-draft", num_speculative_tokens=3),
)  # fmt: skip
greedy = SamplingParams(temperature=0, max_tokens=30)
replay_piece(Recording.of(guessing, [(1, "Ann", "Once upon a time there was a king who", greedy)]))

# %% [markdown]
# ## 5. The worst of a hundred
#
# Users do not feel averages. **p95** is the value that one in twenty exceeds.

# %%
waits = [0.2] * 90 + [2.0] * 6 + [9.0] * 4
guess = ...  # the 95th percentile of these hundred waits, in seconds

guesses.reveal("p95", guess, measured=round(percentiles(waits, [95])[0], 2), mean=sum(waits) / 100)

# %% [markdown]
# ## 6. How much load is too much?
#
# In **virtual time** the real scheduler and block manager decide every step, and only the time of a step comes from a
# formula: here that of Llama-3 8B on an A100, from its bytes and operations. So the same numbers come out everywhere.
# Chats arrive at random, at growing rates. Where does the wait for the first token explode?

# %%
cost = ComputedCost.of(SHAPES["llama-3-8b"], CARDS["a100-40"])
config = SchedulerConfig(max_num_seqs=32, max_num_batched_tokens=2048, max_model_len=4096)
rates, felt = [2, 4, 8, 10, 12, 14, 16, 20, 24, 28], []
for rate in rates:
    traffic = draw_traffic("chat", 300, rate, seed=1)
    felt.append(
        summarise(simulate(traffic, config, num_blocks=2000, cost=cost).records, ttft_slo=1.0, tpot_slo=0.05)
    )
knee = next((r for r, f in zip(rates, felt) if f.ttft.p95 > 1), None)

guess = ...  # the lowest of these rates, 2 to 28 a second, at which p95 is above a second

guesses.reveal("knee", guess, measured=knee)

# %% tags=["after-guess"]
server = "Llama-3 8B on an A100 40 GB, max_num_seqs 32, 2,000 blocks, 300 chats at each rate, in virtual time"
show_lines(
    f"From {knee} chats a second on, users queue",
    server,
    ("chats a second", rates),
    "time to first token, seconds",
    {"median": [f.ttft.p50 for f in felt], "p95": [f.ttft.p95 for f in felt]},
    log="y",
    dots=True,
)
show_lines(
    "Served is not served as promised",
    server,
    ("chats a second", rates),
    "requests a second",
    {
        "served": [f.requests_per_second for f in felt],
        "served within the promise": [f.goodput for f in felt],
    },
    dots=True,
)

# %% [markdown]
# The promise here: first token within a second, then 50 ms a token or better. **Goodput** counts only the requests that
# met it. Beyond the knee the server is busier than ever, and hardly a request meets its target. What has run out there,
# `max_num_seqs` or memory? The last section lets you find out.
#
# ## 7. A fleet
#
# Four **replicas** of that server, engines with the same model, stand behind one address. A **router** in front chooses one for
# each request. 200 users come five times each, every time with all that was said before, 8 requests a second in all. If a turn
# comes to the replica that served the one before, most of its prompt is in that cache.

# %%
talks = conversations(users=200, turns=5, rate=8.0, seed=0)
replica = ReplicaConfig(
    cost, SchedulerConfig(max_num_seqs=256, max_model_len=8192), num_blocks=cost.num_blocks
)
fleets = {name: serve_fleet(talks, replica, 4, router()) for name, router in ROUTERS.items()}

guess = ...  # the prefix-aware router finds how many times as many tokens in a cache as round robin?

ratio = fleets["prefix-aware"].hit_rate / fleets["round-robin"].hit_rate
guesses.reveal("prefix-router", guess, measured=round(ratio, 1))

# %% tags=["after-guess"]
show_table(
    ["router", "prompt tokens found in a cache", "TTFT p95, seconds", "requests of each replica"],
    [
        [
            name,
            f"{run.hit_rate:.0%}",
            f"{summarise(run.records).ttft.p95:.2f}",
            ", ".join(str(len(replica.run.records)) for replica in run.replicas),
        ]
        for name, run in fleets.items()
    ],
)
assert fleets["prefix-aware"].hit_rate > 2 * fleets["round-robin"].hit_rate

# %% [markdown]
# The prefix-aware router remembers who was given a beginning; of several it takes the least loaded. It
# lets go of that only where one replica drowns: with more than 64 requests above another, and more than 1.5 times as many. Exercise
# 4.10 lets you write such a router.
#
# ## 8. Your score, and what next

# %%
guesses.score()

# %% [markdown]
# - In section 4, give the engine `num_blocks=30`. Which of the moments are gone?
# - Set `max_num_batched_tokens=64` there. Who gains, and who loses?
# - In section 7, take 2 replicas, then 8. What happens to the ratio, and why?
# - In section 6, double `num_blocks`. Where is the knee now? What if you double `max_num_seqs` instead?
#
# Then build the parts yourself. Each exercise has a check that says what is wrong, and hints where you want them:
#
# - [4.1 One step, one budget](exercises/p4e1_one_step.ipynb)
# - [4.2 Preemption](exercises/p4e2_preemption.ipynb)
# - [4.3 Chunked prefill](exercises/p4e3_chunks.ipynb)
# - [4.4 Static against continuous](exercises/p4e4_static_continuous.ipynb)
# - [4.5 Percentiles and goodput](exercises/p4e5_percentiles_goodput.ipynb)
# - [4.6 Two causes, one query](exercises/p4e6_two_causes.ipynb)
# - [4.7 Copied drafts](exercises/p4e7_copied_drafts.ipynb)
# - [4.8 Which drafts stand](exercises/p4e8_verified_drafts.ipynb)
# - [4.9 Little's law and the knee](exercises/p4e9_littles_law.ipynb)
# - [4.10 A router that finds the prefix](exercises/p4e10_router.ipynb)
# - [Debugging lab 4: names without contents](exercises/p4d1_names_without_blocks.ipynb)
# - [Debugging lab 4b: a temperature from nowhere](exercises/p4d2_temperature_from_nowhere.ipynb)
#
# [Phase 5](phase5_real_gpu.ipynb) moves the computing to a GPU.
