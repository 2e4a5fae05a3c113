"""60 recorded workloads: every decision of vLLM 0.32's `AsyncScheduler`, and when the loop of its `EngineCore` reads which step."""

from pathlib import Path
from types import SimpleNamespace

from phase4_scheduler.engine.model_runner import Sampled
from phase4_scheduler.features.async_scheduling import AsyncCore, AsyncScheduler
from tests.phase4_scheduler.engine.recordings import Replay, TakesAnything, equal_steps


class Replayed(TakesAnything, AsyncScheduler):
    def schedule(self):
        output = super().schedule()
        if output.scheduled or output.preempted:
            self.replay.note(output)
        return output


class AsyncReplay(Replay):
    def make_scheduler(self, config):
        scheduler = Replayed(config, self.manager)
        scheduler.replay, self.number_of = self, {}
        self.core = AsyncCore(scheduler, SimpleNamespace(start=self.start, model=None, kv_cache=None))
        return scheduler

    def note(self, output):
        self.decided_now = self.decision(self.turn, output)
        self.number_of[id(output)] = self.turn, output  # it is kept, so its id stays its own

    def start(self, output):
        tokens = [
            [self.true_token(int(s.request.request_id), s.length)] if s.samples else []
            for s in output.scheduled
        ]
        return lambda: [Sampled(new, [None] * len(new)) for new in tokens]

    def step(self, number):
        self.turn, self.decided_now = number, None
        abort = lambda request: self.core.finish(request.request_id, "abort")  # noqa: E731
        aborted = self.arrive(number, self.core.add, abort)
        alive = [i for i, request in self.requests.items() if not request.finished]
        read = self.core.step().scheduler_output
        return {
            "step": number,
            "decided": self.decided_now,
            "came_back": self.number_of[id(read)][0] if read.scheduled else None,
            "aborted": aborted,
            "finished": sorted(i for i in alive if self.requests[i].finished),
        }


def test_every_field_of_every_step_equals_vllm():
    found = equal_steps(Path(__file__).parent / "vllm_0_32_async.jsonl.gz", AsyncReplay)
    turns = [turn for _, own in found for turn in own]
    decided = [turn["decided"] for turn in turns if turn["decided"]]
    late = sum(turn["came_back"] is not None and turn["came_back"] < turn["step"] for turn in turns)
    preemptions = sum(len(one["preempted"]) for one in decided)
    assert (len(found), len(turns), len(decided), preemptions, late) == (60, 4106, 3828, 113, 3824)
