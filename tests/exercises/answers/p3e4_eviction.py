ROW = "self.blocks = nameless[::-1] + self.blocks + named[::-1]"
RIGHT = {
    "from exercises.grading import check, hint": "from collections import deque",
    "list(blocks)": "deque(blocks)",
    "pop(0)": "popleft()",
    ROW: "self.blocks.extendleft(nameless)\n        self.blocks.extend(reversed(named))",
}
