# %% [markdown]
# # 1.3 Never show an incomplete character
#
# A model writes tokens, and a user reads the text as it arrives. But a token holds *bytes*. In UTF-8 a character takes one to
# four bytes: "a" takes one, "é" two, "€" three, "🐐" four. Several tokens may share one rare character, and a program
# that decodes each token by itself shows "�" for every part. ("�" is U+FFFD, the replacement character.)
#
# So bytes that may begin a character have to **wait** for the rest of it.
#
# By hand, for "é!" in three tokens of one byte each, `C3`, `A9`, `21`:
#
# | token | `push` returns | waiting |
# |---|---|---|
# | `C3` | nothing: a two-byte character begins | `C3` |
# | `A9` | `é` | |
# | `21` | `!` | |
#
# Write `push`, which takes the bytes of a token and returns the text that is certain *now*, and `finish`, which is called after
# the last token: bytes that still wait become "�".
#
# Three rules:
#
# - A complete character is shown at once, not one token later.
# - All returned texts, joined, equal the text of all bytes decoded together with `errors="replace"`.
# - A model can write invalid bytes, such as `FF`. They become "�", and must not hold back the text behind them.
#
# Python's `codecs.getincrementaldecoder` does all this. You may use it; you learn more without it.
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
# The small engine that you build in this course (`lab mine` runs it) streams eight answers. Your `Streamer` decodes them, one
# object for each request. The texts must equal the course's, letter by letter.
# %% tags=["engine"]
from exercises.capstone.your_engine import in_your_engine

in_your_engine("p1e3_streaming", Streamer)
