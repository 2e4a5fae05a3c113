"""Lets the real vLLM 0.32 decide a recorded workload once more, and writes down each of its steps.

vLLM's own scheduler decides; only the model is replaced. It runs in vLLM's own environment and imports nothing of the course but
the file that drives vLLM there. A recording such as `vllm_0_32_plain.jsonl.gz` holds a line of JSON for each
`Recorder(model_config, workload).record()`. (vLLM: Apache 2.0; a recording: the licence of this repository.)
"""

from typing import Any

from phase5_real_gpu.benchmarks import vllm_worker

STOP = 7
MOST_STEPS = 500


class Recorder:
    """A workload, decided by vLLM's scheduler in synchronous steps."""

    def __init__(self, model_config: Any, workload: dict[str, Any]) -> None:
        model_config.max_model_len = workload["config"]["max_model_len"]
        self.workload, self.requests = workload, {}
        self.scheduler, self.hasher = vllm_worker.make_scheduler(model_config, workload["config"])

    def run_model(self, output: Any) -> Any:
        """In the place of a model: the token of a place depends on the request and the place alone."""
        from vllm.v1.outputs import ModelRunnerOutput

        names = list(output.num_scheduled_tokens)
        return ModelRunnerOutput(
            names, {name: i for i, name in enumerate(names)}, list(map(self.sample, names))
        )

    def sample(self, name: str) -> list[int]:
        request = self.scheduler.requests[name]
        if request.is_prefill_chunk:
            return []
        place = request.num_computed_tokens  # this step's are counted already
        ends = self.requests[name][1].get("stop_after") == place - request.num_prompt_tokens + 1
        return [STOP if ends else (int(name) * 7919 + place * 104729) % 5000 + 100]

    def step(self, number: int) -> dict[str, Any]:
        output = self.scheduler.schedule()
        seen = vllm_worker.snapshot(number, self.scheduler, output)
        names = list(output.num_scheduled_tokens)
        seen |= {what: dict(zip(names, seen[what])) for what in ("computed", "blocks")}
        self.scheduler.update_from_output(output, self.run_model(output))
        return seen

    def record(self) -> dict[str, Any]:
        """The workload with its steps: what was decided, and which requests ended."""
        from vllm.v1.request import Request, RequestStatus

        steps, wanted = [], self.workload["requests"]
        while len(steps) < MOST_STEPS and (len(self.requests) < len(wanted) or self.scheduler.has_requests()):
            number = len(steps)
            for r in wanted:
                if r["arrival"] == number:
                    request = Request(
                        str(r["id"]), r["prompt"], vllm_worker.greedy(r["max_tokens"], stop_token_ids=[STOP]), None,
                        arrival_time=number + r["id"] * 1e-6, priority=r["priority"], block_hasher=self.hasher,
                    )  # fmt: skip
                    self.requests[request.request_id] = request, r
                    self.scheduler.add_request(request)
            alive = [(r["id"], request) for request, r in self.requests.values() if not request.is_finished()]
            aborted = [i for i, _ in alive if self.requests[str(i)][1].get("abort_at") == number]
            for i in aborted:
                self.scheduler.finish_requests(str(i), RequestStatus.FINISHED_ABORTED)
            seen = self.step(number)
            finished = sorted(i for i, request in alive if request.is_finished() and i not in aborted)
            steps.append(seen | dict(aborted=aborted, finished=finished))
        if len(self.requests) < len(wanted) or self.scheduler.has_requests():
            steps[-1]["stuck"] = True
        return self.workload | dict(steps=steps)
