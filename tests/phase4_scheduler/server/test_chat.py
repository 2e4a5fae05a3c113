"""Chat templates as they come with models."""

from types import SimpleNamespace

from phase4_scheduler.server import chat
from phase4_scheduler.server.chat import ChatTemplate
from phase4_scheduler.server.protocol import ChatMessage


def test_a_template_that_marks_what_the_model_says():
    """Templates made for training hold transformers' {% generation %}."""
    source = (
        "{% for m in messages %}{% if m.role == 'assistant' %}"
        "{% generation %}<{{ m.content }}>{% endgeneration %}"
        "{% else %}{{ m.content }}{% endif %}{% endfor %}"
    )
    messages = [ChatMessage(role="user", content="Who?"), ChatMessage(role="assistant", content="I.")]
    assert ChatTemplate(source, {}).render(messages, add_generation_prompt=False) == "Who?<I.>"


def test_a_gguf_file_tells_its_special_tokens(monkeypatch, tmp_path):
    metadata = {
        "tokenizer.chat_template": "{{ bos_token }}{{ messages[0]['content'] }}{{ eos_token }}",
        "tokenizer.ggml.tokens": ["a", "<s>", "</s>"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 99,
    }
    monkeypatch.setattr(chat, "is_gguf", lambda path: True)
    monkeypatch.setattr(chat, "read_gguf_header", lambda path: SimpleNamespace(metadata=metadata))
    template = ChatTemplate.find(tmp_path / "model.gguf")
    assert template.render([ChatMessage(role="user", content="hello")], False) == "<s>hello</s>"
