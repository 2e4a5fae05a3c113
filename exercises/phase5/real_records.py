"""The last cell of exercise 5.4: the learner's floor beside the course's, on figures that a real machine gave."""

from collections.abc import Callable

from exercises.judging.engine_runs import passed, same_or_stop
from exercises.phase5.benchmark_records import Card, Record
from phase5_real_gpu.measuring import find_reference

MACHINE = "cpu-epyc-2core"
SHAPE = (16, 512, 12, 12, 64, 4)  # GPT-2's heads, float32
FIGURE = "cpu-decode-b{}-{}".format(*SHAPE)
PEERS = {"": "compiled, in place", "sdpa-": "torch's, keys side by side", "gather-": "copied together first"}


def beside_the_floor(
    floor_us: Callable[[Record, Card], float], what_is_wrong: Callable[[Record, Card], str]
) -> None:
    """Print how much of the machine's limit each way of decode attention reaches.

    Raises:
        NotYet: the floor is another than the one in the reference.
    """
    passed("p5e4_lying_benchmark", floor_us, what_is_wrong)
    reference = find_reference(MACHINE)
    cache = next(m for m in reference.measurements if m.name.endswith("l3"))  # the largest cache of a CPU
    card = Card(reference.limits.read_gb_s, cache.details["bytes"] / 1e6, cache.value)
    print(f"{reference.title}: reads {card.memory_gb_s:.1f} GB/s\n")
    print(f"{'16 users x 512 tokens, one layer':34} {'ms':>6} {'floor':>7} {'reached':>8}   wrong with it")
    for prefix, what in PEERS.items():
        m = reference.get(prefix + FIGURE)
        repeats = (m.details["lowest"], m.value, m.details["highest"])
        record = Record(*SHAPE, repeats, (SHAPE[0],) * 3, m.value, m.details["gb_s"])
        floor, verdict = floor_us(record, card), what_is_wrong(record, card)
        print(f"{what:34} {m.value / 1e3:6.2f} {floor / 1e3:7.2f} {floor / m.value:8.0%}   {verdict}")
        near = abs(floor / m.floor - 1) < 0.1  # the course counts queries, results and tables as well
        same_or_stop(near, True, f"your floor is {floor:.0f} us, and the reference's {m.floor:.0f} us")
