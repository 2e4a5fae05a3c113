"""The chapters of speculative_decoding.py, and its figure."""

from collections import Counter
from functools import cache
from itertools import cycle, islice
from typing import Any

import torch
from scipy.stats import chisquare

from labkit.figures import BLUE, GREEN, MUTED, ORANGE, new_figure, plain_numbers
from labkit.lab import Lab
from phase1_tokens_embeddings.tokens import BPETokenizer
from phase2_attention_kvcache.model import SamplingParams, Transformer
from phase4_scheduler.assembly import load_model, load_tokenizer
from phase4_scheduler.engine import EngineConfig, LLMEngine
from phase4_scheduler.features.speculation.proposers import Proposer
from phase4_scheduler.features.speculation.rejection_sampler import verify_drafts
from phase4_scheduler.simulator.parallel_cost import find_cost
from phase4_scheduler.simulator.speculative_runs import (
    AlwaysProposes,
    Window,
    computed_speedup,
    decode_in_turn,
    expected_speedup,
    expected_tokens,
)
from phase4_scheduler.story.windows import BEGINNINGS

NGRAM = dict(method="ngram", prompt_lookup_min=2, prompt_lookup_max=5)
DRAFT_MODEL = dict(model="tales-draft", draft_sample_method="probabilistic")
DRAWN = SamplingParams(temperature=1.0, max_tokens=900, ignore_eos=True)


@cache
def load(name: str, dtype: str, device: str) -> tuple[Transformer, BPETokenizer]:
    """Once: engines that take turns read the same weights."""
    return load_model(name, dtype, device), load_tokenizer(name)


def load_engine(
    lab: Lab, max_num_seqs: int, proposer: Proposer | None = None, serves: str = "tales", **speculation: Any
) -> LLMEngine:
    """`tales`, or what it `serves`, with drafts if `speculation` says whose."""
    config = EngineConfig(max_num_seqs=max_num_seqs, seed=lab.seed)
    drafts = dict(speculative_config=speculation or None, proposer=proposer)
    return LLMEngine(*load(serves, lab.args.dtype, lab.device), config, **drafts)


def same_words(lab: Lab) -> None:
    count, length = (4, 24) if lab.quick else (8, 64)
    prompts = list(BEGINNINGS.values())[:count]
    greedy = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True)
    lab.title("The same tokens")
    lab.say(f"""{count} stories of {length} tokens, each time the likeliest token (greedy): without drafts, with drafts
        copied from the text so far (n-gram), and with drafts of tales-draft, a model with a fraction of the weights.""")
    plain = load_engine(lab, count)
    wanted = [output.token_ids for output in plain.generate(prompts, greedy)]
    rows, same = [["none", plain.core.num_steps, None, None, "yes"]], True
    for name, config in {"n-gram": NGRAM, "tales-draft": DRAFT_MODEL}.items():
        engine = load_engine(lab, count, num_speculative_tokens=3, **config)
        equal = [output.token_ids for output in engine.generate(prompts, greedy)] == wanted
        stats, same = engine.core.spec_decoding_stats, same and equal
        accepted = stats.num_accepted_tokens / max(1, stats.num_draft_tokens)
        rows.append(
            [name, engine.core.num_steps, stats.num_draft_tokens, f"{accepted:.0%}", "yes" if equal else "no"]
        )
    lab.predict(
        claim="spec-exact",
        question="are all greedy tokens the same with drafts and without?",
        predicted=True,
        measured=same,
        # In 16 bit, sums in another order may be rounded to another token.
        kind="structure" if lab.args.dtype == "float32" else "timing",
    )
    lab.table(
        "Three drafts per step", ["drafts", "steps", "drafts verified", "accepted", "same tokens"], rows
    )


def same_chances(lab: Lab) -> None:
    """The rule that makes drawn answers exact, counted on a vocabulary of eight tokens; and the classical mistake."""
    number = 4_000 if lab.quick else 40_000
    torch.manual_seed(lab.seed)
    p, q = (2 * torch.randn(2, 8)).softmax(-1)
    lab.title("The same distribution")
    lab.say(f"""Sampled answers cannot be compared word for word, but their distribution can: {number:,} drafts are drawn from a
        proposer's distribution q and verified against the model's p. A draft x is accepted with probability min(1, p/q). If it
        is rejected, the token in its place comes from max(p - q, 0). The classical mistake draws it from p again.""")
    drafts = torch.multinomial(q, number, replacement=True).tolist()
    right, wrong = Counter(), Counter()
    for draft in drafts:
        token = verify_drafts(torch.stack([p, p]), q[None], [draft])[0]
        right[token] += 1
        accepted = torch.rand(()).item() < p[draft] / q[draft]
        wrong[draft if accepted else torch.multinomial(p, 1).item()] += 1
    expected = (p.double() / p.double().sum() * number).numpy()
    fits = {
        name: chisquare([counts[x] for x in range(8)], expected).pvalue
        for name, counts in (("right", right), ("wrong", wrong))
    }
    lab.predict(
        claim="spec-exact",
        question="do the counts of the rule fit p, and those of the mistake not? (a chi-square test: could it be chance?)",
        predicted=True,
        measured=bool(fits["right"] > 0.001 > fits["wrong"]),
    )
    lab.table(
        f"Shares of {number:,} tokens",
        ["token", "q: proposer", "p: model", "verified", "with the mistake"],
        [[x, q[x].item(), p[x].item(), right[x] / number, wrong[x] / number] for x in range(8)],
        note=f"""The verified ones fit p with a p-value of {fits["right"]:.2g}, those with the mistake with
            {fits["wrong"]:.2g} (below 0.001: no chance): they favour the tokens of the proposer.""",
    )
    lab.figure(draw_rule(p.tolist(), q.tolist()), "rejection_sampling")


def draw_rule(p: list[float], q: list[float]) -> Any:
    """Where each token's probability comes from: accepted drafts, and what is drawn in place of the rejected ones."""
    places = range(len(p))
    kept = [min(a, b) for a, b in zip(p, q, strict=True)]
    left = [max(a - b, 0) for a, b in zip(p, q, strict=True)]
    lost = [max(b - a, 0) for a, b in zip(p, q, strict=True)]
    fig, (ax,) = new_figure(
        f"Accepted drafts and redrawn tokens add up to p: {sum(kept):.0%} of the drafts are accepted",
        "a vocabulary of eight tokens; q is the proposer's distribution, p the model's",
        size=(7.2, 4.6),
    )
    ax.bar(places, kept, color=BLUE, label="min(p, q): the draft is accepted")
    ax.bar(places, left, bottom=kept, color=GREEN, label="max(p - q, 0): drawn in place of a rejected draft")
    hatched = dict(color="none", edgecolor=ORANGE, hatch="///")
    ax.bar(places, lost, bottom=kept, label="q - p: drafts that are rejected", **hatched)
    ax.set(xticks=places, xlabel="token", ylabel="probability")
    fig.legend(loc="outside lower center")
    return fig


def four_for_one(lab: Lab) -> None:
    steps = 24 if lab.quick else 80
    lab.title("Cost and gain of a step with drafts")
    settings = {
        "one that is always wrong": dict(method="custom", proposer=AlwaysProposes(1, 1, 1)),
        "n-gram": NGRAM,
        "tales-draft, greedy drafts": DRAFT_MODEL | dict(draft_sample_method="greedy"),
        "tales-draft, sampled drafts": DRAFT_MODEL,
    }
    engines = {"none": load_engine(lab, 1), "drafter": load_engine(lab, 1, serves="tales-draft")} | {
        name: load_engine(lab, 1, num_speculative_tokens=3, **config) for name, config in settings.items()
    }
    by_method = decode_in_turn(engines, [BEGINNINGS["Ada"]], DRAWN, steps)
    plain, drafter = by_method["none"], by_method.pop("drafter")
    rows = [
        [name, w.step_seconds / plain.step_seconds, w.tokens_per_step, speedup(w, plain)]
        for name, w in by_method.items()
    ]
    window = by_method["tales-draft, sampled drafts"]
    verifying, drafting = (
        w.step_seconds / plain.step_seconds for w in (by_method["one that is always wrong"], drafter)
    )
    lab.predict(
        claim="spec-4-for-1.5",
        question="what a step with 3 drafts costs, in steps without (predicted: one that verifies, and 3 of the draft model)",
        predicted=verifying + 3 * drafting,
        measured=window.step_seconds / plain.step_seconds,
        source_says=1.5,
        tolerance=0.3,
        unit="x",
        kind="timing",
        note=f"""A step that verifies costs {verifying:.2f}, a step of the draft model {drafting:.2f}: so most of the price is that of the
            proposer. And four tokens are the best case, not the usual one: a step brought {window.tokens_per_step:.2f} of
            them here, since a draft counts only if all before it are accepted.""",
    )
    lab.table(
        "One user, temperature 1, 3 drafts per step",
        ["drafts", "step costs", "tokens per step", "speed-up"],
        rows,
        note="""Greedy drafts are the default of vLLM. For sampled answers they are accepted only if the model happens to sample the
            likeliest token. Sampled drafts are accepted as often as the two distributions overlap: sum of min(p, q).""",
    )


def where_it_loses(lab: Lab) -> None:
    users = [1, 16] if lab.quick else [1, 2, 4, 8, 16, 32, 64]
    drafts = [1, 3] if lab.quick else [1, 2, 3, 4, 5, 6]
    lab.title("When speculation does not pay")
    lab.say("""More users share a step already, and the spare compute for drafts is used up. The
        speed-up is worked out from parts, each measured by itself: how often drafts are accepted; a step without drafts; a step
        that verifies k drafts which cost nothing; and a step of the draft model alone, k times. Then it is measured.""")
    most, tokens = max(drafts), 40 if lab.quick else 200
    some = load_engine(lab, 8, num_speculative_tokens=most, **DRAFT_MODEL)
    accepted = decode_in_turn({"some": some}, list(BEGINNINGS.values()), DRAWN, tokens // 4)
    acceptance = accepted["some"].accepted
    rows, worked_out, measured = [], {}, {}
    for u in lab.progress(users, "users"):
        prompts = list(islice(cycle(BEGINNINGS.values()), u))
        # Few users need many steps: acceptance is a matter of chance.
        steps = max(16 if lab.quick else 28, tokens // u)
        without = {"none": load_engine(lab, u), "drafter": load_engine(lab, u, serves="tales-draft")}
        for k in drafts:
            wrong = dict(method="custom", proposer=AlwaysProposes(*[1] * k))
            engines = without | {
                "verifying": load_engine(lab, u, num_speculative_tokens=k, **wrong),
                "drafting": load_engine(lab, u, num_speculative_tokens=k, **DRAFT_MODEL),
            }
            windows = decode_in_turn(engines, prompts, DRAWN, steps)
            cost = {name: window.step_seconds for name, window in windows.items()}
            worked_out[u, k] = expected_speedup(
                expected_tokens(acceptance, k), cost["none"], cost["verifying"], k * cost["drafter"]
            )
            measured[u, k] = speedup(windows["drafting"], windows["none"])
        best = max(drafts, key=lambda k: measured[u, k])
        rows.append([u, *(measured[u, k] for k in drafts), best])
    off = [abs(worked_out[key] / measured[key] - 1) for key in measured]
    gain = max(drafts, key=lambda k: measured[1, k])
    lab.predict(
        claim="spec-concurrency",
        question=f"speed-up for one user with {gain} draft{'s' * (gain > 1)} per step, of a draft model",
        predicted=worked_out[1, gain],
        measured=measured[1, gain],
        tolerance=0.5,
        unit="x",
        kind="timing",
    )
    lab.predict(
        claim="spec-concurrency",
        question=f"speed-up for {users[-1]} users at a time with {drafts[-1]} drafts",
        predicted=worked_out[users[-1], drafts[-1]],
        measured=measured[users[-1], drafts[-1]],
        tolerance=0.3,
        unit="x",
        kind="timing",
        note="Below 1 it is a loss: each rejected draft took time that another user's token would have used.",
    )
    pays = [u for u in users if max(measured[u, k] for k in drafts) >= 1]
    lost = [u for u in users if u > max(pays, default=0)]
    end = f"from {lost[0]} requests on no k pays" if lost else "some k pays for the most requests"
    lab.table(
        "Speed-up with k drafts of tales-draft, temperature 1",
        ["users", *(f"k = {k}" for k in drafts), "best k"],
        rows,
        note=f"""Worked out from acceptance and step costs it was off by {max(off):.0%} at most, by
            {sorted(off)[len(off) // 2]:.0%} in the middle. Here {end}.""",
    )
    lab.record(acceptance=acceptance, measured={f"{u} users, k={k}": v for (u, k), v in measured.items()})
    where = f"tales with sampled drafts of tales-draft, temperature 1, {lab.where}"
    fig = draw_speedups(users, drafts, acceptance, worked_out, measured, end, where)
    lab.figure(fig, "speculative_decoding")


def where_it_gains(lab: Lab) -> None:
    """A large model with a small draft model on GPUs, by the same formula, with times from data sheets."""
    model, drafter, accepted = find_cost("h100x4:llama-3-70b"), find_cost("h100:llama-3.2-1b"), 0.7
    lab.title("When speculation pays (computed)")
    rows = [
        [users, *(computed_speedup(model, drafter, users, k, accepted) for k in (1, 2, 4))]
        for users in (1, 8, 64, 256)
    ]
    lab.table(
        "Llama 3 70B on four H100, drafts of Llama 3.2 1B on one of them: speed-up",
        ["requests in the step", "k = 1", "k = 2", "k = 4"],
        rows,
        note=f"""16 bit, 1,024 tokens of context, a draft is accepted with probability {accepted} if those before it were. Computed
            from data sheets and recorded all-reduces, not measured.""",
    )
    lab.record(computed_speedups=rows)


def speedup(drafted: Window, plain: Window) -> float:
    """Tokens per second with drafts, over those without."""
    return drafted.tokens_per_second / plain.tokens_per_second


Speedups = dict[tuple[int, int], float]  # by users and drafts


def draw_speedups(
    users: list[int], drafts: list[int], acceptance: list[float], worked_out: Speedups, measured: Speedups, end: str, where: str
) -> Any:  # fmt: skip
    gain = max(measured[users[0], k] for k in drafts)
    fig, (left, right) = new_figure(
        f"The best k gives one request {gain:.2f} times the tokens per second; {end}", where, panels=2
    )
    places = range(1, len(acceptance) + 1)
    left.bar(places, acceptance, color=BLUE, width=0.6)
    for place, share in zip(places, acceptance, strict=True):
        left.text(place, share + 0.01, f"{share:.2f}", ha="center", color=MUTED)
    left.set(
        xticks=places,
        ylim=(0, 1),
        xlabel="position of the draft",
        ylabel="share accepted, with all before it",
    )
    left.set_title("Acceptance by position", loc="left", fontsize=10)
    shown = [drafts[0], drafts[len(drafts) // 2], drafts[-1]]
    for k, color in zip(dict.fromkeys(shown), (BLUE, ORANGE, GREEN)):
        right.plot(users, [measured[u, k] for u in users], "o-", color=color, label=f"k = {k}")
        right.plot(users, [worked_out[u, k] for u in users], "--", color=color, lw=1)
    right.axhline(1, color=MUTED, lw=1)
    right.set_xscale("log", base=2)
    plain_numbers(right, "x")
    right.set(xlabel="requests at a time", ylabel="tokens per second / those without drafts")
    right.set_title("Speed-up: measured (dots), computed (dashes)", loc="left", fontsize=10)
    right.legend()
    return fig
