"""A conversation in a terminal: lines in, answers out as they are written, and what each turn took."""

import sys
from collections.abc import Iterator
from contextlib import suppress

from rich.console import Console

from labkit.foreign import harmless, quoted, visible
from labkit.terminal import Page, escape
from phase2_attention_kvcache.story.telling import WordWrap
from phase4_scheduler.features.conversation import Conversation, Turn

HELP = """\
/system TEXT      what the model is told first, of how to answer; without TEXT: nothing
/prompt           the conversation as the model reads it: as text, and as token ids
/new              forget the conversation (the system message stays)
/quit             end; so does Ctrl-D. Ctrl-C ends an answer"""


class ChatTerminal:
    """Reads lines, and shows answers.

    The answers go to stdout, everything else to stderr, so `echo Hello | lab chat > answer.txt` keeps the answer alone.
    """

    def __init__(self, conversation: Conversation) -> None:
        self.conversation = conversation
        self.notes = Console(stderr=True, emoji=False, soft_wrap=True, highlight=False)
        self.width = Page().width

    def note(self, text: str) -> None:
        self.notes.print(f"[dim]{escape(text)}[/]")

    def _complain(self, error: Exception) -> None:
        self.notes.print(f"[red]error:[/] {escape(visible(error, 500))}")

    def run(self) -> None:
        """Until the lines end, or /quit."""
        for line in lines():
            if not line.startswith("/"):
                self._answer(line)
                continue
            name, _, rest = line[1:].partition(" ")
            if name in ("quit", "exit"):
                return
            try:
                self._obey(name, rest.strip())
            except ValueError as error:
                self._complain(error)

    def _answer(self, text: str) -> None:
        wrap = WordWrap(_write, self.width - 2) if sys.stdout.isatty() else _write
        said = self.conversation.ask(text)
        turns = len(self.conversation.turns)
        try:
            for piece in said:
                wrap(harmless(piece))
        except KeyboardInterrupt:
            said.close()  # the request is aborted, what was written stays
        except ValueError as error:
            self._complain(error)
        if len(self.conversation.turns) > turns:
            _write("\n")
            self.note(describe(self.conversation.turns[-1]))

    def _obey(self, command: str, text: str) -> None:
        """Raises ValueError: no such command."""
        talk = self.conversation
        match command:
            case "system":
                talk.system = text
                self.note(
                    "the system message is set: the next turn begins differently, so the prefix cache has nothing of it"
                )
            case "prompt":
                text, ids = talk.prompt()
                self.note(f"{text!r}\n{len(ids)} tokens: {ids}")
            case "new":
                talk.messages = talk.messages[: int(bool(talk.system))]
                self.note("a new conversation")
            case "help":
                self.note(HELP)
            case _:
                raise ValueError(f"no command is called {quoted('/' + command)}: /help lists them")


def describe(turn: Turn) -> str:
    """One line on a turn.

    >>> describe(Turn(100, 80, 41, 0.02, 0.42, "stop", 0))
    'first token after 20 ms, then 100 tokens per second · prompt 100 tokens: 80 from the prefix cache (80%), 20 computed'
    """
    parts = ["no token"] if turn.ttft is None else [f"first token after {1e3 * turn.ttft:,.0f} ms"]
    if turn.tokens > 1:
        parts[0] += f", then {(turn.tokens - 1) / (turn.seconds - turn.ttft):,.0f} tokens per second"
    share, new = turn.cached_tokens / turn.prompt_tokens, turn.prompt_tokens - turn.cached_tokens
    parts.append(
        f"prompt {turn.prompt_tokens:,} tokens: {turn.cached_tokens:,} from the prefix cache ({share:.0%}), {new:,} computed"
    )
    if turn.forgotten:
        parts.append(f"the oldest {turn.forgotten} messages are forgotten, the context is full")
    ends = {"length": "cut off: --tokens allows no more", "abort": "interrupted"}
    return " · ".join(parts + ([ends[turn.finish_reason]] if turn.finish_reason in ends else []))


def lines() -> Iterator[str]:
    """What the user says, until Ctrl-D or the end of a file. Empty lines say nothing."""
    if sys.stdin.isatty():
        with suppress(ImportError):
            import readline  # noqa: F401  arrow keys and a history, where the system has it
        read = lambda: input("\n> ")  # noqa: E731
    else:
        read = input
    while True:
        try:
            line = read().strip()
        except EOFError:
            if sys.stdin.isatty():
                _write("\n")
            return
        if line:
            yield line


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
