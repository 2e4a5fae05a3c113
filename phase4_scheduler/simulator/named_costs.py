"""Cost models by name, as a script's --cost has them."""

import re

from labkit.errors import LabError
from phase1_tokens_embeddings.weights import find_card, find_shape
from phase4_scheduler.simulator.cost_model import ComputedCost
from phase4_scheduler.simulator.kernel_table import KernelTable
from phase4_scheduler.simulator.parallel_cost import ParallelCost, cost_on_cards
from phase4_scheduler.simulator.recorded_runs import RECORDED


def find_cost(text: str) -> KernelTable | ComputedCost | ParallelCost:
    """A cost model by name: "CARD:MODEL" such as "l4:llama-3-8b", "CARD" (with llama-3-8b), cards that share
    every layer, such as "h100x4:llama-3-70b", or a table of measured kernels: "rtx4090-table", "rtxpro6000-table" (with
    Llama-3.1-8B).

    Raises:
        LabError: none of these.
    """
    card, _, model = text.partition(":")
    if card.endswith("-table"):
        name = card.removesuffix("-table")
        if name not in RECORDED or model:
            known = ", ".join(f"{name}-table" for name in RECORDED)
            raise LabError(f"no table of measured kernels is called {text!r}: use {known}")
        return RECORDED[name].kernel_table()
    shape = find_shape(model or "llama-3-8b")
    if together := re.fullmatch(r"(.+)x([248])", card):
        return cost_on_cards(shape, find_card(together[1]), int(together[2]))
    return cost_on_cards(shape, find_card(card))
