EXISTS = "(r < rows)[:, None] & (c < columns)[None, :]"
RIGHT = {
    EXISTS: "(r[:, None] < rows) & (c[None, :] < columns) & (rows > 0)",
    "mask=exists)\n    tl": "mask=exists, other=1.0)\n    tl",
}
