# %% [markdown]
# # 4.11 A mask for a small language
#
# Times of day, such as `7:30`, form a **regular language**: an automaton reads a text character by character, and its only memory is
# its **state**. `moves[state][character]` is the next state; a missing character is refused. If the
# state is in `accepting`, the text may end.
#
# An engine samples tokens, not characters. Before each token it needs a **mask** of the tokens that are allowed next. A token is
# allowed if both conditions hold:
#
# 1. The automaton reads all characters of the token, from the state of the answer so far.
# 2. From the resulting state, some further text (or the empty text) leads to an accepting state. A state without such a text is
#    **dead**: an answer that reaches it can never end.
#
# The end-of-text token (number `end`) has no characters. It is allowed only in an accepting state. Other tokens without characters
# are never allowed, because an answer could then continue forever.
#
# By hand: the language consists of `ab` and `abc`. State 9 is dead.
#
#     moves     {0: {"a": 1, "x": 9}, 1: {"b": 2}, 2: {"c": 3}, 3: {}, 9: {"x": 9}}    accepting {2, 3}
#     tokens    ["", "a", "ab", "abd", "b", "x", "c"]                                  end 0
#     state 0   [False, True, True, False, False, False, False]    abd: no move for d; x: dead
#     state 2   [True, False, False, False, False, False, True]    `ab` may end here, or continue with c

# %%
from exercises.grading import check, hint


# %% tags=["answer"]
def mask(
    moves: dict[int, dict[str, int]], accepting: set[int], state: int, tokens: list[str], end: int
) -> list[bool]:
    """Compute for each token whether it is allowed next."""
    # BEGIN SOLUTION
    alive = set(accepting)
    while more := {s for s, onward in moves.items() if alive.intersection(onward.values())} - alive:
        alive |= more

    def may_come(token: str) -> bool:
        reached = state
        for character in token:
            if (reached := moves[reached].get(character)) is None:
                return False
        return reached in alive

    return [
        state in accepting if i == end else token != "" and may_come(token) for i, token in enumerate(tokens)
    ]
    # END SOLUTION


# %% tags=["check"]
check("p4e11_mask", mask)

# %% [markdown]
# ## Into the engine
#
# The engine now uses your mask for six answers, each a time of day. The engine's own mask comes from llguidance, for the regular
# expression of the same language. Both must give the same tokens.

# %% tags=["engine"]
from exercises.phase4.into_engine import mask_in_the_engine

mask_in_the_engine(mask)
