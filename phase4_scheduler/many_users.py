"""Many users stream at once: the whole engine at work, text appearing in every window.

Everything of the four phases works together here. Users arrive one after another, each with a beginning of
a story. The tokenizer cuts it into tokens, the scheduler admits them, the block manager gives them memory,
one model computes for all of them in the same steps, the sampler samples a token for each by its own
settings, and each user's text appears as it is written.

Then each story is told again, alone. It comes out word for word the same: other requests do not change it. (In
16 bit a sum in another order may be rounded to another word; in float32, the default, it hardly ever is.)
"""

import argparse
from dataclasses import replace

from labkit.lab import Lab, run_lab
from labkit.options import whole
from phase2_attention_kvcache.model import SamplingParams
from phase4_scheduler.engine import LLMEngine
from phase4_scheduler.story.windows import BEGINNINGS, serve_in_windows

EVERY = 4  # steps from one arrival to the next


def story(lab: Lab) -> None:
    a = lab.args
    engine = LLMEngine.from_pretrained(
        a.model, dtype=a.dtype, device=lab.device, max_num_seqs=a.max_num_seqs, seed=lab.seed
    )
    users = dict(list(BEGINNINGS.items())[: a.users])
    some = SamplingParams(temperature=0.8, top_p=0.95)
    params = {
        name: replace(some, max_tokens=a.tokens + 7 * (i % 3), seed=lab.seed + 100 * i)
        for i, name in enumerate(users)
    }
    lab.title(f"{len(users)} users, {a.max_num_seqs} running at a time, one model")
    lab.say(f"""A new user arrives every {EVERY} steps. When {a.max_num_seqs} requests run, the next
        ones wait, and are admitted as others finish.""")
    texts, batch_sizes = serve_in_windows(lab, engine, users, params, EVERY)

    lab.title("Were they really alone?")
    lab.predict(
        claim="users-undisturbed",
        question="stories that come out the same when their user is alone",
        predicted=len(users),
        measured=sum(
            prompt + engine.generate([prompt], params[name])[0].text == texts[name]
            for name, prompt in users.items()
        ),
        note="""Each user has a seed of their own, so chance repeats itself. Sums in a larger batch may be
            rounded in another order; in float32 that almost never changes a token.""",
        kind="structure" if a.dtype == "float32" else "timing",
    )
    lab.predict(
        claim="users-no-leak",
        question="blocks still held when all are served",
        predicted=0,
        measured=engine.core.block_manager.num_blocks - 1 - engine.core.block_manager.num_free_blocks,
    )
    steps, alone = len(batch_sizes), sum(batch_sizes)
    lab.say(f"""{steps} steps served them all, {alone / steps:.1f} users a step on average and {max(batch_sizes)} at
        the busiest. One after another they would have taken {alone}.""")
    lab.record(steps=steps, steps_alone=alone)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--users", type=whole(1, len(BEGINNINGS)), default=8, help="how many users, up to 8 (8)"
    )
    parser.add_argument(
        "--max-num-seqs", type=whole(1, 1000), default=6, help="how many may run at a time (6)"
    )
    parser.add_argument("--tokens", type=whole(1, 10**6), default=50, help="least tokens of each story (50)")


def main(argv: list[str] | None = None) -> int:
    options = ("model", "device", "dtype", "seed", "quick")
    return run_lab(story, __doc__, options=options, add_arguments=add_arguments, argv=argv)


if __name__ == "__main__":
    raise SystemExit(main())
