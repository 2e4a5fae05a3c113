"""Throughput against latency: the simulator in the page decides as the course's scheduler does, token by token."""

from dataclasses import asdict, replace

import pytest

from tests.web.clicking import shown, slide
from web.pieces.load import BUDGET, LOADS, felt_at, serve, traffic_of
from web.pieces.roofline import cost_of

SIMULATE = """async ([traffic, limits, cost]) => {
  const { simulate } = await import("/pieces/simulator.js");
  const { records, preemptions } = simulate(traffic.map(([arrival, prompt, answer]) => ({ arrival, prompt, answer })), limits, cost);
  return { times: records.map((r) => r.times), preemptions };
}"""


def test_every_token_comes_when_pythons_scheduler_says(open_page):
    """With little room, few sequences and a small budget: prompts in chunks, queues, preemptions."""
    page, cost = open_page("recap"), cost_of("llama-3-8b", "l4")
    preempted = 0
    for pattern, rate, sequences, budget, blocks in [
        ("chat", 3.0, 12, 64, 150),
        ("code", 2.0, 64, 512, 400),
        ("summarisation", 1.0, 256, 2048, 900),
    ]:
        traffic = [replace(r, arrival=r.arrival / rate) for r in traffic_of(pattern, 40)]
        cramped = replace(cost, num_blocks=blocks)
        run = serve(traffic, cramped, sequences, budget)
        limits = {"sequences": sequences, "budget": budget, "blocks": blocks}
        asked = [[r.arrival, r.prompt_tokens, r.output_tokens] for r in traffic]
        got = page.evaluate(SIMULATE, [asked, limits, asdict(cramped)])
        assert got["preemptions"] == run.preemptions
        assert got["times"] == [pytest.approx(r.token_times, rel=1e-9) for r in run.records]
        preempted += run.preemptions
    assert preempted > 10


def test_the_curve_over_load_is_that_of_the_simulator(piece_on):
    page, piece = piece_on("latency", "load")
    done = '[data-piece="load"] [data-done]'
    piece.get_by_label("card").select_option("rtx4090")
    piece.get_by_label("traffic").select_option("chat")
    slide(piece, "max_num_seqs", 3)
    page.wait_for_selector(done, state="attached")
    rows = piece.locator("tr[data-load]")
    assert rows.count() == len(LOADS)
    traffic, cost = traffic_of("chat"), cost_of("llama-3-8b", "rtx4090")
    most = float(shown(piece, "most"))
    for load in (LOADS[0], LOADS[-2]):
        row = piece.locator(f'tr[data-load="{load:g}"]')
        assert float(shown(row, "rate")) == pytest.approx(load * most, rel=1e-2)
        felt = page.evaluate(FELT, [load, "llama-3-8b rtx4090", "chat", {"sequences": 32, "budget": BUDGET}])
        wanted = felt_at(traffic, felt["rate"], cost, 32)  # at the rate of the page, with all its digits
        assert felt["tokens"] == pytest.approx(wanted.tokens_per_second, rel=1e-9)
        assert felt["good"] == wanted.good_share
        told = [float(shown(row, name)) for name in ("ttft50", "ttft95", "itl95")]
        assert told == pytest.approx([wanted.ttft.p50, wanted.ttft.p95, 1e3 * wanted.itl.p95], abs=0.06)
        assert shown(row, "good") == f"{100 * wanted.good_share:.0f}%"
    assert (
        "The saturation point is near" in shown(piece, "says") and piece.locator("tr.saturation").count() == 1
    )


FELT = """async ([load, name, pattern, limits]) => {
  const { capacityOf, feltAt } = await import("/pieces/simulator.js"), data = await (await fetch("/pieces/load.json")).json();
  const cost = data.costs[name], traffic = data.traffic[pattern].map(([arrival, prompt, answer]) => ({ arrival, prompt, answer }));
  limits.blocks = cost.num_blocks;
  return feltAt(traffic, load * capacityOf(traffic, limits, cost), limits, cost, data.slo);
}"""
