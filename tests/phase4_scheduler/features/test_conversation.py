"""A conversation: what it is given back of the prefix cache, what it forgets, what an interruption leaves."""

import pytest

from labkit.models import find_model
from phase1_tokens_embeddings.chat import ChatTemplate
from phase1_tokens_embeddings.weights.gguf_model import load_chat_template
from phase2_attention_kvcache.model import SamplingParams
from phase4_scheduler.features.conversation import Conversation, ends_of_answers

GREEDY = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
PLAIN = ChatTemplate("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}", {})


def talk(tiny, template=PLAIN, **settings):
    return Conversation(tiny.engine(max_num_seqs=1, block_size=4, **settings), template, GREEDY)


def test_turns_save_what_the_cache_holds(tiny):
    """The engine's counters say so, and the answers are those of an engine that computes everything anew."""
    cached, anew = talk(tiny), talk(tiny, enable_prefix_caching=False)
    for text in ("one two", "three", "four red"):
        assert "".join(cached.ask(text)) == "".join(anew.ask(text)) == cached.messages[-1]["content"]
    stats = cached.engine.core.stats
    assert sum(turn.prompt_tokens for turn in cached.turns) == stats.prefix_queries
    assert sum(turn.cached_tokens for turn in cached.turns) == stats.prefix_hits > 0
    assert [turn.cached_tokens for turn in anew.turns] == [0, 0, 0]
    first, second, _ = cached.turns
    assert first.cached_tokens == 0 and second.cached_tokens >= first.prompt_tokens // 4 * 4
    assert [turn.finish_reason for turn in cached.turns] == ["length"] * 3
    _, ids = cached.prompt(cached.messages[:-1])
    assert len(ids) == cached.turns[-1].prompt_tokens


def test_the_oldest_is_forgotten_and_the_system_message_is_not(tiny):
    conversation = talk(tiny, max_model_len=100)
    conversation.system = "be kind"
    for i in range(6):
        "".join(conversation.ask(f"the dog {i}"))
    last = conversation.turns[-1]
    assert last.forgotten > 0 and last.prompt_tokens + last.tokens <= 100
    assert conversation.system == "be kind" and conversation.messages[-2]["content"] == "the dog 5"
    assert [m["role"] for m in conversation.messages[1:3]] == ["user", "assistant"]
    before = list(conversation.messages)
    with pytest.raises(ValueError, match="the context holds 100 with 16 of an answer: shorten it"):
        next(conversation.ask("the dog " * 200))
    assert conversation.messages == before
    conversation.system = ""
    assert conversation.system == "" and conversation.messages == before[1:]


def test_an_interrupted_answer_stays_as_it_is(tiny):
    conversation = talk(tiny)
    answer = conversation.ask("one")
    piece = next(p for p in answer if p)
    answer.close()
    assert conversation.messages[-1]["role"] == "assistant" and conversation.messages[-1]["content"] == piece
    assert conversation.turns[-1].finish_reason == "abort" and conversation.turns[-1].tokens < 20
    assert not conversation.engine.has_unfinished_requests
    assert "".join(conversation.ask("two")) == conversation.messages[-1]["content"]


def test_a_template_that_refuses_leaves_the_conversation_as_it_was(tiny):
    picky = ChatTemplate(
        "{% if messages|length > 1 %}{{ raise_exception('one at a time') }}{% endif %}Hello", {}
    )
    conversation = talk(tiny, picky)
    "".join(conversation.ask("one"))
    before = list(conversation.messages)
    with pytest.raises(ValueError, match="refuses these messages: one at a time"):
        next(conversation.ask("two"))
    assert conversation.messages == before and len(conversation.turns) == 1


def test_what_ends_an_answer(tiny):
    tales = load_chat_template(find_model("tales"))
    assert ends_of_answers(tales, tiny.tokenizer) == {"stop_token_ids": [], "stop": ['"']}
    assert ends_of_answers(PLAIN, tiny.tokenizer) == {"stop_token_ids": [], "stop": []}
    name, i = next(iter(tiny.tokenizer.special_tokens.items()))
    ending = ChatTemplate("{% for m in messages %}{{ m.content + '" + name + "' }}{% endfor %}", {})
    assert ends_of_answers(ending, tiny.tokenizer)["stop_token_ids"] == [i]
