"""The nights: what is asked, what is put in, and by which figures each cause is known.

`[1m]` in a query stands for the window of the night, which is shorter.
"""

import random
import time
from dataclasses import replace

from phase1_tokens_embeddings.weights.cards import CARDS, Card
from phase4_scheduler.server.drills.evidence import Cause, Check
from phase4_scheduler.server.drills.load import Users, plain, words
from phase4_scheduler.server.drills.playing import Drill, Fault


def mean(name: str) -> str:
    """PromQL of a histogram's mean: what was observed in a minute, divided by how often."""
    return f"rate(vllm:{name}_sum[1m]) / rate(vllm:{name}_count[1m])"


TTFT, ITL = mean("time_to_first_token_seconds"), mean("inter_token_latency_seconds")
QUEUE, PREFILL = mean("request_queue_time_seconds"), mean("request_prefill_time_seconds")
PROMPT, ANSWER = mean("request_prompt_tokens"), mean("request_generation_tokens")
STEP = mean("iteration_tokens_total")
RUNNING, WAITING = (
    "avg_over_time(vllm:num_requests_running[1m])",
    "avg_over_time(vllm:num_requests_waiting[1m])",
)
KV = "max_over_time(vllm:kv_cache_usage_perc[1m])"
PREEMPTIONS, TOKENS = "rate(vllm:num_preemptions_total[1m])", "rate(vllm:generation_tokens_total[1m])"
HIT_RATE = "rate(vllm:prefix_cache_hits_total[1m]) / rate(vllm:prefix_cache_queries_total[1m])"
FRONTEND = f"{TTFT} - {QUEUE} - {PREFILL}"
MEMORY = "sum(max_over_time(process_resident_memory_bytes[1m]))"
BAD = "phase4_scheduler.server.drills.bad_middleware"


PREFILL_STEPS = f"({PREFILL}) / ({ITL})"
"""In how many steps a prompt is computed, about: an ITL is the time of a step. (vllm:iteration_tokens_total does not tell: it
counts a prompt as a whole, in the step that computes its last piece.)"""


# ---------------------------------------------------------------------- causes that come in several nights

OTHER_PROGRAM = Cause(
    "neighbour",
    "Another program computes on the same cores.",
    (
        Check("tokens come more slowly", ITL, "ratio", ">", 1.4),
        Check("though not more requests run than before", RUNNING, "ratio", "<", 1.4),
        Check("and not fewer", RUNNING, "ratio", ">", 0.7),
        Check("and none makes room for another", PREEMPTIONS, "now", "<", 0.05),
        Check("and steps have as many tokens as before", STEP, "ratio", "<", 1.5),
    ),
    "Find it (top), and move it or the server to other cores.",
)


# ---------------------------------------------------------------------- 1: the first token comes late

CHATTING = Users(4, plain(40), max_tokens=32, think=0.3)

FIRST_TOKEN = Drill(
    1,
    "Why does the first token come late?",
    "Users say: it thinks for ever before it begins to write.",
    TTFT,
    (Check("the first token comes later", TTFT, "ratio", ">", 1.6),),
    {"TTFT, s": TTFT, "of that in the queue, s": QUEUE, "in prefill, s": PREFILL, "ITL, s": ITL, "running": RUNNING,
     "waiting": WAITING, "prompt tokens": PROMPT, "KV usage, highest": KV, "hit rate": HIT_RATE},
    ("--max-num-seqs", "8", "--max-num-batched-tokens", "512"),
    (CHATTING,),
    (
        Cause(
            "queue",
            "More users than seats: requests wait to be admitted.",
            (Check("most of TTFT passes in the queue", f"({QUEUE}) / ({TTFT})", "now", ">", 0.5),
             Check("requests wait", WAITING, "now", ">", 1),
             Check("and not for blocks", KV, "now", "<", 0.95),
             Check("and prompts are as long as before", PROMPT, "ratio", "<", 1.4)),
            "More seats (--max-num-seqs) while the KV cache has room, else another server; or refuse early "
            "(--max-num-queued-reqs).",
        ),
        Cause(
            "prompts",
            "Prompts have become long, and a long prompt takes long to compute.",
            (Check("a large part of TTFT passes in prefill", f"({PREFILL}) / ({TTFT})", "now", ">", 0.3),
             Check("prompts are longer than before", PROMPT, "ratio", ">", 2)),
            "Ask who sends them and why. Prefix caching, if they begin alike; a faster card, if not.",
        ),
        Cause(
            "frontend",
            "The API process is blocked: the engine is ready, and nobody reads requests or sends tokens.",
            (Check("most of TTFT passes neither in the queue nor in prefill", f"({FRONTEND}) / ({TTFT})", "now", ">", 0.5),
             Check("and that is more than a few steps' time", f"({FRONTEND}) / ({ITL})", "now", ">", 4)),
            "Look for what was put into the API process lately. Nothing there may wait without `await`.",
        ),
        Cause(
            "memory",
            "The KV cache is full: requests wait for blocks.",
            (Check("all blocks are taken", KV, "now", ">", 0.95),
             Check("and requests wait", WAITING, "now", ">", 0.5)),
            "More blocks, shorter answers, or fewer requests at a time.",
        ),
        Cause(
            "cache",
            "Prefixes are no longer found in the cache: everything is computed anew.",
            (Check("the hit rate has fallen", f"{HIT_RATE}", "ratio", "<", 0.7),),
            "See night 5.",
        ),
        replace(
            OTHER_PROGRAM,
            checks=(*OTHER_PROGRAM.checks,
                    Check("and the way outside the engine takes a few steps at most", f"({FRONTEND}) / ({ITL})", "now", "<", 4)),
        ),
    ),
    {
        "queue": Fault(users=(Users(48, plain(40), max_tokens=32, think=0.3),)),
        "prompts": Fault(users=(Users(4, plain(800), max_tokens=32, think=0.3),)),
        "frontend": Fault(("--middleware", f"{BAD}.AskTheOldDirectory")),
    },
)  # fmt: skip


# ---------------------------------------------------------------------- 2: the tokens come slowly

WRITING = Users(6, plain(20), max_tokens=60)

NEXT_TOKEN = Drill(
    2,
    "Why do the tokens come slowly?",
    "Users say: it begins at once, and then it stutters.",
    ITL,
    (Check("tokens come more slowly", ITL, "ratio", ">", 1.4),),
    {"ITL, s": ITL, "TTFT, s": TTFT, "running": RUNNING, "waiting": WAITING, "tokens of a step": STEP,
     "preemptions a second": PREEMPTIONS, "KV usage, highest": KV, "prompt tokens": PROMPT, "tokens a second": TOKENS},
    ("--max-num-seqs", "64", "--max-num-batched-tokens", "256", "--num-gpu-blocks-override", "1025"),
    (WRITING,),
    (
        Cause(
            "batch",
            "More users share a step, so a step takes longer.",
            (Check("more requests run than before", RUNNING, "ratio", ">", 2),
             Check("and none makes room for another", PREEMPTIONS, "now", "<", 0.05),
             Check("and prompts are as long as before", PROMPT, "ratio", "<", 1.4)),
            "Fewer seats, if ITL is promised to somebody; else be glad: tokens a second have gone up.",
        ),
        Cause(
            "pool",
            "The KV cache is too small: requests push each other out and compute their tokens again.",
            (Check("requests are preempted", PREEMPTIONS, "now", ">", 0.2),
             Check("and all blocks are taken", KV, "now", ">", 0.9)),
            "More blocks, or fewer seats: those who wait hold none.",
        ),
        Cause(
            "whole",
            "Long prompts are computed in one piece, and all others wait for the end of that step.",
            (
                Check("prompts are longer than before", PROMPT, "ratio", ">", 1.5),
                Check("and each is computed in one step or two", PREFILL_STEPS, "now", "<", 2.5),
            ),
            "Chunked prefill on, with a token budget of a few hundred.",
        ),
        Cause(
            "pieces",
            "Long prompts are computed in pieces, and each step carries one.",
            (
                Check("prompts are longer than before", PROMPT, "ratio", ">", 1.5),
                Check("and each is computed in several steps", PREFILL_STEPS, "now", ">", 2.5),
            ),
            "A smaller token budget (ITL falls, TTFT rises), or another server for long prompts.",
        ),
        OTHER_PROGRAM,
        Cause(
            "seats",
            "Too few requests may run at a time.",
            (Check("requests wait", WAITING, "now", ">", 1),
             Check("while blocks are free", KV, "now", "<", 0.9)),
            "More seats (--max-num-seqs).",
        ),
        Cause(
            "frontend",
            "The API process is blocked, and does not send what is written.",
            (Check("the way outside the engine takes longer than a few steps", f"({FRONTEND}) / ({ITL})", "now", ">", 8),),
            "Look for what was put into the API process lately. Nothing there may wait without `await`.",
        ),
    ),
    {
        "batch": Fault(users=(Users(48, plain(20), max_tokens=60),)),
        "pool": Fault(("--num-gpu-blocks-override", "13")),
        "whole": Fault(("--no-enable-chunked-prefill", "--max-num-batched-tokens", "2048"),
                       (WRITING, Users(2, plain(850), max_tokens=2))),
        "pieces": Fault(users=(WRITING, Users(2, plain(850), max_tokens=2))),
        "neighbour": Fault(hogs=2),
    },
)  # fmt: skip


# ---------------------------------------------------------------------- 3: out of memory?

OUT_OF_MEMORY = Drill(
    3,
    "Are we out of memory?",
    "Something is full. A colleague has read that a full KV cache ends in an out-of-memory error.",
    TTFT,
    (Check("the first token comes later", TTFT, "ratio", ">", 1.6),
     Check("the processes have grown", MEMORY, "ratio", ">", 1.15)),
    {"TTFT, s": TTFT, "KV usage, highest": KV, "running": RUNNING, "waiting": WAITING,
     "preemptions a second": PREEMPTIONS, "both processes, bytes": MEMORY, "prompt tokens": PROMPT, "ITL, s": ITL},
    ("--max-num-seqs", "16", "--max-num-batched-tokens", "4096", "--num-gpu-blocks-override", "513"),
    (Users(6, plain(100), max_tokens=64, think=0.05),),
    (
        Cause(
            "pool",
            "The KV cache is full. No memory runs out, since all of it was taken at the start: requests queue, and are "
            "preempted.",
            (Check("all blocks are taken", KV, "now", ">", 0.85),
             Check("and requests wait or are preempted", f"{WAITING} + {PREEMPTIONS}", "now", ">", 0.5),
             Check("and the processes are no larger than before", MEMORY, "ratio", "<", 1.15)),
            "More blocks, if the machine has the memory; shorter answers, if not.",
        ),
        Cause(
            "outside",
            "Memory outside the KV cache: a process keeps what it should have dropped.",
            (Check("the processes have grown", MEMORY, "ratio", ">", 1.15),
             Check("while blocks are free", KV, "now", "<", 0.85)),
            "Find what grows before the machine kills the process. The KV cache, taken at the start, cannot be it.",
        ),
        Cause(
            "seats",
            "Too few requests may run at a time. Memory has nothing to do with it.",
            (Check("requests wait", WAITING, "now", ">", 0.5),
             Check("while blocks are free", KV, "now", "<", 0.85),
             Check("and fewer run than before", RUNNING, "ratio", "<", 0.9)),
            "More seats (--max-num-seqs).",
        ),
        Cause(
            "prompts",
            "Prompts have become longer, and take longer to compute.",
            (Check("prompts are longer than before", PROMPT, "ratio", ">", 1.5),
             Check("and the processes are no larger than before", MEMORY, "ratio", "<", 1.15)),
            "Ask who sends them and why.",
        ),
        OTHER_PROGRAM,
    ),
    {
        "pool": Fault(("--num-gpu-blocks-override", "31")),
        "outside": Fault(("--middleware", f"{BAD}.KeepTraces")),
        "seats": Fault(("--max-num-seqs", "2")),
    },
)  # fmt: skip


# ---------------------------------------------------------------------- 4: few tokens a second

BULK = Users(16, plain(30), max_tokens=48)

THROUGHPUT = Drill(
    4,
    "Why are there so few tokens a second?",
    "The batch of the night should be done at six. At this pace it will be noon.",
    TOKENS,
    (Check("fewer tokens a second", TOKENS, "ratio", "<", 0.8),),
    {"tokens a second": TOKENS, "running": RUNNING, "waiting": WAITING, "KV usage, highest": KV,
     "preemptions a second": PREEMPTIONS, "tokens of a step": STEP, "steps of a prompt": PREFILL_STEPS,
     "ITL, s": ITL, "tokens of an answer": ANSWER},
    ("--max-num-seqs", "32", "--max-num-batched-tokens", "1024", "--num-gpu-blocks-override", "1025"),
    (BULK,),
    (
        Cause(
            "client",
            "The client sends one request at a time, and the server has nothing to batch.",
            (Check("fewer requests run than before", RUNNING, "ratio", "<", 0.5),
             Check("and none waits", WAITING, "now", "<", 0.5)),
            "Send many at a time. The server cannot mend this.",
        ),
        Cause(
            "seats",
            "Too few requests may run at a time.",
            (Check("fewer requests run than before", RUNNING, "ratio", "<", 0.5),
             Check("the others wait", WAITING, "now", ">", 1),
             Check("while blocks are free", KV, "now", "<", 0.8),
             Check("and a prompt is computed in few steps", PREFILL_STEPS, "now", "<", 8)),
            "More seats (--max-num-seqs).",
        ),
        Cause(
            "budget",
            "The token budget of a step is tiny.",
            (Check("requests wait", WAITING, "now", ">", 1),
             Check("while blocks are free", KV, "now", "<", 0.8),
             Check("and a prompt takes many steps, though it has but 30 tokens", PREFILL_STEPS, "now", ">", 8)),
            "A larger --max-num-batched-tokens.",
        ),
        Cause(
            "pool",
            "The KV cache is too small: few requests fit.",
            (Check("all blocks are taken", KV, "now", ">", 0.85),
             Check("and requests wait", WAITING, "now", ">", 1)),
            "More blocks.",
        ),
        OTHER_PROGRAM,
        Cause(
            "answers",
            "Answers have become short, so there is less to write.",
            (Check("answers are shorter", ANSWER, "ratio", "<", 0.7),),
            "Nothing: count requests, not tokens.",
        ),
    ),
    {
        "client": Fault(users=(Users(1, plain(30), max_tokens=48),)),
        "seats": Fault(("--max-num-seqs", "1")),
        "budget": Fault(("--max-num-batched-tokens", "2")),
        "pool": Fault(("--num-gpu-blocks-override", "12")),
    },
)  # fmt: skip


# ---------------------------------------------------------------------- 5: the prefix cache does nothing


def documents(count: int):
    """Prompts about one of so many documents of 150 words: the same document begins with the same words."""

    def prompt(rng: random.Random) -> str:
        document = words(random.Random(f"document {rng.randrange(count)}"), 150)
        return f"{document} {words(rng, 10)}"

    return prompt


def dated(rng: random.Random) -> str:
    return f"{time.time():.3f}: {documents(6)(rng)}"


def questions(prompt) -> tuple[Users, ...]:
    return (Users(6, prompt, max_tokens=8, think=0.05),)


FOUND = "rate(vllm:prompt_tokens_cached_total[1m]) / rate(vllm:prompt_tokens_total[1m])"
LOOKED_UP = "rate(vllm:prefix_cache_queries_total[1m]) / rate(vllm:prompt_tokens_total[1m])"

PREFIX_CACHE = Drill(
    5,
    "Why does the prefix cache find nothing?",
    "Everybody asks about the same few documents, and yet each prompt is computed anew.",
    FOUND,
    (Check("a smaller share of prompt tokens is found", FOUND, "ratio", "<", 0.7),),
    {"prompt tokens found, share": FOUND, "looked up, share": LOOKED_UP, "hits / queries": HIT_RATE,
     "prompt tokens": PROMPT, "TTFT, s": TTFT, "KV usage, highest": KV, "preemptions a second": PREEMPTIONS,
     "running": RUNNING},
    ("--max-num-seqs", "16", "--num-gpu-blocks-override", "201"),
    questions(documents(6)),
    (
        Cause(
            "off",
            "Prefix caching is switched off.",
            (Check("prompts are not even looked up", LOOKED_UP, "now", "<", 0.1),),
            "Deploy it again without --no-enable-prefix-caching.",
        ),
        Cause(
            "timestamp",
            "Somebody puts the time in front of each prompt: no two begin alike.",
            (Check("prompts are looked up", LOOKED_UP, "now", ">", 0.5),
             Check("and nothing at all is found", HIT_RATE, "now", "<", 0.02),
             Check("though they are as long as before", PROMPT, "ratio", ">", 0.5)),
            "What changes belongs at the end of a prompt.",
        ),
        Cause(
            "eviction",
            "More documents are in use than the cache holds: each is evicted before it is asked for again.",
            (Check("prompts are looked up", LOOKED_UP, "now", ">", 0.5),
             Check("and some are found, by luck", HIT_RATE, "now", ">", 0.02),
             Check("though they are as long as before", PROMPT, "ratio", ">", 0.5)),
            "More blocks, or send the users of one document to one server.",
        ),
        Cause(
            "short",
            "Prompts have become shorter than a block, and only full blocks are found again.",
            (Check("prompts are shorter than before", PROMPT, "ratio", "<", 0.5),
             Check("shorter than a block of 16", PROMPT, "now", "<", 16)),
            "Nothing: there is little to save.",
        ),
        Cause(
            "preemption",
            "Requests push each other out of the cache.",
            (Check("requests are preempted", PREEMPTIONS, "now", ">", 0.2),),
            "More blocks, or fewer seats.",
        ),
    ),
    {
        "off": Fault(("--no-enable-prefix-caching",)),
        "timestamp": Fault(users=questions(dated)),
        "eviction": Fault(users=questions(documents(50))),
        "short": Fault(users=questions(plain(9))),
    },
)  # fmt: skip

# ---------------------------------------------------------------------- 6: which card?

OPERATIONS = "rate(vllm:estimated_flops_per_gpu_total[1m])"
BYTES = (
    "(rate(vllm:estimated_read_bytes_per_gpu_total[1m]) + rate(vllm:estimated_write_bytes_per_gpu_total[1m]))"
)
INTENSITY = f"{OPERATIONS} / {BYTES}"
OFFERED = ("l4", "a100-80", "h100", "h200")


def price(card: Card) -> str:
    """PromQL of what the load costs on a card at best: its price, times the larger of two shares of it that are needed.

    `a > b or b` is the larger of a and b.
    """
    operations, bytes_ = f"{OPERATIONS} / {card.tensor_tflops}e12", f"{BYTES} / {card.bandwidth_gb_s}e9"
    return f"{card.dollars_per_hour} * ({operations} > {bytes_} or {bytes_})"


def purchase(name: str) -> Cause:
    card = CARDS[name]
    others = [CARDS[other] for other in OFFERED if other != name]
    return Cause(
        name,
        f"{card.title}: {card.bandwidth_gb_s:,} GB/s, {card.tensor_tflops} TFLOPS, ${card.dollars_per_hour:.2f} an hour.",
        tuple(
            Check(
                f"the load costs less than on {other.title}",
                f"{price(card)} / ({price(other)})",
                "now",
                "<",
                1,
            )
            for other in others
        ),
        "Buy what the traffic is short of: few operations a byte want bandwidth, many want arithmetic.",
    )


PURCHASE = Drill(
    6,
    "Which card should we buy?",
    "Tomorrow the traffic is another. Purchasing wants to know by nine on which card it costs least.",
    INTENSITY,
    (Check("the traffic is another", INTENSITY, "ratio", ">", 1.5),),
    {"operations a byte": INTENSITY, "operations a second": OPERATIONS, "bytes a second": BYTES,
     "running": RUNNING, "tokens of a step": STEP, "prompt tokens": PROMPT, "tokens of an answer": ANSWER},
    ("--enable-mfu-metrics", "--max-num-seqs", "64", "--max-num-batched-tokens", "4096"),
    (Users(1, plain(30), max_tokens=48),),
    tuple(map(purchase, OFFERED)),
    {
        "h200": Fault(users=(Users(16, plain(30), max_tokens=48),)),
        "h100": Fault(users=(Users(6, plain(900), max_tokens=1),)),
    },
)  # fmt: skip

# ---------------------------------------------------------------------- 7: is a smaller number format worth it?

BYTES_A_TOKEN = f"{BYTES} / {TOKENS}"
WORTH, SLOWER = (
    0.75,
    1.1,
)  # of the time before: at least half of what halved bytes promise; and no gain but a loss
SMALLER_NUMBERS = ("--dtype", "bfloat16")


def by_the_clients(before: float, now: float) -> str:
    """What came of it, from the seconds between two pieces of text as clients saw them."""
    return "worth" if now < WORTH * before else "slower" if now > SLOWER * before else "little"


FEWER_BYTES = Check("a token needs fewer bytes than before", BYTES_A_TOKEN, "ratio", "<", 0.9)
QUANTISATION = Drill(
    7,
    "Are smaller numbers worth it?",
    "The weights had 4 bytes a number. A colleague has deployed the server with 2. What did it bring?",
    ITL,
    (),
    {"ITL, s": ITL, "bytes a token": BYTES_A_TOKEN, "operations a byte": INTENSITY, "tokens a second": TOKENS,
     "running": RUNNING, "TTFT, s": TTFT, "tokens of a step": STEP},
    ("--enable-mfu-metrics", "--max-num-seqs", "64", "--dtype", "float32"),
    (Users(8, plain(30), max_tokens=64),),
    (
        Cause(
            "worth",
            "It is worth it: tokens come faster, by at least half of what the bytes promise. Reading was the limit.",
            (FEWER_BYTES, Check("ITL is 3/4 of what it was, or less", ITL, "ratio", "<", WORTH)),
            "Keep it, after a look at the quality of the answers.",
        ),
        Cause(
            "little",
            "Half the bytes, and tokens come hardly faster: the time does not pass with reading weights.",
            (FEWER_BYTES,
             Check("ITL is more than 3/4 of what it was", ITL, "ratio", ">", WORTH),
             Check("and not above it", ITL, "ratio", "<", SLOWER)),
            "Keep it for the memory, if memory is short. For speed look at what a step does besides reading.",
        ),
        Cause(
            "slower",
            "Half the bytes, and tokens come more slowly: computing with small numbers costs more here than reading saves.",
            (FEWER_BYTES, Check("ITL is above what it was", ITL, "ratio", ">", SLOWER)),
            "Take it back, on this machine.",
        ),
        Cause(
            "same",
            "Nothing was deployed: the numbers are as large as before.",
            (Check("a token needs as many bytes as before", BYTES_A_TOKEN, "ratio", ">", 0.9),),
            "Look at the options that the server really runs with.",
        ),
    ),
    {
        "alone": Fault(SMALLER_NUMBERS, usual=(Users(1, plain(30), max_tokens=64),), outcome=by_the_clients),
        "together": Fault(SMALLER_NUMBERS, usual=(Users(32, plain(30), max_tokens=64),), outcome=by_the_clients),
        "same": Fault(("--dtype", "float32")),
    },
)  # fmt: skip

DRILLS = {
    drill.number: drill
    for drill in (FIRST_TOKEN, NEXT_TOKEN, OUT_OF_MEMORY, THROUGHPUT, PREFIX_CACHE, PURCHASE, QUANTISATION)
}
