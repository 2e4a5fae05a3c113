"""What the user feels: traffic in, latencies out, and where a server begins to hurt.

A server is fast or slow only for some traffic. Somebody who pastes a report and wants ten lines (a long
prompt, a short answer) is another guest than somebody who asks for a program. Here traffic is drawn from
four patterns, or read from a trace, and served by the scheduler and the block manager of this course.

By default in virtual time: only the model is replaced, by a clock. Ten thousand requests take seconds.
With --real the engine itself serves, and you wait as long as its users do.

You will see: three kinds of guests in one histogram; a clock checked against the engine; TTFT, ITL and
goodput; the load at which waiting explodes, and why; one long prompt that stops everybody, and the cure.

Costs (--cost): "CARD:MODEL" computes the clock from a data sheet (l4:llama-3-8b), "measured" fits it to the
engine on this machine, a JSON file (see --save-cost) is a fit made before. Sources: see the modules.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.errors import LabError
from labkit.lab import Lab, run_lab
from phase4_scheduler.clusters import find_clusters, purity
from phase4_scheduler.cost_model import ComputedCost, CostModel, FittedCost, find_cost, price_list
from phase4_scheduler.latency import Latency, RequestRecord, little, summarise
from phase4_scheduler.load_tests import (
    LoadPoint,
    Server,
    Stall,
    alarming_usage,
    capacity,
    doubling_usage,
    load_point,
    predicted_stalls,
    predicted_usage,
    stall_config,
    stall_traffic,
    ttft_by_usage,
)
from phase4_scheduler.real_time import interrupt, measure_cost, serve
from phase4_scheduler.scheduler import SchedulerConfig
from phase4_scheduler.simulator_figures import draw_clusters, draw_load, draw_stalls, draw_timeline
from phase4_scheduler.traffic import (
    PATTERN_NAMES,
    PATTERNS,
    PromptMaker,
    TrafficRequest,
    at_rate,
    draw_traffic,
    fit_lengths,
    read_trace,
)
from phase4_scheduler.virtual_time import simulate

if TYPE_CHECKING:
    from phase4_scheduler.continuous_batching import LLMEngine

BLOCK_SIZE = 16
LONGEST_WAIT = 600  # seconds that a run in real time may last
OTHERS, CHUNK = 32, 512  # one long prompt in virtual time: others at work, tokens a step
REAL_OTHERS, REAL_CHUNK = 8, 64  # the same with the real engine


# ---------------------------------------------------------------------- the real engine


class Engines:
    """Engines of one model, which is loaded when the first is needed."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab

    @cached_property
    def _first(self) -> LLMEngine:
        from phase4_scheduler.continuous_batching import LLMEngine

        a = self.lab.args
        return LLMEngine.from_pretrained(a.model, dtype=a.dtype, device=self.lab.device, max_num_seqs=1)

    def __call__(self, **config: Any) -> LLMEngine:
        """An engine with these fields of EngineConfig."""
        from phase4_scheduler.continuous_batching import EngineConfig, LLMEngine

        return LLMEngine(self._first.model, self._first.tokenizer, EngineConfig(**config))

    @cached_property
    def context(self) -> int:
        """Most tokens of a request. Raises LabError if that leaves no room for the experiments."""
        context = self._first.model.config.max_context
        if context < 128:
            raise LabError(f"this model reads {context} tokens at most: choose one that reads 128 or more")
        return context


# ---------------------------------------------------------------------- the story


def story(lab: Lab) -> None:
    a = lab.args
    check_options(a)
    engines = Engines(lab)
    cost = None if a.cost == "measured" else find_cost(a.cost)  # a bad name is told before anything runs
    trace = the_trace(lab) if a.trace else None
    guests(lab)
    fitted = the_clock(lab, engines)
    server = make_server(lab, cost or fitted, trace)
    most = per_pattern(lab, server)
    if a.real:
        real_run(lab, engines, fitted, trace)
    else:
        virtual_run(lab, server, trace, most)
    load_sweep(lab, server, most)
    long_prompt(lab, server, engines)


WHAT_IS_WHAT = """TTFT: time to the first token. ITL: the gap between two tokens. p95: what 95 of 100 stay
    below. Goodput counts only requests served within limits that somebody set (SLO, service level objective)."""


def check_options(a: argparse.Namespace) -> None:
    for name, least in (("requests", 1), ("max_num_seqs", 1), ("num_blocks", 2)):
        value = getattr(a, name)
        if value is not None and value < least:
            raise LabError(f"--{name.replace('_', '-')} is {value}: it must be {least} or more")
    for name in ("rate", "burstiness", "ttft_slo", "itl_slo"):
        value = getattr(a, name)
        if value is not None and not (value > 0 and (name == "rate" or math.isfinite(value))):
            raise LabError(f"--{name.replace('_', '-')} is {value}: a number above 0 is needed")
    if a.skip_bad_lines and not a.trace:
        raise LabError("--skip-bad-lines is for --trace FILE: give one, or leave it out")


def make_server(lab: Lab, cost: CostModel, trace: Sequence[TrafficRequest] | None) -> Server:
    a = lab.args
    computed = isinstance(cost, ComputedCost)
    longest = max((r.prompt_tokens + r.output_tokens for r in trace or ()), default=0)
    config = SchedulerConfig(
        max_num_seqs=a.max_num_seqs,
        max_model_len=cost.max_context if computed else max(8192, longest),
        policy=a.policy,
    )
    server = Server(cost, config, a.num_blocks or (cost.num_blocks if computed else 4096))
    lab.title("The server")
    lab.say(f"""Clock: {cost.describe()}. KV cache: {server.num_blocks:,} blocks, room for
        {server.cache_tokens:,} tokens. At most {config.max_num_seqs} requests run at a time, a step takes at
        most {config.max_num_batched_tokens:,} tokens, policy {config.policy}.""")
    if computed:
        lab.say("""So every figure from here on is what the scheduler really decides, at the speed that the
            card could reach at best.""")
    else:
        lab.say(f"""The fit saw contexts of up to {cost.longest:,} tokens. For longer ones the clock is a straight
            line drawn on: a guess.""")
    return server


def the_trace(lab: Lab) -> list[TrafficRequest]:
    a = lab.args
    trace = read_trace(a.trace, a.skip_bad_lines)
    requests = trace.requests[: a.requests or (500 if lab.quick else None)]
    lab.title("The trace")
    shared = [h for r in requests for h in r.hash_ids]
    lab.say(f"""{a.trace}: {trace.format}, {len(requests):,} of {len(trace.requests):,} requests used, over
        {requests[-1].arrival:,.0f} s.""")
    if trace.skipped:
        lab.say(f"{trace.skipped:,} lines were skipped. The first: {trace.first_problem}.")
    if trace.unsorted:
        lab.say(f"{trace.unsorted:,} lines were earlier than the line before; they are put in order.")
    if shared:
        lab.say(f"""{1 - len(set(shared)) / len(shared):.0%} of the blocks of 512 prompt tokens were asked for
            before: so much a prefix cache could save at best.""")
    if a.rate is not None:
        requests = at_rate(requests, a.rate)
    lab.record(trace=dict(format=trace.format, requests=len(requests), skipped=trace.skipped))
    return requests


def guests(lab: Lab) -> None:
    """Part 1: three kinds of guests."""
    lab.title("Who comes: three kinds of guests")
    n = 600 if lab.quick else 3000
    drawn = {p: draw_traffic(p, n, 1.0, seed=lab.seed) for p in PATTERNS}
    measured = [
        sum(r.prompt_tokens for r in drawn[p]) / sum(r.output_tokens for r in drawn[p]) for p in PATTERNS
    ]
    lab.predict(
        claim="four-patterns",
        question="prompt tokens per answer token: summarisation / chat / code",
        predicted=[p.input_per_output for p in PATTERNS.values()],
        measured=[round(m, 3) for m in measured],
        tolerance=0.1,
        note="The source gives ranges. Drawn evenly from them, a summary brings fifteen tokens for each one "
        "it takes away; chat and code take more than they bring. Mixed traffic is a third of each.",
    )
    mixed = draw_traffic("mixed", n, 1.0, seed=lab.seed)
    points = np.log([[r.prompt_tokens, r.output_tokens] for r in mixed])
    found = find_clusters(points, seed=lab.seed)
    pure = purity(found.labels, [r.kind for r in mixed])
    tried = ", ".join(f"{k}: {score:.2f}" for k, score in found.silhouettes.items())
    lab.predict(
        claim="histogram-clusters",
        question="clusters in the lengths of mixed traffic",
        predicted=3,
        measured=found.count,
        note=f"k-means was not told how many. Silhouette by number of clusters ({tried}); 1 is perfect, below "
        f"0.5 there are none. {pure:.1%} of the requests are in a cluster of their own kind.",
    )
    alone = tuple(find_clusters(points[:, i : i + 1], seed=lab.seed).count for i in (0, 1))
    lab.record(clusters=dict(found=found.count, purity=pure, silhouettes=found.silhouettes, alone=alone))
    lab.figure(draw_clusters(mixed, found, pure, alone), "traffic_clusters")


def the_clock(lab: Lab, engines: Engines) -> FittedCost:
    """Part 2: fit a clock to the engine, then let both serve the same traffic."""
    lab.title("A clock instead of a model: can it be trusted?")
    lab.say("""A step's length follows from its work: how many tokens, for how many requests, looking at how
        much context. So measure steps of the engine, find the prices, and let both serve the same traffic.""")
    a = lab.args
    context = min(engines.context, 256 if lab.quick else 512)
    n = 10 if lab.quick else 48
    fitted = measure_cost(
        engines, context, n, lab.seed, f"{a.model}, {lab.device}, {a.dtype}",
        lambda records: lab.progress(records, "measuring steps of the engine", total=n),
    )  # fmt: skip
    lab.table(
        "A step of the real engine on this machine costs",
        ["", "microseconds"],
        price_list(fitted),
        note=f"Fitted to {fitted.steps:,} steps. On steps kept aside the error is {fitted.median_error:.0%} in "
        f"the median, and nine of ten are within {fitted.p90_error:.0%}. A pair is a new token and a token "
        "that it looks at. A price of 0: other prices explain it already.",
    )
    if a.save_cost:
        fitted.save(a.save_cost)
        lab.say(f"Saved to {a.save_cost}; --cost {a.save_cost} uses it again.")
    config = SchedulerConfig(max_num_seqs=16, max_num_batched_tokens=256, max_model_len=context)
    blocks = 16 * -(-context // BLOCK_SIZE) + 1
    n = 10 if lab.quick else 80
    work, factor = fit_lengths(draw_traffic("mixed", n, math.inf, seed=lab.seed), context)
    whole = simulate(work, config, blocks, fitted)
    rate = 0.8 * summarise(whole.records).requests_per_second
    work, _ = fit_lengths(draw_traffic("mixed", n, rate, seed=lab.seed), context)
    virtual = summarise(simulate(work, config, blocks, fitted).records)
    engine = engines(max_num_seqs=16, max_num_batched_tokens=256, num_blocks=blocks)
    prompts = PromptMaker(engine.model.config.vocab_size, lab.seed, factor)
    label = f"the engine serves {n} requests in real time"
    real = summarise(list(lab.progress(serve(engine, work, prompts), label, total=n)))
    lab.predict(
        claim="virtual-clock",
        question=f"median end-to-end time of {n} requests: by the clock, and in the real engine",
        predicted=1000 * virtual.e2e.p50,
        measured=1000 * real.e2e.p50,
        unit="ms",
        tolerance=0.25,
        kind="timing",
        note=f"Mixed traffic with lengths scaled by {factor:.3f} to a context of {context}, "
        f"{rate:.1f} requests a second.",
    )
    rows = [
        [name, *(1000 * getattr(getattr(side, key), p) for side in (virtual, real) for p in ("p50", "p95"))]
        for name, key in (("TTFT", "ttft"), ("ITL", "itl"), ("end to end", "e2e"))
    ]
    lab.table("Milliseconds", ["", "virtual p50", "virtual p95", "real p50", "real p95"], rows)
    lab.record(
        cost=vars(fitted), clock_check=dict(virtual=virtual.to_json(), real=real.to_json(), factor=factor)
    )
    return fitted


def per_pattern(lab: Lab, server: Server) -> float:
    """Part 3a: what the server gets done, by pattern. Returns the capacity for --pattern."""
    sizes = dict(summarisation=80, chat=250, code=60, mixed=150)
    found, rows = {}, []
    for name in lab.progress(PATTERN_NAMES, "how much of each pattern"):
        drawn = draw_traffic(name, 2000, 1.0, seed=lab.seed)
        isl, osl = (
            float(np.mean([getattr(r, k) for r in drawn])) for k in ("prompt_tokens", "output_tokens")
        )
        most = found[name] = capacity(server, name, sizes[name] * (1 if lab.quick else 4), lab.seed)
        if not most:
            rows.append([name, round(isl), round(osl)] + [None] * (4 if server.dollars_per_hour else 3))
            continue
        row = [name, round(isl), round(osl), most, most * isl, most * osl]
        if server.dollars_per_hour:
            row.append(server.dollars_per_hour / 3.6 / most)
        rows.append(row)
    columns = ["pattern", "ISL", "OSL", "requests/s", "prompt tok/s", "answer tok/s"]
    lab.table(
        "The most that this server gets done, by pattern",
        columns + ["$ per 1,000 requests"] * bool(server.dollars_per_hour),
        rows,
        note="Everybody comes at once, counted while somebody waits."
        + (f" At ${server.dollars_per_hour:.2f} an hour." if server.dollars_per_hour else ""),
    )
    lab.record(capacity=found)
    if not found[lab.args.pattern]:
        raise LabError(
            f"no request of the pattern {lab.args.pattern} fits {server.cache_tokens:,} tokens of KV cache and a "
            f"context of {server.config.max_model_len:,}: raise --num-blocks or choose another --cost"
        )
    return found[lab.args.pattern]


def virtual_run(lab: Lab, server: Server, trace: list[TrafficRequest] | None, most: float) -> None:
    """Part 3b: what the users feel at one load."""
    a = lab.args
    lab.title("What the users feel, in virtual time")
    lab.say(WHAT_IS_WHAT)
    rate = a.rate or 0.7 * most
    n = a.requests or (300 if lab.quick else 2000)
    traffic = trace or draw_traffic(a.pattern, n, rate, a.burstiness, lab.seed)
    run = server.serve(lab.progress(traffic, f"{len(traffic):,} requests", total=len(traffic)))
    if not run.records:
        raise LabError(
            f"this server can serve none of the {run.refused:,} requests ({run.refusal}): choose another --cost"
        )
    if run.refused:
        lab.say(f"{run.refused:,} of {len(traffic):,} requests were refused. The first: {run.refusal}.")
    felt = summarise(run.records, a.ttft_slo, a.itl_slo)
    lab.predict(
        claim="littles-law",
        question="requests in the system on average: arrival rate x mean stay, and counted by the scheduler",
        predicted=round(little(run.records), 6),
        measured=round(run.in_system_seconds / felt.seconds, 6),
        tolerance=1e-5,
        note="Little's law. It must hold to the last digit, or a request was lost or the clock is wrong.",
    )
    last = traffic[-1].arrival
    pace = f"{(len(traffic) - 1) / last:.2f} a second" if last else "all at once"
    what = f"{Path(a.trace).name if trace else a.pattern}, {pace}"
    show_latencies(lab, felt, run.records, f"{felt.requests:,} requests ({what})")
    cached = sum(r.num_cached_tokens for r in run.records) / felt.prompt_tokens
    lab.table(
        "The server meanwhile",
        ["figure", "value"],
        [["requests a second", felt.requests_per_second], ["answer tokens a second", felt.tokens_per_second],
         ["KV usage, mean", run.mean_usage()], ["KV usage, peak", run.peak_usage],
         ["preemptions", run.preemptions], ["prompt tokens found in the prefix cache", f"{cached:.1%}"],
         ["steps", len(run.times)]],
    )  # fmt: skip
    if server.dollars_per_hour and felt.good:
        price = server.dollars_per_hour / 3.6 / felt.goodput
        lab.say(f"""What it costs: at ${server.dollars_per_hour:.2f} an hour, 1,000 requests served within the
            limits cost ${price:.2f}. Send it more, and each gets cheaper, until too many are too slow to count.""")
    lab.record(virtual=felt.to_json() | dict(
        kv_mean=run.mean_usage(), kv_peak=run.peak_usage, preemptions=run.preemptions, prefix_hit_rate=cached,
        refused=run.refused, steps=len(run.times),
    ))  # fmt: skip
    lab.figure(draw_timeline(run, f"{what}; {server.cost.describe()}"), "traffic_timeline")


def real_run(lab: Lab, engines: Engines, fitted: FittedCost, trace: list[TrafficRequest] | None) -> None:
    """Part 3b with --real: the engine serves, and we wait."""
    a = lab.args
    lab.title("What the users feel, in real time")
    lab.say(WHAT_IS_WHAT)
    context = engines.context
    blocks = a.num_blocks or max(2048, context // BLOCK_SIZE + 1)
    engine = engines(max_num_seqs=a.max_num_seqs, num_blocks=blocks, policy=a.policy, seed=lab.seed)
    n = a.requests or (20 if lab.quick else 100)
    traffic, factor = fit_lengths(trace or draw_traffic(a.pattern, n, math.inf, 1.0, lab.seed), context)
    if not trace:
        config = SchedulerConfig(max_num_seqs=a.max_num_seqs, max_model_len=context)
        at_once = simulate(traffic, config, blocks, fitted)
        rate = a.rate or 0.7 * summarise(at_once.records).requests_per_second
        drawn = draw_traffic(a.pattern, n, rate, a.burstiness, lab.seed)
        traffic, factor = fit_lengths(drawn, context)
    if traffic[-1].arrival > LONGEST_WAIT:
        raise LabError(
            f"the last request comes after {traffic[-1].arrival:,.0f} s, and this is real time: lower "
            "--requests or raise --rate"
        )
    lab.say(f"""The model reads {context:,} tokens at most, so all lengths are scaled by {factor:.3f}. The last
        request comes after {traffic[-1].arrival:.1f} s.""")
    prompts = PromptMaker(engine.model.config.vocab_size, lab.seed, factor)
    usage: list[float] = []
    engine.record(lambda event: usage.append(event["usage"]))
    records = list(lab.progress(serve(engine, traffic, prompts), "serving", total=len(traffic)))
    felt = summarise(records, a.ttft_slo, a.itl_slo)
    show_latencies(
        lab, felt, records, f"{felt.requests} requests on the real engine ({a.trace or a.pattern})"
    )
    cached = sum(r.num_cached_tokens for r in records) / felt.prompt_tokens
    lab.table(
        "The server meanwhile",
        ["figure", "value"],
        [["requests a second", felt.requests_per_second], ["answer tokens a second", felt.tokens_per_second],
         ["KV usage, mean of the steps", float(np.mean(usage))], ["KV usage, peak", max(usage)],
         ["preemptions", sum(r.num_preemptions for r in records)],
         ["prompt tokens found in the prefix cache", f"{cached:.1%}"]],
    )  # fmt: skip
    lab.record(real=felt.to_json() | dict(factor=factor, kv_peak=max(usage), prefix_hit_rate=cached))


def show_latencies(lab: Lab, felt: Latency, records: Sequence[RequestRecord], title: str) -> None:
    columns = ["seconds", "mean", "p50", "p95", "p99", "max"]
    rows = [
        [name, s.mean, s.p50, s.p95, s.p99, s.max]
        for name, s in (("TTFT", felt.ttft), ("ITL", felt.itl), ("end to end", felt.e2e))
    ]
    lab.table(title, columns, rows)
    a = lab.args
    kinds = sorted({r.kind for r in records})
    by_kind: list[list[Any]] = []
    for kind in [*kinds, "all"] if len(kinds) > 1 else ["all"]:
        part = summarise([r for r in records if kind in ("all", r.kind)], a.ttft_slo, a.itl_slo)
        good = part.good / felt.seconds
        by_kind.append([kind, part.requests, part.ttft.p95, part.itl.p95, f"{part.good_share:.1%}", good])
    lab.table(
        f"Goodput: TTFT up to {a.ttft_slo:g} s, ITL up to {a.itl_slo:g} s on average of a request",
        ["who", "requests", "TTFT p95, s", "ITL p95, s", "good", "good requests/s"],
        by_kind,
    )


def load_sweep(lab: Lab, server: Server, most: float) -> None:
    """Part 4: latency against load, and the cache behind it."""
    a = lab.args
    lab.title("Where trouble starts")
    loads = (0.4, 0.6, 0.8, 1.0) if lab.quick else (0.3, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1, 1.1)
    n = 200 if lab.quick else 800
    points: list[LoadPoint] = []
    for load in lab.progress(loads, f"{n} requests at {len(loads)} loads"):
        points.append(load_point(server, a.pattern, n, load, most, lab.seed))
    bins = ttft_by_usage(points)
    doubled, alarm = doubling_usage(points), alarming_usage(bins)
    traffic = draw_traffic(a.pattern, 2000, 1.0, seed=lab.seed)
    longest = -(-max(r.prompt_tokens for r in traffic) // BLOCK_SIZE)
    limit, mean_limit = predicted_usage(traffic, server.cache_tokens)
    if alarm is not None:
        calm = float(np.median([t for u, t, _ in bins if u < 0.5]))
        worse = next(t for u, t, _ in bins if u >= alarm - 1e-9)
        lab.predict(
            claim="kv-usage-alert",
            question="KV usage at the moment of arrival from which on TTFT (p95) explodes",
            predicted=round(limit, 2),
            measured=round(alarm, 2),
            source_says=0.9,
            tolerance=0.06,
            kind="timing",
            note=f"Measured in bins of 0.05. Below it the p95 is {calm:.2f} s, from there on {worse:.1f} s. The "
            f"longest prompt needs {longest} of {server.num_blocks - 1:,} blocks: if less is free, it waits, and "
            "all behind it.",
        )
    if doubled is not None:
        _, bigger = predicted_usage(traffic, 10 * server.cache_tokens)
        lab.predict(
            claim="kv-usage-alert",
            question="mean KV usage at which TTFT (p95) has doubled",
            predicted=round(mean_limit, 2),
            measured=round(doubled, 2),
            source_says=0.9,
            tolerance=0.15,
            kind="timing",
            note="Predicted: the mean at which waves of random arrivals are above that limit for 5% of the time. "
            "So an average over minutes has to stay well below what a moment may reach. The larger the cache, "
            f"the smaller the waves: in one ten times as large, {bigger:.2f}.",
        )
    else:
        lab.say("""TTFT did not double within these loads: this cache is large enough for the traffic, or
            something else (seats, arithmetic) limits the server first.""")
    lab.table(
        f"{n} requests ({a.pattern}) at each load",
        ["load", "requests/s", "KV usage, mean", "TTFT p50, s", "TTFT p95, s", "p95 / p50", "ITL p95, s", "preempted per 100"],
        [[p.load, p.rate, p.usage, p.latency.ttft.p50, p.latency.ttft.p95,
          p.latency.ttft.p95 / p.latency.ttft.p50, p.latency.itl.p95, p.preemptions] for p in points],
        note="Load 1 is the most that the server gets done. The first fifth of the requests does not count.",
    )  # fmt: skip
    lab.say("""What it means: keep the average low enough for the waves, and let the alarm look at moments. The
        last tenth of the cache is where your users queue.""")
    lab.record(
        load=[dict(load=p.load, rate=p.rate, usage=p.usage, preemptions=p.preemptions, latency=p.latency.to_json())
              for p in points],
        doubled_at_usage=doubled, alarm_at_usage=alarm,
    )  # fmt: skip
    lab.figure(draw_load(points, bins, doubled, alarm, f"{a.pattern}, {n} requests a load; {server.cost.describe()}"), "load_knee")  # fmt: skip


def long_prompt(lab: Lab, server: Server, engines: Engines) -> None:
    """Part 5: one long prompt among short ones, whole and in pieces, on the clock and in the engine."""
    lab.title("One long prompt, and everybody else")
    isl, osl = 100, 150
    long = min(server.config.max_model_len - 8, 8000)
    roomy = replace(server, num_blocks=(long + OTHERS * (isl + osl)) // BLOCK_SIZE + OTHERS + 100)
    stalls: list[Stall] = []
    for chunk in (None, CHUNK):
        config = stall_config(server.config, long, OTHERS + 1, chunk)
        with_chunk = replace(roomy, config=config)
        # A short prompt first, to learn when step 60 begins: the long one comes at that moment.
        arrival = with_chunk.serve(stall_traffic(OTHERS, isl, osl, 1, 0.0)).times[60]
        records = with_chunk.serve(stall_traffic(OTHERS, isl, osl, long, arrival)).records
        stalls.append(Stall.of(records, arrival))
    whole, cut = stalls
    lab.predict(
        claim="chunked-prefill",
        question=f"longest gap between tokens of {OTHERS} users when a prompt of {long:,} tokens comes: whole / in pieces",
        predicted=[1000 * s for s in predicted_stalls(server.cost, OTHERS, isl + 60, long, CHUNK)],
        measured=[1000 * whole.worst, 1000 * cut.worst],
        unit="ms",
        tolerance=0.05,
        note=f"Predicted from the clock's prices; pieces of {CHUNK} tokens a step. Usual is "
        f"{1000 * whole.usual:.0f} ms. The long prompt's own first token comes after {cut.ttft:.2f} s instead of "
        f"{whole.ttft:.2f}: that is the price.",
    )
    real_whole, real_cut = (real_stall(engines, chunk, lab.seed) for chunk in (None, REAL_CHUNK))
    ratio = real_whole.worst / real_cut.worst
    real_long = min(900, engines.context - 16)
    lab.predict(
        claim="chunked-prefill",
        question="the real engine: chunking makes the longest gap shorter",
        predicted=True,
        measured=ratio > 1.5,
        kind="timing",
        note=f"{REAL_OTHERS} users and a prompt of {real_long} tokens on this machine: "
        f"{1000 * real_whole.worst:.0f} ms whole, {1000 * real_cut.worst:.0f} ms in pieces of {REAL_CHUNK}: "
        f"{ratio:.1f} times shorter. Usual: {1000 * real_whole.usual:.0f} ms.",
    )
    names = ("whole", "chunked", "real whole", "real chunked")
    lab.record(stalls={
        name: dict(usual=s.usual, worst=s.worst, ttft=s.ttft)
        for name, s in zip(names, (whole, cut, real_whole, real_cut), strict=True)
    })  # fmt: skip
    clock = "computed" if isinstance(server.cost, ComputedCost) else "fitted"
    panels = [
        (f"{OTHERS} users, a prompt of {long:,} tokens, pieces of {CHUNK}; {clock} clock", whole, cut),
        (
            f"{REAL_OTHERS} users, {real_long} tokens, pieces of {REAL_CHUNK}; the real engine",
            real_whole,
            real_cut,
        ),
    ]
    lab.figure(draw_stalls(panels), "long_prompt_stall")


def real_stall(engines: Engines, chunk: int | None, seed: int) -> Stall:
    """The same with the real engine, and a prompt that nearly fills the model's context."""
    long = min(900, engines.context - 16)
    engine = engines(
        max_num_seqs=REAL_OTHERS + 1,
        max_num_batched_tokens=chunk or 2 * long,
        chunked_prefill=chunk is not None,
    )
    traffic = stall_traffic(REAL_OTHERS, 20, 50, long, math.inf, 4)
    records = interrupt(engine, traffic, 12, PromptMaker(engine.model.config.vocab_size, seed))
    return Stall.of(records, records[-1].arrival)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add: Callable[..., Any] = parser.add_argument
    add("--pattern", default="mixed", choices=PATTERN_NAMES, help="who comes (mixed)")
    add(
        "--rate",
        type=float,
        metavar="R",
        help="requests a second; inf: all at once (70%% of what is possible)",
    )
    add("--requests", type=int, metavar="N", help="how many (2,000; of a trace all; with --real 100)")
    add(
        "--burstiness",
        type=float,
        default=1.0,
        metavar="B",
        help="1: Poisson; below 1 in bursts; above 1 evenly (1)",
    )
    add("--trace", metavar="FILE", help="serve these requests instead: Azure CSV or Mooncake JSONL")
    add("--skip-bad-lines", action="store_true", help="leave out lines of the trace that make no sense")
    add("--real", action="store_true", help="serve with the real engine, in real time")
    add(
        "--cost",
        default="l4:llama-3-8b",
        metavar="C",
        help="CARD:MODEL, measured, or a JSON file (l4:llama-3-8b)",
    )
    add("--save-cost", metavar="FILE", help="keep the clock fitted on this machine as JSON")
    add("--ttft-slo", type=float, default=1.0, metavar="S", help="limit for the first token, seconds (1)")
    add(
        "--itl-slo",
        type=float,
        default=0.1,
        metavar="S",
        help="limit for a request's mean ITL, seconds (0.1)",
    )
    add("--max-num-seqs", type=int, default=256, metavar="N", help="most requests that run at a time (256)")
    add(
        "--num-blocks",
        type=int,
        metavar="N",
        help="KV blocks of 16 tokens (what the card has room for, or 4096)",
    )
    add(
        "--policy",
        default="fcfs",
        choices=["fcfs", "priority"],
        help="priority: chat before code before summaries (fcfs)",
    )


def main(argv: list[str] | None = None) -> int:
    return run_lab(
        story,
        __doc__,
        options=("model", "device", "dtype", "seed", "quick"),
        add_arguments=add_arguments,
        argv=argv,
    )


if __name__ == "__main__":
    raise SystemExit(main())
