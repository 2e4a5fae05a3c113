"""Long runs against a server: what leaks, what hangs, who has to wait. Prints one line of JSON for each.

    python -m tests.phase4_scheduler.server.soak                       # all, about ten minutes
    python -m tests.phase4_scheduler.server.soak requests --count 1000

Short forms of these are tests: test_robustness.py.
"""

import argparse
import asyncio
import json
import os
import signal
import statistics
import threading
import time
from contextlib import asynccontextmanager

import psutil
import uvicorn

from phase4_scheduler.server.app import create_app
from phase4_scheduler.server.client import complete, running_server, send_all
from phase4_scheduler.server.launch import make_server, open_socket

ENDLESS = {"prompt": "Once upon a time", "max_tokens": 900, "ignore_eos": True}


@asynccontextmanager
async def server_in_here(**settings):
    """A server whose API runs in this event loop, where its tasks can be counted. The engine has a process as ever."""
    server = make_server("tales", **settings)
    await server.engine.start()
    listening = open_socket("127.0.0.1", 0)
    web = uvicorn.Server(
        uvicorn.Config(create_app(server), log_level="critical", timeout_graceful_shutdown=0)
    )
    serving = asyncio.create_task(web.serve(sockets=[listening]))
    try:
        yield server, f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        web.should_exit = True
        await serving
        server.engine.stop()


async def until(condition, seconds=60):
    """Wait for it; False if it does not come true."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        await asyncio.sleep(0.01)
    return True


async def disconnects(count):
    """Clients that go away after the first piece: what is left, and how many messages of the engine it takes until
    their blocks are free, for half of them. The first of these is of the step that was under way."""
    async with server_in_here(max_num_seqs=32) as (server, address):
        engine, messages_to_free = server.engine, []
        take, drop = engine._take, engine._drop
        gone = {}  # request id -> messages of the engine since its reader left

        def watched_take(message):
            take(message)
            for request_id in list(gone):
                gone[request_id] += 1
            held = message.num_running + message.num_waiting
            while gone and held < len(gone) + len(engine._streams):  # the oldest has been freed
                messages_to_free.append(gone.pop(next(iter(gone))))

        def watched_drop(request_id):
            if stream := drop(request_id):
                gone[request_id] = 0
            return stream

        engine._take, engine._drop = watched_take, watched_drop

        async def leave(number):
            return await asyncio.gather(*(complete(address, ENDLESS, cut_after=1) for _ in range(number)))

        await leave(32)  # a warm-up
        before = await standing(server)
        for _ in range(count // 32 + 1):
            await leave(min(32, count))
        after = await standing(server)
    return {"before": before, "after": after, "messages_to_free": statistics.median(messages_to_free)}


async def standing(server):
    """What a server that nobody uses holds."""
    engine = server.engine
    assert await until(lambda: not engine._streams and not engine.last_step.num_running), "requests hang"
    await asyncio.sleep(0.5)  # connections close
    return {
        "blocks": engine.last_step.kv_cache_usage,
        "streams": len(engine._streams) + len(engine.output_processor.parents) + server.load,
        "tasks": len(asyncio.all_tasks()),
        "files": psutil.Process().num_fds(),
    }


def requests(count, dtype="float32"):
    """Many short requests, one in ten cut off: none hangs, and memory does not grow.

    In bfloat16 it does at first: torch's libraries keep what they prepared for each number of tokens that a step had, up
    to a limit (see labkit/__init__.py).
    """
    # The system gives a process memory when it is first written to: the warm-up must have used each block once.
    options = ["--max-num-seqs", "32", "--num-gpu-blocks-override", "200", "--dtype", dtype]
    with running_server(*options) as server:
        api = psutil.Process(server.process.pid)
        [engine] = [p for p in api.children(recursive=True) if "spawn_main" in " ".join(p.cmdline())]

        def run(number):
            bodies = [{"prompt": f"{i} times", "max_tokens": 4, "ignore_eos": True} for i in range(number)]
            seats = asyncio.Semaphore(64)

            async def one(i, body):
                async with seats:
                    return await complete(server.address, body, cut_after=1 if i % 10 == 0 else None)

            async def all_of_them():
                return await asyncio.gather(*(one(i, body) for i, body in enumerate(bodies)))

            return asyncio.run(all_of_them())

        run(max(200, count // 5))
        before = [p.memory_info().rss for p in (api, engine)]
        began = time.perf_counter()
        answers = run(count)
        seconds = time.perf_counter() - began
        after = [p.memory_info().rss for p in (api, engine)]
    complete_ones = [a for i, a in enumerate(answers) if i % 10]
    return {
        "requests": count,
        "seconds": round(seconds, 1),
        "errors": sum(a.error is not None for a in answers),
        "short": sum(a.usage is None or a.usage["completion_tokens"] != 4 for a in complete_ones),
        "memory_growth": [round(b / a - 1, 4) for a, b in zip(before, after, strict=True)],
    }


def poll_health(server, stop):
    """Seconds that each of many /health took, until told to stop."""
    taken = []
    while not stop.is_set():
        began = time.perf_counter()
        status, _ = server.get("/health")
        assert status == 200
        taken.append(time.perf_counter() - began)
        time.sleep(0.01)
    return taken


def health_while(server, work):
    """/health asked again and again, while `work` is done."""
    stop, taken = threading.Event(), []
    thread = threading.Thread(target=lambda: taken.extend(poll_health(server, stop)))
    thread.start()
    began = time.perf_counter()
    work()
    seconds = time.perf_counter() - began
    stop.set()
    thread.join()
    p99 = statistics.quantiles(taken, n=100)[98]
    return {
        "asked": len(taken), "seconds": round(seconds, 1), "p50_ms": round(1e3 * statistics.median(taken), 1),
        "p99_ms": round(1e3 * p99, 1), "most_ms": round(1e3 * max(taken), 1),
    }  # fmt: skip


def health():
    """How long /health takes: idle, at 64 streams, and while prompts of 5 MB are tokenised."""
    story = "The king and his three sons went out to sea, and nobody in the town has seen them since. "
    prompts = {"5 MB of text": story * (5 * 2**20 // len(story)), "5 MB without a space": "x" * 5 * 2**20}
    with running_server("--max-num-seqs", "64") as server:
        found = {"idle": health_while(server, lambda: time.sleep(3))}
        bodies = [ENDLESS | {"max_tokens": 300}] * 64
        found["64 streams"] = health_while(server, lambda: asyncio.run(send_all(server.address, bodies)))
        for name, prompt in prompts.items():
            body = {"prompt": prompt, "max_tokens": 1, "truncate_prompt_tokens": 16}
            found[name] = health_while(server, lambda b=body: asyncio.run(complete(server.address, b)))
    return found


def killed_engine():
    """The engine process is killed at 16 streams: how long until /health says so, and how the streams end."""
    with running_server() as server:
        api = psutil.Process(server.process.pid)
        [engine] = [p for p in api.children(recursive=True) if "spawn_main" in " ".join(p.cmdline())]
        times = {}

        def kill():
            wait_for_load(server, 16)
            engine.kill()
            times["killed"] = time.perf_counter()
            while server.get("/health")[0] != 503:
                time.sleep(0.01)
            times["503"] = time.perf_counter()

        thread = threading.Thread(target=kill)
        thread.start()
        answers = asyncio.run(send_all(server.address, [ENDLESS] * 16))
        thread.join()
    errors = [a.error or "" for a in answers]
    return {
        "seconds_to_503": round(times["503"] - times["killed"], 3),
        "seconds_to_last_stream": round(max(a.ended for a in answers) - times["killed"], 3),
        "streams": len(answers),
        "ended_with_an_error": sum("engine process has ended" in error for error in errors),
    }


def wait_for_load(server, number):
    """Until so many calls are under way."""
    while json.loads(server.get("/load")[1])["server_load"] < number:
        time.sleep(0.01)


def drain():
    """SIGTERM at 16 calls, half of which still wait for a seat: with time to end each is answered to its end."""

    def stop():
        wait_for_load(server, 16)
        os.kill(server.process.pid, signal.SIGTERM)

    with running_server("--shutdown-timeout", "120", "--max-num-seqs", "8") as server:
        threading.Thread(target=stop).start()
        answers = asyncio.run(send_all(server.address, [ENDLESS | {"max_tokens": 400}] * 16))
        server.process.wait(timeout=60)
    whole = [a for a in answers if a.error is None and a.usage["completion_tokens"] == 400]
    return {
        "streams": len(answers),
        "answered_to_the_end": len(whole),
        "exit_code": server.process.returncode,
    }


RUNS = {
    "disconnects": lambda count: asyncio.run(disconnects(count or 1000)),
    "requests": lambda count: requests(count or 10_000),
    "requests_bfloat16": lambda count: requests(count or 10_000, "bfloat16"),
    "health": lambda count: health(),
    "killed_engine": lambda count: killed_engine(),
    "drain": lambda count: drain(),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("runs", nargs="*", choices=list(RUNS), help=", ".join(RUNS))
    parser.add_argument("--count", type=int, help="of requests or of disconnects")
    args = parser.parse_args()
    for name in args.runs or RUNS:
        print(json.dumps({name: RUNS[name](args.count)}), flush=True)


if __name__ == "__main__":
    main()
