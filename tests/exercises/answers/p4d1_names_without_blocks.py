FIRST = "victim.num_computed_tokens // manager.block_size"
RIGHT = [
    {FIRST: "len(victim.token_ids[: victim.num_computed_tokens]) // manager.block_size", "[2, 3]": "{3, 2}"}
]
BACK_TO_0 = "victim.num_computed_tokens = 0"
WRONG = {
    "other-steps": {BACK_TO_0: f"{BACK_TO_0}\n    victim.priority += 1"},  # a victim loses its place
    "other-blocks": [{"[2, 3]": "[3]"}, {"[2, 3]": "[0, 1, 2, 3]"}],
}
