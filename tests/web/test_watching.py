"""The glass engine on a server that runs: what the page shows is what the server did."""

import json
import re
import threading
import time
import urllib.request

from openai import OpenAI

from phase4_scheduler.server.client import running_server
from tests.web.clicking import expect, shown, slide


def listen(server, events: list) -> None:
    """All that /events sends, until the server ends: first what the engine is, then its steps."""
    with urllib.request.urlopen(f"{server.address}/events", timeout=60) as answer:
        for line in answer:
            if line.startswith(b"data: "):
                events.append(json.loads(line[len(b"data: ") :]))


def test_a_running_server_step_by_step(piece_on, open_page, address):
    page, piece = piece_on("scheduler", "replay")
    events: list[dict] = []
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
        client = OpenAI(base_url=f"{server.address}/v1", api_key="none")
        for prompt, length in ((texts, 12), ("The sea", 5)):
            client.completions.create(
                model="tales",
                prompt=prompt,
                max_tokens=length,
                temperature=0,
                extra_body={"ignore_eos": True},
            )
        while sum(len(event["finished"]) for event in events[1:]) < 5:
            time.sleep(0.01)  # the answer may be here before the steps are
        expect(piece.locator("[data-name=step]")).to_have_text(re.compile(f"of {len(events) - 1}$"))
    reader.join()
    piece.get_by_text("the server has ended; its steps stay here").wait_for()
    engine, *steps = events
    assert engine["num_blocks"] == 23 and engine["max_num_seqs"] == 2
    assert sum(len(event["finished"]) for event in steps) == 5
    # A reader at the last step goes on with them.
    assert shown(piece, "step") == f"step {len(steps)} of {len(steps)}"
    reasons = set()
    for number, event in enumerate(steps):
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
