"""Night 5: the prefix cache does nothing."""

import random
import time

from phase4_scheduler.server.drills.evidence import Cause, Check
from phase4_scheduler.server.drills.load import Users, plain, words
from phase4_scheduler.server.drills.playing import Drill, Fault
from phase4_scheduler.server.drills.queries import HIT_RATE, KV, PREEMPTIONS, PROMPT, RUNNING, TTFT


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
