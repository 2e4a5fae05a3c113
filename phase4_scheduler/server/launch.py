"""Starts the server from its options: the socket, the two processes, and their end."""

import asyncio
import logging
import pkgutil
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from labkit.errors import LabError
from labkit.models import find_model
from phase1_tokens_embeddings.weights.config_settings import generation_settings
from phase1_tokens_embeddings.weights.gguf_model import load_chat_template, load_first_tokens
from phase2_attention_kvcache.model import SamplingParams
from phase2_attention_kvcache.model.config import read_config
from phase4_scheduler.assembly import load_tokenizer
from phase4_scheduler.server.app import Server, create_app
from phase4_scheduler.server.async_engine import AsyncEngine
from phase4_scheduler.server.engine_process import spare_collections

try:  # as in vLLM: an event loop in C. With 64 users of a small model, the server reaches 70% of the engine's speed, not 63%
    from uvloop import new_event_loop
except ImportError:  # uvloop does not exist for Windows
    from asyncio import new_event_loop


DEFAULTS = (  # that a model's files may set
    "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
)  # fmt: skip
ERRORS_SENT = 2  # seconds in which the last error messages are sent, at most


class WebServer(uvicorn.Server):
    """A server that prints why it ends, and does not wait for clients of /events, which never finish."""

    def __init__(self, config: uvicorn.Config, engine: AsyncEngine) -> None:
        super().__init__(config)
        self.engine = engine

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        wait = f"running answers have {self.config.timeout_graceful_shutdown:g} s to end"
        logging.getLogger(__name__).warning(
            "%s: the server accepts no more requests, %s", signal.Signals(sig).name, wait
        )
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.engine.end_watches()
        # After the timeout, running answers end with an error, which takes some time to be sent.
        loop, patience = asyncio.get_running_loop(), self.config.timeout_graceful_shutdown
        loop.call_later(patience, self.engine.end_streams)
        self.config.timeout_graceful_shutdown = patience + ERRORS_SENT
        await super().shutdown(sockets)


def make_server(
    model: str,
    served_model_name: str | None = None,
    replicas: int = 1,
    router: Any = None,
    tool_call_parser: str | None = None,
    generation_config: str = "auto",
    **options: Any,
) -> Server:
    """Make a server whose engine has not been started yet.

    Args:
        generation_config: "auto": the model's own sampling parameters are the defaults of requests; "vllm": they are not.
        replicas: number of engines; several run on Ray, and `router` chooses one for each request (`ray_fleet.py`).
        tool_call_parser: see `Server`. options: of `AsyncEngine`, and fields of `EngineConfig`.

    Raises:
        LabError: the model is unknown or has no tokenizer; Ray is not installed; record_steps is set for several replicas.
        ValueError: the model's files cannot be used.
    """
    if options.get("record_steps") and replicas > 1:
        raise LabError("--enable-step-events shows the steps of one engine: leave out --replicas")
    folder, name = find_model(model), served_model_name or model
    tokenizer = load_tokenizer(folder)
    if tokenizer is None:
        raise LabError(f"{folder} holds no tokenizer.json: a server needs one")
    make_engine = AsyncEngine
    if replicas > 1:
        try:  # only here, because importing Ray takes a second
            from phase4_scheduler.server.ray_fleet import RayFleet
        except ImportError:
            raise LabError("--replicas needs Ray, which is not installed: pip install ray==2.60.0") from None
        make_engine = partial(RayFleet, replicas, router)
    engine = make_engine(str(folder), read_config(folder), tokenizer, model_name=name, **options)
    defaults = default_params(folder) if generation_config == "auto" else {}
    parts = (load_chat_template(folder), int(folder.stat().st_mtime), tool_call_parser)
    return Server(engine, name, *parts, defaults, load_first_tokens(folder))


def default_params(folder: Path) -> dict[str, Any]:
    """The sampling parameters that a model's generation_config.json proposes. Raises LabError: a wrong value.

    Source: vllm/config/model.py, get_diff_sampling_param.
    """
    raw = generation_settings(folder)
    found = {name: raw.get(name) for name in DEFAULTS} | {"max_tokens": raw.get("max_new_tokens")}
    found = {name: value for name, value in found.items() if value is not None}
    try:
        SamplingParams(**found)
    except ValueError as error:
        raise LabError(
            f"generation_config.json: {error}; correct it, or use --generation-config vllm"
        ) from None
    return found


def open_socket(host: str, port: int) -> socket.socket:
    """Open a listening socket.

    Raises:
        LabError: the port is in use, or the host is not an address of this machine.
    """
    try:
        listening = socket.create_server((host, port), reuse_port=False, backlog=2048)
    except (OSError, OverflowError) as error:
        raise LabError(
            f"the server cannot listen on {host}:{port} ({error}): choose another --port or --host"
        ) from None
    # Connections inherit this option. Without it the system holds a small packet back until the client has acknowledged the
    # previous one, which can take 40 ms per token.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def run_server(
    server: Server,
    listening: socket.socket,
    api_key: str | None,
    shutdown_timeout: float,
    on_ready: Callable[[str], None],
    middleware: Sequence[str] = (),
    allowed_origins: Sequence[str] = (),
    allowed_hosts: Sequence[str] = (),
) -> None:
    """Serve until SIGINT or SIGTERM. Then running requests have `shutdown_timeout` seconds to end.

    Args:
        on_ready: called with the server's address when the engine has started.
        middleware: import paths of ASGI middleware; the last one is the outermost.
        allowed_origins: see `create_app`.
        allowed_hosts: see `create_app`; the address that the server listens on is added. If empty, every name is allowed,
            unless only this machine can connect.

    Raises:
        ValueError, LabError: the engine cannot be started.
    """

    around = [find_middleware(path) for path in middleware]
    host, port = listening.getsockname()[:2]
    if not (allowed_hosts or ip_address(host).is_loopback):
        allowed_hosts = ("*",)
    allowed_hosts = (*allowed_hosts, host)

    async def serve() -> None:
        try:
            await server.engine.start()
            spare_collections()
            sys.setswitchinterval(0.0005)  # a thread that tokenizes yields to the others after 0.5 ms
            app = create_app(server, api_key, allowed_origins, allowed_hosts)
            for wrap in around:
                app = wrap(app)
            config = uvicorn.Config(
                app, log_level="critical", access_log=False,
                timeout_graceful_shutdown=shutdown_timeout, h11_max_incomplete_event_size=64 * 1024,
            )  # fmt: skip
            web = WebServer(config, server.engine)
            on_ready(f"http://{host}:{port}")
            await web.serve(sockets=[listening])
        finally:  # also if a signal arrives while the engine starts
            server.engine.stop()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(serve())


def find_middleware(path: str) -> Callable:
    """Find a class by its import path, such as package.module.Class. Raises LabError: it does not exist."""
    try:
        if callable(found := pkgutil.resolve_name(path)):
            return found
        raise ValueError("it is a module")
    except (ImportError, AttributeError, ValueError) as error:
        raise LabError(f"no middleware {path} ({error}): give MODULE.CLASS") from None
