"""A step gets as many threads as others leave cores to us."""

import psutil
import pytest
import torch

from phase4_scheduler.engine import spare_cores
from phase4_scheduler.engine.spare_cores import LOOK, SpareCores, used_by_others


class Machine:
    """Four cores; others use so many of them, from now on. The time passes when it is told to."""

    def __init__(self, monkeypatch):
        self.time = self.used = 0.0
        self.taken, self.looks = 0.0, 0
        monkeypatch.setattr(spare_cores, "usable_cores", lambda: {0, 1, 2, 3})
        self.spare_cores = SpareCores(self.look, lambda: self.time)

    def look(self):
        self.looks += 1
        return self.used

    def pause(self, seconds):
        self.time += seconds
        self.used += seconds * self.taken

    def step(self, seconds=LOOK * 1.5):
        """A step that takes so long. Returns how many threads it had."""
        with self.spare_cores.threads() as number:
            assert torch.get_num_threads() == number
            self.pause(seconds)
        return number


@pytest.fixture
def machine(monkeypatch):
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield Machine(monkeypatch)
    assert torch.get_num_threads() == 4, "a step left other threads behind"
    spare_cores.set_threads(before)


@pytest.mark.parametrize(
    ("taken", "threads"), [(0, 4), (0.4, 4), (0.6, 3), (1, 3), (2.2, 2), (3, 1), (4, 1), (9, 1), (-0.1, 4)]
)
def test_a_thread_less_for_each_core_that_others_use(machine, taken, threads):
    machine.taken = taken
    assert [machine.step() for _ in range(3)] == [4, threads, threads]
    machine.taken = 0
    assert [machine.step() for _ in range(2)] == [threads, 4]


def test_it_looks_now_and_then(machine):
    machine.taken = 2
    assert [machine.step(LOOK * 0.3) for _ in range(6)] == [4] * 4 + [2] * 2
    assert machine.looks == 2


def test_what_others_did_while_we_had_nothing_to_do_takes_nothing_from_us(machine):
    machine.taken = 3
    machine.pause(LOOK * 10)
    machine.taken = 0
    assert [machine.step() for _ in range(3)] == [4] * 3


def test_what_was_seen_last_holds_after_a_pause(machine):
    machine.taken = 3
    assert [machine.step() for _ in range(2)] == [4, 1]
    machine.pause(LOOK * 10)
    assert machine.step() == 1


def test_what_was_seen_long_ago_is_forgotten(machine):
    """Short requests with pauses between them: nobody looks again, and the other program may have ended since."""
    machine.taken = 3
    assert [machine.step() for _ in range(2)] == [4, 1]
    machine.taken = 0
    seen = []
    for _ in range(8):
        machine.pause(LOOK * 4)
        seen.append(machine.step(LOOK / 2))
    assert seen == sorted(seen) and (seen[0], seen[-1]) == (1, 4)


def test_a_thread_that_is_bound_to_one_core_still_has_helpers(machine, monkeypatch):
    """OMP_PROC_BIND binds the first thread to a core, and the system then says that it may use only that one."""
    monkeypatch.setattr(spare_cores, "usable_cores", lambda: {0})
    machine.taken = -3
    assert [machine.step() for _ in range(2)] == [4, 4]


def test_threads_come_back_after_an_error(machine):
    machine.taken = 1
    machine.step()
    with pytest.raises(ZeroDivisionError), machine.spare_cores.threads() as number:
        assert number == torch.get_num_threads() == 3
        1 / 0  # noqa: B018
    assert torch.get_num_threads() == 4


def test_it_never_gives_more_than_the_user_allows(machine):
    torch.set_num_threads(2)
    machine.taken = 1
    assert [machine.step() for _ in range(2)] == [2, 2]
    machine.taken = 3
    assert [machine.step() for _ in range(2)] == [2, 1]
    torch.set_num_threads(4)


def test_compiled_kernels_have_the_same_number(machine):
    numba = pytest.importorskip("numba")
    if numba.config.NUMBA_NUM_THREADS < 2:
        pytest.skip("needs two cores")
    spare_cores.set_threads(3)
    spare_cores.set_threads(4)
    machine.taken = 3
    machine.step()
    with machine.spare_cores.threads():
        assert numba.get_num_threads() == 1
    assert numba.get_num_threads() == min(4, numba.config.NUMBA_NUM_THREADS)


def test_what_others_used(monkeypatch):
    """Of the cores that we may use: all that is not idle, without what we computed ourselves, and a guest's time once."""
    busy = dict(user=50.0, nice=1.0, system=10.0, irq=1.0, softirq=1.0, steal=2.0)
    rest = dict(idle=900.0, iowait=30.0, guest=20.0, guest_nice=1.0)

    class Times(tuple):
        __getattr__ = lambda self, name: (busy | rest)[name]  # noqa: E731

    core = Times((busy | rest).values())
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: [core] * 3)
    monkeypatch.setattr(spare_cores, "usable_cores", lambda: {0, 2})
    monkeypatch.setattr(spare_cores.time, "process_time", lambda: 40.0)
    # user and nice hold the guests' time already
    assert used_by_others() == pytest.approx(2 * sum(busy.values()) - 40)


def test_where_the_system_counts_nothing_all_threads_compute(machine, monkeypatch):
    """Some sandboxes do so."""
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: [(0.0, 0.0)])
    monkeypatch.setattr(machine.spare_cores, "_used", used_by_others)
    assert [machine.step() for _ in range(2)] == [4, 4]


def test_it_is_the_engine_that_asks(machine, monkeypatch):
    from phase2_attention_kvcache.model import SamplingParams
    from phase4_scheduler.engine import LLMEngine

    engine = LLMEngine.from_pretrained("tales")
    engine.core._spare_cores = machine.spare_cores
    seen = []
    execute = engine.core.runner.execute_step

    def execute_step(output):
        seen.append(torch.get_num_threads())
        machine.pause(LOOK)
        return execute(output)

    monkeypatch.setattr(engine.core.runner, "execute_step", execute_step)
    params = SamplingParams(max_tokens=20, temperature=0)
    quiet = engine.generate(["Once upon a time"], params)
    assert set(seen) == {4}
    machine.taken = 3
    busy = engine.generate(["Once upon a time"], params)
    assert set(seen[-15:]) == {1}
    assert quiet[0].outputs[0].token_ids == busy[0].outputs[0].token_ids
