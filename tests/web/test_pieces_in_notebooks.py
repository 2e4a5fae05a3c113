"""The interactive pieces as a notebook's output, clicked in a real browser: what they show is what Python computes."""

import random
from dataclasses import replace

import pytest
import torch
from axe_playwright_python.sync_playwright import Axe

from notebooks.widgets import (
    Decoding,
    FewerBits,
    Recording,
    allocator_piece,
    attention_piece,
    bits_piece,
    decoding_piece,
    play_operations,
    replay_piece,
    splits_piece,
    tokenizer_piece,
)
from phase1_tokens_embeddings.story.tokenization_story import with_first_merges
from phase1_tokens_embeddings.tokens import BPETokenizer
from phase2_attention_kvcache.measuring.evaluation import bits_per_byte
from phase2_attention_kvcache.model import SamplingParams, generate_cached
from phase2_attention_kvcache.quantization.quantized_linear import QuantizedWeight
from phase4_scheduler.engine import LLMEngine
from tests.web.clicking import number, shown, slide
from web.on_page import cramped_run
from web.pieces.bits import BITS, GROUPS, in_few_bits, round_to
from web.pieces.splits import CARDS, TOKENS, USERS, splits_for

# ---------------------------------------------------------------------- type into the tokenizer


def test_fewer_merges_and_the_steps_of_a_word(open_piece, tok):
    page = open_piece(tokenizer_piece(tok))
    page.get_by_label("text", exact=True).fill("Something wonderful was waiting for the goat 🐐.")
    text = page.get_by_label("text", exact=True).input_value()
    for stop, count in enumerate([0, 10, 50, 100, 250, 500, 1000, 2000, 4000]):
        slide(page, "merges", stop)
        assert shown(page, "limit").startswith(f"{count:,} of {len(tok.merges):,}")
        ids = [int(chip.get_attribute("data-id")) for chip in page.locator(".chip").all()]
        assert ids == with_first_merges(tok, count).encode(text)
    slide(page, "merges", 9)
    page.locator(".chip").nth(1).click()
    rows = [row.get_attribute("data-ids") for row in page.locator("tr[data-ids]").all()]
    word = tok.decode([int(i) for i in rows[0].split()])
    assert rows[0].split() == [str(tok.id_of_bytes[bytes([b])]) for b in word.encode()]
    assert [int(i) for i in rows[-1].split()] == tok.encode(word)
    assert len(rows) > 2
    # One merge more from row to row, each the earliest learned that fits.
    assert [len(r.split()) for r in rows] == sorted({len(r.split()) for r in rows}, reverse=True)


# ---------------------------------------------------------------------- poke the allocator


def books(page) -> dict:
    """What the page shows of the manager's books."""
    blocks = page.evaluate("""() => [...document.querySelectorAll("[data-block]")].map(
        (b) => [Number(b.dataset.refs), b.dataset.cached === "true"])""")
    tables = page.evaluate("""() => Object.fromEntries([...document.querySelectorAll("[data-request]")].map((r) => [r.dataset.request,
        [Number(r.querySelector('[data-name="tokens"]').textContent), r.querySelector('[data-name="table"]').textContent]]))""")
    free = shown(page, "free-list")
    return {
        "refs": [refs for refs, _ in blocks],
        "named": [cached for _, cached in blocks],
        "tables": {n: (tokens, [int(b) for b in table.split()]) for n, (tokens, table) in tables.items()},
        "free": [] if free == "empty" else [int(b) for b in free.split()],
        "hit": number(shown(page, "tokens found in the cache")),
        "evicted": number(shown(page, "blocks evicted")),
        "copied": number(shown(page, "blocks copied")),
        "refused": shown(page, "says").startswith("Refused"),
    }


def books_of(setup: tuple[int, int, bool], operations: list) -> dict:
    """The same of the real manager."""
    played = play_operations(operations, *setup)
    manager = played.manager
    manager.check_integrity()
    return {
        "refs": [b.ref_count for b in manager.allocator.blocks[1:]],
        "named": [b.block_hash is not None for b in manager.allocator.blocks[1:]],
        "tables": {n: (g.table.num_tokens, g.table.block_ids) for n, g in played.guests.items()},
        "free": [b.block_id for b in manager.allocator],
        "hit": manager.stats.hit_tokens,
        "evicted": manager.stats.evicted_blocks,
        "copied": played.num_copied,
        "refused": played.refused,
    }


@pytest.mark.parametrize("seed, setup", [(7, (17, 4, True)), (1, (9, 2, True)), (2, (7, 4, False))])
def test_allocator_clicked_at_random_keeps_the_managers_books(open_piece, seed, setup):
    rng = random.Random(seed)
    page = open_piece(allocator_piece(*setup))
    operations: list = []
    refused = 0
    for _ in range(40):
        names = list(play_operations(operations, *setup).guests)
        what = rng.choice(["add", "append", "append", "append", "fork", "free"]) if names else "add"
        if what == "add":
            shared, own = rng.choice([0, 4, 8, 9]), rng.randint(1, 6)
            page.get_by_label("shared tokens").fill(str(shared))
            page.get_by_label("own tokens").fill(str(own))
            page.locator('[data-do="add"]').click()
            operations.append((what, shared, own))
        else:
            name = rng.choice(names)
            button = page.locator(f'[data-do="{what} {name}"]')
            if button.is_disabled():  # all 26 names are taken
                continue
            button.click()
            operations.append((what, name))
        now = books(page)
        assert now == books_of(setup, operations), operations
        assert "no block is lost" in shown(page, "invariant")
        refused += now["refused"]
        if play_operations(operations, *setup).count >= 25:
            break
    assert refused, "the pool was never full: the test is too easy"


def test_allocator_goes_back_and_forward_and_starts_anew(open_piece):
    operations = [("add", 8, 3), ("add", 8, 2), ("fork", "A"), ("append", "C"), ("free", "B")]
    page = open_piece(allocator_piece(operations=operations))
    for button, counts in (("back", (4, 3, 2, 1, 0)), ("forward", (1, 2, 3, 4, 5))):
        for n in counts:
            page.locator(f'[data-do="{button}"]').click()
            assert books(page) == books_of((17, 4, True), operations[:n])
    page.get_by_label("block size").select_option("16")
    page.locator('[data-do="add"]').click()
    assert books(page) == books_of((17, 16, True), [("add", 8, 3)])


# ---------------------------------------------------------------------- replay a run


@pytest.fixture(scope="module")
def recording() -> Recording:
    """With chunks, a queue, prefix hits, a preemption, and a request that comes late."""
    run = cramped_run()
    assert run.events[-1]["free_blocks"] == 13  # all but the null block
    assert all(any(event[what] for event in run.events) for what in ("preempted", "hit"))
    return run


@pytest.fixture(scope="module")
def drafted() -> Recording:
    """One request, whose tokens a draft model guesses."""
    engine = LLMEngine.from_pretrained(
        "tales", dtype="float32", device="cpu", num_blocks=40,
        speculative_config=dict(model="tales-draft", num_speculative_tokens=3),
    )  # fmt: skip
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    run = Recording.of(engine, [(1, "Ann", "Once upon a time there was a king who", params)])
    counts = [(d["accepted"], len(d["words"])) for event in run.events for d in event["drafts"].values()]
    assert any(accepted for accepted, _ in counts) and any(accepted < all_ for accepted, all_ in counts)
    return run


@pytest.mark.parametrize("which", ["recording", "drafted"])
def test_replay_agrees_with_the_engine_at_every_step(open_piece, request, which):
    recording = request.getfixturevalue(which)
    page = open_piece(replay_piece(recording))
    texts = dict.fromkeys(recording.requests, "")
    last = len(recording.events)
    for step, event in enumerate(recording.events, 1):
        assert shown(page, "step") == f"step {step} of {last}"
        assert number(shown(page, "tokens in this step")) == sum(event["tokens"].values())
        assert number(shown(page, "running")) == event["running"]
        assert number(shown(page, "waiting")) == event["waiting"]
        assert number(shown(page, "blocks held")) == recording.num_blocks - event["free_blocks"]
        assert "the engine counts the same" in shown(page, "invariant")
        for name, piece in event["said"].items():
            texts[name] += piece
        rows = page.evaluate("""() => Object.fromEntries([...document.querySelectorAll("tr[data-request]")].map((r) => [r.dataset.request,
            Object.fromEntries([...r.querySelectorAll("[data-name]")].map((c) => [c.dataset.name, c.textContent]))]))""")
        drafts = event.get("drafts", {}).get("Ann", {"words": [], "accepted": 0})
        words, accepted = drafts["words"], drafts["accepted"]
        assert page.locator(".accepted").all_text_contents() == words[:accepted]
        assert page.locator(".rejected").all_text_contents() == words[accepted:]
        for name, count in event["tokens"].items():
            assert rows[name]["doing"] == "".join([str(count), *words])
            if name not in event["finished"]:
                computed = event["computed"][name] + count - len(words[accepted:])
                assert rows[name]["computed"] == str(computed)
            assert rows[name]["text"] == recording.requests[name]["prompt"] + texts[name]
        for name in event["preempted"]:
            assert rows[name]["state"] == "preempted"
            assert f"{name} preempted" in shown(page, "says")
        if step < last:
            page.locator('[data-do="forward"]').click()
    assert page.locator('[data-do="forward"]').is_disabled()
    slide(page, "step", 2)  # and back again
    assert shown(page, "step") == f"step 3 of {last}"
    page.locator('[data-do="back"]').click()
    assert number(shown(page, "tokens in this step")) == sum(recording.events[1]["tokens"].values())


def test_replay_says_so_when_the_books_differ(open_piece, recording):
    events = [dict(e) for e in recording.events]
    events[1]["free_blocks"] += 1
    page = open_piece(replay_piece(replace(recording, events=events)))
    assert "the engine counts the same" in shown(page, "invariant")
    page.locator('[data-do="forward"]').click()
    assert shown(page, "invariant") == "the engine counts differently"


# ---------------------------------------------------------------------- split a context


def test_splits_are_those_of_the_rule(open_piece):
    page = open_piece(splits_piece())
    for card, users, tokens in [
        ("H100", 1, 32768),
        ("T4", 1, 131072),
        ("H100", 16, 4096),
        ("B200", 256, 256),
    ]:
        page.get_by_label("card").select_option(str(list(CARDS).index(card)))
        slide(page, "requests", USERS.index(users))
        slide(page, "tokens", TOKENS.index(tokens))
        num_splits, size = splits_for(card, users, tokens)
        assert number(shown(page, "splits")) == num_splits == page.locator(".context i").count()
        assert number(shown(page, "tokens per split")) == size
        assert number(shown(page, "programs")) == num_splits * users * 8
        slots = CARDS[card]
        assert number(shown(page, "rounds")) == -(-num_splits * users * 8 // slots)
        assert page.locator(".slots i").count() == slots
        busy = (num_splits * users * 8 - 1) % slots + 1
        assert page.locator(".slots i.busy").count() == busy
    page.get_by_label("split").uncheck()
    assert number(shown(page, "splits")) == 1


# ---------------------------------------------------------------------- all of them


def other_rules(tok):
    return tokenizer_piece(BPETokenizer(tok.token_bytes, tok.merges, {}, unicode_form="NFC"))


@pytest.mark.parametrize(
    ("show", "says"),
    [
        (other_rules, "rules of its own"),
        (lambda _: attention_piece([torch.zeros(1, 41, 41)], ["a"] * 41), "41 tokens"),
        (lambda _: play_operations([("add", 0, 3), ("append", "B")]), "no request is called 'B'"),
        (lambda _: play_operations([("add", 0, 3), ("sell", "A")]), "unknown operation 'sell'"),
        (lambda tok: Decoding.of(None, tok, "", 3), "at least one of each"),
        (lambda _: splits_piece(users=3), "not on the slider"),
    ],
)
def test_what_cannot_be_shown_is_refused(tok, show, says):
    with pytest.raises(ValueError, match=says):
        show(tok)


# ---------------------------------------------------------------------- drag the number of bits


@pytest.fixture(scope="module")
def fewer(model, tok) -> FewerBits:
    text = "The king had three sons."
    return FewerBits.of(model, tok, "Once", tok.encode(text), len(text), new_tokens=6)


def test_bits_shows_what_the_model_says_in_each_setting(open_piece, model, tok, fewer):
    page = open_piece(bits_piece(fewer))
    assert [(s.bits, s.group) for s in fewer.settings] == [(b, g) for g in GROUPS for b in BITS]
    for bits, group in [(2, 32), (8, 0), (4, 128)]:
        slide(page, "bits", BITS.index(bits))
        page.get_by_label("a scale for", exact=True).select_option(str(group))
        few, cost = in_few_bits(model, bits, group)
        text = tok.encode("The king had three sons.")
        measured = bits_per_byte(few, text, len("The king had three sons."))
        assert shown(page, "bits") == str(bits)
        assert float(shown(page, "bits per byte")) == pytest.approx(measured, abs=6e-4)
        assert float(shown(page, "bits a weight, scales included")) == pytest.approx(cost, abs=6e-3)
        said = generate_cached(few, tok.encode("Once"), 6).token_ids
        full = generate_cached(model, tok.encode("Once"), 6).token_ids
        same = next((i for i in range(6) if said[i] != full[i]), 6)
        assert shown(page, "tokens as in full") == f"{same} of 6"
        whole = page.locator(".bit .says").text_content()
        assert whole == "Once" + "".join(tok.decode([i]) for i in said).replace("\n", " ")
        more = 100 * (measured / fewer.bits_per_byte - 1)
        assert float(shown(page, "more than in full").rstrip("%")) == pytest.approx(more, abs=6e-3)


def test_four_bits_in_groups_of_32_are_the_course_s_int4(model):
    weight = model.blocks[0].mlp.down.weight.detach()
    assert torch.equal(round_to(weight, 4, 32), QuantizedWeight.of(weight, "int4").rows(slice(None)))
    errors = [float((round_to(weight, bits, 128) - weight).norm()) for bits in BITS]
    assert all(1.7 < more / less < 3.2 for more, less in zip(errors, errors[1:])), "a bit halves the error"
    few, cost = in_few_bits(model, 4, 32)
    assert cost == 4.75 and not torch.equal(few.blocks[1].mlp.up.weight, model.blocks[1].mlp.up.weight)


# ---------------------------------------------------------------------- without a mouse


def test_what_is_drawn_anew_is_reached_by_the_keyboard(open_piece, tok):
    scores = torch.rand(1, 2, 4, 4, generator=torch.Generator().manual_seed(2)).tril()
    page = open_piece(attention_piece(list(scores / scores.sum(-1, keepdim=True)), ["a", "b", "c", "d"]))
    page.locator(".att .grid").focus()
    page.keyboard.press("ArrowUp")  # from the last word's row, which has no square chosen yet
    page.keyboard.press("ArrowLeft")
    weights = scores[0, 0, 2] / scores[0, 0, 2].sum()
    assert page.locator(".cell.on").get_attribute("data-cell") == "2,1"
    assert float(shown(page, "weight")) == pytest.approx(weights[1].item(), abs=6e-4)
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")  # not into the future
    assert page.locator(".cell.on").get_attribute("data-cell") == "2,2"

    page = open_piece(allocator_piece(operations=[("add", 0, 3)]))
    page.locator('[data-do="append A"]').focus()
    for _ in range(3):  # the button is made anew each time, and keeps the focus
        page.keyboard.press("Enter")
    assert books(page) == books_of((17, 4, True), [("add", 0, 3), *[("append", "A")] * 3])

    page = open_piece(tokenizer_piece(tok))
    page.locator(".chip").nth(1).focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    third = page.locator(".chip.word").first.get_attribute("data-id")
    assert int(third) == tok.encode("The goat was waiting for a boat.")[2]


def test_jupyterlab_leaves_the_keys_of_a_piece_to_it(open_piece):
    """Its own are those that run and save. An undo would take back what was typed into the cell."""
    page = open_piece(splits_piece())
    slider = page.locator(".spl input[type=range]").first
    slider.focus()
    for key in ("ArrowLeft", "Shift+Enter", "d", "Control+S", "Control+Z"):
        page.keyboard.press(key)
        left_to_jupyter = slider.get_attribute("data-lm-suppress-shortcuts") is None
        assert left_to_jupyter == (key in ("Shift+Enter", "Control+S")), key


# ---------------------------------------------------------------------- in a dark theme

# What Jupyter's dark theme does to tables and text in an output.
DARK = """
body, .jp-RenderedHTMLCommon { background: #111; color: #eee }
.jp-RenderedHTMLCommon table { color: #eee; margin-left: auto }
body.jp-RenderedHTMLCommon div table td, body.jp-RenderedHTMLCommon div table th, .jp-RenderedHTMLCommon tr { text-align: right; color: #eee; background: #222 }
.jp-RenderedHTMLCommon tbody tr:nth-child(odd) { background: #111 }
.jp-RenderedHTMLCommon tbody tr:nth-child(even) { background: #222 }
"""


def test_pieces_can_be_read_in_a_dark_theme(open_piece, tok, model, recording, fewer):
    weights = [torch.rand(2, 4, 4, generator=torch.Generator().manual_seed(3)).tril().softmax(-1)]
    for piece in (
        tokenizer_piece(tok),
        attention_piece(weights, ["a", "b", "c", "d"]),
        allocator_piece(operations=[("add", 8, 3), ("add", 8, 2), ("fork", "A"), ("free", "B")]),
        decoding_piece(Decoding.of(model, tok, "The cat looked at the moon and", 4)),
        replay_piece(recording),
        splits_piece(),
        bits_piece(fewer),
    ):
        page = open_piece(piece)
        page.evaluate("document.body.classList.add('jp-RenderedHTMLCommon')")
        page.add_style_tag(content=DARK)
        if piece.module == "tokens":
            page.locator(".chip").first.click()
        found = Axe().run(page, options={"runOnly": ["color-contrast"]}).response["violations"]
        assert [node["html"][:150] for violation in found for node in violation["nodes"]] == [], piece.module
        cells = page.locator("table td:first-child")
        aligned = {cell.evaluate("c => getComputedStyle(c).textAlign") for cell in cells.all()}
        assert aligned <= {"left", "start"}, (
            f"{piece.module}: the page's own rules for tables reach into the piece"
        )
