"""The chapter of tensor_parallel.py on mixtures: whole experts for each rank, or a slice of each expert."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from matplotlib.figure import Figure
from torch import Tensor

from labkit.figures import COLORS, INK, new_figure
from labkit.lab import Lab
from phase2_attention_kvcache.model import ModelConfig, SamplingParams, Transformer
from phase2_attention_kvcache.story.small_families import write_small_model
from phase5_real_gpu.parallel import Place
from phase5_real_gpu.story.parallel_story import DTYPE, engine_alone

RANKS = 4  # whose work is worked out from a run in one process
MIXTURE = dict(
    num_hidden_layers=2, head_dim=8, num_experts=128, num_experts_per_tok=8, moe_intermediate_size=24, norm_topk_prob=True,
)  # fmt: skip
NUM_BLOCKS, USERS, PROMPT = 260, 64, 8
SHARED_BY = (2, 4, 8)
GROUPS = (1, 2, 4, 8, 16, 32, 64)  # users that decode together


def the_experts(lab: Lab) -> None:
    lab.title("A mixture of experts")
    lab.say("""A mixture can be split in two ways. Either every expert is split as any other MLP, and each rank holds a slice of each. Or
        each rank holds some experts whole: expert parallelism. Each rank has the router and the same vectors, so it knows which tokens
        chose its experts, and the all-reduce after the layer adds up the results. Memory and communication are the same in both
        cases; the work of each rank differs. The model here has random weights and the numbers of Qwen3-30B-A3B: 128 experts per layer, 8
        per token.""")
    params = SamplingParams(temperature=0, max_tokens=8 if lab.quick else 24, ignore_eos=True)
    with TemporaryDirectory() as name:
        write_small_model("qwen3_moe", Path(name), MIXTURE)
        model = Transformer.from_pretrained(name, DTYPE, lab.device)
        prompts = lab.rng().integers(0, model.config.vocab_size, (USERS, PROMPT)).tolist()
        chosen = record_choices(model)
        engine_alone(model, NUM_BLOCKS).generate(prompts, params)
    who_has_the_work(lab, model.config, chosen)


def record_choices(model: Transformer) -> list[Tensor]:
    """From now on: what the router of each layer chose in each step, [tokens, experts per token]."""
    chosen: list[Tensor] = []
    per_token = model.config.experts_per_token

    def note(router: torch.nn.Module, x: tuple[Tensor], scores: Tensor) -> None:
        chosen.append(scores.topk(per_token).indices.cpu())

    for block in model.blocks:
        block.mlp.router.register_forward_hook(note)
    return chosen


def who_has_the_work(lab: Lab, config: ModelConfig, chosen: Sequence[Tensor]) -> None:
    """How uneven whole experts are, counted from the run in one process."""
    decodes = [choices for choices in chosen if len(choices) == USERS]
    together = torch.stack(decodes)  # [steps * layers, USERS, per_token]
    generator = torch.Generator().manual_seed(lab.seed)
    by_chance = torch.rand(len(together), USERS, config.num_experts, generator=generator)
    by_chance = by_chance.topk(config.experts_per_token).indices
    lab.title("Which rank has how much work")
    lab.say("""With slices every rank has the same work. With whole experts the work of a rank grows with the number of tokens that chose its experts, and the
        other ranks wait for the busiest one in the all-reduce. The choices are those of the run in one process.""")
    lab.predict(
        "expert-load", f"one request, 8 of 128 experts on {RANKS} ranks: how many of the 8 does the busiest rank have, on average",
        8 / RANKS * imbalance(by_chance, 1, RANKS), 8 / RANKS * imbalance(together, 1, RANKS), tolerance=0.1,
        note="Predicted: each token chooses at random. An even share would be 2.",
    )  # fmt: skip
    measured = {t: [imbalance(together, users, t) for users in GROUPS] for t in SHARED_BY}
    expected = {t: [imbalance(by_chance, users, t) for users in GROUPS] for t in SHARED_BY}
    lab.say("""For each step and layer the figure divides the number of chosen experts of the busiest rank by the average of all
        ranks. The routers' weights are random here; trained routers prefer some experts, depending on the text. vLLM calls the
        inverse of this ratio balancedness, and can move experts between ranks (EPLB).""")
    lab.figure(draw_load(measured, expected), "expert_load")


def imbalance(chosen: Tensor, users: int, ranks: int) -> float:
    """Choices of the busiest rank over those of a rank on average. chosen: [steps, USERS, per_token], taken in groups of users."""
    num_experts = MIXTURE["num_experts"]
    owner = torch.empty(num_experts, dtype=torch.long)
    for rank in range(ranks):
        owner[list(Place(rank, ranks, 1, True).experts(num_experts))] = rank
    loads = torch.nn.functional.one_hot(owner[chosen.reshape(-1, users * chosen.shape[-1])], ranks).sum(1)
    return (loads.amax(1) / loads.float().mean(1)).mean().item()


def draw_load(measured: Mapping[int, Sequence[float]], expected: Mapping[int, Sequence[float]]) -> Figure:
    """The busiest rank over users, a line for each number of ranks."""
    most = max(SHARED_BY)
    fig, [ax] = new_figure(
        f"{most} ranks, one request: the busiest rank has {measured[most][0]:.1f} times the average",
        "Chosen experts of the busiest rank. 8 of 128 experts per token, random routers. Dashed: chance",
    )
    for t, color in zip(SHARED_BY, COLORS):
        ax.plot(GROUPS, measured[t], "o-", color=color, label=f"{t} ranks")
        ax.plot(GROUPS, expected[t], "--", color=color, linewidth=1)
    ax.axhline(1, color=INK, linewidth=1, label="a slice of each expert")
    ax.set_xscale("log", base=2)
    ax.set_xticks(GROUPS, [str(users) for users in GROUPS])
    ax.set(xlabel="requests that decode together", ylabel="busiest rank over average", ylim=(0, None))
    ax.legend()
    return fig
