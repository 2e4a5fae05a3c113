def from_each_state(moves, accepting, state, tokens, end):
    """Right: a search for an end from the state behind each token."""

    def lives(at, seen=()):
        return at in accepting or any(lives(s, (*seen, at)) for s in moves[at].values() if s not in seen)

    def reads(at, text):
        return at if at is None or not text else reads(moves[at].get(text[0]), text[1:])

    allowed = []
    for i, token in enumerate(tokens):
        reached = reads(state, token)
        allowed.append(
            state in accepting if i == end else bool(token) and reached is not None and lives(reached)
        )
    return allowed


RIGHT = [from_each_state]
