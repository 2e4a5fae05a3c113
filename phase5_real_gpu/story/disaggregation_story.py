"""The chapters of disaggregation.py: the blocks that move, and the traffic for which that pays."""

from __future__ import annotations

import json

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from labkit.figures import BLUE, GREY, INK, ORANGE, new_figure
from labkit.lab import Lab
from labkit.paths import ROOT
from phase2_attention_kvcache.model import SamplingParams
from phase4_scheduler.engine import EngineConfig, LLMEngine
from phase5_real_gpu.parallel.disaggregated import DisaggregatedEngine

# Mean tokens of prompt and answer; seconds to the first token, and per later token.
TRAFFIC = {"summaries": (640, 24), "code": (480, 48), "chat": (64, 200)}
SLOS = {"soon": (0.15, 0.03), "steady": (1.0, 0.004), "both": (0.5, 0.005)}
TIE = 0.1  # rates were tried in steps, once each: ratios so near to 1 name no winner

BLOCK_SIZE = 16
BLOCK_BYTES = 2 * 6 * BLOCK_SIZE * 256 * 4  # keys and values, layers, tokens, numbers, bytes
TALES = ROOT / "phase1_tokens_embeddings" / "texts" / "tales.txt"


def hand_over(lab: Lab) -> None:
    lab.title("What the prefill side sends to the decode side")
    lab.say("""To continue a prompt, an engine needs only its keys and values. So the prefill side
        computes the prompt, keeps its blocks, and reports where they are and how long it keeps them (the lease). The decode side allocates
        its own blocks for the request, copies the others into them between two steps, and reports "done".""")
    alone = LLMEngine.from_pretrained("tales", dtype="float32", device="cpu", num_blocks=600)
    ids = alone.tokenizer.encode(TALES.read_text(encoding="utf-8"))
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    prompts = {
        f"question {i + 1}": ids[:200] + ids[300 + 40 * i : 330 + 45 * i] for i in range(6)
    }  # one story
    expected = [output.token_ids for output in alone.generate(list(prompts.values()), params)]
    config = EngineConfig(num_blocks=600, block_size=BLOCK_SIZE, max_num_seqs=32, max_num_batched_tokens=256)
    engine = DisaggregatedEngine(alone.model, config)
    rows, answers = [], {name: [] for name in prompts}
    connector, before = engine.decode.scheduler.connector, 0
    for name, prompt in prompts.items():
        engine.add(name, prompt, params)
        while engine.requests:
            for new in engine.step():
                answers[new.request_id] += new.token_ids
        read = connector.num_blocks_loaded - before
        rows.append([name, len(prompt), -(-len(prompt) // BLOCK_SIZE) - read, read, read * BLOCK_BYTES / 1e6])
        before = connector.num_blocks_loaded
    lab.table(
        "One question after the other, about the same story",
        ["", "tokens", "blocks cached", "blocks read", "MB"],
        rows,
        note="Blocks cached: in the decode side's prefix cache, from an earlier question. They are not read again.",
    )
    lab.predict(
        claim="pd-same-tokens",
        question="six answers of 24 tokens: how many tokens differ from those of one engine?",
        predicted=0,
        measured=sum(
            abs(len(a) - len(b)) + sum(x != y for x, y in zip(a, b))
            for a, b in zip(expected, answers.values(), strict=True)
        ),
    )
    blocks = [-(-len(prompt) // BLOCK_SIZE) for prompt in prompts.values()]
    shared = 200 // BLOCK_SIZE
    lab.predict(
        claim="pd-bytes",
        question=f"how many bytes are read for these six prompts? A block has {BLOCK_BYTES:,}, the first {shared} are the same in all",
        predicted=(sum(blocks) - shared * (len(blocks) - 1)) * BLOCK_BYTES,
        measured=connector.num_blocks_loaded * BLOCK_BYTES,
        unit="bytes",
        note="All blocks of the first prompt, and the blocks of the others that are not shared.",
    )
    lab.record(blocks_read=[row[3] for row in rows])


def the_map(lab: Lab) -> None:
    lab.title("When does disaggregation pay?")
    file = ROOT / "phase5_real_gpu" / "parallel" / "measured" / "cpu_xeon_2core.json"
    measured = json.loads(file.read_text(encoding="utf-8"))
    about, cpu = measured["about"], measured["about"]["machine"]["cpu"]
    lab.say(f"""On two cores, either one process computes prompts and the other generates tokens (disaggregated), or both are ordinary engines.
        The chunk size is tuned for each SLO. Goodput is the highest rate at which 90% of the requests meet the SLO. Measured once, with real
        processes, on {cpu} on {about["taken"]}.""")
    found = {(traffic, slo): measured["goodput"][traffic][slo] for traffic in TRAFFIC for slo in SLOS}
    ratios = {case: apart / alike for case, (apart, alike) in found.items()}
    rows = []
    for (traffic, slo), ratio in ratios.items():
        (ttft, tpot), wins = SLOS[slo], "disaggregated" if ratio > 1 else "ordinary"
        rows.append([traffic, *TRAFFIC[traffic], slo, ttft, 1000 * tpot, *found[traffic, slo], wins])
    columns = ["traffic", "prompt", "answer", "SLO", "TTFT s", "TPOT ms", "disagg.", "ordinary", "higher"]
    lab.table("Goodput, requests per second", columns, rows)
    lab.predict(
        claim="pd-contention",
        question="in how many of the nine cases does disaggregation serve a higher rate than two ordinary engines?",
        predicted=[1, 8],
        between=True,
        source_says=9,
        measured=sum(ratio > 1 for ratio in ratios.values()),
        kind="timing",
        note="Prefill no longer delays decode. But a core that only computes prompts is idle when there are none, "
        "and a core that only decodes cannot help when there are many.",
    )
    lab.figure(draw_map(ratios, cpu), "disaggregation_map")


def draw_map(ratios: dict[tuple[str, str], float], cpu: str) -> Figure:
    ties = sum(abs(ratio - 1) <= TIE for ratio in ratios.values())
    wins = sum(ratio > 1 + TIE for ratio in ratios.values())
    fig, [ax] = new_figure(
        f"Disaggregation serves more in {wins} of {len(ratios)} cases, as much in {ties}",
        f"Goodput over that of two ordinary engines: tales on two cores, {cpu}",
        size=(8.6, 4.6),
    )
    for x, traffic in enumerate(TRAFFIC):
        for y, slo in enumerate(SLOS):
            ratio = ratios[traffic, slo]
            strength = min(1.0, abs(float(np.log2(max(ratio, 1 / 16)))) / 2) * 0.75 + 0.1
            is_tie = abs(ratio - 1) <= TIE
            color = GREY if is_tie else BLUE if ratio > 1 else ORANGE
            ax.add_patch(Rectangle((x, y), 0.98, 0.98, color=color, alpha=strength, linewidth=0))
            text = f"{ratio:.2f}" + " (tie)" * is_tie
            ax.text(x + 0.49, y + 0.49, text, ha="center", va="center", color=INK, fontsize=15, weight="bold")
    ax.set(xlim=(0, 3), ylim=(0, 3))
    places = [0.5, 1.5, 2.5]
    ax.set_xticks(places, [f"{name}\n{p} + {a} tokens" for name, (p, a) in TRAFFIC.items()])
    ax.set_yticks(places, [f"{name}\nTTFT {t:g} s, TPOT {1000 * p:g} ms" for name, (t, p) in SLOS.items()])
    ax.tick_params(length=0)
    ax.grid(False)
    for side in ax.spines.values():
        side.set_visible(False)
    return fig
