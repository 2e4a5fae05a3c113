from functools import partial

from exercises.phase4.temperature_lab import used_memory, with_the_bug
from tests.exercises.changed import changed


def right_into_the_memory(x, cu_num_tokens, replace_from=0, replace_to=0):
    """The memory stays; whoever fills it knows all kinds of numbers."""
    expanded_x = used_memory(int(cu_num_tokens[-1]), x.dtype)
    start = 0
    for i, end in enumerate(cu_num_tokens):
        expanded_x[start:end] = replace_to if x[i] == replace_from else x[i]
        start = end
    return expanded_x


SAID = "colleague = [1, 1, 1, 1, 1, 2]"
RIGHT = [
    {"expand_batch_to_tokens": right_into_the_memory, SAID: "colleague = (1.0, 1.0, 1.0, 1.0, 1.0, 2.0)"},
]
WRONG = {
    "numbers-of-nobody": {"expand_batch_to_tokens": partial(with_the_bug)},
    "changes-its-input": {
        "values = torch.where(x == replace_from, replace_to, x).to(x.dtype)": "values = x\n    values[x == replace_from] = replace_to"
    },
    "raises": {"expand_batch_to_tokens": partial(changed(with_the_bug, {".long()": ""}))},
    "wrong-type": [
        {"values.repeat_interleave(num_tokens)": "values.repeat_interleave(num_tokens).tolist()"},
        {SAID: "colleague = 2.7"},
    ],
    "colleague-mends-it": {SAID: "colleague = [0.8, 0.8, 1, 1, 1, 2.7]"},
    "colleague-replaces-first": {SAID: "colleague = [0, 0, 1, 1, 1, 2]"},
    "colleague-other": [{SAID: "colleague = [1, 1, 1, 1, 1, 3]"}, {SAID: "colleague = [0, 0, 0, 0, 0, 2]"}],
}
