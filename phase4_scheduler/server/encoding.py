"""From an answer to JSON, a millisecond at a time: the streams of all other clients wait on the same event loop.

An answer may hold a million log probabilities. Encoded at once they would stop the others for seconds, and fill the memory.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import uuid4

from starlette.responses import JSONResponse, Response, StreamingResponse

SLICE = 0.001  # seconds
LATER = uuid4().hex  # in JSON, stands for a list that is encoded later: no client can guess it


class JsonResponse(JSONResponse):
    """JSON in UTF-8. Half a character, which a client may have sent in a name that is repeated to it, becomes "?"."""

    def render(self, content: Any) -> bytes:
        return to_json(content)


def to_json(content: Any) -> bytes:
    return b"".join(json_pieces(content))


def json_pieces(content: Any) -> Iterator[bytes]:
    """JSON piece by piece. An iterator in it becomes a list, of which each item is made and encoded when its turn comes.

    Args:
        content: what `json` takes, and iterators. Bytes as an item are JSON already.
    """
    if isinstance(content, bytes):
        yield content
        return
    lists: list[Iterator[Any]] = []

    def later(items: Iterator[Any]) -> str:
        lists.append(iter(items))
        return LATER

    encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=later)
    begin, *after = encoder.encode(content).encode("utf-8", "replace").split(f'"{LATER}"'.encode())
    yield begin
    for items, end in zip(lists, after, strict=True):
        mark = b"["
        for item in items:
            yield mark
            yield from json_pieces(item)
            mark = b","
        yield (b"[]" if mark == b"[" else b"]") + end


async def json_slices(content: Any, before: bytes = b"", after: bytes = b"") -> AsyncIterator[bytes]:
    """`json_pieces` between two texts, as many together as are made in a `SLICE`."""
    made, until = [before], time.perf_counter() + SLICE
    for piece in json_pieces(content):
        made.append(piece)
        if time.perf_counter() > until:
            yield b"".join(made)
            await asyncio.sleep(0)
            made, until = [], time.perf_counter() + SLICE
    yield b"".join((*made, after))


async def json_answer(content: Any, headers: dict[str, str] | None) -> Response:
    """A response with its length. One that takes longer than a slice goes out in chunks, as it is made."""
    slices = json_slices(content)
    begin, more = await anext(slices), await anext(slices, None)
    if more is None:
        return Response(begin, headers=headers, media_type="application/json")

    async def chunks() -> AsyncIterator[bytes]:
        yield begin + more
        async for piece in slices:
            yield piece

    return StreamingResponse(chunks(), headers=headers, media_type="application/json")
