"""The chapters of the story of continuous batching."""

from __future__ import annotations

import statistics

from labkit.lab import Lab
from phase4_scheduler.engine.engine import LLMEngine


def three_users(lab: Lab) -> None:
    """The article's example: A wants 500 tokens, B 10, C 800."""
    from phase4_scheduler.story.batching_compared import Job, serve_continuously, serve_statically

    scale = 10 if lab.quick else 1  # the counts scale along exactly
    lengths = {"A": 500 // scale, "B": 10 // scale, "C": 800 // scale}
    engine = LLMEngine.from_pretrained(
        lab.args.model, dtype=lab.args.dtype, device=lab.device, max_num_seqs=3, seed=lab.seed
    )
    lab.title("Three users in one batch")
    lab.say(f"""A wants {lengths["A"]} tokens, B {lengths["B"]}, C {lengths["C"]}. In a static batch all three are
        handed out when the last one is done. (With --quick all lengths are a tenth of the article's.)""")
    jobs = [Job(name, [100 + i], osl) for i, (name, osl) in enumerate(lengths.items())]
    if lab.device == "cuda":  # kernels are compiled at the first step of their kind, before a clock runs
        serve_statically(engine, jobs, batch_size=3)
    static = serve_statically(engine, jobs, batch_size=3)
    continuous = serve_continuously(engine, jobs)
    waited = static.done_step["B"] - static.written_step["B"]
    lab.predict(
        claim="head-of-line",
        question="steps that B's finished answer waits in a static batch",
        predicted=lengths["C"] - lengths["B"],
        measured=waited,
        source_says=None if lab.quick else 790,
        unit="steps",
    )
    lab.predict(
        claim="head-of-line",
        question="how many times too long B waits",
        predicted=lengths["C"] / lengths["B"],
        measured=static.done_step["B"] / continuous.done_step["B"],
        source_says=80,
        unit="x",
    )
    lab.predict(
        claim="continuous-same-tokens",
        question="are the tokens of all three the same in both ways?",
        predicted=True,
        measured=static.token_ids == continuous.token_ids,
        # In 16 bit, sums in another order may be rounded to another token.
        kind="structure" if lab.args.dtype == "float32" else "timing",
    )
    lab.table(
        "When the answer reaches the user",
        ["user", "tokens", "static, step", "continuous, step", "static, s", "continuous, s"],
        [
            [
                name,
                osl,
                static.done_step[name],
                continuous.done_step[name],
                static.done_seconds[name],
                continuous.done_seconds[name],
            ]
            for name, osl in lengths.items()
        ],
    )


def mixed_traffic(lab: Lab) -> None:
    from phase4_scheduler.story.batching_compared import (
        figure_of_seats,
        idle_share,
        mixed_jobs,
        serve_continuously,
        serve_statically,
    )

    seats, count, shrink = (16, 96, 24) if lab.quick else (16, 96, 8)
    engine = LLMEngine.from_pretrained(
        lab.args.model, dtype=lab.args.dtype, device=lab.device, max_num_seqs=seats, seed=lab.seed
    )
    jobs = mixed_jobs(count, engine.model.config.vocab_size, shrink, lab.seed)
    lab.title("Mixed traffic")
    lab.say(f"""{count} requests for summaries, chat and code arrive at once, and the batch has {seats} seats. Lengths
        are those of the article, divided by {shrink} to fit the model's context. The same requests go through the
        same engine twice: batch by batch, and continuously.""")
    continuous = serve_continuously(engine, jobs)  # a first run also warms the machine up
    static = serve_statically(engine, jobs, seats)
    lenient = serve_statically(engine, jobs, seats, pad=False)
    continuous = serve_continuously(engine, jobs)

    batches = [jobs[i : i + seats] for i in range(0, count, seats)]
    lab.predict(
        claim="static-steps",
        question="steps of the static way",
        predicted=sum(max(job.osl for job in batch) for batch in batches),
        measured=lenient.steps,
        tolerance=0.05,
        unit="steps",
        note="""A batch takes as many steps as its longest answer, and a few more where the prompts together
            are over the token budget of a step.""",
    )
    speedup = static.seconds / continuous.seconds
    lab.predict(
        claim="continuous-2-4x",
        question="continuous batching is faster by (the source says 2 to 4, so 3 give or take a third)",
        predicted=3.0,
        measured=speedup,
        tolerance=1 / 3,
        unit="x",
        kind="timing",
        note=f"""In steps alone it is {static.steps / continuous.steps:.1f} times. The rest is the padding: rows that
            are done and go on computing.""",
    )
    lab.table(
        f"{count} requests, {continuous.tokens:,} tokens wanted, {seats} seats",
        ["way", "steps", "seconds", "tokens/s", "seats idle", "median wait for the answer, s"],
        [
            [
                name,
                served.steps,
                served.seconds,
                served.tokens / served.seconds,
                f"{idle_share(served, seats):.0%}",
                statistics.median(served.done_seconds.values()),
            ]
            for name, served in (
                ("static, padded", static),
                ("static, finished rows free", lenient),
                ("continuous", continuous),
            )
        ],
        note="""Padded: a finished row goes on computing until its batch ends, as in `generate` of most
            libraries. Free: it costs nothing more, but its seat stays empty.""",
    )
    lab.say(f"""The same machine serves {speedup:.1f} times as many users, so each costs
        {1 / speedup:.0%} of the money. Nothing was made faster: seats that were empty are taken.""")
    engine.block_manager.check_integrity()
    lab.predict(
        claim="continuous-no-leak",
        question="blocks still held when all are served",
        predicted=0,
        measured=engine.block_manager.num_blocks - 1 - engine.block_manager.num_free_blocks,
    )
    lab.record(
        static_seconds=static.seconds,
        lenient_seconds=lenient.seconds,
        continuous_seconds=continuous.seconds,
        speedup=speedup,
        speedup_over_lenient=lenient.seconds / continuous.seconds,
    )
    subtitle = f"{count} requests at once, {seats} seats, {lab.args.model}, {lab.args.dtype}, {lab.device}"
    lab.figure(figure_of_seats(static, continuous, subtitle), "who_sits_in_the_batch")
