"""The glass engine on a server that runs: what the page shows is what the server did."""

import json
import re
import threading
import time
import urllib.request

from phase4_scheduler.server.client import running_server
from tests.web.clicking import shown, slide


def ask(server, **asked) -> None:
    body = json.dumps({"temperature": 0, "ignore_eos": True, **asked}).encode()
    call = urllib.request.Request(
        f"{server.address}/v1/completions", body, {"Content-Type": "application/json"}
    )
    urllib.request.urlopen(call, timeout=60).read()


def listen(server, events: list) -> None:
    """All that /events sends, until the server ends."""
    with urllib.request.urlopen(f"{server.address}/events", timeout=60) as answer:
        kind = "step"
        for line in answer:
            if line.startswith(b"event: "):
                kind = line[len(b"event: ") :].decode().strip()
            elif line.startswith(b"data: "):
                events.append((kind, json.loads(line[len(b"data: ") :])))
                kind = "step"


def test_a_running_server_step_by_step(piece_on, open_page, address):
    page, piece = piece_on("scheduler", "replay")
    events: list[tuple[str, dict]] = []
    options = ("--num-gpu-blocks-override", "24", "--block-size", "4", "--max-num-seqs", "2")
    origins = ("--allowed-origins", json.dumps([address.rstrip("/")]))
    # The page may read one server's answers only because that server names it.
    with running_server("--dtype", "float32", "--enable-step-events", *origins, *options) as server:
        reader = threading.Thread(target=listen, args=(server, events))
        reader.start()
        piece.get_by_text("your own engine", exact=True).click()
        piece.get_by_label("address of a running server").fill(server.address)
        with page.expect_response(f"{server.address}/events"):  # it listens, and does not only say so
            piece.locator('[data-do="watch"]').click()
        while not events:  # and so do we
            time.sleep(0.01)
        piece.get_by_text("waiting for its first step").wait_for()
        # In one call: the first goes to the engine alone, the others together, three for max_num_seqs of two.
        texts = ["Once upon a time there was a king", "The cat", "A boat", "The hill"]
        ask(server, prompt=texts, max_tokens=12)
        ask(server, prompt="The sea", max_tokens=5)
        while sum(len(event["finished"]) for _, event in events[1:]) < 5:
            time.sleep(0.01)  # the answer may be here before the steps are
        page.wait_for_function(
            "(n) => document.querySelector('.rep [data-name=step]').textContent.endsWith(`of ${n}`)",
            arg=len(events) - 1,
        )
    reader.join()
    piece.get_by_text("the server has ended; its steps stay here").wait_for()
    (kind, engine), *steps = events
    assert kind == "engine" and engine["num_blocks"] == 23 and engine["max_num_seqs"] == 2
    assert sum(len(event["finished"]) for _, event in steps) == 5
    assert (
        shown(piece, "step") == f"step {len(steps)} of {len(steps)}"
    )  # who is at the last step goes on with them
    reasons = set()
    for number, (_, event) in enumerate(steps):
        slide(piece, "step", number)
        assert int(shown(piece, "tokens in this step")) == sum(event["tokens"].values())
        assert int(shown(piece, "blocks free")) == event["free_blocks"]
        assert "the engine counts the same" in shown(piece, "invariant")
        if event["waiting"]:
            reasons.add(re.sub(r".*: ", "", shown(piece, "why")))
    assert "max_num_seqs requests are running" in reasons
    # The one request to another host was the reader's wish, and the browser says that it was cut off.
    assert [c for c in open_page.complaints if server.address not in c and "ERR_INCOMPLETE" not in c] == []
    open_page.complaints.clear()


def test_where_no_server_is_one_line_says_what_to_do(piece_on, open_page):
    _, piece = piece_on("scheduler", "replay")
    before = shown(piece, "step")
    piece.get_by_text("your own engine", exact=True).click()
    for nowhere in ("http://127.0.0.1:9", "gizmo://"):
        piece.get_by_label("address of a running server").fill(nowhere)
        piece.locator('[data-do="watch"]').click()
        piece.get_by_text(f"no server at {nowhere} tells this page its steps: lab serve").wait_for()
    assert shown(piece, "step") == before
    # The browser itself complains of what it could not reach, and the page asked for it: nobody else did.
    assert all("127.0.0.1:9" in c or "ERR_" in c or "gizmo" in c for c in open_page.complaints)
    open_page.complaints.clear()
