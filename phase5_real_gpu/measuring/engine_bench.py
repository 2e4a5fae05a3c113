"""Where the engine benchmark keeps what it measured, and what had to be left out and why."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from phase4_scheduler.engine import LLMEngine
from phase5_real_gpu.measuring.engine_cases import Floor, Plan
from phase5_real_gpu.measuring.machine_limits import MachineLimits
from phase5_real_gpu.measuring.measurements import Measurement, Spread


def path_of(engine: LLMEngine) -> str:
    """How the engine's decode steps run: "graph", "kernel", or "gather" where no kernel can.

    "graph" from the first recording on: what ran before, such as prompts alone, was not one.
    """
    runner = engine.runner
    if getattr(runner, "recordings", None):
        return "graph"
    cache = runner.kv_cache
    compiled = getattr(cache, "compiled", False)
    return "kernel" if compiled or type(cache).__name__ == "TritonPagedKVCache" else "gather"


@dataclass
class Bench:
    """What was measured, and what had to be left out and why.

    Attributes:
        peers_until: no workload of another engine begins after this time (of time.monotonic).
        by_name: all measurements.
    """

    device: str
    dtype: str
    plan: Plan
    limits: MachineLimits
    seed: int = 0
    peers_until: float = float("inf")
    by_name: dict[str, Measurement] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    def add(
        self, name: str, values: list[float], unit: str, floor: Floor | None = None, **details: Any
    ) -> Measurement:
        """The median of several values. `floor` is the shortest time, or for a rate the time of the whole run
        that `details["tokens"]` are written in."""
        better, bound = "lower", None
        if unit == "tok/s":
            better = "higher"
            bound = details["tokens"] / floor.seconds if floor else None
        elif floor:
            bound = 1e3 * floor.seconds
        spread = Spread.of(values)
        details |= dict(dtype=self.dtype, lowest=spread.lowest, highest=spread.highest, times=len(values))
        m = Measurement(name, spread.median, unit, better, bound, floor and floor.limit, details)
        self.by_name[name] = m
        return m

    def value(self, name: str) -> float | None:
        return self.by_name[name].value if name in self.by_name else None

    def attempt(self, what: str, run: Callable[[], Any], foreign: bool = False) -> Any:
        """Run something that this machine may be too small for. Says what was left out; None then.

        `foreign`: it is another project's engine, and whatever it fails with must not stop ours.
        """
        try:
            return run()
        except Exception as error:
            if not (foreign or out_of_memory(error)):
                raise
            line = (str(error).strip().splitlines() or ["no message"])[0][:160]
            reason = "out of memory" if out_of_memory(error) else f"{type(error).__name__}: {line}"
            self.left_out.append(f"{what}: {reason}")
            return None


def out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that memory ran out. On a CPU torch says so in a RuntimeError."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and (
        "out of memory" in text or "not enough memory" in text or "can't allocate memory" in text
    )
