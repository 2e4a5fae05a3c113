"""The chapter of capacity_planner.py on combinations: the cheapest of many fleets, and the commands that start it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from typing import Any

from labkit.errors import LabError
from labkit.lab import Lab
from labkit.terminal import escape
from phase4_scheduler.simulator.planning import Plan
from phase4_scheduler.story.capacity_story import short_limit, show_fleet
from phase4_scheduler.story.capacity_task import SHARED_BY, Task


def the_combinations(lab: Lab, task: Task, plan: Plan) -> None:
    """The cheapest of all combinations of precision, cards a replica and chunk, and the commands that start it."""
    lab.title("Combinations")
    lab.say("""Bits of the weights, cards that share a replica, and the most tokens of a step. Each is bounded by what its replicas get done at
        best, and simulated only if that could be cheaper. Answers may get worse with fewer bits: phase 2 measures that.""")
    best = Choice(task, plan, lowest_price(task))
    choices = [best, *lab.progress(combinations(task, lab.quick), "how much each gets done at best")]
    for choice in lab.progress(sorted(choices[1:], key=lambda c: c.bound), "fleets that could be cheaper"):
        price = choice.task.config.cost.dollars_per_hour
        # As many replicas as cost less than the best fleet so far; a cent is not cheaper.
        most = math.ceil(best.plan.dollars_per_hour / price - 0.01) - 1
        if most < choice.task.least:
            continue
        with suppress(LabError):  # none of them meets the SLO
            choice.plan = choice.task.plan(most)
            best = choice
    rows = [choice for choice in choices if choice.plan or choice.bound <= best.plan.dollars_per_hour * 1.5]
    lab.table(
        "The cheapest fleets",
        [
            "weights",
            "cards per replica",
            "tokens per step",
            "at best, $ per hour",
            "cards",
            "$ per hour",
            "breaks first",
        ],
        [choice.row() for choice in sorted(rows, key=lambda c: (c.price, c.bound))[:10]],
        note=f"""{len(choices)} combinations. At best: what computing alone would cost, without any SLO; those above 1.5 times the best fleet
            are left out. Without cards: no fleet cheaper than the best one before it meets the SLO.""",
    )
    lab.say(
        f"The cheapest: {show_fleet(best.task, best.plan)}, ${best.plan.dollars_per_hour:.2f} per hour. Each replica:"
    )
    commands = serve_commands(best.task)
    for command in commands:  # broken where a shell goes on reading
        lab.console.print(escape("\n  " + command.replace(" --", " \\\n      --")), highlight=False)
    lab.record(combinations=[choice.to_json() for choice in choices], best=best.to_json(), commands=commands)


@dataclass
class Choice:
    """A combination. `bound`: dollars an hour that it costs at least. `plan`: None if it is not cheaper than the best."""

    task: Task
    plan: Plan | None
    bound: float

    @property
    def price(self) -> float:
        return self.plan.dollars_per_hour if self.plan else math.inf

    def row(self) -> list[Any]:
        chunk, plan = self.task.config.scheduler.max_num_batched_tokens, self.plan
        made = [self.task.precision, self.task.tensor_parallel_size, f"{chunk:,}", f"{self.bound:.2f}"]
        if plan is None:
            return [*made, "-", "", ""]
        return [*made, self.task.cards(plan.replicas), f"{plan.dollars_per_hour:.2f}", short_limit(plan)]

    def to_json(self) -> dict[str, Any]:
        names = ("precision", "cards_a_replica", "chunk", "bound", "cards", "dollars_per_hour", "limit")
        return dict(zip(names, self.row()))


def lowest_price(task: Task) -> float:
    return task.least * task.config.cost.dollars_per_hour


def combinations(task: Task, quick: bool) -> Iterator[Choice]:
    """All but the task's own. Those that cannot serve the model, or one request within the SLO, are left out."""
    own = task.precision, task.tensor_parallel_size, task.config.scheduler.max_num_batched_tokens
    chunks = [own[2]] if quick else sorted({512, own[2]})
    for precision, cards, chunk in product(dict.fromkeys([task.precision, "FP16", "FP8"]), SHARED_BY, chunks):
        if (precision, cards, chunk) != own and cards <= task.most:
            with suppress(LabError):  # too small for the model, or heads that cannot be dealt out
                other = task.on(precision=precision, tensor_parallel_size=cards, chunk=chunk)
                if not other.what_forbids():
                    yield Choice(other, None, lowest_price(other))


def serve_commands(task: Task) -> list[str]:
    """One replica in vLLM, and in this course's server, unless it cannot: it reads no NVFP4, and quantizes on one device only."""
    limits, n = task.config.scheduler, task.tensor_parallel_size
    options = f"--max-num-seqs {limits.max_num_seqs} --max-num-batched-tokens {limits.max_num_batched_tokens}"
    options += f" --max-model-len {limits.max_model_len}"
    if n > 1:
        options += f" --tensor-parallel-size {n}"
    if task.kv_precision == "FP8":
        options += " --kv-cache-dtype fp8"
    if not task.config.enable_prefix_caching:
        options += " --no-enable-prefix-caching"
    model = task.shape.source or task.shape.name
    if task.precision == "FP8":
        options += " --quantization fp8"
    elif task.precision not in ("FP16", "BF16"):
        model = f"FOLDER-OF-{task.shape.name}-IN-{task.precision}"
    commands = [f"vllm serve {model} {options}"]
    if task.precision != "NVFP4" and (n == 1 or task.precision != "FP8"):
        # Of several GPUs it does not compute how many blocks fit.
        blocks = f" --num-gpu-blocks-override {task.config.cost.num_blocks}" if n > 1 else ""
        commands.append(f"lab serve {model} {options}{blocks}")
    return commands
