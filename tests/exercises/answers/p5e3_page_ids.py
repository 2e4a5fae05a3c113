from exercises.phase5.grade_bridges import FIRST, NEXT

DOT = 'tl.dot(queries, tl.trans(tile), input_precision="ieee")'
RIGHT = {DOT: "tl.sum(queries[:, None, :] * tile[None, :, :], axis=2)"}
WRONG = {
    "all-up-front": {
        FIRST: f"""    held = []
    for first in range(0, length, TILE):
        coming = first + places
        {NEXT.replace("next_blocks = ", "held.append(")})
""",
        f"        {NEXT}\n        begins": "        blocks = held.pop(0)\n        begins",
        "        blocks = next_blocks\n": "",
    }
}
