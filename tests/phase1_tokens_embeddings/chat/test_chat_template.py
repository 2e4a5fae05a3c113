"""Chat templates: as transformers renders them, and those that fail."""

import json

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from labkit.models import find_model
from phase1_tokens_embeddings.chat import ChatTemplate
from phase1_tokens_embeddings.weights.gguf_model import load_chat_template

# In the manner of Qwen and Llama 3: what real templates use, in few lines.
CHATML = """\
{%- if tools %}{{ raise_exception('no tools') }}{% endif -%}
{%- set ns = namespace(seen=0) -%}
{{- bos_token }}
{%- for message in messages if message.content is string %}
    {%- if loop.first and messages[0].role != 'system' %}{{ '<|im_start|>system\\n' ~ 'Be kind.' ~ '<|im_end|>\\n' }}{% endif %}
    {%- if message.role not in ['system', 'user', 'assistant'] %}{% continue %}{% endif %}
    {%- set ns.seen = ns.seen + message.content|length * 2 %}
    {{- '<|im_start|>' + [message['role'], ''] | join | replace('user', 'human') | indent(2) + '\\n' + message.content.split('</think>')[-1]|trim + '<|im_end|>' + '\\n' }}
    {%- if loop.last %}{{ message | tojson }}{{ [ns.seen, loop.length, loop.index0] | tojson(indent=1) }}{% endif %}
{%- endfor %}
{%- macro tail(role) %}<|im_start|>{{ role }}
{% endmacro %}
{%- if add_generation_prompt %}{{ tail('assistant') }}{% if enable_thinking is defined %}<think>{% endif %}{% endif %}"""
TALK = [
    {"role": "user", "content": "Who? <b>é"},
    {"role": "ghost", "content": "Boo"},
    {"role": "assistant", "content": "<think>hm</think>\n\nI.\n"},
    {"role": "user", "content": "  And\nwho else?  "},
]


@pytest.mark.parametrize("prompt", [True, False])
@pytest.mark.parametrize("source", [CHATML, (find_model("tales") / "chat_template.jinja").read_text("utf-8")])
def test_rendered_as_by_transformers(source, prompt):
    for talk in (TALK[:1], TALK, [{"role": "system", "content": "Be brief."}, *TALK]):
        for variables in ({}, {"enable_thinking": False}):
            known = {"bos_token": "<s>"} | variables
            theirs, _ = render_jinja_template(
                [talk], chat_template=source, add_generation_prompt=prompt, **known
            )
            ours = ChatTemplate(source, {"bos_token": "<s>"}).render(talk, prompt, **variables)
            assert ours == theirs[0]


def test_a_message_that_is_to_be_continued():
    template = ChatTemplate("{% for m in messages %}<{{ m.content }}>{% endfor %}", {})
    assert template.render(TALK[:3], continue_final_message=True).endswith("I.")
    shouting = ChatTemplate("{% for m in messages %}{{ m.content|upper }}{% endfor %}", {})
    with pytest.raises(ValueError, match="changes the last message"):
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
