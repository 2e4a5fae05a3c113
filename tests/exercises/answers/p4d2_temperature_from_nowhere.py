"""Answers to debugging lab 4b."""

import torch

from exercises.phase4.temperature_lab import expand_kernel, used_memory
from tests.exercises.changed import changed


def right(x, cu_num_tokens, replace_from=0, replace_to=0):
    counts = torch.diff(cu_num_tokens, prepend=torch.zeros_like(cu_num_tokens[:1]))
    values = x.clone()
    values[x == replace_from] = replace_to
    return values.repeat_interleave(counts)


def right_row_by_row(x, cu_num_tokens, replace_from=0, replace_to=0):
    rows, start = [], 0
    for value, end in zip(x.tolist(), cu_num_tokens.tolist()):
        rows += [replace_to if value == replace_from else value] * (end - start)
        start = end
    return torch.tensor(rows, dtype=x.dtype)


def right_into_the_memory(x, cu_num_tokens, replace_from=0, replace_to=0):
    """The memory stays; whoever fills it knows all kinds of numbers."""
    expanded_x = used_memory(int(cu_num_tokens[-1]), x.dtype)
    start = 0
    for i, end in enumerate(cu_num_tokens):
        expanded_x[start:end] = replace_to if x[i] == replace_from else x[i]
        start = end
    return expanded_x


def with_the_bug(x, cu_num_tokens, replace_from=0, replace_to=0):
    """As it is handed out."""
    expanded_x = used_memory(int(cu_num_tokens[-1]), x.dtype)
    expand_kernel(expanded_x.long(), x.long(), cu_num_tokens.long(), replace_from, replace_to)
    return expanded_x


def right_numbers_of_requests(x, cu_num_tokens, replace_from=0, replace_to=0):
    """The kernel expands what it can: whole numbers, here the number of each request."""
    owner = torch.zeros(int(cu_num_tokens[-1]), dtype=torch.int64)
    expand_kernel(owner, torch.arange(len(x)), cu_num_tokens.long(), -1, -1)
    return x.masked_fill(x == replace_from, replace_to)[owner]


def writes_back(x, cu_num_tokens, replace_from=0, replace_to=0):
    expanded_x = used_memory(int(cu_num_tokens[-1]), x.dtype)
    copy = expanded_x.long()
    expand_kernel(copy, x.long(), cu_num_tokens.long(), replace_from, replace_to)
    expanded_x.copy_(copy)
    return expanded_x


def rounds(x, cu_num_tokens, replace_from=0, replace_to=0):
    return right(x.round(), cu_num_tokens, replace_from, replace_to)


def cleans_the_memory(x, cu_num_tokens, replace_from=0, replace_to=0):
    expanded_x = torch.zeros(int(cu_num_tokens[-1]), dtype=x.dtype)
    expand_kernel(expanded_x.long(), x.long(), cu_num_tokens.long(), replace_from, replace_to)
    return expanded_x


def returns_the_copy(x, cu_num_tokens, replace_from=0, replace_to=0):
    expanded_x = used_memory(int(cu_num_tokens[-1]), x.dtype).long()
    expand_kernel(expanded_x, x.long(), cu_num_tokens.long(), replace_from, replace_to)
    return expanded_x


def looks_up_the_end(x, cu_num_tokens, replace_from=0, replace_to=0):
    owner = torch.bucketize(torch.arange(int(cu_num_tokens[-1])), cu_num_tokens)
    return x.masked_fill(x == replace_from, replace_to)[owner]


def hands_over_floats(x, cu_num_tokens, replace_from=0, replace_to=0):
    expanded_x = used_memory(int(cu_num_tokens[-1]), x.dtype)
    expand_kernel(expanded_x, x, cu_num_tokens, replace_from, replace_to)
    return expanded_x


def as_a_list(x, cu_num_tokens, replace_from=0, replace_to=0):
    return right(x, cu_num_tokens, replace_from, replace_to).tolist()


ROUNDED = [1, 1, 1, 1, 1, 2]
RIGHT = [
    (right, ROUNDED),
    (right_row_by_row, tuple(map(float, ROUNDED))),
    (right_into_the_memory, torch.tensor(ROUNDED)),
    (right_numbers_of_requests, ROUNDED),
]
WRONG = {
    "numbers-of-nobody": (with_the_bug, ROUNDED),
    "nothing-arrives": (cleans_the_memory, ROUNDED),
    "no-whole-numbers": [(writes_back, ROUNDED), (rounds, ROUNDED)],
    "other-kind-of-number": (
        changed(right_row_by_row, {"dtype=x.dtype": "dtype=torch.float32"}),
        ROUNDED,
    ),
    "nothing-replaced": (changed(right, {"values[x == replace_from] = replace_to": "pass"}), ROUNDED),
    "always-replaced": (changed(right, {"values[x == replace_from]": "values[:]"}), ROUNDED),
    "ends-as-lengths": (changed(right, {"repeat_interleave(counts)": "repeat_interleave(cu_num_tokens)"}), ROUNDED),
    "one-row-late": (looks_up_the_end, ROUNDED),
    "changes-its-input": (changed(right, {"x.clone()": "x"}), ROUNDED),
    "raises": (hands_over_floats, ROUNDED),
    "wrong-type": [(as_a_list, ROUNDED), (right, 2.7)],
    "colleague-mends-it": (right, [0.8, 0.8, 1, 1, 1, 2.7]),
    "colleague-replaces-first": (right, [0, 0, 1, 1, 1, 2]),
    "colleague-other": [(right, [1, 1, 1, 1, 1, 3]), (right, [0, 0, 0, 0, 0, 2])],
}  # fmt: skip
