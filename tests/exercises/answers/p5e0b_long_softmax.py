from phase5_real_gpu.kernels.triton_setup import tl, triton


@triton.jit
def a_maximum_per_place(x, out, columns, TILE: tl.constexpr):
    """Right: each place of the tile has a maximum and a total of its own, and they are put together at the end."""
    row, places = tl.program_id(0) * columns, tl.arange(0, TILE)
    largest, total = tl.full([TILE], -1e30, tl.float32), tl.zeros([TILE], tl.float32)
    for first in range(0, columns, TILE):
        tile = tl.load(x + row + first + places, mask=first + places < columns, other=-float("inf"))
        new = tl.maximum(largest, tile)
        total = total * tl.exp(largest - new) + tl.exp(tile - new)
        largest = new
    top = tl.max(largest, axis=0)
    whole = tl.sum(total * tl.exp(largest - top), axis=0)
    for first in range(0, columns, TILE):
        tile = tl.load(x + row + first + places, mask=first + places < columns, other=0.0)
        tl.store(out + row + first + places, tl.exp(tile - top) / whole, mask=first + places < columns)


RIGHT = [a_maximum_per_place]
