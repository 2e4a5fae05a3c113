"""From a conversation to one text, in the form that a model was trained on.

A model knows no messages. A chat template, a small program in Jinja, writes them down with special tokens between them:

    [{"role": "user", "content": "Hello"}]  ->  "<|im_start|>user\\nHello<|im_end|>\\n<|im_start|>assistant\\n"

The template is untrusted code from the model's files. The library transformers runs it in Jinja's sandbox, as for vLLM: there it can
read the messages, change nothing and call nothing else. Its time and memory have no limit: a hostile template can keep a thread
busy.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jinja2

from labkit.foreign import visible


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
        # Takes half a second. `render` would compile it too, but a bad template is to be found when the model is loaded.
        from transformers.utils.chat_template_utils import _compile_jinja_template

        self.source, self.special_tokens = source, dict(special_tokens)
        try:
            _compile_jinja_template(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise ValueError(f"the chat template cannot be used: {visible(error, 200)}") from None

    def render(
        self,
        /,
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
        from transformers.utils.chat_template_utils import render_jinja_template

        flags = dict(
            add_generation_prompt=add_generation_prompt, continue_final_message=continue_final_message
        )
        try:
            (text,), _ = render_jinja_template(
                [messages], chat_template=self.source, **flags, **(self.special_tokens | variables)
            )
        except jinja2.TemplateError as error:  # its own word, raise_exception's for instance
            raise ValueError(f"the chat template refuses these messages: {visible(error, 300)}") from None
        except Exception as error:  # it is a program: anything may go wrong in it
            if continue_final_message and "continue_final_message" in str(error):
                raise ValueError(
                    "the chat template changes the last message: it cannot be continued"
                ) from None
            what = visible(f"{type(error).__name__}: {error}", 200)
            raise ValueError(f"the chat template fails on these messages: {what}") from None
        return text

    def after_answer(self) -> str:
        """What the template writes after an answer, "<|im_end|>" for instance: where it begins, a model has ended its own.

        Raises:
            ValueError: it refuses even one question and one answer.
        """
        talk = [{"role": "user", "content": "question"}, {"role": "assistant", "content": "answer"}]
        return self.render(talk, add_generation_prompt=False).rpartition("answer")[2]
