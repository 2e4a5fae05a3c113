"""Ranks for exercise 5.5: each a thread, and sums that all of them wait for."""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from phase2_attention_kvcache.model import ModelConfig, Transformer, generate_naive
from phase2_attention_kvcache.model.attention import attention
from phase2_attention_kvcache.model.positions import apply_rotary

Block = dict[str, Tensor]
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
HEAD_DIM = 4


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """Divide each vector by the root of its mean square, then scale. x: [N, d]."""
    return weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)


def make_block(d: int, num_heads: int, num_kv_heads: int, d_ff: int, seed: int) -> Block:
    """A Llama block with random numbers, and with a bias behind each of its two sums."""
    g = torch.Generator().manual_seed(seed)
    shapes = {
        "attention_norm": (d,), "q": (num_heads * HEAD_DIM, d), "k": (num_kv_heads * HEAD_DIM, d),
        "v": (num_kv_heads * HEAD_DIM, d), "out": (d, num_heads * HEAD_DIM), "out_bias": (d,),
        "mlp_norm": (d,), "gate": (d_ff, d), "up": (d_ff, d), "down": (d, d_ff), "down_bias": (d,),
    }  # fmt: skip
    return {
        name: torch.randn(shape, generator=g) / (d**0.5 if len(shape) > 1 else 1)
        for name, shape in shapes.items()
    }


class LeftAlone(Exception):
    """A rank waited for a sum, and another one never came."""


class AllReduce:
    """What the ranks call for a sum.

    Attributes:
        parts: what each rank has brought so far.
    """

    def __init__(self, ranks: int) -> None:
        self.parts: list[list[Tensor]] = [[] for _ in range(ranks)]
        self._barrier = threading.Barrier(ranks)

    def of_rank(self, rank: int) -> Callable[[Tensor], Tensor]:
        def all_reduce(x: Tensor) -> Tensor:
            self.parts[rank].append(x.clone())
            number = len(self.parts[rank])
            with suppress(threading.BrokenBarrierError):
                self._barrier.wait()
            if min(map(len, self.parts)) < number:
                raise LeftAlone
            return sum(parts[number - 1] for parts in self.parts)

        return all_reduce

    def leave(self) -> None:
        """A rank has ended: those that wait for it, now or later, wait in vain."""
        self._barrier.abort()


class Ranks(NamedTuple):
    """What came of it, by rank. sums: shapes of what each brought to a sum."""

    results: list[Any]
    errors: list[BaseException | None]
    sums: list[list[tuple[int, ...]]]


def run_ranks(
    run: Callable[..., Any], x: Tensor, parts: Sequence[Block], attends: Sequence[Attend], head_dim: int
) -> Ranks:
    """`run` on all ranks at once."""
    together, ranks = AllReduce(len(parts)), len(parts)
    results: list[Any] = [None] * ranks
    errors: list[BaseException | None] = [None] * ranks

    def one(rank: int) -> None:
        try:
            results[rank] = run(x.clone(), parts[rank], head_dim, attends[rank], together.of_rank(rank))
        except BaseException as error:
            errors[rank] = error
        together.leave()

    threads = [threading.Thread(target=one, args=(rank,), daemon=True) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Ranks(results, errors, [[tuple(x.shape) for x in parts] for parts in together.parts])


def split_in_a_model(cut: Callable[..., Block], run: Callable[..., Tensor]) -> None:
    """A Llama of three layers writes 16 tokens, with the learner's two ranks in the place of each block, and without."""
    config = ModelConfig(
        name="small Llama", family="llama", vocab_size=97, d_model=32, num_layers=3, num_heads=4, num_kv_heads=2,
        head_dim=8, d_ff=64, max_context=64, tied=False, attention_bias=False, mlp_bias=False,
    )  # fmt: skip
    model = Transformer.random(config, seed=5)
    for parameter in model.parameters():
        parameter.mul_(10 if parameter.ndim == 2 else 1)  # so that it does not say the same token for ever
    prompt = [5, 17, 80, 3]
    whole = generate_naive(model, prompt, 16).token_ids
    model.blocks = TwoRanks(cut, run, model.blocks, config)
    split = generate_naive(model, prompt, 16).token_ids
    same = sum(a == b for a, b in zip(whole, split))
    print(
        f"one device:  {whole}\ntwo ranks:   {split}\n{same} of {len(whole)} tokens are the same, over {config.num_layers} layers."
    )


class TwoRanks(nn.Module):
    """The learner's two ranks in the place of a model's blocks."""

    def __init__(self, cut: Callable, run: Callable, blocks: nn.Module, config: ModelConfig) -> None:
        super().__init__()
        self.run, self.head_dim = run, config.head_dim
        whole = [as_block(block, config) for block in blocks]
        self.parts = [[cut(block, config.head_dim, rank, 2) for rank in range(2)] for block in whole]

    def forward(self, x: Tensor, angles: dict[str, Any], _: Any) -> Tensor:
        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return attention(apply_rotary(q, *angles["full"]), apply_rotary(k, *angles["full"]), v)

        for parts in self.parts:
            done = run_ranks(self.run, x, parts, [attend] * 2, self.head_dim)
            for error in done.errors:
                if error is not None and not isinstance(error, LeftAlone):
                    raise error
            x = done.results[0]
        return x


def as_block(block: Any, config: ModelConfig) -> Block:
    """A block of the course's model in the exercise's form. It has no biases: zeros."""
    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    parts = dict(zip("qkv", block.attention.qkv.weight.split([q, kv, kv])))
    parts |= dict(zip(("gate", "up"), block.mlp.gate_up.weight.chunk(2)))
    zeros = torch.zeros(config.d_model)
    return parts | dict(
        attention_norm=block.attention_norm.weight, mlp_norm=block.mlp_norm.weight, out=block.attention.out.weight,
        down=block.mlp.down.weight, out_bias=zeros, down_bias=zeros.clone(),
    )  # fmt: skip
