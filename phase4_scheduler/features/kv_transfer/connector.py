"""What an engine asks of a KV connector: how keys and values come from other engines, and go to them.

The scheduler and the model's side of an engine may run in two processes, so a connector has two sides. They meet in
nothing but the metadata of a step:

    scheduler side   how many tokens of this request have others computed? Here are the blocks for them
                     -> metadata: what to load, into which blocks
    worker side      starts the loading, and says in later steps what has come, and what has not

This phase brings no connector of its own. One is passed in: `kv_connector=...` (phase 5 has one).

Source: vllm/distributed/kv_transfer/kv_connector/v1/base.py, KVConnectorBase_V1. Left out: vLLM's `save_kv_layer`,
`wait_for_layer_load` and `wait_for_save`, for connectors that copy layer by layer while a step runs.
"""

from collections.abc import Sequence
from typing import Any

from phase4_scheduler.engine.request import Request
from phase4_scheduler.engine.scheduler import SchedulerOutput

# What a request says to a connector, and at its end a connector of the request: `request.extras["kv_transfer_params"]`.
KVTransferParams = dict[str, Any]


class KVConnector:
    """A connector that knows of no other engine. A real one overrides what it needs."""

    # ------------------------------------------------------------------ scheduler side

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """How many tokens beyond those that the own prefix cache holds can be loaded. It may be asked several times.

        Args:
            num_computed_tokens: what the own prefix cache holds.

        Returns:
            The tokens, None if that is not known yet; and whether they come between the steps (asynchronously), so
            that the request has to wait for them, or within the step that is being decided.
        """
        return 0, False

    def update_state_after_alloc(
        self, request: Request, block_ids: Sequence[int], num_external_tokens: int
    ) -> None:
        """The request has got these blocks, and this many tokens are to be loaded into them; 0: none.

        Asked twice of a request that is loaded: when its loading begins, and when it is admitted after it.
        """

    def build_connector_meta(self, output: SchedulerOutput) -> Any:
        """The scheduler side's message to the worker side, for this step."""

    def request_finished(
        self, request: Request, block_ids: Sequence[int]
    ) -> tuple[bool, KVTransferParams | None]:
        """A request has ended, for whatever reason; its computed tokens lie in these blocks.

        Returns:
            Whether the blocks must stay until `get_finished` names the request; what its user should be told.
        """
        return False, None

    # ------------------------------------------------------------------ worker side

    def start_load_kv(self, metadata: Any) -> None:
        """Called before a step computes: begin to load what the metadata says. Returns at once."""

    def get_finished(self) -> tuple[Sequence[str], Sequence[str]]:
        """Called after each step: requests whose sending is over, and whose receiving is over, since the last call."""
        return (), ()

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Blocks that should have been loaded and were not, of the requests that `get_finished` has just named."""
        return set()

    def shutdown(self) -> None:
        """The engine ends."""
