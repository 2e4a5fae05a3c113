RIGHT = {
    "points[j] >= p[j][x] / q[j][x]": "points[j] * q[j][x] >= p[j][x]",
    "[*drafts[:j], draw(left, points[-1])]": "(*drafts[:j], draw([w / sum(left) for w in left], points[len(drafts)]))",
}
