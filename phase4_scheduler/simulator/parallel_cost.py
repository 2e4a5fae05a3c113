"""How long does a step take on several cards? What each has to compute, and what crosses between them.

Tensor parallelism divides the computing and adds calls. So a step gets faster with more devices until the calls take longer than
what is saved. (Pipeline parallelism divides nothing for a single step.) `interconnects.py` has the wires.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from labkit.errors import LabError
from phase1_tokens_embeddings.weights import Card, ModelShape, find_card, find_shape
from phase4_scheduler.simulator.cost_model import ComputedCost, StepSize
from phase4_scheduler.simulator.interconnects import Interconnect, find_interconnect, step_traffic
from phase4_scheduler.simulator.kernel_table import KernelTable
from phase4_scheduler.simulator.recorded_runs import RECORDED


@dataclass(frozen=True, kw_only=True)
class ParallelCost(ComputedCost):
    """A step on several cards: what one card would need, divided among them, and what crosses.

    Of a mixture each card is taken to hold a slice of every expert. Were the experts dealt out, as many bytes would cross, and a
    step would wait for the card with the most to do.

    Attributes:
        interconnect: what joins the cards. All other attributes are those of one card that could hold everything.
    """

    shape: ModelShape
    interconnect: Interconnect
    tensor_parallel_size: int = 1

    @classmethod
    def of(
        cls,
        shape: ModelShape,
        card: Card,
        interconnect: Interconnect,
        tensor_parallel_size: int = 1,
        **choices: Any,
    ) -> ParallelCost:
        """A published model on cards that share it.

        Args:
            choices: precision, efficiency and kv_precision, as in `ComputedCost.of`. Wires are as recorded.

        Raises:
            LabError: the cards together are too small, or the model's KV heads cannot be dealt out evenly.
        """
        t = tensor_parallel_size
        if shape.num_kv_heads % t:
            raise LabError(
                f"the KV heads of {shape.name}, {shape.num_kv_heads}, cannot be dealt out evenly to {t} cards: choose a number "
                "that divides them"
            )
        whole = ComputedCost.of(shape, card, num_cards=t, **choices)
        return cls(**vars(whole), shape=shape, interconnect=interconnect, tensor_parallel_size=t)

    def compute_seconds(self, size: StepSize) -> float:
        return super().seconds(size) / self.tensor_parallel_size

    def communication_seconds(self, size: StepSize) -> float:
        t = self.tensor_parallel_size
        calls = step_traffic(self.shape, size.num_tokens, size.num_requests, t).values()
        wire = self.interconnect.all_reduce.get(t)
        # Started from a CUDA graph, as vLLM does, a call is not held up.
        return sum(count * wire(nbytes / count, at_best=True) for count, nbytes in calls)

    def seconds(self, size: StepSize) -> float:
        return self.compute_seconds(size) + self.communication_seconds(size)

    def describe(self) -> str:
        return f"computed, with measured all-reduces: {self.name}, over {self.interconnect.title}"


# The all-reduces of these were recorded, or those of a card with slower wires of the same kind (H200, B200: as H100).
INSIDE = {
    "a100-40": "nvlink",
    "a100-80": "nvlink",
    "h100": "nvlink-h100",
    "h200": "nvlink-h100",
    "b200": "nvlink-h100",
}


def cost_on_cards(
    shape: ModelShape, card: Card, number: int = 1, **choices: Any
) -> ComputedCost | ParallelCost:
    """One card, or several that share every layer over the wires inside their computer (PCIe, if it has no NVLink).

    Args:
        choices: see `ComputedCost.of`.
    """
    if number == 1:
        return ComputedCost.of(shape, card, **choices)
    if card.name == "mi300x":
        raise LabError(
            "tensor parallelism among MI300X is not planned: no recording of their all-reduces is at hand"
        )
    return ParallelCost.of(shape, card, find_interconnect(INSIDE.get(card.name, "pcie")), number, **choices)


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
