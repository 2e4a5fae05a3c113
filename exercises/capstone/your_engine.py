"""For the cells "Into the engine" of exercises whose answers are parts of `my_engine/`: that engine with the learner's part.

The same requests are served twice, by the complete engine and with the learner's part in it; every decision has to agree, and
every word. `lab mine` then runs the engine with all of the learner's parts.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor

from exercises.capstone.parts import COMPLETE, complete
from exercises.capstone.recorder import Recorder
from exercises.judging.engine_runs import PROMPTS, passed, refuse, same_or_stop
from exercises.judging.registry import find
from exercises.judging.verdict import NotYet
from labkit.models import find_model
from labkit.paths import ROOT

if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))  # a notebook runs elsewhere, and COMPLETE is in no package of the course

BEGINNING = (
    "In the middle of the great forest stood a little house, and in it lived an old woman with her three sons. The eldest "
    "was strong, the second was clever, and the youngest could talk to the birds. One morning the king's messenger came "
    "to the house and said:"
)
SHARED = tuple(BEGINNING + end for end in (" The king", " Your sons", " Who of you"))
TOKENS = 16  # of each answer
Waves = Sequence[Sequence[str]]
WAVES: Waves = ((*PROMPTS, *SHARED), SHARED[:2])  # the second comes when all of the first are answered


class Served(NamedTuple):
    """What came out of the engine.

    Attributes:
        events: of each step, see `Recorder`. prompt: the first. texts: of the answers.
        alone: the tokens of the first answer, written without the engine, with a cache in one piece.
        figures: of latency. expected: the same, by the course's functions.
    """

    events: list[dict[str, Any]]
    prompt: str
    texts: list[str]
    alone: list[int]
    figures: dict[str, float]
    expected: dict[str, float]


def in_your_engine(
    exercise: str, *answers: Any, parts: Mapping[str, Any] | None = None, num_blocks: int = 14, **how: Any
) -> Served:
    """Serve some requests with the learner's part and without it, print what both gave, and return it.

    Args:
        parts: what is put into the engine by its name there; None: the answers. num_blocks, how: see `serve`.

    Raises:
        NotYet: the part has not passed its check, or the engine decides or writes something else with it.
    """
    passed(exercise, *answers)
    course = serve({}, num_blocks, **how)
    try:
        mine = serve(parts or dict(zip(find(exercise).asks, answers)), num_blocks, **how)
    except Exception as error:
        says = "With your part the engine could not go on."
        refuse(
            NotYet("fails-in-the-engine", says, PROMPTS[0], f"{type(error).__name__}: {error}", "an answer")
        )
    for ours, theirs in zip(mine.events, course.events):
        for what in theirs:
            says = "in the engine your part decides another step than the course's"
            same_or_stop(ours[what], theirs[what], says, f"step {theirs['step'] + 1} of the engine, {what}")
    for ours, theirs in ((mine.texts, course.texts), (mine.alone, course.alone)):
        same_or_stop(ours, theirs, "with your part the engine writes something else")
    same_or_stop(mine.figures, mine.expected, "your figures are others")
    most = max(sum(event["tokens"].values()) for event in mine.events)
    preemptions = sum(len(event["preempted"]) for event in mine.events)
    first_steps = {
        name: first for event in reversed(mine.events) for name, first in event["computed"].items()
    }
    print(
        f"{len(mine.texts)} answers in {len(mine.events)} steps, each decision and each word as with the course's own part: {most} "
        f"tokens in the largest step, {preemptions} preemption{'s' * (preemptions != 1)}, {sum(first_steps.values())} prompt tokens found in the cache."
    )
    print(f"\n{mine.prompt}{mine.texts[0]} ...")
    return mine


def serve(
    parts: Mapping[str, Any],
    num_blocks: int,
    *,
    prefix_caching: bool = True,
    waves: Waves = WAVES,
    tokens: int = TOKENS,
    **limits: Any,
) -> Served:
    """The complete engine with these parts serves all waves: greedy and sampled requests, so many tokens each.

    Args:
        limits: of the scheduler (`Limits`). By default a step has at most 16 tokens, so that long prompts come in chunks.
    """
    own = import_module(f"{COMPLETE}.engine")
    events, texts = [], {}
    with engine_with(parts):
        settings = own.Limits(**{"max_num_batched_tokens": 16} | limits)
        engine = own.Engine(find_model("tales"), num_blocks, limits=settings)
        engine.scheduler.manager.prefix_caching = prefix_caching
        Recorder(engine, events.append)
        for prompts in waves:
            for prompt in prompts:
                i = len(texts)
                params = (
                    own.Params(tokens) if i % 2 else own.Params(tokens, temperature=0.7, top_p=0.9, seed=i)
                )
                texts[str(i)] = ""
                engine.add_request(str(i), prompt, params)
            while engine.has_requests:
                for name, text, _ in engine.step():
                    texts[name] += text
                if not events[-1]["tokens"]:
                    raise RuntimeError("a step schedules nothing, though requests are left")
        write_alone = import_module(f"{COMPLETE}.cache").write_alone
        alone = write_alone(engine.model, engine.tokenizer.encode(PROMPTS[0]), tokens)
        figures = engine.report(ttft_slo=1.0, tpot_slo=0.01)
    expected = engine.report(ttft_slo=1.0, tpot_slo=0.01)
    return Served(events, waves[0][0], [*texts.values()], alone, figures, expected)


@contextmanager
def engine_with(parts: Mapping[str, Any]) -> Iterator[None]:
    """The complete engine has these functions and classes in place of its own."""
    modules = [import_module(f"{COMPLETE}.{path.stem}") for path in complete().glob("[a-z]*.py")]
    with ExitStack() as stack:
        for module in modules:
            for name in parts.keys() & vars(module).keys():
                stack.enter_context(patch.object(module, name, parts[name]))
        yield


def cache_with(attend_token: Callable[..., Tensor]) -> type:
    """The engine's `PagedCache`, in which a token that comes alone (decode) attends by a function of ours.

    Args:
        attend_token: attend_token(cache, layer, q, table, length) -> [num_heads, head_dim]. q: the same, of the last of `length`
            tokens, which lie in the blocks of `table`.
    """
    module = import_module(f"{COMPLETE}.cache")

    class TokenByToken(module.PagedCache):
        def begin_step(self, parts: list[tuple[list[int], int, int]]) -> None:
            super().begin_step(parts)
            self.parts = parts

        def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            out = super().attend(layer, q, k, v)
            for (rows, _), (table, first, n) in zip(self.rows, self.parts, strict=True):
                if n == 1:
                    out[rows.start] = attend_token(self, layer, q[rows.start], table, first + 1)
            return out

        def blocks(self, layer: int) -> tuple[Tensor, Tensor]:
            """Keys and values: [num_blocks, block_size, num_heads, head_dim] each."""
            return tuple(kv[layer].unflatten(0, (-1, self.block_size)) for kv in (self.keys, self.values))

        def of_request(self, layer: int, table: list[int], length: int) -> tuple[Tensor, Tensor]:
            """The keys and values of its tokens, copied together: [length, num_heads, head_dim] each."""
            slots = torch.tensor(module.slots(table, 0, length, self.block_size))
            return self.keys[layer][slots], self.values[layer][slots]

    return TokenByToken
