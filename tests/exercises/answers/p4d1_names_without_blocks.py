"""Answers to debugging lab 4."""

NAMES = "manager.uncache(victim.block_table, first=victim.num_computed_tokens // manager.block_size)"
RIGHT = [
    {"[2, 3]": "{3, 2}"},
    # Only if the victim has its part in this step: else all its names are true.
    {
        NAMES: f"if any(part.request is victim for part in output.scheduled):\n        {NAMES}",
        "[2, 3]": "(2, 3)",
    },
]
WRONG = {
    "no-victim": {"return victim": "pass"},
    "other-blocks": [{"[2, 3]": "[3]"}, {"[2, 3]": "[0, 1, 2, 3]"}],
}
