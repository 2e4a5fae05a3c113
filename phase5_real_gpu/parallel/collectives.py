"""The communication between the devices: a few calls of torch.distributed, counted.

    all_reduce   every rank of a stage passes a tensor, and every rank gets the sum
    gather       every rank of a stage passes a tensor, and one rank gets them all
    send         a rank passes a tensor to the same rank of the next stage, which waits for it (`receive`)

torch.distributed uses gloo on CPUs and NCCL on GPUs.

Source: vllm/distributed/parallel_state.py.
"""

from collections import Counter

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from phase5_real_gpu.parallel.placement import Place


class Collectives:
    """The calls of one rank.

    Attributes:
        calls, nbytes: by the name of the call, the number of calls, and the bytes that this rank passed.
    """

    def __init__(self, place: Place, device_type: str = "cpu") -> None:
        self.place = place
        mesh = init_device_mesh(
            device_type, (place.num_stages, place.tensor_parallel_size), mesh_dim_names=("stages", "tensor")
        )
        self._peers = mesh["tensor"].get_group()
        self.calls: Counter[str] = Counter()
        self.nbytes: Counter[str] = Counter()

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum of all ranks' x, in place."""
        if self.place.tensor_parallel_size > 1:
            self._count("all_reduce", x)
            dist.all_reduce(x, group=self._peers)
        return x

    def gather(self, x: Tensor) -> list[Tensor] | None:
        """The x of all ranks, in their order, on the first rank; None on the others."""
        if self.place.tensor_parallel_size == 1:
            return [x]
        self._count("gather", x)
        first = self.place.tensor_rank == 0
        parts = [torch.empty_like(x) for _ in range(self.place.tensor_parallel_size)] if first else None
        dist.gather(x.contiguous(), parts, group=self._peers, group_dst=0)
        return parts

    def send(self, x: Tensor) -> None:
        """Send x to the next stage."""
        self._count("send", x)
        dist.send(x.contiguous(), dst=self.place.rank + self.place.tensor_parallel_size)

    def receive(self, x: Tensor) -> Tensor:
        """Fill x with the tensor that the previous stage sends."""
        dist.recv(x, src=self.place.rank - self.place.tensor_parallel_size)
        return x

    def _count(self, call: str, x: Tensor) -> None:
        self.calls[call] += 1
        self.nbytes[call] += x.nbytes
