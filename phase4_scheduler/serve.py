"""A server in OpenAI's protocol around the engine: curl, the openai package and load generators may talk to it.

    python phase4_scheduler/serve.py                     # or: lab serve; then open its address in a browser
    curl http://127.0.0.1:8000/v1/completions -H 'Content-Type: application/json' \\
         -d '{"prompt": "Once upon a time", "max_tokens": 40}'

Options carry vLLM's names.
"""

import argparse
from collections.abc import Callable
from typing import Any

import labkit  # noqa: F401 - first: it says so where the environment is missing

# isort: split
from pydantic import TypeAdapter
from rich.console import Console

from labkit.errors import LabError
from labkit.foreign import quoted
from labkit.options import Parser, between, whole
from labkit.terminal import run
from phase2_attention_kvcache.quantization.kv_formats import KV_CACHE_DTYPES
from phase2_attention_kvcache.quantization.quantized_formats import METHODS
from phase4_scheduler.features.speculation.config import SpeculativeConfig
from phase4_scheduler.server.launch import make_server, open_socket, run_server
from phase4_scheduler.server.tools import TOOL_CALL_PARSERS
from phase4_scheduler.simulator.routers import ROUTERS


def in_json(kind: type, what: str) -> Callable[[str], Any]:
    """The type of an option: a value in JSON."""

    def parse(text: str) -> Any:
        try:
            return TypeAdapter(kind).validate_json(text, strict=True)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{quoted(text)} is no {what}") from None

    return parse


json_object = in_json(dict[str, Any], "object in JSON: give {...}")
json_list = in_json(list[str], 'list of strings: give ["..."]')
ONE, MANY = whole(1, 10**6), whole(1, 1024)
OPTIONS = (  # where `dest` is given, it is the name that the engine, or `make_server`, has for it
    ("--host", "address to listen on: 127.0.0.1 for this machine only, 0.0.0.0 for all (127.0.0.1)", dict(default="127.0.0.1")),
    ("--port", "0: any that is free (8000)", dict(type=whole(0, 65535), default=8000)),
    ("--api-key", "calls of /v1, /tokenize and /detokenize must carry it: Authorization: Bearer KEY; /health, /metrics, "
     "/version, /load and /ping answer without it (vLLM leaves /tokenize and /detokenize open, too)", {}),
    ("--served-model-name", "the model's name for clients (as it was given)", {}),
    ("--dtype", "of weights and activations (bfloat16)", dict(default="bfloat16", choices=["float32", "bfloat16", "float16"])),
    ("--device", "auto: a GPU if there is one (auto)", dict(default="auto", choices=["auto", "cpu", "cuda"])),
    ("--quantization", "quantize the weights while loading (as the files have them)", dict(choices=METHODS)),
    ("--max-model-len", "longest prompt and answer together (the model's context)", dict(type=ONE)),
    ("--max-num-seqs", "most requests that run at a time (64)", dict(type=ONE, default=64)),
    ("--max-num-batched-tokens", "most tokens of a step (2048)", dict(type=ONE, default=2048)),
    ("--num-gpu-blocks-override", "blocks of the KV cache (as many as are needed and fit)",
     dict(type=whole(2, 10**8), dest="num_blocks")),
    ("--block-size", "tokens per block (16)", dict(type=MANY, default=16)),
    ("--kv-cache-dtype", "of keys and values (auto)", dict(default="auto", choices=KV_CACHE_DTYPES)),
    ("--no-enable-prefix-caching", "compute every prompt completely", dict(action="store_false", dest="enable_prefix_caching")),
    ("--no-enable-chunked-prefill", "compute each prompt in one step", dict(action="store_false", dest="chunked_prefill")),
    ("--speculative-config", 'drafts: \'{"method": "ngram", "num_speculative_tokens": 3}\', or \'{"model": "tales-draft", '
     '"num_speculative_tokens": 3}\' (none)', dict(type=json_object, metavar="JSON")),
    ("--generation-config", "auto: the model's generation_config.json fills in the sampling parameters that a request leaves out; "
     "vllm: vLLM's neutral ones do (auto)", dict(default="auto", choices=["auto", "vllm"])),
    ("--scheduling-policy", "admission order: fcfs by arrival, priority by the lowest priority number (fcfs)",
     dict(default="fcfs", choices=["fcfs", "priority"], dest="policy")),
    ("--enable-prompt-tokens-details", "usage tells how many prompt tokens were cached", dict(action="store_true")),
    ("--enable-mfu-metrics", "/metrics estimates operations and bytes of each step", dict(action="store_true")),
    ("--kv-events-config", 'publish what enters and leaves the prefix cache: \'{"enable_kv_cache_events": true, "endpoint": '
     '"tcp://*:5557"}\' (none)', dict(type=json_object, metavar="JSON")),
    ("--enable-step-events", "/events streams what each step does, for the glass engine of `lab web`",
     dict(action="store_true", dest="record_steps")),
    ("--allowed-origins", "pages of these addresses may read the answers: '[\"http://127.0.0.1:8080\"]' is that of `lab web` "
     "(none)", dict(type=json_list, default=[], metavar="JSON")),
    ("--allowed-hosts", "names by which clients may call this server, besides localhost and 127.0.0.1: "
     "'[\"gpu.example\"]'; '[\"*\"]': any (any with a --host that others reach, none otherwise)",
     dict(type=json_list, default=[], metavar="JSON")),
    ("--max-num-queued-reqs", "answer 503 while so many answers are in progress (no limit)", dict(type=whole(0, 10**9))),
    ("--shutdown-timeout", "seconds that answers under way have to end at SIGTERM (0)", dict(type=between(0, 86_400), default=0)),
    ("--tool-call-parser", "the format of the model's tool calls (none)", dict(choices=TOOL_CALL_PARSERS)),
    ("--enable-auto-tool-choice", "the model may choose whether it calls a tool; needs --tool-call-parser",
     dict(action="store_true")),
    ("--middleware", "ASGI middleware around the API, by its import path; may be given several times",
     dict(action="append", default=[], metavar="MODULE.CLASS")),
    ("--replicas", "engines; more than one run as actors of Ray (pip install ray) on this machine, or where RAY_ADDRESS says (1)",
     dict(type=whole(1, 1000), default=1)),
    ("--router", "rule that chooses the replica of a request (prefix-aware)", dict(choices=list(ROUTERS))),
    ("--tensor-parallel-size -tp", "processes that share each layer of the model (1)", dict(type=MANY, default=1)),
    ("--pipeline-parallel-size -pp", "groups of processes, each with a part of the layers (1)", dict(type=MANY, default=1)),
    ("--enable-expert-parallel -ep", "each process holds whole experts of a mixture, not a slice of each",
     dict(action="store_true")),
    ("--seed", "for requests without a seed of their own (0)", dict(type=whole(0, 2**32 - 1), default=0)),
)  # fmt: skip


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="lab serve", description=__doc__)
    parser.add_argument("model", nargs="?", default="tales", help="a name, a folder or a .gguf file (tales)")
    for names, text, more in OPTIONS:
        parser.add_argument(*names.split(), help=text, **more)
    return parser


def main(argv: list[str] | None = None) -> int:
    return run(lambda: serve(build_parser().parse_args(argv)))


def serve(a: argparse.Namespace) -> int:
    ranks = a.tensor_parallel_size * a.pipeline_parallel_size
    for wrong, remedy in (
        (a.record_steps and a.api_key is not None, "--enable-step-events shows every client what each request does, and a web "
         "page that listens can send no key: leave out --api-key or --enable-step-events"),
        (a.enable_expert_parallel and a.tensor_parallel_size == 1, "--enable-expert-parallel deals out experts: choose a "
         "--tensor-parallel-size of at least 2, too"),
        (a.enable_mfu_metrics and ranks > 1, "--enable-mfu-metrics estimates what one device does: leave it out, or the "
         "parallel sizes"),
        (a.enable_auto_tool_choice and a.tool_call_parser is None, "--enable-auto-tool-choice needs --tool-call-parser: name "
         "the format of the model's tool calls"),
        (a.router is not None and a.replicas == 1, "--router chooses among replicas: add --replicas 2 or more, or leave it out"),
    ):  # fmt: skip
        if wrong:
            raise LabError(remedy)
    a.tool_call_parser = a.tool_call_parser if a.enable_auto_tool_choice else None
    a.router = ROUTERS[a.router or "prefix-aware"]()
    a.speculative_config = SpeculativeConfig.of(a.speculative_config)
    own = {
        "host", "port", "api_key", "shutdown_timeout", "middleware", "allowed_origins", "allowed_hosts", "enable_auto_tool_choice"
    }  # fmt: skip
    server = make_server(**{name: value for name, value in vars(a).items() if name not in own})

    starting = Console(stderr=True).status("starting the engine")
    server.engine.tell = starting.update

    def on_ready(address: str) -> None:
        starting.stop()
        print(f"{server.name} is served at {address}   (Ctrl-C ends it)", flush=True)

    listening = open_socket(a.host, a.port)
    limits = (a.middleware, a.allowed_origins, a.allowed_hosts)
    with starting:
        run_server(server, listening, a.api_key, a.shutdown_timeout, on_ready, *limits)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
