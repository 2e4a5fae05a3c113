from exercises.phase5.grade_bridges import FIRST, NEXT

DOT = 'tl.dot(queries, tl.trans(tile), input_precision="ieee")'
RIGHT = [{DOT: "tl.sum(queries[:, None, :] * tile[None, :, :], axis=2)"}]
WRONG = {
    "all-up-front": {
        FIRST: f"""    held = []
    for first in range(0, length, TILE):
        coming = first + lanes
        {NEXT.replace("next_pages = ", "held.append(")})
""",
        f"        {NEXT}\n        begins": "        pages = held.pop(0)\n        begins",
        "        pages = next_pages\n": "",
    }
}
