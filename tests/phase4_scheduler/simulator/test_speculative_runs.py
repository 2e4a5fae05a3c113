"""What is worked out of speculative decoding, and what a window counts."""

from types import SimpleNamespace

from labkit.paths import ROOT
from phase2_attention_kvcache.model import SamplingParams
from phase4_scheduler.simulator.parallel_cost import find_cost
from phase4_scheduler.simulator.speculative_runs import AlwaysProposes, computed_speedup, decode_in_turn


def test_engines_that_take_turns_count_their_own_steps_and_drafts(tiny):
    prompts = [[5, 6, 7], [8, 9]]
    params = SamplingParams(temperature=0, max_tokens=90, ignore_eos=True)
    answers = [output.token_ids for output in tiny.engine().generate(prompts, params)]

    def first_of_two(token_ids, num_drafts):
        ids = list(token_ids)
        which = next(i for i, prompt in enumerate(prompts) if ids[: len(prompt)] == prompt)
        return [answers[which][len(ids) - len(prompts[which])], 399]

    custom = dict(method="custom", num_speculative_tokens=2)
    proposers = {"nothing": AlwaysProposes(), "half right": SimpleNamespace(propose=first_of_two)}
    engines = {"none": tiny.engine()}
    for name, proposer in proposers.items():
        engines[name] = tiny.engine(proposer=proposer, speculative_config=custom)
    windows = decode_in_turn(engines, prompts, params, steps=8)
    assert all(len(window.seconds) == 8 for window in windows.values())
    assert not any(engine.has_unfinished_requests for engine in engines.values())
    assert windows["none"].tokens == windows["nothing"].tokens == 2 * 8
    assert windows["nothing"].accepted == []
    assert windows["half right"].accepted == [1, 0] and windows["half right"].tokens == 2 * 2 * 8


def test_the_speedups_of_the_chapter():
    """chapters/07-speculation.md: Llama 3 70B on four H100, drafts of Llama 3.2 1B, accepted with probability 0.7."""
    text = (ROOT / "phase4_scheduler" / "chapters" / "07-speculation.md").read_text(encoding="utf-8")
    model, drafter = find_cost("h100x4:llama-3-70b"), find_cost("h100:llama-3.2-1b")
    for users in (1, 8, 64, 256):
        speedups = " | ".join(f"{computed_speedup(model, drafter, users, k, 0.7):.2f}" for k in (1, 2, 4))
        row = next(line for line in text.splitlines() if line.startswith(f"| {users} | "))
        assert row.endswith(f"ms | {speedups} |"), speedups
