"""The HTTP server: OpenAI's protocol and vLLM's extras around an engine in a process of its own.

Source: vllm/entrypoints/openai/api_server.py.
"""

import asyncio
import traceback
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from pydantic.json_schema import models_json_schema
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from labkit.foreign import visible
from labkit.machine import version_of
from phase1_tokens_embeddings.chat import ChatTemplate
from phase1_tokens_embeddings.tokens.tokenizer_files import printable
from phase4_scheduler.engine import EngineDeadError
from phase4_scheduler.server.async_engine import AsyncEngine, QueueFullError
from phase4_scheduler.server.bodies import SMALL_BODY, RequestModel, longest_body, read_body
from phase4_scheduler.server.calls import Call
from phase4_scheduler.server.chat import Chat, rendered
from phase4_scheduler.server.completions import Completion
from phase4_scheduler.server.encoding import JsonResponse, json_answer, json_slices, to_json
from phase4_scheduler.server.middleware import ApiKey, CountLoad, http_metrics, trusting
from phase4_scheduler.server.page import page_routes
from phase4_scheduler.server.protocol import (
    LONGEST_REQUEST_ID,
    WRONG_TYPE,
    ApiError,
    ChatCompletionRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from phase4_scheduler.server.responses import Response as ResponseCall
from phase4_scheduler.server.responses import ResponsesRequest, no_such_response

PERMISSION = {
    "object": "model_permission", "allow_create_engine": False, "allow_sampling": True, "allow_logprobs": True,
    "allow_search_indices": False, "allow_view": True, "allow_fine_tuning": False, "organization": "*", "group": None,
    "is_blocking": False,
}  # fmt: skip


ANSWERS: dict[str, tuple[type[RequestModel], type[Call]]] = {
    "/v1/completions": (CompletionRequest, Completion),
    "/v1/chat/completions": (ChatCompletionRequest, Chat),
    "/v1/responses": (ResponsesRequest, ResponseCall),
}
BODIES = {path: kind for path, (kind, _) in ANSWERS.items()}
BODIES |= {"/tokenize": TokenizeRequest, "/detokenize": DetokenizeRequest}


class Server:
    """What the routes share.

    Args:
        name: of the model, as clients call it. template: for conversations; None: it has none.
        tool_call_parser: how the model writes tool calls down when it may choose; None: it may not.
        defaults: sampling parameters of requests that do not give them. first_tokens: before each prompt that is a text.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        name: str,
        template: ChatTemplate | None,
        created: int,
        tool_call_parser: str | None,
        defaults: Mapping[str, Any],
        first_tokens: Sequence[int],
    ) -> None:
        self.engine, self.name, self.template, self.created = engine, name, template, created
        self.tool_call_parser, self.defaults, self.first_tokens = tool_call_parser, defaults, first_tokens
        self.load = 0  # answers under way
        self.large_bodies = asyncio.Semaphore(1)  # the event loop competes with one thread, not with many

    # ------------------------------------------------------------------ what clients ask for

    async def answer(self, request: Request) -> Response:
        """A call that generates text."""
        kind, call_of = ANSWERS[request.url.path]
        asked = await self.read(kind, request)
        call = call_of(self, asked)
        headers = self.load_report(request.headers.get("endpoint-load-metrics-format", ""))
        if asked.stream:
            # The first chunk is awaited here: what goes wrong before it is still a status, not a chunk.
            chunks = call.stream()
            first = await unless_disconnected(request, prepared(call, chunks.__anext__))
            events = self.events(first, chunks, call.END)
            return StreamingResponse(events, media_type="text/event-stream")
        return await json_answer(await unless_disconnected(request, prepared(call, call.whole)), headers)

    async def stored_response(self, request: Request) -> Response:
        raise no_such_response(request.path_params["name"])

    async def events(
        self, first: dict[str, Any], chunks: AsyncIterator[dict[str, Any]], end: bytes
    ) -> AsyncIterator[bytes]:
        """Server-sent events, before each its name if it has one."""
        try:
            async with aclosing(chunks):
                chunk = first
                while chunk is not None:
                    name = b"event: %b\n" % chunk["type"].encode() if "type" in chunk else b""
                    async for piece in json_slices(chunk, name + b"data: ", b"\n\n"):
                        yield piece
                    chunk = await anext(chunks, None)
        except ApiError as error:
            yield event(error.body)
        except Exception as error:  # the status is sent already
            yield event(unexpected(error).body)
        yield end

    def load_report(self, form: str) -> dict[str, str] | None:
        """A header for load balancers that ask for it (ORCA). `form`: TEXT or JSON."""
        last = self.engine.last_step
        found = {"kv_cache_usage_perc": last.kv_cache_usage, "num_requests_waiting": float(last.num_waiting)}
        if form.lower() == "text":
            report = "TEXT " + ", ".join(f"named_metrics.{name}={value}" for name, value in found.items())
        elif form.lower() == "json":
            report = "JSON " + to_json({"named_metrics": found}).decode()
        else:
            return None
        return {"endpoint-load-metrics": report}

    async def tokenize(self, request: Request) -> Response:
        asked = await self.read(TokenizeRequest, request)
        text = asked.prompt
        if asked.messages is not None and self.template is None:
            raise ApiError("this model has no chat template: give a prompt")
        if asked.messages is not None:
            text = await rendered(self.template, asked)
        try:
            ids = await unless_disconnected(request, self.engine.encode(text))
        except ValueError as error:
            raise ApiError(str(error)) from None
        ids = [*self.first_tokens, *ids] if asked.add_special_tokens else ids
        strings = None
        if asked.return_token_strs:
            strings = [printable(self.engine.tokenizer.decode_bytes([i])) for i in ids]
        limit = self.engine.limits.max_model_len
        return JsonResponse({"count": len(ids), "max_model_len": limit, "tokens": ids, "token_strs": strings})

    async def detokenize(self, request: Request) -> Response:
        asked = await self.read(DetokenizeRequest, request)
        if any(token >= 2**32 for token in asked.tokens):
            raise ApiError("tokens holds an id of more than 32 bits")
        tokenizer = self.engine.tokenizer  # ids beyond the vocabulary stand for no text
        text = tokenizer.decode(token for token in asked.tokens if token < tokenizer.vocab_size)
        return JsonResponse({"prompt": text})

    @property
    def card(self) -> dict[str, Any]:
        """The model, as OpenAI's clients want it described."""
        return {
            "id": self.name,
            "object": "model",
            "created": self.created,
            "owned_by": "inference-lab",
            "root": self.name,
            "parent": None,
            "max_model_len": self.engine.limits.max_model_len,
            "permission": [PERMISSION | {"id": f"modelperm-{uuid.uuid4().hex}", "created": self.created}],
        }

    async def models(self, request: Request) -> Response:
        return JsonResponse({"object": "list", "data": [self.card]})

    async def model(self, request: Request) -> Response:
        if (name := request.path_params["name"]) != self.name:
            raise no_such_model(name)
        return JsonResponse(self.card)

    async def openapi(self, request: Request) -> Response:
        """What the calls take, from the same models that check them."""
        keyed, schema = models_json_schema(
            [(kind, "validation") for kind in BODIES.values()], ref_template="#/components/schemas/{model}"
        )
        paths = {
            path: {
                "post": {
                    "requestBody": {"content": {"application/json": {"schema": keyed[kind, "validation"]}}},
                    "responses": {"200": {"description": "see vLLM's and OpenAI's references"}},
                }
            }
            for path, kind in BODIES.items()
        }
        info = {"title": "Inference Lab", "version": version_of("inference-lab") or "0"}
        parts = {"schemas": schema["$defs"]}
        return JsonResponse({"openapi": "3.1.0", "info": info, "paths": paths, "components": parts})

    async def health(self, request: Request) -> Response:
        return Response(status_code=200 if self.engine.is_alive else 503)

    async def version(self, request: Request) -> Response:
        return JsonResponse({"version": version_of("inference-lab") or "0"})

    async def metrics(self, request: Request) -> Response:
        # A scrape that fails sets Prometheus' `up` to 0: so an alert fires for a dead engine even without traffic.
        # vLLM ends the whole server then, with the same effect.
        if not self.engine.is_alive:
            return Response(status_code=503)
        return Response(self.engine.metrics.page(), media_type=CONTENT_TYPE_LATEST)

    async def server_load(self, request: Request) -> Response:
        return JsonResponse({"server_load": self.load})

    async def step_events(self, request: Request) -> Response:
        """What each step does, as `record` of features/recording.py writes it, while a client reads. The first event says the limits."""
        limits = self.engine.limits
        names = ("block_size", "max_num_seqs", "max_num_batched_tokens")
        engine = {name: getattr(limits.config, name) for name in names}
        engine["num_blocks"] = limits.num_blocks - 1  # without the null block

        async def stream() -> AsyncIterator[bytes]:
            yield b"event: engine\n" + event(engine)
            async with aclosing(self.engine.watch()) as steps:
                async for step in steps:
                    yield event(step)

        return StreamingResponse(
            stream(), media_type="text/event-stream", headers={"Cache-Control": "no-store"}
        )

    # ------------------------------------------------------------------ what all of them need

    async def read(self, kind: type[RequestModel], request: Request) -> RequestModel:
        """The body of a call, as a request to this server's model.

        Raises:
            ApiError: it is none, too large, or for another model.
        """
        content_type = request.headers.get("content-type", "").split(";")[0].strip().lower()
        if content_type != "application/json":
            raise ApiError("send JSON, with the header Content-Type: application/json", kind=WRONG_TYPE)
        context = self.engine.limits.max_model_len
        raw, size, most = bytearray(), 0, longest_body(context)
        async for piece in request.stream():
            size += len(piece)
            if size <= most:
                raw += piece  # what is more is dropped, but read: a client that still sends hears no answer
        if size > most:
            raise ApiError(
                f"the body is larger than {most:,} bytes: this model's context needs no more", status=413
            )
        if size > SMALL_BODY:
            async with self.large_bodies:
                asked = await asyncio.to_thread(read_body, kind, raw, context)
        else:
            asked = read_body(kind, raw, context)
        if asked.model and asked.model != self.name:
            raise no_such_model(asked.model)
        if "request_id" in kind.model_fields:
            asked.request_id = request.headers.get("x-request-id", asked.request_id)
            if (length := len(asked.request_id or "")) > LONGEST_REQUEST_ID:
                raise ApiError(
                    f"request_id has {length:,} characters: at most {LONGEST_REQUEST_ID}", "request_id"
                )
            with suppress(ValueError):  # as in vLLM: a header that is no number says nothing
                asked.priority = int(request.headers.get("x-vllm-priority", ""))
        return asked


def no_such_model(name: str) -> ApiError:
    return ApiError(f"The model `{visible(name)}` does not exist.", "model", 404, "NotFoundError")


def unexpected(error: Exception) -> ApiError:
    """A dead engine, or a mistake of ours: its traceback goes to the terminal, one line to the client."""
    if not isinstance(error, EngineDeadError):
        traceback.print_exception(error)
    return ApiError(f"{type(error).__name__}: {error}", status=500, kind="InternalServerError")


def unavailable(request: Request, error: Exception) -> Response:
    return ApiError(str(error), status=503, kind="ServiceUnavailableError").response()


def event(data: dict[str, Any]) -> bytes:
    """A server-sent event: `data: JSON` and an empty line."""
    return b"data: %b\n\n" % to_json(data)


async def prepared(call: Call, work: Callable[[], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
    """Check a call, then do its work."""
    try:
        await call.prepare()
    except ValueError as error:
        raise ApiError.of(error) from None
    return await work()


async def unless_disconnected(request: Request, work: Awaitable[Any]) -> Any:
    """Await an answer, but drop it when its client goes away. (The framework sees to that for streams only.)"""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(disconnected(request))
    try:
        await asyncio.wait([task, gone], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        for each in (task, gone):
            each.cancel()


async def disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def create_app(
    server: Server,
    api_key: str | None = None,
    allowed_origins: Sequence[str] = (),
    allowed_hosts: Sequence[str] = ("*",),
) -> ASGIApp:
    """The application around an engine that has been started.

    Args:
        allowed_origins: pages of these addresses may read what the server answers; "*": all.
        allowed_hosts: names of this server besides localhost; "*": any.
    """

    routes = [
        *(Route(path, server.answer, methods=["POST"]) for path in ANSWERS),
        Route("/tokenize", server.tokenize, methods=["POST"]),
        Route("/detokenize", server.detokenize, methods=["POST"]),
        Route("/v1/responses/{name}", server.stored_response),
        Route("/v1/models", server.models),
        Route("/v1/models/{name}", server.model),
        Route("/openapi.json", server.openapi),
        Route("/health", server.health),
        Route("/ping", server.health, methods=["GET", "POST"]),
        Route("/version", server.version),
        Route("/load", server.server_load),
        Route("/metrics", server.metrics, methods=["GET", "HEAD", "POST"]),
    ]
    for route in routes[len(BODIES) : -1]:
        route.methods.discard("HEAD")  # as in vLLM, but for /metrics
    if server.engine.record_steps:
        routes.append(Route("/events", server.step_events))
    routes += page_routes(server.engine, server.name, server.template is not None)

    app = Starlette(
        routes=routes,
        exception_handlers={
            ApiError: lambda request, error: error.response(),
            QueueFullError: unavailable,
            EngineDeadError: unavailable,
            ClientDisconnect: lambda request, error: Response(status_code=499),
            HTTPException: lambda request, error: JsonResponse(
                {"detail": error.detail}, error.status_code, headers=error.headers
            ),
            Exception: lambda request, error: unexpected(error).response(),
        },
        middleware=[
            Middleware(http_metrics, server.engine.metrics.registry),
            Middleware(CountLoad, server, ANSWERS),
            # No origin but the server's own, and those that were named.
            Middleware(
                CORSMiddleware, allow_origins=allowed_origins, allow_methods=["*"], allow_headers=["*"]
            ),
        ],
    )
    if api_key is not None:
        app = ApiKey(app, api_key)
    return trusting(app, allowed_hosts)
