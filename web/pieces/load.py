"""Throughput against latency: the simulator of phase 4, run again by the page for whatever the reader chooses."""

from collections.abc import Sequence
from dataclasses import replace

from phase1_tokens_embeddings.weights import cards
from phase4_scheduler.engine import SchedulerConfig
from phase4_scheduler.simulator.cost_model import ComputedCost
from phase4_scheduler.simulator.latency import Latency, summarise
from phase4_scheduler.simulator.traffic import PATTERN_NAMES, TrafficRequest, draw_traffic
from phase4_scheduler.simulator.virtual_time import Run, simulate
from web.pieces.piece import Piece, in_words
from web.pieces.roofline import choices_of, cost_of

SHOWN_MODELS, SHOWN_CARDS = ("llama-3.2-1b", "llama-3-8b"), ("l4", "rtx4090", "a100-80", "h100")
REQUESTS, IN_WORDS = 400, 100  # of a run on the page, and of one that the text tells of
LOADS = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25)  # times what the server gets done
TTFT_SLO, TPOT_SLO, SEQUENCES, BUDGET = 1.0, 0.1, 256, 2048  # as workload_simulator.py has them


def traffic_of(pattern: str, requests: int = REQUESTS) -> list[TrafficRequest]:
    """Requests of a pattern, one a second on average. Times are rounded: they travel as text."""
    return [replace(r, arrival=round(r.arrival, 4)) for r in draw_traffic(pattern, requests, 1.0)]


def serve(traffic: Sequence[TrafficRequest], cost: ComputedCost, sequences: int, budget: int = BUDGET) -> Run:
    """Serve them in virtual time with the course's scheduler, without a prefix cache: no two prompts begin alike, and
    a request that was preempted is computed whole again.
    """
    config = SchedulerConfig(sequences, budget, cost.max_context)
    return simulate(traffic, config, cost.num_blocks, cost, enable_prefix_caching=False)


def felt_at(traffic: Sequence[TrafficRequest], rate: float, cost: ComputedCost, sequences: int) -> Latency:
    """What users feel at `rate` requests a second. The first fifth of them does not count."""
    timed = [replace(r, arrival=r.arrival / rate) for r in traffic]
    since = timed[len(timed) // 5].arrival
    records = [r for r in serve(timed, cost, sequences).records if r.arrival >= since]
    return summarise(records, TTFT_SLO, TPOT_SLO)


def load_piece(
    model: str = "llama-3-8b", card: str = "l4", pattern: str = "mixed", sequences: int = SEQUENCES
) -> Piece:
    """Choose model, card, traffic and limits; the curve of latency against load, worked out on the spot."""
    traffic = {name: traffic_of(name) for name in PATTERN_NAMES}
    data = choices_of(SHOWN_MODELS, SHOWN_CARDS) | {
        "traffic": {
            name: [[r.arrival, r.prompt_tokens, r.output_tokens] for r in requests]
            for name, requests in traffic.items()
        },
        "loads": list(LOADS),
        "budget": BUDGET,
        "start": {"model": model, "card": card, "pattern": pattern, "sequences": sequences},
        "slo": {"ttft": TTFT_SLO, "tpot": TPOT_SLO},
    }
    cost = cost_of(model, card)
    lines = [f"{'requests/s':>10}  {'tokens/s':>8}  {'TTFT p95, s':>11}  {'ITL p95, ms':>11}  {'in time':>7}"]
    for rate in (0.4, 0.6, 0.8):
        felt = felt_at(traffic[pattern][:IN_WORDS], rate, cost, sequences)
        lines.append(
            f"{rate:>10.1f}  {felt.tokens_per_second:>8.0f}  {felt.ttft.p95:>11.2f}  {1e3 * felt.itl.p95:>11.0f}"
            f"  {felt.good_share:>7.0%}"
        )
    what = (
        f"{IN_WORDS} requests ({pattern}) to {model} on one {cards.CARDS[card].title}, in virtual "
        f"time, computed from its data sheet. In time is a first token within {TTFT_SLO:g} s, and then one every {1e3 * TPOT_SLO:.0f} ms "
        "on average:"
    )
    return Piece("load", data, in_words("Choices and sliders.", what, lines))
