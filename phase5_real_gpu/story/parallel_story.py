"""The chapters of tensor_parallel.py."""

from __future__ import annotations

from labkit.lab import Lab
from labkit.models import find_model
from phase1_tokens_embeddings.tokens import BPETokenizer
from phase1_tokens_embeddings.weights import find_card, find_shape
from phase2_attention_kvcache.model import ModelConfig, SamplingParams, Transformer
from phase3_paged_attention.paging import PagedKVCache
from phase4_scheduler.engine import EngineConfig, LLMEngine
from phase4_scheduler.features.recording import record
from phase4_scheduler.simulator import ParallelCost, StepSize, find_interconnect, step_traffic
from phase5_real_gpu.parallel import MultiprocExecutor, Place
from phase5_real_gpu.story.parallel_figures import draw_bubble, draw_curve, draw_ranks

PROMPTS = (
    "Once upon a time there was a king",
    "The wolf said to the",
    "She opened the door, and",
    "Then the fox",
)
NUM_BLOCKS = 64
DTYPE = "float32"
NUMBER_BYTES = 4

# gpt-fast's README: Llama-2-7B in bfloat16 on A100 cards with NVLink, tokens per second for one user.
GPT_FAST = {1: 105, 2: 169, 4: 254, 8: 328}
MODEL, CARD, CONTEXT = "llama-2-7b", "a100-80", 512
WIRES = ("nvlink", "pcie", "network")
DEVICES = (1, 2, 4, 8)
# Interconnect and number of requests -> the number of cards with the shortest step: beyond it, 65 calls cost more than sharing saves.
TURNS = {("nvlink", 1): 8, ("pcie", 1): 2, ("network", 1): 4, ("pcie", 32): 4}


def engine_alone(model: Transformer, num_blocks: int) -> LLMEngine:
    """One process, and the cache that the ranks have: gathered with torch."""
    cache = PagedKVCache(model.config, num_blocks, 16, model.dtype, model.device, use_kernel=False)
    return LLMEngine(model, None, EngineConfig(num_blocks=num_blocks), kv_cache=cache)


def the_ranks(lab: Lab) -> None:
    """A model in several processes: its parts, its tokens, and the communication."""
    t, p = lab.args.tensor_parallel_size, lab.args.pipeline_parallel_size
    folder = find_model(lab.args.model)
    config = EngineConfig(num_blocks=NUM_BLOCKS, enforce_eager=True)  # a replayed step is not counted
    executor = MultiprocExecutor(folder, DTYPE, lab.device, t, p)
    engine = LLMEngine(executor.model, None, config, executor=executor)
    who_holds_what(lab, executor, engine.model.config, t, p)
    executor.traffic()  # from here on it counts

    tokenizer = BPETokenizer.from_file(folder / "tokenizer.json")
    prompts = [tokenizer.encode(text) for text in PROMPTS]
    params = SamplingParams(temperature=0, max_tokens=8 if lab.quick else 24, ignore_eos=True)
    alone = engine_alone(Transformer.from_pretrained(folder, DTYPE, lab.device), NUM_BLOCKS)
    expected, steps = answers(alone, prompts, params)
    found, _ = answers(engine, prompts, params)
    lab.title("The same tokens")
    lab.say("""The engine's process has no weights. In each step it sends all ranks the same token ids,
        positions and block tables. The last stage's first rank samples the next tokens and returns them.""")
    equal = sum(a == b for one, many in zip(expected, found) for a, b in zip(one, many))
    total = sum(map(len, expected))
    lab.predict(
        "parallel-tokens",
        f"of {total} greedy tokens, how many are the same as from one process",
        total,
        equal,
    )
    what_crosses(lab, executor.traffic(), engine.model.config, steps, len(prompts), t, p)
    executor.shutdown()


def answers(
    engine: LLMEngine, prompts: list[list[int]], params: SamplingParams
) -> tuple[list[list[int]], list[int]]:
    """Tokens of each request, and how many tokens went through the model in each step."""
    steps: list[int] = []
    record(engine, lambda event: steps.append(sum(event["tokens"].values())))
    done = engine.generate(prompts, params)
    return [output.outputs[0].token_ids for output in done], steps


def who_holds_what(lab: Lab, executor: MultiprocExecutor, config: ModelConfig, t: int, p: int) -> None:
    lab.title("Which rank holds what")
    lab.say(f"""{t * p} processes, {p} stages of {t} ranks. A stage holds some of the layers. Its ranks split each layer by
        heads and by the MLP's inner numbers, and the embedding table by tokens. Each rank has its own paged cache, for its heads
        of its layers. A block has the same number on every rank.""")
    whole = NUMBER_BYTES * config.num_parameters
    held = sum(facts.weight_bytes for facts in executor.facts)
    rows = []
    for rank, facts in enumerate(executor.facts):
        place = Place(rank, t, p)
        layers, kv = place.layers(config.num_layers), len(place.kv_heads(config))
        rows.append([
            rank, f"{layers.start} to {layers.stop - 1}", f"{config.num_heads // t} of {config.num_heads}",
            facts.weight_bytes / 1e6, facts.bytes_read / 1e6,
            2 * len(layers) * kv * config.head_dim * NUMBER_BYTES,
        ])  # fmt: skip
    lab.table(
        "By rank",
        ["rank", "layers", "heads", "weights, MB", "read, MB", "KV bytes per token"], rows,
        note=f"The whole model: {whole / 1e6:.1f} MB in {DTYPE}, {executor.facts[0].bytes_read / executor.facts[0].weight_bytes:.0%} of that "
        f"in the file. A rank reads only its own rows and columns of the file. All ranks together hold {held / whole:.3f} times the model: "
        "each holds the norms, the positions and the biases added to a sum; the first and the last stage hold a tied embedding table.",
    )  # fmt: skip
    lab.figure(draw_ranks(config, t, p), "who_holds_what")


def what_crosses(
    lab: Lab,
    traffic: list[dict[str, tuple[int, int]]],
    config: ModelConfig,
    steps: list[int],
    users: int,
    t: int,
    p: int,
) -> None:
    lab.title("The communication, counted")
    layers, num_steps = config.num_layers, len(steps)
    of_rank_0s = [traffic[stage * t] for stage in range(p)]  # the first rank of each stage
    counted = {
        kind: [sum(rank.get(kind, (0, 0))[i] for rank in of_rank_0s) for i in (0, 1)]
        for kind in ("all_reduce", "gather", "send")
    }
    if t > 1:
        sums = step_traffic(config, 1, 1, t)["all_reduce"].count
        lab.predict(
            "tp-all-reduce", "tensor parallelism: how many all-reduces does a layer need",
            (sums - 1) // layers, (counted["all_reduce"][0] / num_steps - 1) / layers, source_says=1,
            note="One after attention, one after the MLP; and one more per step after the embedding table, which is split by tokens.",
        )  # fmt: skip
    if p > 1:
        lab.predict(
            "pp-activations", f"{p} stages: how often does a step send its vectors to the next stage",
            p - 1, counted["send"][0] / num_steps,
            note="Once from each stage to the next. (Each rank sends to the rank with the same part of the next stage.)",
        )  # fmt: skip
    rows, all_equal = [], True
    for kind, (calls, nbytes) in counted.items():
        if calls:
            per_step = [step_traffic(config, n, users, t, p, NUMBER_BYTES)[kind] for n in steps]
            formula = [sum(calls.count for calls in per_step), sum(calls.nbytes for calls in per_step)]
            all_equal &= formula == [calls, nbytes]
            rows.append([kind, calls, formula[0], nbytes, formula[1]])
    lab.predict("parallel-bytes", "are calls and bytes of all kinds those of the formula", True, all_equal)
    lab.table(
        f"{num_steps} steps, {sum(steps)} tokens: calls and bytes of one rank of each stage",
        ["call", "calls", "formula", "bytes", "formula"], rows,
        note="all_reduce: (2 L + 1) x tokens x d. gather: requests x vocabulary / T. send: (P - 1) x tokens x d. In numbers of 4 bytes.",
    )  # fmt: skip


# ---------------------------------------------------------------------- interconnects


def tokens_a_second(wire: str, devices: int, users: int, share: float = 1.0) -> float:
    """Tokens per second of each request, on cards that reach this share of their data sheet."""
    cost = ParallelCost.of(
        find_shape(MODEL), find_card(CARD), find_interconnect(wire), devices, efficiency=share
    )
    return 1 / cost.seconds(StepSize.of([(CONTEXT, 1)] * users))


def predict_gpt_fast(devices: int) -> float:
    """Tokens per second on several GPUs, from the figure for one and the fastest of the recorded calls, as in a program that is
    recorded whole. gpt-fast does not split the output head and the embedding table, so it has two all-reduces per layer, and
    not all of the weights are shared."""
    shape, wire = find_shape(MODEL), find_interconnect("nvlink").all_reduce[devices]
    parts = shape.parameters_by_part()
    head = parts["head"] / (parts["attention"] + parts["MLP"] + parts["head"])
    step = ((1 - head) / devices + head) / GPT_FAST[1]
    return 1 / (step + 2 * shape.num_layers * wire(2 * shape.d_model, True))


def the_wires(lab: Lab) -> None:
    lab.title("The effect of the interconnect")
    lab.say(f"""{MODEL} in 16 bits on {CARD}. The cards share the reading of weights and cache; the calls take additional time. Vidur
        published the times of all-reduces on 2, 4 and 8 cards. The figure of one card is gpt-fast's: {GPT_FAST[1]} tokens per
        second, published with those of 2, 4 and 8.""")
    lab.predict(
        "gpt-fast-8", "gpt-fast on 8 cards, tokens per second (105 on one)", round(predict_gpt_fast(8)), GPT_FAST[8],
        tolerance=0.15, note="8 times as many cards are about 3 times as fast: most of the rest is the time of 64 all-reduces.",
    )  # fmt: skip
    share = GPT_FAST[1] / tokens_a_second("nvlink", 1, 1)  # that gpt-fast reaches
    curves = {
        users: {wire: [tokens_a_second(wire, n, users, share) for n in DEVICES] for wire in WIRES}
        for users in (1, 32)
    }
    turns = {
        (wire, users): DEVICES[max(range(4), key=curve[wire].__getitem__)]
        for users, curve in curves.items()
        for wire in WIRES
    }
    for (wire, users), number in TURNS.items():
        title = find_interconnect(wire).title
        lab.predict(
            "tp-turns", f"{title}, {users} request{'s' * (users > 1)}: on how many of 1, 2, 4, 8 cards is a step shortest",
            number, turns[wire, users],
        )  # fmt: skip
    lab.figure(draw_curve(DEVICES, curves, GPT_FAST), "tensor_parallel")
    lab.figure(draw_bubble(4, (1, 4, 16)), "pipeline_bubble")
