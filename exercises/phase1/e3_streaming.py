# %% [markdown]
# # 1.3 Never show half a character
#
# A model writes tokens, and a user wants to read along. But a token holds *bytes*. In UTF-8 a character takes one to
# four of them: "a" takes one, "é" two, "€" three, "🐐" four. A rare character may come in several tokens, and whoever
# decodes each token by itself shows "�" for every half. ("�" is U+FFFD, the sign for "no character".)
#
# So bytes that may be the beginning of a character have to **wait** until the rest is here.
#
# By hand, for "é!" in three tokens of one byte each, `C3`, `A9`, `21`:
#
# | token | `push` returns | waiting |
# |---|---|---|
# | `C3` | nothing: a two-byte character begins | `C3` |
# | `A9` | `é` | |
# | `21` | `!` | |
#
# Write `push`, which takes the bytes of a token and returns the text that is certain *now*, and `finish`, for when no
# more tokens come: what still waits becomes "�".
#
# Three rules:
#
# - A complete character is shown at once, not one token later.
# - All that was returned, joined, is the same as decoding all bytes together with `errors="replace"`.
# - A model can write bytes that are no character at all, such as `FF`. They become "�", and the text after them must
#   not wait for ever.
#
# Python's `codecs.getincrementaldecoder` does all this. Use it if you like; without it you learn more.
# %%
from exercises.grading import check, hint


# %% tags=["answer"]
class Streamer:
    """Bytes of tokens in, certain text out."""

    def __init__(self) -> None:
        self.waiting = b""  # the beginning of a character, perhaps

    def push(self, token: bytes) -> str:
        """Take the bytes of one token; return the text that is certain now (possibly "")."""
        # BEGIN SOLUTION
        data, text = self.waiting + token, ""
        while True:
            try:
                text += data.decode("utf-8")
                self.waiting = b""
                return text
            except UnicodeDecodeError as error:
                text += data[: error.start].decode("utf-8")
                if error.reason == "unexpected end of data":  # what is there may still become a character
                    self.waiting = data[error.start :]
                    return text
                text += "\ufffd"  # these bytes never will
                data = data[error.end :]
        # END SOLUTION

    def finish(self) -> str:
        """No more tokens will come: return what is left."""
        # BEGIN SOLUTION
        rest, self.waiting = self.waiting, b""
        return rest.decode("utf-8", errors="replace")
        # END SOLUTION


# %% tags=["check"]
check("p1e3_streaming", Streamer)
# %% [markdown]
# ## Into the engine
#
# The engine has a decoder of its own, between the tokens and the user. Here yours sits beside it: `on_output` hands it the tokens
# of a request as they are written. To make its life hard, one request is made to prefer tokens of a single byte, the halves of "é"
# and its relatives among them. The other request is an ordinary story. (Decoding is a small part of a step, so the speed hardly
# depends on it.)
# %% tags=["engine"]
from exercises.grading import same_or_stop
from exercises.judging.side_by_side import passed, speed, timed
from phase2_attention_kvcache.model import SamplingParams
from phase4_scheduler.engine import LLMEngine

passed("p1e3_streaming", Streamer)
engine = LLMEngine.from_pretrained("tales", dtype="float32", device="cpu", max_num_seqs=2, max_model_len=128)
# C3 begins a character of two bytes, A0 to BF end one.
preferred = {engine.tokenizer.id_of_bytes[bytes([b])]: 16.0 for b in (0xC3, *range(0xA0, 0xC0))}
wild = SamplingParams(temperature=1.0, seed=1, max_tokens=40, logit_bias=preferred)
calm = SamplingParams(temperature=0, max_tokens=30)
prompts = ["The goat said: caf\u00e9", "Once upon a time"]


class Reader:
    """What the user of a request reads: your text of its tokens."""

    def __init__(self):
        self.streamer, self.text = Streamer(), ""

    def on_output(self, output):
        for token_id in output.token_ids:
            self.text += self.streamer.push(engine.tokenizer.decode_bytes([token_id], True))
        if output.finished:
            self.text += self.streamer.finish()


def read_along():
    """The text of each request, by your Streamer."""
    readers = [Reader() for _ in prompts]
    for number, (prompt, params) in enumerate(zip(prompts, [wild, calm])):
        engine.add_request(str(number), prompt, params, on_output=readers[number].on_output)
    while engine.has_unfinished_requests:
        engine.step()
    return [reader.text for reader in readers]


course, course_seconds = timed(lambda: [output.text for output in engine.generate(prompts, [wild, calm])])
mine, my_seconds = timed(read_along)
same_or_stop(mine, course, says="your text differs from the course's")
odd = mine[0].count("\ufffd")
print("The same texts as the course's.")
print(f"From single bytes: {len(mine[0]) - odd} characters, and {odd} runs of bytes that are no character.")
print(prompts[1] + mine[1])
print(speed(my_seconds, course_seconds))
