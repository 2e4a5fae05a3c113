# %% [markdown]
# # 4.11 A mask for a small language
#
# Times of day, such as `7:30`, form a **regular language**: an automaton reads a text character by character, and its only memory is
# the **state** that it is in. `moves[state][character]` is the next state; a character that is not there is refused. Where the
# state is one of `accepting`, the text may end.
#
# An engine samples tokens, not characters. Before each token it needs a **mask**: which tokens of the vocabulary may come
# next? A token may come next if both are true:
#
# 1. The automaton reads all characters of the token, from the state of the answer so far.
# 2. From the state behind them some further text, or none, leads to an accepting state. A state from which no text does is
#    **dead**: an answer that reaches it can never be finished.
#
# The end-of-text token (number `end`) has no characters. It may come in an accepting state only. Another token without characters
# may never come, or an answer could go on without end.
#
# By hand: the language holds `ab` and `abc`. State 9 is dead.
#
#     moves     {0: {"a": 1, "x": 9}, 1: {"b": 2}, 2: {"c": 3}, 3: {}, 9: {"x": 9}}    accepting {2, 3}
#     tokens    ["", "a", "ab", "abd", "b", "x", "c"]                                  end 0
#     state 0   [False, True, True, False, False, False, False]    abd: no move for d; x: dead
#     state 2   [True, False, False, False, False, False, True]    `ab` may end here, or go on with c

# %%
from exercises.grading import check, hint


# %% tags=["answer"]
def mask(
    moves: dict[int, dict[str, int]], accepting: set[int], state: int, tokens: list[str], end: int
) -> list[bool]:
    """Whether each token may come next."""
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
# Your mask decides in the engine now: six answers, each a time of day. The engine's own mask comes from llguidance, for the regular
# expression of the same language. Both must give the same tokens.

# %% tags=["engine"]
from exercises.phase4.mask_in_engine import mask_in_the_engine

mask_in_the_engine(mask)
