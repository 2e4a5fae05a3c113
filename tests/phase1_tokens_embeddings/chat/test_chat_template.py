"""Chat templates: what they are told, and those that fail."""

import json

import pytest

from phase1_tokens_embeddings.chat import ChatTemplate
from phase1_tokens_embeddings.weights.gguf_model import load_chat_template

TALK = [
    {"role": "user", "content": "Who? <b>é"},
    {"role": "ghost", "content": "Boo"},
    {"role": "assistant", "content": "<think>hm</think>\n\nI.\n"},
    {"role": "user", "content": "  And\nwho else?  "},
]


def test_what_a_template_may_name():
    end = "{% if add_generation_prompt %}>{% endif %}"
    template = ChatTemplate("{{ bos_token }}{{ messages|length }}{{ mood }}" + end, {"bos_token": "<s>"})
    assert template.render(TALK) == "<s>4>"
    assert template.render(TALK, add_generation_prompt=False, mood="!") == "<s>4!"
    assert template.render(TALK, bos_token="!") == "!4>"


def test_a_message_that_is_to_be_continued():
    template = ChatTemplate("{% for m in messages %}<{{ m.content }}>{% endfor %}", {})
    assert template.render(TALK[:3], continue_final_message=True).endswith("I.\n")
    shouting = ChatTemplate("{% for m in messages %}{{ m.content|upper }}{% endfor %}", {})
    with pytest.raises(ValueError, match="changes the last message: it cannot be continued"):
        shouting.render(TALK, continue_final_message=True)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('roles must\x1b[2J\nalternate') }}", r"refuses.*: roles must\\x1b\[2J\\nalternate"),
        ("{{ 1 / 0 }}", "fails on these messages: ZeroDivisionError"),
        ("{{ messages[9].content }}", "has no element 9"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "'append' of 'list' object is unsafe"),
    ],
)  # fmt: skip
def test_a_template_that_fails_is_one_line(source, message):
    with pytest.raises(ValueError, match=message) as caught:
        ChatTemplate(source, {}).render(TALK)
    assert "\n" not in str(caught.value) and "\x1b" not in str(caught.value)


def test_templates_of_a_folder(tmp_path):
    settings = tmp_path / "tokenizer_config.json"
    assert load_chat_template(tmp_path) is None
    settings.write_text(
        json.dumps({"chat_template": "{{ bos_token }}!", "bos_token": {"content": "<s>"}, "eos_token": None})
    )
    assert load_chat_template(tmp_path).render(TALK) == "<s>!"
    (tmp_path / "chat_template.jinja").write_text("{% generation %}{{ eos_token }}?{% endgeneration %}")
    assert load_chat_template(tmp_path).render(TALK) == "?"
    (tmp_path / "chat_template.jinja").write_text("{% if %}")
    with pytest.raises(ValueError, match=f"{tmp_path}: the chat template cannot be used: Expected an expr"):
        load_chat_template(tmp_path)
