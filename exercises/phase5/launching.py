"""Launching a kernel that a learner wrote: interpreted for the grader, and as it is (on a GPU compiled) elsewhere."""

import contextlib
import types
from collections.abc import Iterator, Sequence
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from exercises.judging.answers import name_the_trouble, watch
from exercises.judging.verdict import NotAttempted, NotYet
from phase5_real_gpu.kernels.triton_setup import HAS_TRITON, INTERPRETED, tl

DEVICE = "cuda" if HAS_TRITON and not INTERPRETED and torch.cuda.is_available() else "cpu"
"""Where the tensors of a kernel have to lie on this machine."""


def body_of(kernel: Any) -> types.FunctionType:
    """The Python function under `@triton.jit`.

    Raises:
        NotYet: it is no kernel, or there is no Triton. NotAttempted: nothing is there.
    """
    if kernel is None or kernel is Ellipsis:
        raise NotAttempted("There is no kernel yet.")
    if not HAS_TRITON:
        raise NotYet(
            "raises", "Triton is not installed here (it exists for Linux only), so nothing can run a kernel."
        )
    body = getattr(kernel, "fn", None)
    if not isinstance(body, types.FunctionType):
        if isinstance(kernel, types.FunctionType):
            raise NotYet(
                "no-kernel", f"`{kernel.__name__}` is a plain function. Keep the line `@triton.jit` above it."
            )
        raise NotYet("no-kernel", f"Give a kernel; this is a {type(kernel).__name__}.")
    return body


def launch_interpreted(
    kernel: Any, grid: Sequence[int], *args: Any, tried: str = "", **constants: Any
) -> None:
    """Run a learner's kernel line by line on the CPU. An error in it becomes NotYet, with the learner's line."""
    from triton.runtime.interpreter import InterpretedFunction

    body = body_of(kernel)
    with _told_of(body, args, constants, tried):
        InterpretedFunction(body)[tuple(grid)](*args, **constants)


def launch_in_far_blocks(
    kernel: Any, grid: Sequence[int], before: int, *args: Any, tried: str = "", **constants: Any
) -> None:
    """Run the kernel of exercise 5.1 in a pool of which only the last blocks are in memory.

    No number of the others is ever read. Their places count: `before` lie in front of k_cache and v_cache.

    Raises:
        OverflowError: a whole number went beyond 32 bits. Triton's interpreter sees it before anything is read there.
    """
    from triton.runtime.interpreter import InterpretedFunction, InterpreterOptions, interpreter_builder

    body = body_of(kernel)
    usual, interpreter_builder.options = interpreter_builder.options, InterpreterOptions(debug=True)
    try:
        with _told_of(body, args, constants, tried):
            InterpretedFunction(_in_far_blocks)[tuple(grid)](
                InterpretedFunction(body), -before, *args, **constants
            )
    finally:
        interpreter_builder.options = usual


def _in_far_blocks(
    kernel: tl.constexpr, begin, q, k_cache, v_cache, block_tables, context_lens, out, scale, table_stride, block_stride,
    token_stride, head_stride, GROUP: tl.constexpr, BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr,
):  # fmt: skip
    kernel(
        q, k_cache + begin, v_cache + begin, block_tables, context_lens, out, scale, table_stride, block_stride,
        token_stride, head_stride, GROUP=GROUP, BLOCK_SIZE=BLOCK_SIZE, HEAD_DIM=HEAD_DIM,
    )  # fmt: skip


@contextlib.contextmanager
def _told_of(body: types.FunctionType, args: Any, constants: Any, tried: str) -> Iterator[None]:
    from triton.runtime.errors import InterpreterError

    watch.files = {body.__code__.co_filename}  # and none of Triton's own: the kernel is an object of theirs
    with _helpers_interpreted(), np.errstate(all="ignore"):
        try:
            yield
        except InterpreterError as error:
            cause: BaseException = error
            while isinstance(cause, InterpreterError) and cause.__cause__ is not None:
                cause = cause.__cause__
            if isinstance(cause, AssertionError) and "overflow detected" in str(cause):
                raise OverflowError(str(cause)) from None
            raise name_the_trouble(cause, body, [*args, *constants.values()], tried) from None


@contextlib.contextmanager
def _helpers_interpreted() -> Iterator[None]:
    """On a GPU machine Triton's own helpers (tl.sum, tl.max, ...) are compiled. In here they are not."""
    if INTERPRETED:
        yield
        return
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    with contextlib.suppress(ImportError):
        import triton.experimental.gluon  # noqa: F401 - the first launch imports it, and it wants them compiled

    with contextlib.ExitStack() as stack:
        for module in (tl, tl.standard):
            for name, helper in list(vars(module).items()):
                if isinstance(helper, JITFunction):
                    stack.enter_context(patch.object(module, name, InterpretedFunction(helper.fn)))
        yield


def decode_arguments(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    context_lens: Tensor,
    out: Tensor,
    by_kv_head: bool = False,
) -> tuple[tuple[int, ...], tuple[Any, ...], dict[str, int]]:
    """(grid, arguments, constants) of the kernel of exercise 5.1 for these tensors; `by_kv_head`: of 5.7.

    q, out: [requests, heads, head_dim]. k_cache, v_cache: [num_blocks, block_size, kv_heads, head_dim].
    """
    tensors = (q, k_cache, v_cache, block_tables, context_lens, out)
    arguments = (*tensors, q.shape[2] ** -0.5, block_tables.stride(0), *k_cache.stride()[:3])
    constants = dict(GROUP=q.shape[1] // k_cache.shape[2], BLOCK_SIZE=k_cache.shape[1], HEAD_DIM=q.shape[2])
    return (len(q), k_cache.shape[2] if by_kv_head else q.shape[1]), arguments, constants


def decode_with(
    kernel: Any, q: Tensor, k_cache: Tensor, v_cache: Tensor, block_tables: Tensor, context_lens: Tensor
) -> Tensor:
    """[requests, heads, head_dim]: attention by the kernel of exercise 5.1, on the device that has the kernels."""
    home = q.device
    q, k_cache, v_cache, block_tables, context_lens = (
        x.to(DEVICE) for x in (q.contiguous(), k_cache, v_cache, block_tables, context_lens)
    )
    out = torch.empty_like(q)
    grid, arguments, constants = decode_arguments(q, k_cache, v_cache, block_tables, context_lens, out)
    kernel[grid](*arguments, **constants)
    return out.to(home)
