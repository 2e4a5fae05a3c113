"""From a conversation to one text, in the form that a model was trained on.

A model knows no messages. A chat template, a small program in Jinja, writes them down with special tokens between them:

    [{"role": "user", "content": "Hello"}]  ->  "<|im_start|>user\\nHello<|im_end|>\\n<|im_start|>assistant\\n"

The template is untrusted code from the model's files. Jinja's sandbox runs it: there it can read the messages, change nothing and
call nothing else. Its time and memory have no limit, here as in vLLM: a hostile template can keep a thread busy.

Source: transformers, `utils/chat_template_utils.py`, for the functions that templates may use.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from labkit.foreign import visible


class Generation(jinja2.ext.Extension):
    """{% generation %} ... {% endgeneration %}: templates mark the training target with it. Here it is plain text."""

    tags = {"generation"}  # noqa: RUF012  jinja2 wants it so

    def parse(self, parser: jinja2.parser.Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(["name:endgeneration"], drop_needle=True)


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
        sandbox = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation]
        )
        sandbox.filters["tojson"] = _to_json
        sandbox.globals |= {"raise_exception": _refuse, "strftime_now": _now}
        self.special_tokens = dict(special_tokens)
        try:
            self._template = sandbox.from_string(source)
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
            ValueError: the template refuses these messages or fails.
        """
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
    return json.dumps(value, **({"ensure_ascii": False} | options))
