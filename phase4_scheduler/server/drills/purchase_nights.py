"""Nights 6 and 7: purchases that are measured. Which card? And are smaller numbers worth it?"""

from phase1_tokens_embeddings.weights.cards import CARDS, Card
from phase4_scheduler.server.drills.evidence import Cause, Check
from phase4_scheduler.server.drills.load import Users, plain
from phase4_scheduler.server.drills.playing import Drill, Fault
from phase4_scheduler.server.drills.queries import ANSWER, ITL, PROMPT, RUNNING, STEP, TOKENS, TTFT

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
