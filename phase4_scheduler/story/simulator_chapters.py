"""workload_simulator.py until the doors open: which traffic comes, what the server can do."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from scipy.cluster.vq import kmeans, vq

from labkit.errors import LabError
from labkit.figures import BLUE, COLORS, GREEN, ORANGE, new_figure, plain_numbers
from labkit.lab import Lab
from phase3_paged_attention.traffic import PATTERNS
from phase4_scheduler.engine import SchedulerConfig
from phase4_scheduler.simulator.cost_model import ComputedCost
from phase4_scheduler.simulator.fleet import ReplicaConfig
from phase4_scheduler.simulator.kernel_table import KernelTable
from phase4_scheduler.simulator.load_tests import capacity
from phase4_scheduler.simulator.recorded_runs import RECORDED
from phase4_scheduler.simulator.traffic import (
    NO_CLUSTERS,
    PATTERN_NAMES,
    PRIORITIES,
    TrafficRequest,
    at_rate,
    count_clusters,
    draw_traffic,
    read_trace,
    silhouettes,
)

KIND_COLOURS = {"summarisation": BLUE, "chat": ORANGE, "code": GREEN}


def the_trace(lab: Lab) -> list[TrafficRequest]:
    a = lab.args
    trace = read_trace(a.trace)
    requests = trace[: a.requests or (500 if lab.quick else None)]
    lab.title("The trace")
    shared = [h for r in requests for h in r.hash_ids]
    lab.say(
        f"{a.trace}: {len(requests):,} of {len(trace):,} requests used, over {requests[-1].arrival:,.0f} s."
    )
    if shared:
        lab.say(f"""{1 - len(set(shared)) / len(shared):.0%} of the blocks of 512 prompt tokens were asked for
            before: so much a prefix cache could save at best.""")
    lab.record(trace=dict(requests=len(requests)))
    return requests if a.rate is None else at_rate(requests, a.rate)


def three_patterns(lab: Lab) -> None:
    """Part 1: three kinds of traffic."""
    lab.title("The traffic: three kinds of requests")
    n = 300 if lab.quick else 3000
    measured = []
    for name in PRIORITIES:
        drawn = draw_traffic(name, n, 1.0, seed=lab.seed)
        measured.append(sum(r.prompt_tokens for r in drawn) / sum(r.output_tokens for r in drawn))
    lab.predict(
        claim="four-patterns",
        question="prompt tokens per answer token: summarisation / chat / code",
        predicted=[sum(PATTERNS[name].isl) / sum(PATTERNS[name].osl) for name in PRIORITIES],
        measured=[round(m, 3) for m in measured],
        tolerance=0.1,
        note="The source gives ranges. Drawn evenly from them, a summary brings fifteen tokens for each one "
        "it takes away; chat and code take more than they bring. Mixed traffic is a third of each.",
    )
    mixed = draw_traffic("mixed", n, 1.0, seed=lab.seed)
    recorded = RECORDED["rtx4090"].requests()
    found = [
        silhouettes(np.log([[r.prompt_tokens, r.output_tokens] for r in requests]), seed=lab.seed)
        for requests in (mixed, recorded)
    ]
    drawn, seen = map(count_clusters, found)
    tried = ", ".join(f"{k}: {score:.2f}" for k, score in found[1].items())
    lab.predict(
        claim="histogram-clusters",
        question=f"clusters in the lengths of {len(recorded)} recorded requests (ShareGPT)",
        predicted=2,
        measured=seen,
        source_says=3,
        note=f"Lengths drawn from three ranges form {drawn} clusters by construction. For the recorded ones the "
        f"silhouette, 1 at best, is by number of clusters: {tried}. Below 0.5 there are none: two are a weak structure.",
    )
    lab.record(clusters=dict(drawn=drawn, recorded=found[1]))
    lab.figure(draw_clusters(mixed, recorded, (drawn, seen), max(found[1].values())), "traffic_clusters")


def draw_clusters(
    drawn: Sequence[TrafficRequest], recorded: Sequence[TrafficRequest], counts: Sequence[int], best: float
) -> Figure:
    """Lengths of drawn and of recorded requests. `best`: the highest silhouette of the recorded ones."""
    do = "" if counts[1] == 3 else "do not "
    fig, axes = new_figure(
        f"Drawn traffic shows the {counts[0]} ranges it is drawn from; recorded requests {do}form three",
        f"below: colours by k-means with k = {counts[1]} on log lengths; mean silhouette {best:.2f} (below {NO_CLUSTERS}: no clusters)",
        panels=2,
    )
    titles = (f"{len(drawn):,} drawn requests", f"{len(recorded):,} recorded requests (ShareGPT)")
    seen = np.array([[r.prompt_tokens, r.output_tokens] for r in recorded])
    cluster = vq(np.log(seen), kmeans(np.log(seen), counts[1], rng=0)[0])[0]
    style = dict(marker=".", linestyle="", alpha=0.45, markersize=4)
    for kind, colour in KIND_COLOURS.items():
        lengths = [(r.prompt_tokens, r.output_tokens) for r in drawn if r.kind == kind]
        axes[0].plot(*zip(*lengths), **style, color=colour, label=kind)
    for i in range(counts[1]):
        axes[1].plot(*seen[cluster == i].T, **style, color=(COLORS[4:] + COLORS[:4])[i])
    for ax, title in zip(axes, titles, strict=True):
        ax.set(xlabel="ISL, prompt tokens", ylabel="OSL, answer tokens", xscale="log", yscale="log")
        ax.set_title(title, loc="left", fontsize=10)
        plain_numbers(ax)
    axes[0].legend(loc="best", fontsize=9)
    axes[1].set(xlim=axes[0].get_xlim(), ylim=axes[0].get_ylim())
    return fig


def make_server(lab: Lab, cost: KernelTable | ComputedCost) -> ReplicaConfig:
    a = lab.args
    config = SchedulerConfig(max_num_seqs=a.max_num_seqs, max_model_len=cost.max_context, policy=a.policy)
    server = ReplicaConfig(cost, config, a.num_blocks or cost.num_blocks)
    lab.title("The server")
    lab.say(f"""Clock: {cost.describe()}. KV cache: {server.num_blocks:,} blocks, room for
        {server.cache_tokens:,} tokens. At most {config.max_num_seqs} requests run at a time, a step takes at
        most {config.max_num_batched_tokens:,} tokens, policy {config.policy}.""")
    if isinstance(cost, KernelTable):
        lab.say("""So every figure from here on is what the scheduler really decides, at the speed of kernels that were
            timed on the card, without what lies between two of them.""")
    else:
        lab.say("""So every figure from here on is what the scheduler really decides, at the speed that the
            card could reach at best.""")
    return server


def per_pattern(lab: Lab, server: ReplicaConfig) -> float:
    """Part 3a: what the server gets done, by pattern. Returns the capacity for --pattern."""
    full = dict(summarisation=320, chat=1000, code=240, mixed=600)
    few = dict(summarisation=40, chat=150, code=40, mixed=150)
    sizes, dollars = few if lab.quick else full, getattr(server.cost, "dollars_per_hour", None)
    found, rows = {}, []
    for name in lab.progress(PATTERN_NAMES, "how much of each pattern"):
        drawn = draw_traffic(name, 2000, 1.0, seed=lab.seed)
        isl = float(np.mean([r.prompt_tokens for r in drawn]))
        osl = float(np.mean([r.output_tokens for r in drawn]))
        most = found[name] = capacity(server, name, sizes[name], lab.seed)
        speeds = [most, most * isl, most * osl] if most else [None] * 3
        price = [dollars / 3.6 / most if most else None] if dollars else []
        rows.append([name, round(isl), round(osl), *speeds, *price])
    columns = ["pattern", "ISL", "OSL", "requests/s", "prompt tok/s", "answer tok/s"]
    lab.table(
        "Highest throughput of this server, by pattern",
        columns + ["$ per 1,000 requests"] * bool(dollars),
        rows,
        note="All requests come at once; counted while some are waiting."
        + (f" At ${dollars:.2f} per hour." if dollars else ""),
    )
    lab.record(capacity=found)
    if not found[lab.args.pattern]:
        raise LabError(
            f"no request of the pattern {lab.args.pattern} fits {server.cache_tokens:,} tokens of KV cache and a "
            f"context of {server.scheduler.max_model_len:,}: raise --num-blocks or choose another --cost"
        )
    return found[lab.args.pattern]
