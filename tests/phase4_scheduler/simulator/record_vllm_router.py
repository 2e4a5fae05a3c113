"""Record what vllm-router chooses: requests of the Mooncake trace (Apache 2.0) sent to it on the loopback.

    python record_vllm_router.py ENV/bin/vllm-router conversation.jsonl.gz vllm_router_0_1_17.jsonl.gz

Behind the router are four servers that answer at once, but for some requests that they hold until the end, so that the
loads differ. One character of the prompt stands for one block of the trace. ENV: `pip install vllm-router==0.1.17`.
"""

import gzip
import http.client
import json
import random
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CHOSEN: list[int] = []  # the server of each request, in the order in which they came
END = threading.Event()


def server(number: int) -> int:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None: ...

        def do_GET(self) -> None:
            self.answer({"object": "list", "data": [{"id": "m"}], "status": "ok", "model_path": "m"})

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path == "/v1/completions":
                CHOSEN.append(number)
                if asked["user"] == "hold":
                    END.wait()
            # The router may ask for the tokens of a prompt, as well.
            ids = [ord(c) for c in asked["prompt"]]
            choice = {"text": "a", "index": 0}
            self.answer({"id": "x", "object": "text_completion", "choices": [choice], "token_ids": ids})

        def answer(self, body: dict) -> None:
            data = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    listening.daemon_threads = True
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    return listening.server_port


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def ask(port: int, prompt: str, hold: bool = False) -> int:
    """The server that the router chose."""

    def post() -> None:
        body = {"model": "m", "prompt": prompt, "max_tokens": 1, "user": "hold" if hold else "x"}
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=3600)
        client.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        client.getresponse().read()

    before = len(CHOSEN)
    asking = threading.Thread(target=post, daemon=True)
    asking.start()
    if not hold:
        asking.join()
    while len(CHOSEN) == before:
        time.sleep(0.001)
    return CHOSEN[before]


def is_up(port: int) -> bool:
    try:
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        client.request("GET", "/health")
        return client.getresponse().status == 200
    except OSError:
        return False


def main(program: str, trace: str, out: str) -> None:
    port, metrics = free_port(), free_port()
    urls = [f"http://127.0.0.1:{server(number)}" for number in range(4)]
    command = [program, "--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(metrics)]
    router = subprocess.Popen(
        [*command, "--policy", "cache_aware", "--worker-urls", *urls], stdout=subprocess.DEVNULL
    )
    try:
        while not is_up(port):
            time.sleep(0.5)
        # Equal loads: the router takes the first one in its own order of the servers.
        order = [ask(port, letter * 9, hold=True) for letter in "abcd"]
        loads, rng = [1] * 4, random.Random(0)
        with gzip.open(trace, "rt") as lines, gzip.open(out, "wt") as found:
            for _, line in zip(range(1000), lines):
                ids = json.loads(line)["hash_ids"]
                hold = rng.random() < 0.15
                text = "".join(chr(0x4E00 + i) if i < 0x5000 else chr(0x10000 + i) for i in ids)
                chosen = order.index(ask(port, text, hold))
                found.write(json.dumps(dict(hash_ids=ids, loads=loads, chosen=chosen)) + "\n")
                loads = [load + (hold and i == chosen) for i, load in enumerate(loads)]
    finally:
        END.set()
        router.terminate()


if __name__ == "__main__":
    main(*sys.argv[1:])
