RIGHT = {
    "tokens[place : place + length] == ending": "all(a == b for a, b in zip(tokens[place:], ending))",
    "tokens[place + length :][:k]": "tuple(tokens[place + length : place + length + k])",
}
