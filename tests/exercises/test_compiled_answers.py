"""The cells that compile a learner's kernel for a card that is not here."""

import pytest

from exercises.grading import NotYet
from phase5_real_gpu.kernels.triton_setup import HAS_TRITON, tl, triton

if not HAS_TRITON:
    pytest.skip("needs Triton", allow_module_level=True)

import torch

from exercises.phase5.compiled import compile_your_kernel, compiled, score_your_kernel
from exercises.phase5.grade_bridges import JUST_IN_TIME
from tests.exercises.changed import solution

pytestmark = pytest.mark.proof  # a compiler in a process of its own: seconds


@triton.jit
def only_python(x, out, TILE: tl.constexpr):
    places = [tl.program_id(0) * TILE + i for i in range(TILE)]
    for place in places:
        tl.store(out + place, tl.load(x + place))


def test_wider_tiles_are_loaded_16_bytes_at_a_time(capsys):
    x = torch.empty(1024, 1024)
    (kernel,) = solution("p5e0a_tiled_copy", {})
    compile_your_kernel("p5e0a_tiled_copy", kernel, x, x, 1024, 1024, 1024, 1024, TILE=(8, 32))
    narrow, wide = ([int(n) for n in line.split()] for line in capsys.readouterr().out.splitlines()[-2:])
    assert narrow[0] == 8 and narrow[-2] == 0 and wide[0] == 32 and wide[-2] > 0


def test_what_the_interpreter_lets_pass_and_the_compiler_does_not_is_told():
    with pytest.raises(NotYet, match="not-compiled"):
        compiled(only_python, [torch.empty(64), torch.empty(64)], [dict(TILE=8)])


def test_page_ids_one_round_ahead_are_worth_a_buffer():
    q, keys = (torch.empty(*shape, dtype=torch.bfloat16) for shape in ((16, 128), (64, 16, 128)))
    arguments = q, keys, torch.empty(64, dtype=torch.int32), torch.empty(16, 1024), 1024, 2048, 128
    sizes = dict(BLOCK_SIZE=16, HEAD_DIM=128, TILE=64)
    kernels = [*solution("p5e3_page_ids", JUST_IN_TIME), *solution("p5e3_page_ids", {})]
    assert [compiled(kernel, arguments, [sizes])[0].buffers for kernel in kernels] == [1, 2]


def test_the_score_of_the_solution_is_one_read_per_key(capsys):
    score_your_kernel(*solution("p5e7_faster_decode", {}))
    given, mine, course = capsys.readouterr().out.splitlines()[-3:]
    assert given.split()[2] == "4x" and mine.split()[1] == course.split()[1] == "1x"
