"""From a conversation to one text, in the form that a model was trained on.

A model knows no messages. A chat template, a small program in Jinja, writes them down with special tokens between them:

    [{"role": "user", "content": "Hello"}]  ->  "<|im_start|>user\\nHello<|im_end|>\\n<|im_start|>assistant\\n"

The template is untrusted code from the model's files. It runs in a sandbox, where it can read the messages and change nothing,
and on a budget of steps and seconds: each text costs its length, and endless loops are stopped. An operation that can make a long
text from a short one, such as a format with a width, must fit the budget before it runs. (The budget does not stop every attack: a list
that contains itself twice, many times over, is small until it is printed. Only a process with limited memory would.)

Source: transformers, `utils/chat_template_utils.py`, for the functions that templates may use.
"""

import json
import math
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from datetime import datetime
from functools import wraps
from typing import Any

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.visitor import NodeTransformer

from labkit.foreign import visible

BUDGET = 10_000_000
"""Steps per rendering: 1 for each character that is joined, and the prices below for slower operations. The templates of
Qwen3 and Llama 3.1 spend 3 to 4 per character of a conversation."""
SECONDS = 5
"""Time limit per rendering. It also stops comparing and counting, which cost no steps."""
ROUND, CALL = 10, 100
GROWING = {
    *("batch", "center", "expandtabs", "indent", "join", "ljust", "replace", "rjust", "slice", "translate"),
    *("urlize", "wordwrap", "zfill"),
}
"""String methods and Jinja filters that can make a long text from a short one. The result is about as long as the product of the
two largest arguments: a text and another one that is inserted many times, or a text and a number."""


class Generation(jinja2.ext.Extension):
    """{% generation %} ... {% endgeneration %}: templates mark the training target with it. Here it is plain text."""

    tags = {"generation"}  # noqa: RUF012  jinja2 wants it so

    def parse(self, parser: jinja2.parser.Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(["name:endgeneration"], drop_needle=True)


class BoundedFormatter(SandboxedFormatter):
    """'{:>8}'.format(...), field by field."""

    def format_field(self, value: Any, spec: str) -> str:
        self._env.afford(columns(spec))
        return self._env.paid(super().format_field(value, spec))


class Budget(threading.local):
    """The rest of a rendering's budget. Each thread has its own."""

    left, deadline = BUDGET, math.inf


class BoundedSandbox(ImmutableSandboxedEnvironment):
    """A sandbox in which texts and loops cost steps, and time is limited."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self) -> None:
        self.budget = Budget()
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", Generation],
            finalize=_paid,
            optimized=False,
        )
        self.globals.pop("lipsum")  # writes nonsense of any length
        self.filters["tojson"] = _to_json
        self.filters = {name: self.metered(name, function) for name, function in self.filters.items()}
        self.filters |= {"rounds": self.rounds, "paid": self.paid}

    def compile_bounded(self, source: str) -> jinja2.Template:
        """As `from_string`, with a price put on each loop and each joining of texts."""
        tree = Priced().visit(self.parse(source)).set_environment(self)
        return jinja2.Template.from_code(self, self.compile(tree), self.make_globals(None))

    def begin(self) -> None:
        """A rendering has the whole budget."""
        self.budget.left, self.budget.deadline = BUDGET, time.monotonic() + SECONDS

    def spend(self, amount: int) -> None:
        self.budget.left -= amount
        if self.budget.left < 0:
            raise jinja2.TemplateRuntimeError(f"it took more than {BUDGET:,} steps, and was stopped")
        if time.monotonic() > self.budget.deadline:
            raise jinja2.TemplateRuntimeError(f"it took more than {SECONDS} seconds, and was stopped")

    def afford(self, amount: int) -> None:
        """Stop if the budget cannot cover this amount. The real cost is spent afterwards."""
        self.spend(amount)
        self.budget.left += amount

    def paid(self, value: Any) -> Any:
        self.spend(1 if isinstance(value, int) else size(value))
        return value

    def rounds(self, value: Any, price: int) -> Iterator[Any]:
        """The items of a loop. `price`: steps per round."""
        for item in value:
            self.spend(price)
            yield item

    def check_growth(self, name: str, *values: Any) -> None:
        """Stop a method or a filter whose result could exceed the budget."""
        if name in GROWING:
            *_, second, largest = sorted([1, 1, *map(size, values)])
            self.afford(second * largest)
        elif name == "format":
            self.afford(length_of_format(*values))

    def metered(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A filter that spends steps. An iterator becomes a list, so that its length is known."""

        @wraps(function)  # keeps the marks by which jinja passes the context
        def filtered(*args: Any, **kwargs: Any) -> Any:
            self.check_growth(name, *args, *kwargs.values())
            result = function(*args, **kwargs)
            return self.paid(list(result) if isinstance(result, Iterator) else result)

        return filtered

    def call(self, context: jinja2.runtime.Context, function: Any, *args: Any, **kwargs: Any) -> Any:
        self.spend(CALL)
        if isinstance(owner := getattr(function, "__self__", None), str):
            self.check_growth(function.__name__, owner, *args, *kwargs.values())
        return self.paid(super().call(context, function, *args, **kwargs))

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and isinstance(left, str):
            self.check_growth("format", left, *(right if isinstance(right, tuple) else [right]))
        elif isinstance(left, int) and isinstance(right, int):  # their digits
            self.spend(left.bit_length() * (abs(right) if operator == "**" else 1) + right.bit_length())
        elif operator == "*":
            self.afford(size(left) * size(right))
        return self.paid(super().call_binop(context, operator, left, right))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """The bounded version of a text's `format` or `format_map`."""
        if super().wrap_str_format(value) is None:
            return None
        write = BoundedFormatter(self).vformat
        if value.__name__ == "format_map":
            return lambda values: write(value.__self__, (), values)
        return lambda *args, **kwargs: write(value.__self__, args, kwargs)

    def is_safe_attribute(self, owner: Any, name: str, value: Any) -> bool:
        # bytes have the same methods, unbounded, and no template needs bytes
        return name not in ("encode", "to_bytes") and super().is_safe_attribute(owner, name, value)


class Priced(NodeTransformer):
    """Puts a filter around the items of each loop and around each a ~ b."""

    def visit_For(self, loop: nodes.For) -> nodes.For:
        text = sum(len(part.data) for part in loop.find_all(nodes.TemplateData))  # text of one round
        self.generic_visit(loop)
        loop.iter = nodes.Filter(loop.iter, "rounds", [nodes.Const(ROUND + text)], [], None, None)
        return loop

    def visit_Concat(self, joined: nodes.Concat) -> nodes.Filter:
        self.generic_visit(joined)
        return nodes.Filter(joined, "paid", [], [], None, None)


@jinja2.pass_context  # otherwise jinja evaluates constants once, at compile time
def _paid(context: jinja2.runtime.Context, value: Any) -> Any:
    return context.environment.paid(value)


def size(value: Any) -> int:
    """How much a value can make of another: a number as much as it says, all else as long as it is, texts in a list included."""
    if isinstance(value, int):
        return abs(value)
    if isinstance(value, Mapping):
        value = [*value.keys(), *value.values()]
    if isinstance(value, (list, tuple)):
        return len(value) + sum(len(part) for part in value if isinstance(part, str))
    return len(value) if isinstance(value, Sized) else 1


def columns(form: str) -> int:
    """A power of ten above every number in a format: no field is made wider than that.

    >>> columns("%5d of %12d")
    100
    """
    return 10 ** min(9, max(map(len, re.findall(r"\d+", form)), default=0))


def length_of_format(form: str, *values: Any) -> int:
    """Of `form % values`, at most. A number among the values is a width only in "%*d"."""
    asks = re.search(r"%[-+ #0-9.]*\*", form)
    sizes = [size(value) for value in values if asks or not isinstance(value, int)]
    return form.count("%") * max(columns(form), *sizes, 1)


class ChatTemplate:
    """A model's chat template.

    Args:
        source: the template. special_tokens: the tokens that it may name, such as {"bos_token": "<s>"}.

    Raises:
        ValueError: no template in Jinja.

    >>> template = ChatTemplate("{% for m in messages %}{{ m.role }}: {{ m.content }}\\n{% endfor %}", {})
    >>> template.render([{"role": "user", "content": "Hello"}])
    'user: Hello\\n'
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self._environment = BoundedSandbox()
        self._environment.globals |= {"raise_exception": _refuse, "strftime_now": _now}
        self.special_tokens = dict(special_tokens)
        try:
            self._template = self._environment.compile_bounded(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise ValueError(f"the chat template cannot be used: {visible(error, 200)}") from None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> str:
        """One text.

        Args:
            messages: each with "role" and "content".
            add_generation_prompt: append the beginning of an answer, so that the model writes one.
            continue_final_message: end where the last message ends, so that the model goes on with it.
            variables: more that the template may ask for, such as Qwen's `enable_thinking`.

        Raises:
            ValueError: the template refuses these messages, fails, or does not end.
        """
        self._environment.begin()
        known = self.special_tokens | {"tools": None, "documents": None} | variables
        try:
            text = self._template.render(
                messages=messages, add_generation_prompt=add_generation_prompt, **known
            )
        except jinja2.TemplateError as error:  # its own word, raise_exception's for instance
            raise ValueError(f"the chat template refuses these messages: {visible(error, 300)}") from None
        except Exception as error:  # it is a program: anything may go wrong in it
            what = visible(f"{type(error).__name__}: {error}", 200)
            raise ValueError(f"the chat template fails on these messages: {what}") from None
        if continue_final_message:
            last = messages[-1]["content"].strip()
            if last not in text:
                raise ValueError("the chat template changes the last message: it cannot be continued")
            text = text[: text.rindex(last) + len(last)]
        return text

    def after_answer(self) -> str:
        """What the template writes after an answer, "<|im_end|>" for instance: where it begins, a model has ended its own.

        Raises:
            ValueError: it refuses even one question and one answer.
        """
        talk = [{"role": "user", "content": "question"}, {"role": "assistant", "content": "answer"}]
        return self.render(talk, add_generation_prompt=False).rpartition("answer")[2]


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)


def _to_json(value: Any, **options: Any) -> str:
    """Jinja's own filter writes "<" as \\u003c, for web pages."""
    if max(map(size, options.values()), default=0) > 16:
        raise jinja2.TemplateRuntimeError("tojson: indent and separators of at most 16 characters")
    return json.dumps(value, **({"ensure_ascii": False} | options))
