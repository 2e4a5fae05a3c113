def right_place_by_place(tokens, least, most, k):
    """How far back do the tokens before each place agree with the ending? The longest wins, then the first."""
    best, follows = 0, None
    for end in range(1, len(tokens)):
        length = 0
        while length < min(most, end) and tokens[end - 1 - length] == tokens[-1 - length]:
            length += 1
        if length >= least and length > best:
            best, follows = length, end
    return [] if follows is None else tokens[follows : follows + k]


RIGHT = [right_place_by_place]
