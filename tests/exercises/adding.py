"""Answers to the exercise of the tests, which is to add two numbers (see conftest.py)."""


def stub(a, b):
    """What a and b make."""
    raise NotImplementedError("your turn")


def right(a, b):
    return a + b


def minus(a, b):
    return a - b


def times(a, b):
    return a * b
