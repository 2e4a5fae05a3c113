"""What the kernels compiled by numba share: one set of threads with torch, and the 16-bit numbers that numba does not know."""

# torch before numba: both then use the same OpenMP threads. Two sets of threads on the same cores wait for each other, and
# everything takes ten times as long.
import torch  # isort: skip
import numba
import numpy as np
from numba import njit, types
from numba.extending import overload

numba.config.THREADING_LAYER_PRIORITY = ["omp", "tbb", "workqueue"]


def use_threads_of_torch() -> None:
    """Give numba's kernels as many threads as torch has.

    Starting numba's threads sets torch's number as well, since both share them, so it is set back.
    """
    threads = torch.get_num_threads()
    numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))
    torch.set_num_threads(threads)


use_threads_of_torch()  # before the first kernel: it would start the threads, and torch's number would be lost


def widen(x):
    """A stored number as float32. bfloat16 comes as its 16 bits, which are the upper half of a float32."""
    raise NotImplementedError("only compiled code calls it")


@overload(widen, inline="always")
def _widen(x):
    if x == types.uint16:
        return lambda x: np.uint32(np.uint32(x) << np.uint32(16)).view(np.float32)
    return lambda x: np.float32(x)


@njit(fastmath=True, cache=True, error_model="numpy")
def exp(x):
    """e ** x, float32, within one part in four million. Compiled for 8 or 16 numbers at a time, which `np.exp` is not.

    x = n ln 2 + r with a whole number n and a small r, so e^x = 2^n e^r; and e^r is a short sum.
    """
    x = min(max(x, np.float32(-87)), np.float32(88))
    n = np.rint(x * np.float32(1.4426950408889634))
    r = x - n * np.float32(0.6931471805599453)
    term = np.float32(1)
    for i in (7, 6, 5, 4, 3, 2, 1):  # 1 + r (1 + r/2 (1 + r/3 (...)))
        term = np.float32(1) + term * r * np.float32(1 / i)
    return term * np.int32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)
