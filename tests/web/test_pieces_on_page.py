"""The pieces on the page, clicked: what they show is what Python computes."""

import json
import math
import re

import pytest
import torch

from labkit.models import find_model
from phase1_tokens_embeddings.weights import SHAPES
from phase1_tokens_embeddings.weights.embeddings import load_embeddings, pca_2d
from phase2_attention_kvcache.model import (
    NoCache,
    SamplingParams,
    Transformer,
    generate_cached,
    generate_naive,
)
from phase2_attention_kvcache.model.truncation import to_probs
from phase2_attention_kvcache.story.heads_at_work import weights_of
from phase2_attention_kvcache.story.inside_the_tower import guesses_by_layer
from phase4_scheduler.engine import LLMEngine
from phase4_scheduler.features.recording import record
from phase4_scheduler.simulator import StepSize
from phase4_scheduler.simulator.batching import Job, serve_continuously, serve_statically
from tests.web.clicking import expect, number, shown, slide
from web.on_page import cramped_engine
from web.pieces.cards import bubble, tensor_parallel
from web.pieces.chunks import steps_of
from web.pieces.decoding import Decoding
from web.pieces.roofline import cost_of
from web.pieces.rotary import rotary_piece, score
from web.pieces.speculation import speculate
from web.texts import read_contents


def near(piece, name: str, value: float, **how: float) -> None:
    """The number of this name on a piece is about the value: `how` is pytest.approx's rel or abs."""
    assert number(shown(piece, name)) == pytest.approx(float(value), **how)


# ---------------------------------------------------------------------- all of them


STATE = "live.innerHTML + [...live.querySelectorAll('*')].map(n => n.value + n.checked)"


@pytest.mark.parametrize("page_name", sorted(s.name for s in read_contents().sections))
def test_the_words_of_a_task_set_its_piece_and_no_piece_shrinks(open_page, page_name):
    page = open_page(page_name)
    for place in page.locator("[data-piece]").all():
        place.scroll_into_view_if_needed()
        page.wait_for_function("piece => piece.hasAttribute('data-alive')", arg=place.element_handle())
        live = place.locator(".live")
        for words in place.locator("[data-set]").all():
            before, height = live.evaluate(f"live => {STATE}"), live.bounding_box()["height"]
            words.click()
            changed = f"([live, old]) => !live.querySelector('[aria-busy]') && {STATE} !== old"
            page.wait_for_function(changed, arg=[live.element_handle(), before])
            assert live.bounding_box()["height"] >= height - 1


# ---------------------------------------------------------------------- sampling


@torch.inference_mode()
def logits_behind(model, ids):
    return model.logits(model(torch.tensor(ids), torch.arange(len(ids)), NoCache())[-1:])


def test_knobs_show_what_python_computes_on_a_text_of_the_readers(piece_on, tok, model):
    _, piece = piece_on("sampling", "sampling")
    text = "Once upon a time there was a little"
    piece.get_by_label("text").fill(text)
    logits = logits_behind(model, tok.encode(text))
    best = int(logits.argmax())
    likeliest = piece.locator("[data-id]").first
    expect(likeliest).to_have_attribute("data-id", str(best))
    now = {}
    for settings in (
        {"temperature": 0.7},
        {"temperature": 1.4, "top_k": 7},
        {"temperature": 1, "top_k": 0, "top_p": 0.5},
        {"top_p": 1, "min_p": 0.1},
        {"temperature": 0, "min_p": 0},
    ):
        for name, value in settings.items():
            slide(piece, name, value)
        now |= settings
        params = SamplingParams(**now)
        probs = to_probs(logits, [params])[0]
        if params.greedy:
            probs = torch.nn.functional.one_hot(logits[0].argmax(), 8192).float()
        assert number(shown(piece, "tokens left")) == int((probs > 0).sum())
        for row in piece.locator("[data-id]").all():
            p = float(probs[int(row.get_attribute("data-id"))])
            assert row.text_content() == (f"{100 * p:.1f}%" if p else "out")
    for token in generate_cached(model, tok.encode(text), 2).token_ids:
        expect(likeliest).to_have_attribute("data-id", str(token))
        piece.get_by_role("button", name="draw a token").click()
        piece.get_by_role("button", name="append it").click()
        text += tok.decode([token])
        expect(piece.locator("textarea")).to_have_value(text)


# ---------------------------------------------------------------------- vectors, places


def test_the_map_of_words_is_pythons(piece_on):
    page, piece = piece_on("embeddings", "embedding")
    words = ["king", "queen", "forest", "bread", "milk"]
    piece.get_by_label("words").fill(" ".join([*words, "unbelievable"]))
    page.wait_for_function("document.querySelectorAll('.emb .map button').length === 5")
    assert "several tokens: unbelievable" in piece.locator(".wrong").text_content()
    table = load_embeddings(find_model("tales"))
    wanted, kept = pca_2d(table.vectors(words))
    told = piece.locator(".map button").evaluate_all(
        "(all) => all.map((b) => b.dataset.place.split(' ').map(Number))"
    )
    assert torch.allclose(
        torch.cdist(torch.tensor(told), torch.tensor(told)), torch.cdist(wanted, wanted), atol=1e-3
    )
    assert shown(piece, "of their differences can be seen here") == f"{round(100 * kept)}%"
    piece.locator(".map button", has_text="milk").click()
    near = ", ".join(f"{w.strip()} {c:.2f}" for w, c in table.neighbours("milk", 6))
    piece.get_by_text(near).wait_for()


def test_the_score_of_turned_vectors_is_pythons(piece_on):
    _, piece = piece_on("positions", "rotary")
    data = rotary_piece().data
    for places in [(5, 2), (77, 0), (3, 900)]:
        piece.get_by_label("place of the query").fill(str(places[0]))
        piece.get_by_label("place of the key").fill(str(places[1]))
        near(piece, "score", score(data["query"], data["key"], places), abs=6e-4)
    before = shown(piece, "score")
    piece.locator('[data-do="far"]').click()
    assert piece.get_by_label("place of the key").input_value() == "1900" and shown(piece, "score") == before


# ---------------------------------------------------------------------- attention, lens, decoding: on the reader's text

TEXT = "A king went to the sea because the king"


def test_attention_of_every_head_on_a_text_of_the_readers(piece_on, tok, model):
    _, piece = piece_on("heads", "attention")
    ids = tok.encode(TEXT)
    piece.get_by_label("text").fill(TEXT)
    expect(piece.locator(".text span")).to_have_count(len(ids))
    weights = weights_of(model, ids)
    for layer, head, query, key in [(0, 0, 8, 1), (3, 2, 5, 5), (5, 3, 8, 4)]:
        piece.get_by_label("layer").select_option(index=layer)
        piece.get_by_label("head").select_option(index=head)
        piece.locator(f'[data-cell="{query},{key}"]').dispatch_event("click")
        near(piece, "weight", float(weights[layer][head, query, key]), abs=6e-4)
        assert shown(piece, "sum") == "1.00"
    piece.locator('[data-token="3"]').hover()  # a word: what it attends to most
    near(piece, "weight", float(weights[5][3, 3].max()), abs=6e-4)
    assert piece.locator(".cell.future").count() == len(ids) * (len(ids) - 1) // 2
    piece.get_by_label("text").fill("the king " * 50)
    piece.get_by_text("Only the first 40 of").wait_for()


def test_the_lens_shows_what_python_would_answer_after_each_layer(piece_on, tok, model):
    _, piece = piece_on("stacking", "lens")
    piece.get_by_label("text").fill(TEXT)
    wanted = guesses_by_layer(model, torch.tensor(tok.encode(TEXT)))
    answer = tok.decode([int(wanted[-1].argmax())]).replace(" ", "␣")
    expect(piece.locator("[data-name=answer]")).to_have_text(answer)
    for layer, probs in enumerate(wanted):
        cells = piece.locator(f'tr[data-layer="{layer}"] .guess').all_text_contents()
        best = probs.topk(4)
        for cell, token, p in zip(cells, best.indices.tolist(), best.values.tolist(), strict=True):
            text, share = cell.rsplit(" ", 1)
            assert float(share.rstrip("%")) == pytest.approx(100 * p, abs=0.06)
            assert text == tok.decode([token]).replace(" ", "␣") or p < best.values[0] / 100


def test_decoding_on_a_prompt_of_the_readers(piece_on, tok, model):
    _, piece = piece_on("kv-cache", "decoding")
    run = Decoding.of(model, tok, "The cat looked at", new_tokens=16)
    piece.get_by_label("text").fill("The cat looked at")
    expect(piece.locator(".cell.new")).to_have_count(len(tok.encode("The cat looked at")))
    for step, moment in enumerate(run.moments):
        assert shown(piece, "said") == moment.said
        assert int(shown(piece, "naive now")) == moment.computed_naive
        assert int(shown(piece, "cached now")) == moment.computed_cached
        near(piece, "used", moment.bytes_used / 1000, abs=0.06)
        near(piece, "reserved", moment.bytes_reserved / 1000, abs=0.06)
        for row, places in (("naive", moment.computed_naive), ("cached", moment.room)):
            assert piece.locator(f'[data-row="{row}"] .cell').count() == places
        assert "was computed once" in shown(piece, "invariant")
        assert float(shown(piece, "ms naive")) >= 0 and float(shown(piece, "ms cached")) >= 0
        if step < 15:
            piece.locator('[data-do="forward"]').click()
    for way, generate in (("naive", generate_naive), ("cached", generate_cached)):  # what phase 2 counts
        computed = generate(model, tok.encode("The cat looked at"), 16).computed_tokens
        assert int(shown(piece, f"{way} in all")) == computed
    assert {moment.room for moment in run.moments} == {8, 16, 32}  # it doubles
    piece.locator('[data-row="cached"] [data-token="2"]').dispatch_event("mouseenter")
    numbers = re.search(r"begins with (.*?) \(", shown(piece, "detail"))[1].split(", ")
    assert [float(x) for x in numbers] == pytest.approx(run.keys[2], abs=0.011)


# ---------------------------------------------------------------------- the home page: one prompt through all stages


def test_the_home_page_follows_a_prompt_as_python_does(piece_on, tok, model):
    _, piece = piece_on("index", "journey")
    ids = tok.encode(TEXT)
    piece.get_by_label("text").fill(TEXT)
    expect(piece.locator(".text button")).to_have_count(len(ids))
    told = piece.locator(".text button small").all_text_contents()
    assert [int(i) for i in told] == ids and int(shown(piece, "count")) == len(ids)
    weights = weights_of(model, ids)
    vectors = model.embed(torch.tensor(ids), torch.arange(len(ids)))
    for layer, query in [(6, len(ids) - 1), (1, 4), (3, 2)]:
        slide(piece, "layer", layer)
        piece.locator(f'[data-do="token {query}"]').click()
        numbers = [float(x) for x in shown(piece, "numbers of the vector").split(", ")]
        assert numbers == pytest.approx(vectors[query, :4].tolist(), abs=6e-4)
        titles = piece.locator(".seen [data-key]").evaluate_all("all => all.map(one => one.title)")
        assert titles[query + 1 :] == ["not seen"] * (len(ids) - query - 1)
        row = 100 * weights[layer - 1].mean(0)[query, : query + 1]
        assert [float(t.rstrip("%")) for t in titles[: query + 1]] == pytest.approx(row.tolist(), abs=0.06)
    c = model.config
    assert number(shown(piece, "numbers")) == 2 * c.num_layers * c.num_kv_heads * c.head_dim * len(ids)
    assert piece.locator(".block i:not(.empty)").count() == len(ids)
    logits = logits_behind(model, ids)[0]
    best = logits.topk(5)
    for name, wanted in (("score", best.values), ("probability", 100 * logits.softmax(-1)[best.indices])):
        told = [float(text.rstrip("%")) for text in piece.locator(f"[data-{name}]").all_text_contents()]
        assert told[:5] == pytest.approx(wanted.tolist(), abs=0.06 if name == "probability" else 6e-3)
    written = generate_cached(model, ids, 2).token_ids
    for token in written:
        assert shown(piece, "next") == tok.decode([token]).replace(" ", "␣").replace("\n", "↵")
        count = piece.locator(".text button").count()
        piece.locator('[data-do="append"]').click()
        expect(piece.locator(".text button")).to_have_count(count + 1)
    assert piece.get_by_label("text").input_value() == TEXT + tok.decode(written)


def test_the_home_page_fetches_no_weights_before_the_reader_acts(open_page, address):
    page, asked = open_page(None), []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{address}index.html")
    page.wait_for_selector('[data-piece="journey"][data-alive]')
    page.locator('[data-piece="journey"] [data-do="token 3"]').click()
    page.wait_for_load_state("networkidle")
    assert any(url.endswith("journey.json") for url in asked)
    assert not [url for url in asked if url.endswith(".safetensors")]
    page.get_by_label("text").fill("A king")
    page.wait_for_function("document.querySelectorAll('.jou .text button').length === 2")
    assert [url for url in asked if url.endswith(".safetensors")]


@pytest.mark.parametrize(
    "section, piece, field",
    [
        ("tokens", "tokens", "text"),
        ("embeddings", "embedding", "words"),
        ("attention", "head", "text"),
        ("kv-cache", "decoding", "text"),
        ("stacking", "lens", "text"),
        ("sampling", "sampling", "text"),
    ],
)
def test_each_stage_leads_to_its_section_with_the_readers_prompt(piece_on, section, piece, field):
    page, journey = piece_on("index", "journey")
    prompt = "A king & a queen, 50% of 3+4 #1"
    journey.get_by_label("text").fill(prompt)
    page.wait_for_url("**/index.html#prompt=*")
    page.reload()  # as someone who was sent the address
    page.wait_for_selector('[data-piece="journey"][data-alive]')
    assert page.get_by_label("text").input_value() == prompt
    page.wait_for_function("document.querySelector('.jou .text').textContent.includes('%')")
    page.locator(f'[data-stage="{section}"] .head a').click()
    page.wait_for_url(f"**/{section}.html#prompt=*")
    place = page.locator(f'[data-piece="{piece}"]')
    place.scroll_into_view_if_needed()
    page.wait_for_selector(f'[data-piece="{piece}"][data-alive]')
    assert place.get_by_label(field, exact=True).input_value() == prompt
    page.locator("footer a.next").click()  # and on to the next section
    page.wait_for_url("**#prompt=*")
    assert f"/{section}.html" not in page.url


def test_a_prompt_of_the_address_is_computed(open_page, address, tok, model):
    page = open_page(None)
    page.goto(f"{address}stacking.html#prompt=The+cat+looked+at")
    page.locator('[data-piece="lens"]').scroll_into_view_if_needed()
    said = []
    for prompt in ("The cat looked at", "Once upon a"):
        page.evaluate("text => { location.hash = `#prompt=${text}`; }", prompt.replace(" ", "+"))
        said.append(tok.decode([int(logits_behind(model, tok.encode(prompt)).argmax())]).replace(" ", "␣"))
        expect(page.locator(".len [data-name=answer]")).to_have_text(said[-1])
    assert said[0] != said[1]


def test_drafts_stand_and_fall_as_in_python(piece_on, tok, model):
    _, piece = piece_on("speculation", "speculation")
    draft, ids = Transformer.from_pretrained("tales-draft"), tok.encode(TEXT)
    slide(piece, "drafts a step", 3)
    piece.get_by_label("text").fill(TEXT)
    expect(piece.locator(".text b").first).to_have_text(TEXT)
    rounds = speculate(model, draft, ids, 3)
    lines = piece.locator(".round")
    assert lines.count() == len(rounds)
    for line, (drafts, accepted) in zip(lines.all(), rounds, strict=True):
        words = [tok.decode([i]).replace(" ", "␣").replace("\n", "↵") for i in drafts]
        assert line.locator(".accepted").all_text_contents() == words[:accepted]
        assert line.locator(".rejected").all_text_contents() == words[accepted:]
    alone = tok.decode(ids + generate_cached(model, ids, 32).token_ids)
    assert shown(piece, "text") == alone  # the same text as without drafts
    assert int(shown(piece, "steps of the large model")) == len(rounds)


# ---------------------------------------------------------------------- roofline, batching: rules of Python, in the page


def test_the_roofline_is_that_of_the_cost_model(piece_on):
    _, piece = piece_on("roofline", "roofline")
    for model_name, card, users, context in [
        ("llama-3-8b", "h100", 1, 4096),
        ("llama-3-8b", "h100", 512, 64),
        ("gpt2-xl", "t4", 64, 256),
        ("llama-3.2-1b", "l4", 200, 1024),
    ]:
        piece.get_by_label("model").select_option(model_name)
        piece.get_by_label("card").select_option(card)
        slide(piece, "users", users - 1)
        slide(piece, "tokens each", int(math.log2(context / 64)))
        cost = cost_of(model_name, card)
        size = StepSize.of([(context - 1, 1)] * users)
        work, seconds = cost.work(size), cost.seconds(size)
        near(piece, "memory", 1e3 * work.bytes / cost.ceilings.bandwidth, rel=5e-3)
        near(piece, "arithmetic", 1e3 * work.operations / cost.ceilings.rate, rel=5e-3)
        near(piece, "tokens a second, all users", users / seconds, abs=0.6)
        by_memory = work.bytes / cost.ceilings.bandwidth > work.operations / cost.ceilings.rate
        assert shown(piece, "limited by") == ("memory" if by_memory else "arithmetic")
    slide(piece, "users", 511)  # too many: no rates
    slide(piece, "tokens each", 9)
    assert "do not fit" in shown(piece, "says") and piece.locator(".counts b, .bars i").count() == 0
    piece.get_by_label("model").select_option("llama-3-8b")
    piece.get_by_label("card").select_option("t4")
    assert "does not fit on this card" in shown(piece, "says")


def test_a_long_prompt_whole_and_in_chunks_by_the_cost_model(piece_on):
    _, piece = piece_on("scheduler", "chunks")
    for card, users, prompt, budget in [("h100", 32, 8000, 512), ("l4", 128, 2000, 192)]:
        piece.get_by_label("card").select_option(card)
        slide(piece, "users who write", int(math.log2(users)))
        slide(piece, "tokens of the prompt", [500, 1000, 2000, 4000, 8000].index(prompt))
        slide(piece, "tokens a step (the budget)", [192, 256, 512].index(budget))
        for way, limit in (("whole", prompt + users), ("in chunks", budget)):
            seconds = steps_of(cost_of("llama-3-8b", card), users, prompt, limit)
            told = piece.locator(f'[data-way="{way}"]')
            near(told, "longest wait for a token", 1e3 * max(seconds), rel=5e-3)
            near(told, "first token of the prompt after", 1e3 * sum(seconds), rel=5e-3)
            assert int(shown(told, "steps")) == len(seconds)


def test_shared_cards_are_those_of_the_text_and_of_python(piece_on):
    _, piece = piece_on("many-cards", "cards")
    together, row = piece.locator('[data-way="together"]'), piece.locator('[data-way="row"]')

    # Llama-3 70B on four cards for 32 users: the figures of the section.
    near(together, "into all-reduces", 84, abs=0.5)
    near(together, "on the wire", 0.28, abs=0.005)
    names = ("sent by each card", "fixed delays", "reading them and the caches")
    assert [number(shown(together, name)) for name in names] == [126, 1.6, 13.7]
    for index, lost in ((0, "75%"), (2, "43%"), (4, "16%")):
        slide(piece, "micro-batches", index)
        assert shown(row, "bubble") == lost
    piece.get_by_label("model").select_option("llama-3-8b")
    piece.get_by_label("wire").select_option("PCIe")
    slide(piece, "cards", 3)
    slide(piece, "users", 0)
    wanted = tensor_parallel(SHAPES["llama-3-8b"], 8, 1, "PCIe")
    near(together, "on the wire", 1e3 * wanted["wire"], rel=5e-3)
    near(together, "sent by each card", wanted["sent"] / 1e6, rel=5e-3)
    near(together, "reading them and the caches", 1e3 * wanted["read"], rel=5e-3)
    assert row.locator(".idle").count() == 8 * 23 - 8 * 16 and shown(row, "bubble") == f"{bubble(8, 16):.0%}"


def test_batching_is_what_the_engine_does(piece_on):
    """The same jobs through a real engine: when each answer is complete, and when it is handed out."""
    _, piece = piece_on("continuous-batching", "batching")
    lengths, places = [5, 2, 9, 1, 4, 3, 7], 3
    piece.get_by_label("tokens of each answer").fill(", ".join(map(str, lengths)))
    slide(piece, "places", places)
    engine = LLMEngine.from_pretrained("tales", dtype="float32", device="cpu", max_num_seqs=places)
    jobs = [Job(f"{i}", [100 + i], n) for i, n in enumerate(lengths)]
    for way, served in (
        ("static", serve_statically(engine, jobs, places)),
        ("continuous", serve_continuously(engine, jobs)),
    ):
        rows = piece.locator(f'[data-way="{way}"]')
        told = {}
        for bar in rows.locator("[data-steps]").all():
            _, last, out = map(int, bar.get_attribute("data-steps").split())
            told[bar.text_content()] = (last, out)
        wanted = {
            chr(65 + i): (served.written_step[f"{i}"], served.done_step[f"{i}"]) for i in range(len(lengths))
        }
        assert told == wanted
        assert int(rows.locator('[data-name="steps"]').text_content()) == served.steps
        idle = rows.locator('[data-name="places that stood empty"]').text_content()
        assert float(idle.rstrip("%")) == pytest.approx(100 * served.idle_share(places), abs=0.6)
    piece.get_by_label("tokens of each answer").fill("3 0 x")
    assert "whole numbers" in piece.locator(".wrong").text_content()
    assert piece.locator(".stale [data-steps]").count() == 2 * len(lengths)  # what stood there stays


# ---------------------------------------------------------------------- a recording of the reader's own engine


def why(event, config) -> str:
    """The scheduler's rules: why the first in the queue was not admitted in this step."""
    if event["preempted"]:
        return "a request was preempted"
    if sum(event["tokens"].values()) == config.max_num_batched_tokens:
        return "the budget is used up"
    if event["running"] + len(event["finished"]) == config.max_num_seqs:
        return "max_num_seqs requests are running"
    return "more blocks than are free"


def test_a_recording_is_shown_as_the_engine_wrote_it(piece_on, tmp_path):
    engine, file = cramped_engine(), tmp_path / "run.jsonl"
    record(engine, file)
    prompts = [
        "Once upon a time there was a king who lived by the sea",
        "Once upon a time",
        "The cat",
        "A boat",
    ]
    engine.generate(prompts, SamplingParams(temperature=0, max_tokens=16, ignore_eos=True))
    record(engine, None)
    events = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    _, piece = piece_on("scheduler", "replay")
    piece.get_by_label("a recording of your own").set_input_files(file)
    piece.get_by_text("the most in any step").wait_for()
    assert shown(piece, "step") == f"step 1 of {len(events)}"
    reasons = set()
    for step, event in enumerate(events):  # the rest of a step: test_watching.py
        slide(piece, "step", step)
        if event["waiting"]:
            reasons.add(why(event, engine.core.scheduler.config))
            assert why(event, engine.core.scheduler.config) in shown(piece, "why")
    assert len(reasons) >= 2
    slide(piece, "step", 0)
    piece.locator('[data-do="next wait"]').click()
    first = next(i for i, event in enumerate(events) if i and event["waiting"])
    assert shown(piece, "step").startswith(f"step {first + 1} of")
    last = next(iter(events[-1]["tokens"]))  # one request alone, from its first step on
    slide(piece, "step", 0)
    piece.get_by_label("request", exact=True).fill(last)
    assert piece.locator("tr[data-request]").count() == 1
    piece.locator('[data-do="next of it"]').click()
    first = next(i for i, event in enumerate(events) if i and last in [*event["tokens"], *event["preempted"]])
    assert shown(piece, "step").startswith(f"step {first + 1} of")


@pytest.mark.parametrize(
    "content, says",
    [
        ("", "the file is empty"),
        ("hello", "line 1 is not JSON"),
        ('{"a": 1}', 'line 1 has no "tokens": this is no recording'),
    ],
)
def test_a_file_that_is_no_recording_is_one_line(piece_on, tmp_path, content, says):
    _, piece = piece_on("scheduler", "replay")
    (tmp_path / "wrong.txt").write_text(content, encoding="utf-8")
    before = shown(piece, "step")
    piece.get_by_label("a recording of your own").set_input_files(tmp_path / "wrong.txt")
    piece.get_by_text(f"wrong.txt: {says}").wait_for()
    assert shown(piece, "step") == before  # what was shown stays
