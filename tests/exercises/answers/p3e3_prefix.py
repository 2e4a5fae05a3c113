RIGHT = {  # the beginnings themselves as names, one by one
    "hash_block(parent, token_ids[end - block_size : end])": "tuple(token_ids[:end])",
    "return names": "yield from names",
    "return found": "return tuple(found)",
}
