"""The chapter of capacity_planner.py on its levers: what each does to the plan, and what cards that share a model do to a step."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from labkit.errors import LabError
from labkit.lab import Lab
from phase1_tokens_embeddings.weights import CARDS
from phase4_scheduler.simulator.parallel_cost import ParallelCost
from phase4_scheduler.simulator.planning import Plan, alone
from phase4_scheduler.simulator.step_size import StepSize
from phase4_scheduler.simulator.traffic import TrafficRequest
from phase4_scheduler.story.capacity_story import short_limit, show_headroom
from phase4_scheduler.story.capacity_task import SHARED_BY, Task

SHARED = "cards a replica: {}"


def the_levers(lab: Lab, task: Task, plan: Plan) -> None:
    lab.title("The levers")
    lab.say(
        "Each by itself, everything else as planned. Answers may get worse with fewer bits: phase 2 measures that."
    )
    planned = row_of("as planned", task, plan)
    rows = [planned]
    for name, change in lab.progress(levers_of(task, lab.quick), "one lever after another"):
        try:
            other = change()
            rows.append(row_of(name, other, other.plan(planned["cards"])))
        except LabError as error:
            limit = str(error).split("What forbids it is ")[-1].split(":")[0]
            rows.append(dict(lever=name, cards=None, limit=limit))
    pair = next((row for row in rows if row["lever"] == SHARED.format(2)), None)
    if task.tensor_parallel_size == 1 and pair and pair["cards"]:
        lab.predict(
            claim="shared-cards",
            question="cards, if two of them share each replica (predicted: as many as planned)",
            predicted=planned["cards"],
            measured=pair["cards"],
            unit="cards",
            kind="timing",
            note="Two cards hold the weights once, so more is left for the cache. And a step of both is shorter, but not half as "
            "long: what crosses between them takes time, too.",
        )
    lab.table(
        "What each lever is worth",
        ["", "cards", "$ a million", "headroom", "breaks first"],
        [
            [row["lever"], show_cards(row), row.get("per_million"), row.get("headroom", ""), row["limit"]]
            for row in rows
        ],
        note="""$ a million: dollars for a million tokens of answers, all cards paid. Without a number of cards: none suffices, and the
        last column says what forbids it.""",
    )
    lab.record(levers=rows)
    the_shared_replica(lab, task)


def show_cards(row: dict[str, Any]) -> str:
    """ "8", "6 = 3 x 2": three replicas of two cards; "-": no number of them suffices."""
    if row["cards"] is None:
        return "-"
    each = row["cards"] // row["replicas"]
    return f"{row['cards']}" if each == 1 else f"{row['cards']} = {row['replicas']} x {each}"


def levers_of(task: Task, quick: bool) -> list[tuple[str, Callable[[], Task]]]:
    """Each with the task that it makes of this one."""
    chunks = task.config.scheduler.max_num_batched_tokens
    names = ("h100",) if quick else ("l4", "rtx4090", "a100-80", "h100")
    cards = [CARDS[name] for name in names if name != task.card.name]
    own = task.tensor_parallel_size
    sizes = [n for n in SHARED_BY if n != own and own / 2 <= n <= min(own * (2 if quick else 4), task.most)]
    levers: list[tuple[str, Callable[[], Task]]] = [
        ("8-bit weights (FP8)", lambda: task.on(precision="FP8")),
        ("4-bit weights (Q4_K_M)", lambda: task.on(precision="Q4_K_M")),
        (f"chunks of {chunks // 4:,} tokens", lambda: task.with_chunks(max(1, chunks // 4))),
        (f"chunks of {4 * chunks:,} tokens", lambda: task.with_chunks(4 * chunks)),
    ]
    if any(r.hash_ids for r in task.traffic):
        levers.insert(2, ("no prefix caching", lambda: task.with_caching(False)))
    levers += [(f"on {card.title}", lambda card=card: task.on(card=card)) for card in cards]
    return levers + [(SHARED.format(n), lambda n=n: task.on(tensor_parallel_size=n)) for n in sizes]


def row_of(name: str, task: Task, plan: Plan) -> dict[str, Any]:
    return dict(
        lever=name,
        replicas=plan.replicas,
        cards=task.cards(plan.replicas),
        per_million=plan.dollars_per_million,
        headroom=show_headroom(plan),
        limit=short_limit(plan),
    )


def the_shared_replica(lab: Lab, task: Task) -> None:
    """What several cards are to one model, before anybody waits: the reason behind their rows."""
    isl = int(np.median([r.prompt_tokens for r in task.traffic]))
    token = StepSize.of([(isl, 1)])
    rows = []
    for n in SHARED_BY:
        with suppress(LabError):  # too small for the model, or heads that cannot be dealt out
            shared = task.on(tensor_parallel_size=n)
            cost, config = shared.config.cost, shared.config
            sums = cost.communication_seconds(token) if isinstance(cost, ParallelCost) else 0.0
            ttft, _ = alone(TrafficRequest(0.0, isl, 1), config)
            room = config.num_blocks * config.block_size
            rows.append([n, 1000 * cost.seconds(token), 1000 * sums, ttft, room // n])
    lab.table(
        "One replica and one user",
        ["cards", "a token, ms", "of it sums, ms", f"prompt of {isl:,}, s", "cache, tokens a card"],
        rows,
        note="""Tensor parallelism: each card holds a part of every layer, so a step is divided, and the parts of each result are
        added up over the wires, twice a layer. How long that takes was measured by others among A100 and among H100 over NVLink (an
        H200 is taken for an H100); for the other cards it is worked out from four A100 over PCIe. The weights are there once for
        all cards, so each has more room for the cache.""",
    )
    lab.record(
        one_replica=[dict(zip(("cards", "token_ms", "sums_ms", "prompt_s", "room"), row)) for row in rows]
    )
