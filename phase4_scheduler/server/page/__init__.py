"""The page at `/`: its files as they are, and `/live`, the figures of the engine that it reads twice a second.

Neither is guarded by the API key: they tell no more than /metrics does, and what they show of answers goes through /v1.
"""

import time
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from phase4_scheduler.server.async_engine import AsyncEngine

FOLDER = Path(__file__).parent
PLACES = {"index.html": "/", "docs.html": "/docs"}
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


def page_routes(engine: AsyncEngine, name: str, can_chat: bool) -> list[Route]:
    """`/`, `/docs`, what they load from `/page/`, and `/live`.

    Args:
        name: of the model. can_chat: it has a chat template.
    """

    async def live(request: Request) -> Response:
        return JSONResponse({"model": name, "can_chat": can_chat, **figures(engine)})

    routes = [Route("/live", live)]
    for file in sorted(FOLDER.iterdir()):
        if file.suffix in KINDS:
            page = Response(
                file.read_bytes(), media_type=KINDS[file.suffix], headers={"Cache-Control": "no-cache"}
            )
            routes.append(Route(PLACES.get(file.name, f"/page/{file.name}"), page, methods=["GET"]))
    return routes


def figures(engine: AsyncEngine) -> dict[str, Any]:
    """The state of the engine for all users together. Two readings give the rates.

    Raises:
        EngineDeadError: the engine has ended.
    """
    if engine.dead is not None:
        raise engine.dead
    last, limits = engine.last_step, engine.limits
    num_blocks = limits.num_blocks - 1  # one is the null block, which holds nothing
    return {
        "time": time.perf_counter(),  # seconds
        "max_model_len": limits.max_model_len,
        "block_size": limits.block_size,
        "num_blocks": num_blocks,
        "num_blocks_used": round(last.kv_cache_usage * num_blocks),
        "num_requests_running": last.num_running,
        "num_requests_waiting": last.num_waiting,
        "num_preemptions": last.stats.num_preemptions,
        "prefix_cache_queries": last.stats.prefix_queries,
        "prefix_cache_hits": last.stats.prefix_hits,
        "generation_tokens": engine.num_generation_tokens,
    }
