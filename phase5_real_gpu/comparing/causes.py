"""Why a figure is off: ten causes, each with the trace that it leaves in a report.

A cause cannot be seen, only its trace. Forget to wait for the GPU, and times come out that no machine could
reach. Count the first call, and one repeat stands out. Send float32, and twice the bytes move. So each cause
has a *signature* (`signatures.py`): a function that looks for the trace in a report, beside a reference where
it needs one, and says what it found. No trace, no cause: a healthy report names none.
"""

from collections.abc import Callable
from dataclasses import dataclass

from phase5_real_gpu.comparing import signatures
from phase5_real_gpu.comparing.signatures import Trace
from phase5_real_gpu.measuring.reference_files import Reference

Signature = Callable[[Reference, Reference | None], Trace | None]


@dataclass(frozen=True)
class Cause:
    """A reason why a figure is off: how it makes a figure wrong, what to do, and how it is found.

    Attributes:
        signature: (report, reference or None) -> what was seen of it, or None.
    """

    name: str
    explanation: str
    remedy: str
    signature: Signature


@dataclass(frozen=True)
class Finding:
    """A cause that left its trace."""

    cause: Cause
    trace: Trace

    def explains(self, name: str, is_off: bool = True) -> bool:
        """Whether it has to do with this figure. What concerns all figures explains those that are off."""
        return name in self.trace.names or (is_off and not self.trace.names)


def find_causes(report: Reference, reference: Reference | None = None) -> list[Finding]:
    """Every cause whose trace is in the report; the surest first.

    Args:
        reference: a machine to compare with. Without one, only causes that show by themselves are found.
    """
    found = ((cause, cause.signature(report, reference)) for cause in CAUSES)
    return [Finding(cause, trace) for cause, trace in found if trace]


CAUSES: tuple[Cause, ...] = (
    Cause(
        "missing synchronise",
        "A GPU works on while Python goes on. Stop the clock without waiting, and you time the asking, not the work.",
        "call torch.cuda.synchronize() before both readings of the clock, or use CUDA events",
        signatures.times_beyond_the_limit,
    ),
    Cause(
        "compile or warm-up inside the timed region",
        "The first call compiles kernels, fills caches and asks the system for memory. None of that happens again.",
        "make one call or more that do not count, then time; report the median",
        signatures.first_repeat_stands_out,
    ),
    Cause(
        "wrong dtype",
        "Decode takes the time that its bytes take. float32 has twice those of bfloat16, and no fast matrix units unless TF32 is allowed.",
        "--dtype bfloat16 (float16 on cards older than compute capability 8.0)",
        signatures.more_bytes_a_number,
    ),
    Cause(
        "eager fallback",
        "The fast way was not available, so a general one ran: no CUDA graph, no Triton kernel, no compiled CPU kernel.",
        "`lab doctor` says what is missing (a GPU: Triton and no enforce_eager; a CPU: numba)",
        signatures.slow_path_taken,
    ),
    Cause(
        "power or clock limit",
        "A card that may draw less, or is hot, or shares its machine, clocks lower. Then all ceilings sink together.",
        "look at nvidia-smi -q -d POWER,CLOCK,PERFORMANCE; on a CPU close other programs and plug in the laptop",
        signatures.limits_below_the_same_device,
    ),
    Cause(
        "small batch",
        "A step reads all weights, for one request or for fifty. With one, nothing shares the reading.",
        "let more requests share a step (max_num_seqs), send them at the same time, compare equal batches",
        signatures.batch_that_does_not_fill,
    ),
    Cause(
        "prefill mixed into decode",
        "A step that also computes another request's prompt takes longer, and all requests in it wait.",
        "time ITL with no new arrivals; on a server lower max_num_batched_tokens or long_prefill_token_threshold",
        signatures.spikes_between_tokens,
    ),
    Cause(
        "a CPU-bound launch",
        "Python asks for each small kernel by itself. At batch 1 the GPU is done before the next one is asked for.",
        "CUDA graphs (on by default in GPURunner); a faster processor core helps as well",
        signatures.launches_fill_the_step,
    ),
    Cause(
        "a fixed time in each step",
        "In each step Python decides, prepares, samples and hands out, and threads that share a product wait for each other. "
        "No limit of the table says how quickly a machine does that, and a step of a small model is mostly that.",
        "close other programs and measure again. If it stays, it is this processor's own; a larger model shows it less",
        signatures.fixed_time_in_each_step,
    ),
    Cause(
        "old driver or Triton",
        "Newer compilers use newer instructions of the card, and newer drivers start kernels sooner.",
        "update to the versions of the reference, then measure again",
        signatures.older_software,
    ),
)
