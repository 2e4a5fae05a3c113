"""From the bytes of a body to a request: counted, then parsed, then validated, and refused at the first mistake.

Each of the three steps costs at most a fixed amount of time and about 20 bytes of memory per byte of the body, whatever a
client sends: the event loop and all other clients wait for it.
"""

import json
from typing import Any, TypeVar

import numpy as np
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException

from phase4_scheduler.server.protocol import WRONG_TYPE, ApiError

SMALL_BODY = 2**16  # bytes: read on the event loop, since a thread takes longer to begin
MOST_CONTAINERS = 2**14  # objects and lists of a body: an empty one takes 3 bytes of JSON and 80 of memory
MOST_ITEMS = 2**17  # and as many as the context holds tokens
RequestModel = TypeVar("RequestModel", bound=BaseModel)


def longest_body(context: int) -> int:
    """Bytes of the largest body that a model with this context takes: a prompt of that many tokens fits several times."""
    return min(32 * 2**20, 2**20 + 64 * context)


def read_body(kind: type[RequestModel], raw: bytes, context: int) -> RequestModel:
    """A request of this kind for a model with this context.

    Raises:
        ApiError: the body is no such request. HTTPException: it is no text, is nested too deeply, or has more parts than
            a request needs.
    """
    if len(raw) > SMALL_BODY:
        check_parts(raw, context)
    try:
        data = json.loads(raw)
    except json.JSONDecodeError as error:
        place = f"body.{error.pos}" if raw else "body"
        raise ApiError(f"the body is no JSON: {error}", place, kind=WRONG_TYPE) from None
    except (ValueError, RecursionError):
        raise HTTPException(400, "There was an error parsing the body") from None
    return validated(kind, data)


def check_parts(raw: bytes, context: int) -> None:
    """Refuse a JSON text of more parts than a request needs. They are counted before Python builds an object for each.

    Raises:
        HTTPException: it holds too many lists, objects or items.
    """
    # Without escaped backslashes and quotes, each quote begins or ends a string.
    text = np.frombuffer(raw.replace(rb"\\", b"").replace(rb"\"", b""), np.uint8)
    outside = ~np.logical_xor.accumulate(text == ord('"'))
    found = {mark: np.count_nonzero(outside & (text == ord(mark))) for mark in "[{,"}
    for what, number, most in (
        ("objects and lists", found["["] + found["{"], MOST_CONTAINERS),
        ("items", found[","], MOST_ITEMS + context),
    ):
        if number > most:
            why = f"{number:,} {what}, and at most {most:,} are read"
            raise HTTPException(400, f"There was an error parsing the body: {why}")


def validated(kind: type[RequestModel], data: Any) -> RequestModel:
    """JSON as a request of this kind.

    Raises:
        ApiError: it is none; the message names the field.
    """
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
        # Of a union, the alternative that has the right type says what is wrong.
        own = [e for e in found if e["loc"][:1] == found[0]["loc"][:1]]
        first = next((e for e in own if not e["type"].endswith("_type")), found[0])
        # The alternatives of a union stand in the place as well; they are no part of what the client sent.
        place = [str(part) for part in first["loc"] if "[" not in str(part) and part not in ("str", "int")]
        raise ApiError(
            f"{'.'.join(place) or 'the body'}: {first['msg']}", ".".join(["body", *place]), kind=WRONG_TYPE
        ) from None
