"""A connector that moves nothing and answers by a script: the same one for the real vLLM (`record_decisions.py`) and for
the course's scheduler (`test_vllm_connector_recordings.py`).

The script of a request: `remote` (tokens of its prompt that the other engine has), `sync` (they come within the step),
`undecided` (how often it does not know yet), `load_steps` (how long loading takes), `failed_blocks` (which of the loaded
blocks do not come, the first time), `send_steps` (how long its blocks are read after its end; 0: not at all).
"""

from typing import Any


class ConnectorScript:
    def __init__(self, requests: list[dict[str, Any]]) -> None:
        self.script = {str(r["id"]): dict(r) for r in requests}
        self.calls: list[list] = []  # of this step
        self._local: dict[str, int] = {}
        self._loading: dict[str, list] = {}  # request -> [steps to go, blocks that are loaded]
        self._sending: dict[str, int] = {}

    def matched(self, name: str, num_tokens: int, num_computed: int) -> tuple[int | None, bool]:
        s = self.script[name]
        answer = None, False
        if s["undecided"] > 0:
            s["undecided"] -= 1
        else:  # what comes within the step leaves a token to compute
            n = max(0, min(s["remote"], num_tokens - s["sync"]) - num_computed)
            answer = n, n > 0 and not s["sync"]
        self._local[name] = num_computed
        self.calls.append(["matched", int(name), num_computed, answer[0]])
        return answer

    def allocated(self, name: str, block_ids: list[int], num_external: int, block_size: int) -> None:
        self.calls.append(["alloc", int(name), list(block_ids), num_external])
        s = self.script[name]
        if num_external and not s["sync"]:
            self._loading[name] = [s["load_steps"], block_ids[self._local[name] // block_size :]]

    def finished(self, name: str, block_ids: list[int], completed: bool) -> bool:
        self.calls.append(["finished", int(name), list(block_ids)])
        steps = self.script[name]["send_steps"]
        if steps and completed:
            self._sending[name] = steps
        return bool(steps and completed)

    def step(self) -> tuple[list[str], list[str], set[int]]:
        """What the worker side reports after a step: (sent, received, invalid blocks)."""
        sent, received, invalid = [], [], set()
        for name in sorted(self._loading, key=int):
            self._loading[name][0] -= 1
            if self._loading[name][0] <= 0:
                block_ids = self._loading.pop(name)[1]
                received.append(name)
                s = self.script[name]
                invalid |= {block_ids[i] for i in s["failed_blocks"] if i < len(block_ids)}
                s["failed_blocks"] = []
        for name in sorted(self._sending, key=int):
            self._sending[name] -= 1
            if self._sending[name] <= 0:
                del self._sending[name]
                sent.append(name)
        return sent, received, invalid


def prompt_of(r: dict[str, Any]) -> list[int]:
    """A prompt's tokens: the first are those of a group, the others the request's own."""
    group, shared = r["shared"]
    return [
        (group * 31 + i * 7) % 97 + 100 if i < shared else r["id"] * 211 + i + 1000
        for i in range(r["length"])
    ]
