"""Chat templates: as transformers renders them, and those that mean no good."""

import json

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from labkit.models import find_model
from phase1_tokens_embeddings.chat import ChatTemplate, chat_template
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


@pytest.mark.parametrize(
    "source",
    [
        "{{ '%-8s|%03d|%.1f|%%' % (messages[0].role, 7, 0.5) }}",
        "{{ '**%s** since %d, December 2023' % ('Ann', 1700000000) }}",
        "{{ '%(who)s: %(what)r' % {'who': 'Ann', 'what': messages[0].content} }}",
        "{{ '%s, %s'|format('Ann', messages[0].role) }}",
        "{{ '{0:>8}|{1:,}|{2.role}'.format('Ann', 1700000000, messages[0]) }}",
        "{{ '{{\"name\": \"{who}\", \"width\": {width:{width}}}}'.format(who='Ann', width=12) }}",
        "{{ '-' * 20 }}{{ 3 * '=' }}{{ 2 ** 10 * 7 }}{{ ([0] * 3)|length }}",
        "{{ 'Ann'|center(20) }}{{ 'Ann'.center(20, '*') }}{{ 'Ann'.ljust(9) }}{{ '7'.zfill(width) }}",
        "{{ 'a\nb'|indent(2, true) }}{{ 'a\nb'|indent(width=4) }}{{ ' a b '.strip().split() }}",
        "{{ ['a', 1]|join(', ') }}{{ ', '.join(messages|map(attribute='role')) }}{{ 'a b c d'|wordwrap(3) }}",
        "{{ messages|tojson(indent=4, separators=(',', ': ')) }}{{ [1, 2, 3]|batch(2, '-')|list }}",
    ],
)  # fmt: skip
def test_what_formats_and_pads_a_little_is_rendered_as_by_transformers(source):
    theirs, _ = render_jinja_template([TALK], chat_template=source, width=5)
    assert ChatTemplate(source, {}).render(TALK, width=5) == theirs[0]


def test_a_long_conversation_is_affordable():
    """A million characters, each message changed twice: only what comes of it is paid, not what might have."""
    template = ChatTemplate(
        "{% for m in messages %}{{ m.content|replace('word', 'Word,')|indent(4) }}{% endfor %}", {}
    )
    assert len(template.render([{"role": "user", "content": "word " * 200}] * 1000)) == 1_200_000


def test_a_message_that_is_to_be_continued():
    template = ChatTemplate("{% for m in messages %}<{{ m.content }}>{% endfor %}", {})
    assert template.render(TALK[:3], continue_final_message=True).endswith("I.")
    shouting = ChatTemplate("{% for m in messages %}{{ m.content|upper }}{% endfor %}", {})
    with pytest.raises(ValueError, match="changes the last message"):
        shouting.render(TALK, continue_final_message=True)


LOOPS = "{% for a in r %}" * 4 + "x" + "{% endfor %}" * 4
HOSTILE = {
    "loops in loops": "{% set r = range(9999) %}" + LOOPS,
    "constant loops": LOOPS.replace("in r", "in 'abcdefghijklmnopqrstuvwxyz0123456789abcdefghijklmnopqrstuvwxyz'"),
    "calls": "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(50) }}",
    "doubling": "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "joining": "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "times": "{{ ('a' * 10**12)|length }}",
    "replace": "{% set x = 'a' * 99999 %}{{ x.replace('a', x)|length }}",
    "filter replace": "{% set x = 'a' * 99999 %}{{ x|replace('a', x)|length }}",
    "join": "{% set x = 'a' * 99999 %}{{ x.join(x)|length }}",
    "filter join": "{{ range(9999)|join('a' * 99999)|length }}",
    "indent": "{{ 'a\nb'|indent(10**11) }}",
    "power": "{{ 9 ** (9 ** 9) }}",
    "squares": "{% set ns = namespace(x=9) %}{% for i in range(60) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "tojson": "{% set ns = namespace(x='\"') %}{% for i in range(60) %}{% set ns.x = ns.x|tojson %}{% endfor %}",
    "many texts": "{{ ['a' * 99999] * 99999 }}",
    "constant text": "{% for i in range(9999) %}{{ 'a'|center(9999) }}{% endfor %}",
    "percent": "{{ '%099999999999d' % 1 }}",
    "star": "{{ '%*d' % (10**11, 1) }}",
    "many fields": "{{ ('%9999d' * 9999) % ((1,) * 9999) }}",
    "filter format": "{{ '%099999999999d'|format(1) }}",
    "format": "{{ '{:>99999999999}'.format(1) }}",
    "nested format": "{{ '{:{}}'.format(1, 10**11) }}",
    "repeated format": "{{ ('{0}' * 9999).format('a' * 9999) }}",
    "format map": "{{ ('{x:>99999999999}'|attr('format_map'))({'x': 1}) }}",
    "filter center": "{{ 'a'|center(width=10**11) }}",
    "center": "{{ ('a'|attr('center'))(10**11) }}",
    "zfill": "{{ 'a'['zfill'](10**11) }}",
    "batch": "{{ [1]|batch(10**11, 1)|list }}",
    "join of a generator": "{{ ('a' * 99999).join(range(9999)|map('string')) }}",
    "much text": "{% for i in range(99999) %}" + "y" * 10_000 + "{% endfor %}",
}  # fmt: skip


@pytest.mark.timeout(60)
@pytest.mark.parametrize("source", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_template_that_does_not_end_is_stopped(source, monkeypatch):
    monkeypatch.setattr(chat_template, "BUDGET", 1_000_000)
    template = ChatTemplate(source, {})
    for _ in range(2):  # each rendering has the whole budget
        with pytest.raises(ValueError, match="took more than 1,000,000 steps, and was stopped"):
            template.render(TALK)


@pytest.mark.timeout(60)
def test_what_costs_nothing_but_time_is_stopped_too(monkeypatch):
    """An hour of it, otherwise."""
    monkeypatch.setattr(chat_template, "SECONDS", 0.2)
    texts = "{% set x = 'a' * 100000 %}{% set y = 'a' * 50000 ~ 'b' %}"
    template = ChatTemplate(texts + "{% for i in range(99999) %}{% if y in x %}{% endif %}{% endfor %}", {})
    for _ in range(2):  # each rendering has its own time
        with pytest.raises(ValueError, match=r"took more than 0\.2 seconds, and was stopped"):
            template.render(TALK)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('roles must\x1b[2J\nalternate') }}", r"refuses.*: roles must\\x1b\[2J\\nalternate"),
        ("{{ 1 / 0 }}", "fails on these messages: ZeroDivisionError"),
        ("{{ messages[9].content }}", "has no element 9"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ [1]|tojson(indent=10**11) }}", "indent and separators of at most 16"),
        ("{{ 'a'.encode().center(10**11) }}", "'encode' of 'str' object is unsafe"),
        ("{{ lipsum(10**9) }}", "'lipsum' is undefined"),
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
