"""Nights 3 and 4: out of memory, or so it is said; too few tokens a second."""

from phase4_scheduler.server.drills.evidence import Cause, Check
from phase4_scheduler.server.drills.load import Users, plain
from phase4_scheduler.server.drills.playing import Drill, Fault
from phase4_scheduler.server.drills.queries import (
    ANSWER,
    BAD,
    ITL,
    KV,
    MEMORY,
    OTHER_PROGRAM,
    PREEMPTIONS,
    PREFILL_STEPS,
    PROMPT,
    RUNNING,
    STEP,
    TOKENS,
    TTFT,
    WAITING,
)

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
