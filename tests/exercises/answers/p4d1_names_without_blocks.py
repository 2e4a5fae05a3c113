FIRST = "victim.num_computed_tokens // manager.block_size"
RIGHT = {
    FIRST: "len(victim.token_ids[: victim.num_computed_tokens]) // manager.block_size",
    "[2, 3]": "{3, 2}",
}
WRONG = {"other-blocks": [{"[2, 3]": "[3]"}, {"[2, 3]": "[0, 1, 2, 3]"}]}
