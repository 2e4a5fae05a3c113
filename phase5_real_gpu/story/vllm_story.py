"""The chapters of the comparison with the real vLLM."""

from labkit.lab import Lab
from labkit.models import find_model
from phase1_tokens_embeddings.tokens import BPETokenizer
from phase2_attention_kvcache.model import Transformer
from phase4_scheduler.engine import EngineConfig, LLMEngine
from phase5_real_gpu.benchmarks import vllm_checks as checks
from phase5_real_gpu.benchmarks.vllm_process import VERSION, Worker

PROMPTS = (
    "Once upon a time there was a king who had three",
    "The wolf said to the",
    "In the middle of the forest",
    '"Who are you?" asked the',
    "She opened the door, and",
    "There was once a poor",
    "The old woman looked at him and",
    "Then the fox",
)
# A cache that holds about five of the requests below at a time, and steps that cut their prompts.
SCHEDULE = dict(max_num_seqs=8, max_num_batched_tokens=96, num_blocks=24, block_size=32, max_model_len=256)


def check_decisions(lab: Lab, python: str, device: str, dtype: str) -> None:
    """Tokens and schedule, in vLLM's own process, where its scheduler can be watched."""
    folder = find_model("tales")
    tokenizer = BPETokenizer.from_file(folder / "tokenizer.json")
    model = Transformer.from_pretrained(folder, dtype, device)
    requests = checks.schedule_requests(model.config.vocab_size, lab.seed)
    prompts = [tokenizer.encode(text) for text in PROMPTS]
    question = dict(max_tokens=16 if lab.quick else 60, stop_token_ids=list(model.config.eos_token_ids))

    settings = dict(SCHEDULE, num_gpu_blocks_override=SCHEDULE["num_blocks"], async_scheduling=False)
    lab.say("The real vLLM starts and answers: a minute or two.")
    with Worker(
        python, in_process=True, model=str(folder), dtype=dtype, skip_tokenizer_init=True,
        enable_prefix_caching=True, gpu_memory_utilization=0.4, timeout=lab.args.timeout, **settings,
    ) as vllm:  # fmt: skip
        recorded = vllm.ask("schedule", requests=requests)  # first: its cache is untouched
        version, their_answers = vllm.version, vllm.ask("generate", prompts=prompts, **question)["answers"]
    engine = LLMEngine(model, None, EngineConfig(**SCHEDULE))
    steps, texts = checks.our_schedule(engine, requests)
    difference = checks.compare_schedules(steps, recorded["steps"])
    differences = checks.compare_tokens(checks.our_answers(engine, prompts, **question), their_answers)

    lab.title(f"Decisions of vLLM {version} and ours: tales, {dtype}, {device}")
    known = version.startswith(VERSION)
    total = sum(map(len, their_answers))
    lab.predict(
        claim="vllm-same-tokens",
        question=f"answers to {len(prompts)} prompts ({total} tokens) in which a token differs from vLLM's",
        predicted=0,
        measured=len(differences),
        kind="structure" if dtype == "float32" else "timing",
        note="If two tokens are about equally likely, the order of additions decides. In 16 bits this happens.",
    )
    for d in differences[:3]:
        lab.show(f"prompt {d.request}, token {d.place}: ours {d.tokens[0]}, vLLM's {d.tokens[1]}")
    preemptions = sum(len(s["preempted"]) for s in recorded["steps"])
    lab.predict(
        claim="vllm-same-schedule",
        question=f"{len(requests)} requests in {len(recorded['steps'])} steps: the same schedule as vLLM's",
        predicted=True,
        measured=difference is None,
        kind="structure" if known else "timing",
        note=f"""Compared in each step: which request computes how many tokens, in what order, what was computed
            before, block ids, preemptions ({preemptions} in all), both queues, free blocks.
            {"" if known else f"(The course follows vLLM {VERSION}; other versions may decide differently.)"}""",
    )
    if difference:
        lab.show(f"first in step {difference.step}, {difference.what}:\n"
                 f"  ours   {difference.ours}\n  vLLM's {difference.theirs}")  # fmt: skip
    same_texts = sum(a == b for a, b in zip(texts, recorded["answers"], strict=True))
    lab.say(
        f"{same_texts} of these {len(texts)} answers have the same tokens as well, preempted ones included."
    )
    lab.record(vllm=version, preemptions=preemptions, steps=len(recorded["steps"]))
