"""A server in OpenAI's protocol around the engine: curl, the openai package and load generators may talk to it.

    python phase4_scheduler/serve.py                     # or: lab serve; then open its address in a browser
    curl http://127.0.0.1:8000/v1/completions -H 'Content-Type: application/json' \\
         -d '{"prompt": "Once upon a time", "max_tokens": 40}'

Options carry vLLM's names.
"""

import argparse
import json
from typing import Any

import labkit  # noqa: F401 - first: it says so where the environment is missing

# isort: split
from pydantic import TypeAdapter

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


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="lab serve", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("model", nargs="?", default="tales", help="a name, a folder or a .gguf file (tales)")
    add(
        "--host",
        default="127.0.0.1",
        help="who may call: 127.0.0.1 this machine only, 0.0.0.0 all (127.0.0.1)",
    )
    add("--port", type=whole(0, 65535), default=8000, help="0: any that is free (8000)")
    add(
        "--api-key",
        help="calls of /v1, /tokenize and /detokenize must carry it: Authorization: Bearer KEY; /health, /metrics, "
        "/version, /load and /ping answer without it (vLLM guards /v1 only)",
    )
    add("--served-model-name", help="the model's name for clients (as it was given)")
    add(
        "--dtype",
        default="bfloat16",
        choices=["float32", "bfloat16", "float16"],
        help="of weights and sums (bfloat16)",
    )
    add(
        "--device",
        default="auto",
        choices=["auto", "cpu", "cuda"],
        help="auto: a GPU if there is one (auto)",
    )
    add("--quantization", choices=METHODS, help="keep the weights in few bits (as the files have them)")
    add(
        "--max-model-len",
        type=whole(1, 10**6),
        help="longest prompt and answer together (the model's context)",
    )
    add("--max-num-seqs", type=whole(1, 10**6), default=64, help="most requests that run at a time (64)")
    add("--max-num-batched-tokens", type=whole(1, 10**6), default=2048, help="most tokens of a step (2048)")
    add(
        "--num-gpu-blocks-override",
        type=whole(2, 10**8),
        help="blocks of the KV cache (as many as are needed and fit)",
    )
    add("--block-size", type=whole(1, 1024), default=16, help="tokens a block (16)")
    add("--kv-cache-dtype", default="auto", choices=KV_CACHE_DTYPES, help="of keys and values (auto)")
    add("--no-enable-prefix-caching", action="store_true", help="compute each prompt anew")
    add("--no-enable-chunked-prefill", action="store_true", help="compute each prompt in one step")
    add(
        "--speculative-config",
        type=json_object,
        metavar="JSON",
        help='drafts: \'{"method": "ngram", "num_speculative_tokens": 3}\', '
        'or \'{"model": "tales-draft", "num_speculative_tokens": 3}\' (none)',
    )
    add(
        "--scheduling-policy",
        default="fcfs",
        choices=["fcfs", "priority"],
        help="who is admitted first: who came first, or who has the lowest priority number (fcfs)",
    )
    add(
        "--enable-prompt-tokens-details",
        action="store_true",
        help="usage tells how many prompt tokens were cached",
    )
    add(
        "--enable-mfu-metrics",
        action="store_true",
        help="/metrics estimates operations and bytes of each step",
    )
    add(
        "--enable-step-events",
        action="store_true",
        help="/events streams what each step does, for the glass engine of `lab web`",
    )
    add(
        "--allowed-origins",
        type=json_list,
        default=[],
        metavar="JSON",
        help="pages of these addresses may read the answers: '[\"http://127.0.0.1:8080\"]' is that of `lab web` (none)",
    )
    add(
        "--allowed-hosts",
        type=json_list,
        default=[],
        metavar="JSON",
        help="names by which clients may call this server, besides localhost and addresses in numbers: '[\"gpu.example\"]'; "
        "'[\"*\"]': any (any with a --host that others reach, none otherwise)",
    )
    add(
        "--max-num-queued-reqs",
        type=whole(0, 10**9),
        help="refuse more answers than this under way with 503 (no limit)",
    )
    add(
        "--shutdown-timeout",
        type=between(0, 86_400),
        default=0,
        help="seconds that answers under way have to end at SIGTERM (0)",
    )
    add("--tool-call-parser", choices=TOOL_CALL_PARSERS, help="how the model writes tool calls down (none)")
    add(
        "--enable-auto-tool-choice",
        action="store_true",
        help="the model may choose whether it calls a tool; needs --tool-call-parser",
    )
    add(
        "--middleware",
        action="append",
        default=[],
        metavar="MODULE.CLASS",
        help="ASGI middleware around the API, by its import path; may be given several times",
    )
    add(
        "--replicas",
        type=whole(1, 1000),
        default=1,
        help="engines; more than one run as actors of Ray (pip install ray) on this machine, or where RAY_ADDRESS says (1)",
    )
    add(
        "--router",
        choices=list(ROUTERS),
        default="prefix-aware",
        help="who chooses the replica of a request (prefix-aware)",
    )
    add(
        "--tensor-parallel-size",
        "-tp",
        type=whole(1, 1024),
        default=1,
        help="processes that share each layer of the model (1)",
    )
    add(
        "--pipeline-parallel-size",
        "-pp",
        type=whole(1, 1024),
        default=1,
        help="groups of them that share the layers (1)",
    )
    add(
        "--enable-expert-parallel",
        "-ep",
        action="store_true",
        help="of a mixture, processes that share a layer hold whole experts, and not a slice of each",
    )
    add("--seed", type=whole(0, 2**32 - 1), default=0, help="for requests without a seed of their own (0)")
    return parser


def json_object(text: str) -> dict[str, Any]:
    """The type of an option: an object in JSON."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{quoted(text)} is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{quoted(text)} is no object: give {{...}}")
    return value


def json_list(text: str) -> list[str]:
    """The type of an option: a list of strings in JSON."""
    try:
        return TypeAdapter(list[str]).validate_json(text, strict=True)
    except ValueError:
        raise argparse.ArgumentTypeError(f'{quoted(text)} is no list of strings: give ["..."]') from None


def main(argv: list[str] | None = None) -> int:
    return run(lambda: serve(build_parser().parse_args(argv)))


def serve(a: argparse.Namespace) -> int:
    if a.enable_step_events and a.api_key is not None:
        raise LabError(
            "--enable-step-events tells all who ask what each request does, and a web page that listens can send no key: "
            "leave out --api-key or --enable-step-events"
        )
    if a.enable_expert_parallel and a.tensor_parallel_size == 1:
        raise LabError(
            "--enable-expert-parallel deals out experts: choose a --tensor-parallel-size of at least 2, too"
        )
    if a.enable_mfu_metrics and a.tensor_parallel_size * a.pipeline_parallel_size > 1:
        raise LabError(
            "--enable-mfu-metrics estimates what one device does: leave it out, or the parallel sizes"
        )
    if a.enable_auto_tool_choice and a.tool_call_parser is None:
        raise LabError(
            "--enable-auto-tool-choice needs --tool-call-parser: say how the model writes calls down"
        )
    server = make_server(
        a.model,
        a.served_model_name,
        a.max_num_queued_reqs,
        a.dtype,
        a.device,
        a.enable_prompt_tokens_details,
        a.enable_mfu_metrics,
        a.enable_step_events,
        a.replicas,
        ROUTERS[a.router](),
        a.tool_call_parser if a.enable_auto_tool_choice else None,
        max_num_seqs=a.max_num_seqs,
        max_num_batched_tokens=a.max_num_batched_tokens,
        max_model_len=a.max_model_len,
        num_blocks=a.num_gpu_blocks_override,
        block_size=a.block_size,
        enable_prefix_caching=not a.no_enable_prefix_caching,
        chunked_prefill=not a.no_enable_chunked_prefill,
        policy=a.scheduling_policy,
        speculative_config=SpeculativeConfig.of(a.speculative_config),
        seed=a.seed,
        quantization=a.quantization,
        kv_cache_dtype=a.kv_cache_dtype,
        tensor_parallel_size=a.tensor_parallel_size,
        pipeline_parallel_size=a.pipeline_parallel_size,
        enable_expert_parallel=a.enable_expert_parallel,
    )

    def on_ready(address: str) -> None:
        print(f"{server.name} is served at {address}   (Ctrl-C ends it)", flush=True)

    run_server(
        server,
        open_socket(a.host, a.port),
        a.api_key,
        a.shutdown_timeout,
        on_ready,
        a.middleware,
        a.allowed_origins,
        a.allowed_hosts,
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
