"""A policy of your own: the order of the waiting queue, and which running request makes room. This is vLLM's own: first come,
first served. Change it; `lab mine --in-vllm ENV/bin/python` lets the real vLLM of that environment decide by it.
"""

from typing import Any


class Policy:
    """A request has request_id, priority, arrival_time, num_tokens, and num_cached: its tokens in the prefix cache."""

    def order(self, waiting: list[Any]) -> list[Any]:
        """The waiting requests, the next one first. They come in the order of arrival, preempted ones before all."""
        return waiting

    def victim(self, running: list[Any]) -> Any:
        """The request to preempt; they come in the order of admission."""
        return running[-1]
