LIVES = "{s for s, onward in moves.items() if alive.intersection(onward.values())}"
RIGHT = {
    f"while more := {LIVES} - alive:\n        alive |= more": f"for _ in moves:\n        alive |= {LIVES}"
}
