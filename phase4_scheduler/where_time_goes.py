"""Where does the time go? One step of the engine, taken apart.

A step for 64 users writes 64 words. What does it do in that time? It decides who computes what, turns that
into tensors, reads every weight once, reads every key and value once, and picks the words. Each part has a
price that can be worked out beforehand: bytes to read, divided by the bandwidth of the memory.

You will see a step by its parts, for 1, 16 and 64 users, and what two changes buy: weights that are packed
once instead of at every step, and a kernel that reads keys and values where they lie. Then what does *not*
cost anything: a queue a hundred times as long; and what ten times the context really costs.

It runs at GPT-2's size with random weights, on the CPU: speed does not depend on the weights.
"""

from __future__ import annotations

from labkit.lab import Lab, run_lab
from phase1_tokens_embeddings.weights.memory_math import kv_per_token
from phase2_attention_kvcache.model.packed_linear import can_pack, pack_linear_layers
from phase2_attention_kvcache.model.transformer import GPT2_124M, Transformer
from phase3_paged_attention.paging.paged_kv_cache import paged_decode_cpu
from phase4_scheduler.story.step_timer import decoding_engine, time_decode
from phase4_scheduler.story.where_time_goes_story import (
    CONTEXT,
    draw,
    growing_context,
    growing_queue,
    show_parts,
    weight_bytes,
)


def story(lab: Lab) -> None:
    steps = 4 if lab.quick else 15
    batches = (1, 64) if lab.quick else (1, 16, 64)
    plain = Transformer.random(GPT2_124M, dtype=lab.args.dtype, seed=lab.seed)
    lab.title(f"A decode step at GPT-2's size, {lab.args.dtype}, {CONTEXT} tokens of context each")
    lab.say("""First as the parts were before any thought of speed: keys and values of each user are copied
        together and then attended to, and the weights are handed over as they are.""")

    has_kernel = paged_decode_cpu is not None
    before: dict[int, dict[str, float]] = {}
    in_place: dict[int, dict[str, float]] = {}
    for batch in lab.progress(batches, "before"):
        before[batch] = time_decode(decoding_engine(plain, batch, CONTEXT, steps, use_kernel=False), steps)
        if has_kernel:
            in_place[batch] = time_decode(decoding_engine(plain, batch, CONTEXT, steps), steps)
    packed = can_pack(plain)
    model = pack_linear_layers(plain) if packed else plain
    after: dict[int, dict[str, float]] = {}
    for batch in lab.progress(batches, "after"):
        after[batch] = time_decode(decoding_engine(model, batch, CONTEXT, steps), steps)
    show_parts(lab, before, "Before: milliseconds of a step, by part")
    most = max(batches)
    kv_bytes = most * CONTEXT * kv_per_token(GPT2_124M, model.dtype.itemsize)

    lab.title("First change: leave the keys where they are")
    lab.say(f"""For {most} users the keys and values of all layers are {kv_bytes / 1e6:,.0f} MB. The copy reads them,
        writes them, and attention reads them again: three times the bytes, and the padded copy no longer fits a
        fast cache. The kernel of Phase 3 (`cpu_kernel.py`) reads them once.""")
    if in_place:
        lab.predict(
            claim="attention-in-place",
            question=f"attention for {most} users, copied first / read in place",
            predicted=3.0,
            measured=before[most]["attention"] / in_place[most]["attention"],
            tolerance=0.5,
            unit="x",
            kind="timing",
            note="""Predicted from the bytes alone. The copy is the smaller part of the rest: the fused function
                that attends to it was made for many queries at a time, and here each row has one.""",
        )
    else:
        lab.say("(The compiled kernel is not available here: numba is missing.)")
    lab.title("Second change: pack the weights once")
    if packed:
        lab.predict(
            claim="packed-weights",
            question="linear layers for 1 user, as they are / packed",
            predicted=1.5,
            measured=before[1]["linear layers"] / after[1]["linear layers"],
            tolerance=0.5,
            unit="x",
            kind="timing",
        )
    else:
        lab.say("(Packing works on a CPU whose torch has oneDNN. It is left out here.)")
    show_parts(lab, after, "After both: milliseconds of a step, by part")

    total = sum(after[most].values())
    lab.predict(
        claim="scheduler-share",
        question=f"share of a step for {most} users that deciding takes, %",
        predicted=0.5,
        measured=100 * after[most]["decide"] / total,
        tolerance=1.0,
        unit="%",
        kind="timing",
        note="Scheduler and block manager together. Python is slow, but there is little to do: no loop over tokens.",
    )
    lab.table(
        "Tokens a second",
        ["users", "before", "after", "times", "weights, GB/s", "keys and values, GB/s"],
        [
            [
                batch,
                1e3 * batch / sum(before[batch].values()),
                1e3 * batch / sum(after[batch].values()),
                sum(before[batch].values()) / sum(after[batch].values()),
                weight_bytes(model) / 1e6 / (after[batch]["linear layers"] + after[batch]["head"]),
                batch
                * CONTEXT
                * kv_per_token(GPT2_124M, model.dtype.itemsize)
                / 1e6
                / after[batch]["attention"],
            ]
            for batch in batches
        ],
        note="""The last two columns: bytes that the step must read, over the time it took. With many users the
            weights' figure falls: arithmetic, not memory, is the limit then.""",
    )
    lab.record(before=before, in_place=in_place, after=after)
    draw(lab, before, after)
    growing_queue(lab)
    growing_context(lab, model, steps)


def add_arguments(parser) -> None:
    parser.add_argument(
        "--dtype", default="bfloat16", choices=["float32", "bfloat16"], help="number format (bfloat16)"
    )


def main(argv: list[str] | None = None) -> int:
    return run_lab(story, __doc__, options=("dtype", "seed", "quick"), add_arguments=add_arguments, argv=argv)


if __name__ == "__main__":
    raise SystemExit(main())
