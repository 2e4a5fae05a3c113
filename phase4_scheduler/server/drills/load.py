"""The users of a drill. Each user sends a prompt, reads the answer, thinks, and sends the next prompt.

This is a closed loop: a client that waits for an answer sends nothing. So the same users load a fast and a slow machine
alike, and the result of a drill does not depend on the machine. (In an open loop requests arrive at a given rate, whether or not
answers return.)
"""

import asyncio
import math
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from phase4_scheduler.server.client import complete

STORY = (
    "the old king went to sea with a small boat and his brave dog under many bright stars until one morning he "
    "saw an island where tall green trees and strange birds sang songs about bread gold wind rain and home"
)


def words(rng: random.Random, count: int) -> str:
    """Text of so many words, which are about as many tokens."""
    return " ".join(rng.choices(STORY.split(), k=count))


def plain(count: int) -> Callable[[random.Random], str]:
    """Prompts of so many words, no two alike."""
    return lambda rng: words(rng, count)


def documents(count: int) -> Callable[[random.Random], str]:
    """Prompts about one of so many documents of 150 words: the same document begins with the same words."""

    def prompt(rng: random.Random) -> str:
        document = words(random.Random(f"document {rng.randrange(count)}"), 150)
        return f"{document} {words(rng, 10)}"

    return prompt


def dated(count: int) -> Callable[[random.Random], str]:
    """The same with the time in front, so that no two begin alike."""
    return lambda rng: f"{time.time():.3f}: {documents(count)(rng)}"


PROMPTS = {"words": plain, "documents": documents, "dated documents": dated}


@dataclass(frozen=True)
class Users:
    """Users with the same behaviour.

    Attributes:
        count: how many of them. prompt: makes one of their prompts.
        max_tokens: of each answer; it has exactly so many.
        think: seconds from an answer to the next prompt, on average.
    """

    count: int
    prompt: Callable[[random.Random], str]
    max_tokens: int
    think: float = 0.0


class Load:
    """A thread that plays all users, until its block is left.

    Args:
        seed: for prompts and pauses.

    Attributes:
        errors: what went wrong with requests, as messages.
        gaps: (seconds from the first piece of an answer to its last, pieces after the first).
    """

    def __init__(self, seed: int) -> None:
        self._seed, self._changes = seed, 0
        self.errors: list[str] = []
        self.gaps: list[tuple[float, int]] = []
        self._loop = asyncio.new_event_loop()
        self._tasks: list[asyncio.Task] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name="users", daemon=True)

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.change("", ())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def change(self, address: str, groups: tuple[Users, ...]) -> None:
        """From now on these users, at this server; those of before hang up."""
        asyncio.run_coroutine_threadsafe(self._change(address, groups), self._loop).result()

    async def _change(self, address: str, groups: tuple[Users, ...]) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._changes += 1  # or they would ask the same again
        users = [group for group in groups for _ in range(group.count)]
        self._tasks = [
            asyncio.create_task(self._live(address, user, random.Random(f"{self._seed} {self._changes} {i}")))
            for i, user in enumerate(users)
        ]

    def mean_gap(self) -> float:
        """Seconds from a piece to the next, over the answers that are noted in `gaps`; NaN if there are none."""
        pieces = sum(count for _, count in self.gaps)
        return sum(seconds for seconds, _ in self.gaps) / pieces if pieces else math.nan

    async def _live(self, address: str, user: Users, rng: random.Random) -> None:
        """One user."""
        await asyncio.sleep(rng.uniform(0, user.think or 0.2))  # they do not begin in step
        while True:
            body = {
                "prompt": user.prompt(rng),
                "max_tokens": user.max_tokens,
                "ignore_eos": True,
                "temperature": 0,
            }
            answer = await complete(address, body)
            if answer.error is not None:
                self.errors.append(answer.error)
            elif len(answer.times) > 1:
                self.gaps.append((answer.times[-1] - answer.times[0], len(answer.times) - 1))
            await asyncio.sleep(rng.expovariate(1 / user.think) if user.think else 0.0)
