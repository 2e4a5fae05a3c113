from phase5_real_gpu.kernels.triton_setup import tl, triton


@triton.jit
def row_by_row(x, out, rows, columns, x_stride, out_stride, TILE: tl.constexpr):
    """Right: a row of the tile at a time."""
    c = tl.program_id(1) * TILE + tl.arange(0, TILE)
    first = tl.program_id(0) * TILE
    for r in range(first, min(first + TILE, rows)):
        numbers = tl.load(x + r * x_stride + c, mask=c < columns, other=0.0)
        tl.store(out + r * out_stride + c, numbers, mask=c < columns)


RIGHT = [row_by_row]
