"""Your own engine: which parts are yours, a story, eight users at once, its decisions beside vLLM's, its throughput.

    lab mine                                  all of it
    lab mine --scoreboard                     goodput of your scheduler and policy on a fixed trace, beside rivals
    lab mine --in-vllm ENV/bin/python         my_engine/policy.py decides in the real vLLM of that environment

The engine lies in my_engine/. A right answer to an exercise goes there by itself; until then a part is the course's.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run by its path: `lab mine`

from rich.live import Live
from rich.table import Table

from exercises.capstone import decisions
from exercises.capstone.parts import folder, make_folder, parts
from exercises.capstone.recorder import Recorder
from exercises.judging.engine_runs import timed
from exercises.judging.sources import source_of, title_of
from labkit.errors import LabError
from labkit.models import find_model
from labkit.options import Parser
from labkit.paths import outputs, short, write_whole
from labkit.terminal import Page, escape, run
from phase2_attention_kvcache.model import SamplingParams, generate_naive
from phase4_scheduler.engine import LLMEngine
from phase4_scheduler.story.windows import BEGINNINGS
from phase5_real_gpu.benchmarks.vllm_process import INSTALL, add_timeout

WORKLOADS = 40  # of the recordings
TOKENS = 48  # of each answer


def draw_parts(console: Page) -> None:
    """Which part of the engine is whose, and how many lines the learner wrote."""
    table = Table(box=None, pad_edge=False, title="my_engine/", title_justify="left", title_style="bold")
    for column in ("file", "part", "", "lines"):
        table.add_column(column, justify="right" if column == "lines" else "left")
    found, before = list(parts()), ""
    for part in found:
        whose = "[green]yours[/]" if part.lines else "[dim]the course's[/]"
        title = escape(title_of(source_of(part.exercise)))
        table.add_row(part.file * (part.file != before), title, whose, str(part.lines or ""))
        before = part.file
    console.print(table)
    mine = [part for part in found if part.lines]
    console.print(
        f"{len(mine)} of {len(found)} parts are yours, {sum(part.lines for part in mine)} lines. What holds them together "
        f"is in {escape(short(folder()))}: read it, and change it.\n"
    )


def load() -> Any:
    """The learner's engine, as a module.

    Raises:
        LabError: Python cannot read it.
    """
    sys.path.insert(0, str(folder().parent))
    try:
        return import_module("my_engine.engine")
    except Exception as error:
        raise LabError(
            f"{short(folder())} cannot be imported ({type(error).__name__}: {error}): mend the file, or delete it, and the "
            "course's parts come back"
        ) from None


def tell_story(console: Page, module: Any, prompt: str) -> None:
    engine = module.Engine(find_model("tales"))
    console.print(escape(prompt), end="", highlight=False)
    for text in engine.stream(prompt, module.Params(60, temperature=0.8, top_p=0.95, seed=5)):
        console.print(escape(text), end="", highlight=False, soft_wrap=True)
    console.print("\n")


def serve_eight(console: Page, module: Any, recording: Path) -> None:
    """Eight users stream at once in a cache that is too small for all of them."""
    engine = module.Engine(find_model("tales"), 24)
    events: list[dict[str, Any]] = []
    Recorder(engine, events.append)
    texts, began = dict(BEGINNINGS), time.perf_counter()
    for i, (name, prompt) in enumerate(BEGINNINGS.items()):
        engine.add_request(name, prompt, module.Params(TOKENS, temperature=0.8, top_p=0.95, seed=i))
    with Live(console=console, refresh_per_second=12, transient=True) as live:
        while engine.has_requests:
            for name, text, _ in engine.step():
                texts[name] += text
            live.update(windows(texts, console.width))
    write_whole(recording, "".join(json.dumps(event) + "\n" for event in events))
    console.print(windows(texts, console.width))
    figures = engine.report(ttft_slo=1.0, tpot_slo=0.1)
    goodput = figures.pop("goodput")
    told = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in figures.items())
    console.print(
        f"{len(events)} steps, {time.perf_counter() - began:.1f} s. {told}, goodput {goodput:.2f} requests per second "
        f"(SLO: first token in 1 s, 0.1 s per token).\nFor the glass engine (lab web, the piece replay): {escape(short(recording))}\n"
    )


def windows(texts: dict[str, str], width: int) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(no_wrap=True)
    room = max(10, width - 10)
    for name, text in texts.items():
        line = " ".join(text.split())
        table.add_row(name, escape(line if len(line) <= room else "…" + line[-room + 1 :]))
    return table


def compare_decisions(console: Page) -> int:
    """How many recorded workloads the engine's scheduler decides as vLLM does."""
    recordings = decisions.workloads(WORKLOADS)
    with console.status("deciding what vLLM decided ..."):
        found = [decisions.first_difference("my_engine", recording) for recording in recordings]
    different = [difference for difference in found if difference]
    equal = len(found) - len(different)
    console.print(
        f"Your scheduler agrees with vLLM 0.32 on {equal} of {len(found)} recorded workloads, step by step."
    )
    if different:
        console.print(f"The first that differs: {escape(different[0])[:400]}", highlight=False)
    console.print()
    return len(different)


def compare_throughput(console: Page, module: Any) -> bool:
    """Tokens per second: without a cache, with a cache for one user at a time, your engine, the course's. Whether the tokens agree."""
    folder_, prompts = find_model("tales"), list(BEGINNINGS.values())
    greedy = SamplingParams(temperature=0, max_tokens=TOKENS)
    course = LLMEngine.from_pretrained("tales", dtype="float32", device="cpu", max_num_seqs=8)
    write_alone = import_module("my_engine.cache").write_alone
    mine = module.Engine(folder_)
    ids = [course.tokenizer.encode(prompt) for prompt in prompts]
    ends = course.model.config.eos_token_ids
    ways = {
        "no cache, one user at a time": lambda: [
            generate_naive(course.model, i, TOKENS, stop_ids=ends).token_ids for i in ids
        ],
        "your cache (2.5), one user at a time": lambda: [write_alone(mine.model, i, TOKENS) for i in ids],
        "your engine": lambda: mine.generate(prompts, [module.Params(TOKENS)] * len(prompts)),
        "the course's engine": lambda: [output.token_ids for output in course.generate(prompts, greedy)],
    }
    table, answers = Table(box=None, pad_edge=False), []
    for column in ("8 users", "tokens per second"):
        table.add_column(column, justify="right" if column != "8 users" else "left")
    for name, way in ways.items():
        with console.status(f"{name} ..."):
            tokens, seconds = timed(way)
        answers.append(tokens)
        table.add_row(name, f"{sum(map(len, tokens)) / seconds:,.0f}")
    console.print(table)
    same = all(tokens == answers[-1] for tokens in answers)
    console.print(
        "All four write the same tokens.\n" if same else "[red]They do not write the same tokens.[/]\n"
    )
    return same


def show(a: argparse.Namespace) -> int:
    console = Page(highlight=False)
    make_folder()
    if a.in_vllm:
        from exercises.capstone.in_vllm import compare_policies

        return compare_policies(console, a.in_vllm, a.policy or f"{folder() / 'policy.py'}:Policy", a.timeout)
    module = load()
    if a.scoreboard:
        from exercises.capstone.scoreboard import show_scores

        return show_scores(console)
    draw_parts(console)
    tell_story(console, module, a.prompt)
    recording = outputs() / "my_engine.jsonl"
    serve_eight(console, module, recording)
    different = compare_decisions(console)
    same = compare_throughput(console, module)
    return 0 if same and not different else 1


def main(argv: Sequence[str] | None = None) -> int | None:
    parser = Parser(prog="lab mine", description=__doc__)
    add = parser.add_argument
    add("--prompt", default="Once upon a time there was a king who", help="the beginning of the story")
    add("--in-vllm", metavar="PYTHON", type=Path, help=f"the Python of an environment with vLLM. {INSTALL}")
    add("--scoreboard", action="store_true", help="goodput on a fixed trace, beside rivals")
    add("--policy", metavar="FILE:CLASS", help="another policy than my_engine/policy.py:Policy")
    add_timeout(parser)
    args = parser.parse_args(argv)
    if args.policy and not args.in_vllm:
        parser.error("--policy goes with --in-vllm; elsewhere my_engine/policy.py decides")
    return run(lambda: show(args))


if __name__ == "__main__":
    raise SystemExit(main())
