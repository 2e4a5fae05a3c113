"""Nights 1 and 2: the first token comes late; the tokens come slowly."""

from dataclasses import replace

from phase4_scheduler.server.drills.evidence import Cause, Check
from phase4_scheduler.server.drills.load import Users, plain
from phase4_scheduler.server.drills.playing import Drill, Fault
from phase4_scheduler.server.drills.queries import (
    BAD,
    FRONTEND,
    HIT_RATE,
    ITL,
    KV,
    OTHER_PROGRAM,
    PREEMPTIONS,
    PREFILL,
    PREFILL_STEPS,
    PROMPT,
    QUEUE,
    RUNNING,
    STEP,
    TOKENS,
    TTFT,
    WAITING,
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
FEW_STEPS, CLOSE = 2.9, 0.1
"""Of ten nights on one machine, prompts in one piece had 1.6 to 2.5, prompts in pieces 3.3 to 3.5. In between, within a tenth of
the bound, neither is named."""

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
                Check("and each is computed in one step or two", PREFILL_STEPS, "now", "<", FEW_STEPS, CLOSE),
            ),
            "Chunked prefill on, with a token budget of a few hundred.",
        ),
        Cause(
            "pieces",
            "Long prompts are computed in pieces, and each step carries one.",
            (
                Check("prompts are longer than before", PROMPT, "ratio", ">", 1.5),
                Check("and each is computed in several steps", PREFILL_STEPS, "now", ">", FEW_STEPS, CLOSE),
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
        # Long answers grow after they were let in, from 2 blocks to 27. Of short ones so few fit that their steps become quick.
        "pool": Fault(("--num-gpu-blocks-override", "40"), usual=(Users(6, plain(20), max_tokens=400),)),
        "whole": Fault(("--no-enable-chunked-prefill", "--max-num-batched-tokens", "2048"),
                       (WRITING, Users(2, plain(850), max_tokens=2))),
        "pieces": Fault(users=(WRITING, Users(2, plain(850), max_tokens=2))),
        "neighbour": Fault(hogs=2),
    },
)  # fmt: skip
