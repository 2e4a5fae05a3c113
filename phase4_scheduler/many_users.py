"""Many users stream at once: the whole engine at work, text appearing in every window.

Everything of the four phases works together here. Users arrive one after another, each with a beginning of
a story. The tokenizer cuts it into tokens, the scheduler admits them, the block manager gives them memory,
one model computes for all of them in the same steps, the sampler picks a token for each by their own
settings, and each user's text appears as it is written.

Then each story is told again, alone. It comes out word for word the same: nobody's neighbours matter. (In
16 bit a sum in another order may be rounded to another word; in float32, the default, it hardly ever is.)
"""

from __future__ import annotations

import argparse

from rich.console import Group
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from labkit.lab import WIDTH, Lab, run_lab
from phase2_attention_kvcache.model.sampling_params import SamplingParams
from phase4_scheduler.engine.engine import LLMEngine
from phase4_scheduler.engine.outputs import RequestOutput

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


class Windows:
    """What the users see: one line of state and one of text each, redrawn after every step."""

    def __init__(self, names: list[str]) -> None:
        self.text = dict.fromkeys(names, "")
        self.state = dict.fromkeys(names, "not here yet")
        self.status = ""

    def take(self, output: RequestOutput) -> None:
        name = output.request_id
        self.text[name] += output.text
        count = len(output.metrics.token_times)
        self.state[name] = f"{count} tokens" + (f", {output.finish_reason}" if output.finished else "")

    def __rich__(self) -> Group:
        table = Table.grid(padding=(0, 2))
        table.add_column(style="bold", no_wrap=True)
        table.add_column(style="dim", no_wrap=True, width=20)
        table.add_column(no_wrap=True)
        for name, text in self.text.items():
            room = WIDTH - 36
            line = text.replace("\n", " ")
            table.add_row(
                name, self.state[name], Text(line if len(line) <= room else "…" + line[-room + 1 :])
            )
        return Group(table, Text(self.status, style="dim"))


def story(lab: Lab) -> None:
    args = lab.args
    num_users = min(args.users, len(BEGINNINGS))
    engine = LLMEngine.from_pretrained(
        args.model, dtype=args.dtype, device=lab.device, max_num_seqs=args.seats, seed=lab.seed
    )
    users = list(BEGINNINGS.items())[:num_users]
    asked = {
        name: SamplingParams(
            temperature=0.8, top_p=0.95, max_tokens=args.tokens + 7 * (i % 3), seed=lab.seed + 100 * i
        )
        for i, (name, _) in enumerate(users)
    }
    lab.title(f"{num_users} users, {args.seats} seats, one model")
    lab.say(f"""A new user arrives every {args.every} steps. When all seats are taken, users wait, and get the
        seat of whoever ends first.""")
    windows, steps, seat_steps, busiest = Windows([name for name, _ in users]), 0, 0, 0
    arriving = [(i * args.every, name, prompt) for i, (name, prompt) in enumerate(users)]
    with Live(windows, console=lab.console, refresh_per_second=12, transient=True):
        while arriving or engine.has_unfinished_requests:
            while arriving and arriving[0][0] <= steps:
                _, name, prompt = arriving.pop(0)
                engine.add_request(name, prompt, asked[name])
                windows.text[name], windows.state[name] = prompt, "waiting"
            outputs = engine.step()
            for output in outputs:
                windows.take(output)
            steps += 1
            seat_steps, busiest = seat_steps + len(outputs), max(busiest, len(outputs))
            windows.status = (
                f"step {steps}: {len(engine.scheduler.running)} running, {len(engine.scheduler.waiting)} waiting, "
                f"{engine.block_manager.usage:.1%} of the blocks in use"
            )
    for name, _ in users:
        lab.console.print(f"\n[bold]{name}[/] [dim]{windows.state[name]}[/]", highlight=False)
        lab.console.print(Padding(Text(" ".join(windows.text[name].split())), (0, 0, 0, 2)))

    lab.title("Were they really alone?")
    lab.predict(
        claim="users-undisturbed",
        question="stories that come out the same when their user is alone",
        predicted=num_users,
        measured=sum(
            prompt + engine.generate([prompt], asked[name])[0].text == windows.text[name]
            for name, prompt in users
        ),
        note="""Each user has a seed of their own, so chance repeats itself. Sums in a larger batch may be
            rounded in another order; in float32 that almost never changes a token.""",
        kind="structure" if args.dtype == "float32" else "timing",
    )
    lab.predict(
        claim="users-no-leak",
        question="blocks still held by anybody",
        predicted=0,
        measured=engine.block_manager.num_blocks - 1 - engine.block_manager.num_free_blocks,
    )
    lab.say(f"""{steps} steps served them all, {seat_steps / steps:.1f} users a step on average and {busiest} at the
        busiest. One after another they would have taken {seat_steps}.""")
    lab.record(steps=steps, seat_steps=seat_steps)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    def positive(text: str) -> int:
        if int(text) < 1:
            raise argparse.ArgumentTypeError(f"{text} is too few: 1 or more")
        return int(text)

    parser.add_argument("--users", type=positive, default=8, help="how many users, up to 8 (8)")
    parser.add_argument("--seats", type=positive, default=6, help="how many may run at a time (6)")
    parser.add_argument("--tokens", type=positive, default=50, help="least tokens of each story (50)")
    parser.add_argument("--every", type=positive, default=4, help="steps from one arrival to the next (4)")


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
