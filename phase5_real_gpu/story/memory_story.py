"""The chapters of the story of the memory hierarchy."""

import torch

from labkit.lab import Lab
from labkit.machine import memory_bytes
from phase1_tokens_embeddings.weights import CARDS, SHAPES
from phase5_real_gpu.measuring import memory_cpu, memory_gpu
from phase5_real_gpu.measuring.measurements import Limits
from phase5_real_gpu.measuring.memory_cpu import GB, MIB, Point, by_level
from phase5_real_gpu.measuring.memory_step import step_bytes
from phase5_real_gpu.story.memory_figures import TITLES, draw_curve, draw_steps, show_size

USERS = 32


STEPS = [("gpt2", 1, 1024), ("gpt2", USERS, 1024), ("llama-3-8b", 1, 4096), ("llama-3-8b", USERS, 4096)]


def levels_of(lab: Lab, limits: Limits, device: str) -> dict[str, Point]:
    """Sweep working sets of growing size; what each level of memory gives. Empty where it cannot be measured."""
    lab.title("A growing working set, read repeatedly")
    on, who, memory = (
        (memory_gpu, "the whole card", "HBM") if device == "cuda" else (memory_cpu, "one core", "memory")
    )
    caches = on.cache_sizes()
    if device == "cuda":
        lab.say("""Every program on the card reads the same set of numbers repeatedly, each from a different beginning.
            A set that fits into the L1 cache of a multiprocessor is read from there, a larger one from the L2 cache that all
            share, the largest from the card's own memory. Then a single program reads numbers in random order: each number
            is the place of the next one, so nothing can be fetched ahead.""")
        largest = min(1024 * MIB, torch.cuda.mem_get_info()[0] // 4)
    else:
        lab.say("""One core reads a set of numbers repeatedly. While the set fits in a cache, it is read from there.
            Then the core reads numbers in random order: each number is the place of the next one, so nothing can be fetched ahead.""")
        if not caches:
            lab.say("This system does not report the sizes of its caches, so the curve has no labels.")
        largest = max((128 if lab.quick else 512) * MIB, 4 * max(caches.values(), default=0))
        largest = min(largest, memory_bytes() // 8)
    points: list[Point] = []
    for size in lab.progress(on.sweep_sizes(largest, lab.quick), "reading and jumping"):
        try:
            points.append(Point(size, on.read_speed(size), on.jump_time(size)))
        except Exception as error:  # whatever a compiler or a driver says: the smaller sets still count
            says = next(iter(str(error).splitlines()), "no message")
            lab.show(f"- Stopped at {show_size(size)}: {type(error).__name__}: {says}")
            break
    if not points:
        return {}
    levels = by_level(points, caches)
    predict_steps(lab, levels, who)
    show_levels(lab, levels, limits, f"{who} of this machine")
    lab.figure(draw_curve(points, caches, levels, limits, who, memory), "memory_hierarchy")
    return levels


def predict_steps(lab: Lab, levels: dict[str, Point], who: str) -> None:
    """The nearest cache against memory: in bandwidth and in waiting."""
    if not {"L1", "DRAM"} <= set(levels):
        return
    near, far = levels["L1"], levels["DRAM"]
    lab.predict(
        "l1-against-memory", f"{who} reads from its nearest cache how many times as fast as from memory",
        predicted=(3, 30), between=True, measured=round(near.gb_s / far.gb_s, 1), unit="x", kind="timing",
        note="A rule of thumb: each level is two to three times as fast as the next one.",
    )  # fmt: skip
    lab.predict(
        "memory-jump", "latency of a random read from memory: how many times that of the nearest cache",
        predicted=(20, 400), between=True, measured=round(far.jump_ns / near.jump_ns, 1), unit="x", kind="timing",
        note=f"{near.jump_ns:.1f} ns against {far.jump_ns:.0f} ns. So kernels request the next tile while they "
        "compute on the current one: read in order, memory is several times slower than the cache; in random order, about a hundred times.",
    )  # fmt: skip


def show_levels(lab: Lab, levels: dict[str, Point], limits: Limits, who: str) -> None:
    rows = []
    on_gpu = limits.h2d_gb_s is not None
    memory = torch.cuda.get_device_properties(0).total_memory if on_gpu else memory_bytes()
    for name, point in levels.items():
        size = memory if name == "DRAM" else point.size
        rows.append(["memory" if name == "DRAM" else name, show_size(size), point.gb_s, point.jump_ns])
    if limits.h2d_gb_s:
        rows.append(["main memory, over the bus (pinned)", "-", limits.h2d_gb_s, None])
    lab.table(
        f"The levels: {who}", ["memory", "size", "GB/s in order", "ns per random read"], rows,
        note=f"{'The card' if on_gpu else 'All cores together'} can read memory at {limits.read_gb_s:,.0f} GB/s: the ceiling of a "
        "decode step. A random read in a large set also needs page tables, which are not in a near cache "
        "either. A fast disk takes about 100,000 ns (typical, not measured here).",
    )  # fmt: skip


def where_bytes_live(lab: Lab, limits: Limits, levels: dict[str, Point]) -> None:
    lab.title("Where the bytes of one decode step live")
    lab.say("""A decode step generates one token for each request. It reads every weight once for all requests
        together, and the keys and values of each request. Its operations pass small vectors on, the activations, which can
        stay in a cache. In 16-bit numbers:""")
    card = CARDS["h100"]
    steps = [
        (SHAPES[name], users, context, step_bytes(SHAPES[name], users, context))
        for name, users, context in STEPS
    ]
    names = [f"{TITLES[shape.name]}, {users} x {context:,} tokens" for shape, users, context, _ in steps]
    _, users, context, step = steps[-1]
    # 8 billion parameters less the embedding table; 32 layers x (key + value) x 8 heads x 128 numbers.
    weights, kv = 2 * (8.03e9 - 128256 * 4096), users * context * 32 * 2 * 8 * 128 * 2
    lab.predict(
        "step-kv-share", f"{names[-1]}: share of keys and values in what comes from memory",
        predicted=round(kv / (weights + kv), 2), measured=round(step.kv / step.from_memory, 2), tolerance=0.02,
        note=f"{users} x {context:,} tokens x 128 KiB = {step.kv / GB:.1f} GB, beside {step.weights / GB:.1f} GB of weights. "
        "All requests share the weights; each has its own keys and values.",
    )  # fmt: skip
    machines = [(f"this {limits.device_name}", limits.read_gb_s), (card.title, float(card.bandwidth_gb_s))]
    rows = []
    for name, (_, users, _, step) in zip(names, steps):
        here, there = (1000 * step.seconds(gb_s) for _, gb_s in machines)
        megabytes = [part / 1e6 for part in (step.weights, step.kv, step.activations)]
        rows.append([name, *megabytes, here, 1000 / here, there, 1000 / there, users * 1000 / there])
    lab.table(
        "One step: its bytes in MB, and the least milliseconds and most tokens per second",
        ["model, requests", "weights", "KV", "activations", "ms here", "tok/s each", "ms there", "tok/s each", "all"],
        rows,
        note=f"Here: {limits.read_gb_s:,.0f} GB/s, measured. There: an {card.title} with {card.bandwidth_gb_s:,} GB/s by its "
        "data sheet, which no program quite reaches.",
    )  # fmt: skip
    one, many = (steps[i][3].seconds(card.bandwidth_gb_s) for i in (2, 3))
    dollars = [card.dollars_per_hour / 3600 * seconds * 1e6 for seconds in (one, many / USERS)]
    lab.say(f"""So one request of Llama-3 8B on an {card.title.split()[0]} gets at most {1 / one:,.0f} tokens per
        second, however fast the card computes. {USERS} requests share each reading of the weights: a step takes
        {many / one:.1f} times as long and generates {USERS} tokens. At ${card.dollars_per_hour:.2f} per hour (an
        assumption) a million tokens cost ${dollars[0]:.2f} for one request alone, ${dollars[1]:.2f} for {USERS}
        together.""")
    if largest := max((point.size for name, point in levels.items() if name.startswith("L")), default=0):
        lab.say(f"""Could a cache help? The largest one here holds {show_size(largest)}. GPT-2's weights are
            {steps[0][3].weights / MIB:,.0f} MiB, those of Llama-3 8B {steps[2][3].weights / MIB:,.0f} MiB. A cache that is smaller
            than the weights does not help: each token needs all of them, and the last ones read evict the first.""")
    lab.figure(draw_steps(steps, [machine[:2] for machine in machines]), "decode_step_bytes")
