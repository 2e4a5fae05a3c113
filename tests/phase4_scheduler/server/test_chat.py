"""Chat templates as they come with models."""

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
