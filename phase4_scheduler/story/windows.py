"""The windows of many_users.py: each user's text, as it appears."""

from rich.console import Group
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from labkit.foreign import harmless
from labkit.lab import Lab
from phase2_attention_kvcache.model import SamplingParams
from phase4_scheduler.engine import LLMEngine

BEGINNINGS = {
    "Ada": "Once upon a time there was a king who",
    "Ben": "The cat looked at the moon and",
    "Cleo": '"Who are you?" said the',
    "Dan": "Deep in the forest stood a little house, and",
    "Eve": "The sea was very calm that night, but",
    "Finn": '"I shall never go home again," said',
    "Gus": "In the garden there lived a snail that",
    "Hana": "The youngest of the three brothers",
}


def serve_in_windows(
    lab: Lab, engine: LLMEngine, prompts: dict[str, str], params: dict[str, SamplingParams], every: int
) -> tuple[dict[str, str], list[int]]:
    """Serve all users, the next one `every` steps after the one before, and show their texts meanwhile.

    Returns:
        Each user's whole text, and the number of requests in each step.
    """
    texts, states = dict.fromkeys(prompts, ""), dict.fromkeys(prompts, "not here yet")
    arrivals = [(i * every, name) for i, name in enumerate(prompts)]
    batch_sizes: list[int] = []
    with Live(console=lab.console, refresh_per_second=12, transient=True) as live:
        while arrivals or engine.has_unfinished_requests:
            while arrivals and arrivals[0][0] <= len(batch_sizes):
                _, name = arrivals.pop(0)
                engine.add_request(name, prompts[name], params[name])
                texts[name], states[name] = prompts[name], "waiting"
            outputs = engine.step()
            batch_sizes.append(len(outputs))
            for output in outputs:
                texts[output.request_id] += harmless(output.text)
                state = f"{len(output.metrics.token_times)} tokens"
                states[output.request_id] = state + (f", {output.finish_reason}" if output.finished else "")
            live.update(_windows(texts, states, engine, len(batch_sizes), lab.console.width))
    for name, text in texts.items():
        lab.console.print(f"\n[bold]{name}[/] [dim]{states[name]}[/]", highlight=False)
        lab.console.print(Padding(Text(" ".join(text.split())), (0, 0, 0, 2)))
    return texts, batch_sizes


def _windows(
    texts: dict[str, str], states: dict[str, str], engine: LLMEngine, steps: int, width: int
) -> Group:
    """One line a user with its state and the end of its text, and a line on the engine."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(style="dim", no_wrap=True, width=20)
    table.add_column(no_wrap=True)
    room = max(10, width - 36)
    for name, text in texts.items():
        line = text.replace("\n", " ")
        table.add_row(name, states[name], Text(line if len(line) <= room else "…" + line[-room + 1 :]))
    status = (
        f"step {steps}: {len(engine.core.scheduler.running)} running, {len(engine.core.scheduler.waiting)} waiting, "
        f"{engine.core.block_manager.usage:.1%} of the blocks in use"
    )
    return Group(table, Text(status, style="dim"))
