from functools import partial

from exercises.judging.sources import handed_out

GIVEN = partial(handed_out, "p4d2_temperature_from_nowhere", "expand_batch_to_tokens")
SAID = "colleague = [1, 1, 1, 1, 1, 2]"
RIGHT = {
    "values.repeat_interleave(num_tokens)": "values[torch.arange(len(x)).repeat_interleave(num_tokens)]",
    SAID: "colleague = (1.0, 1.0, 1.0, 1.0, 1.0, 2.0)",
}
WRONG = {
    "uninitialised-rows": {"expand_batch_to_tokens": GIVEN()},
    "changes-its-input": {
        "values = torch.where(x == replace_from, replace_to, x).to(x.dtype)": "values = x\n    values[x == replace_from] = replace_to"
    },
    "raises": {"expand_batch_to_tokens": GIVEN({".long()": ""})},
    "wrong-type": [
        {"values.repeat_interleave(num_tokens)": "values.repeat_interleave(num_tokens).tolist()"},
        {SAID: "colleague = 2.7"},
    ],
    "colleague-mends-it": {SAID: "colleague = [0.8, 0.8, 1, 1, 1, 2.7]"},
    "colleague-replaces-first": {SAID: "colleague = [0, 0, 1, 1, 1, 2]"},
    "colleague-other": [{SAID: "colleague = [1, 1, 1, 1, 1, 3]"}, {SAID: "colleague = [0, 0, 0, 0, 0, 2]"}],
}
