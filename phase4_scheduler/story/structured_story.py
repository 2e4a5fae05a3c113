"""The chapters of structured_output.py, and its figure."""

from __future__ import annotations

import json
import time

import jsonschema
import numpy as np
from matplotlib.figure import Figure

from labkit.figures import BLUE, MUTED, new_figure
from labkit.lab import Lab
from phase2_attention_kvcache.model import SamplingParams
from phase4_scheduler.engine import LLMEngine
from phase4_scheduler.features.structured_output import (
    GrammarCompiler,
    StructuredOutputsParams,
    StructuredSamplingParams,
)

PROMPT = "Once upon a time there lived a"
SCHEMA = {
    "type": "object",
    "properties": {
        "hero": {"enum": ["king", "queen", "fox"]},
        "age": {"type": "integer", "minimum": 1, "maximum": 99},
        "wish": {"type": "string", "maxLength": 24},
    },
    "required": ["hero", "age", "wish"],
    "additionalProperties": False,
}


def wanted(max_tokens: int) -> StructuredSamplingParams:
    asked = StructuredOutputsParams(json=SCHEMA, disable_any_whitespace=True)
    return StructuredSamplingParams(max_tokens=max_tokens, structured_outputs=asked)


def token_by_token(lab: Lab) -> LLMEngine:
    """One answer, and the mask before each of its tokens."""
    lab.title("Which tokens are allowed next")
    engine = LLMEngine.from_pretrained(
        lab.args.model, dtype=lab.args.dtype, device=lab.args.device, seed=lab.seed, max_num_seqs=16,
        max_model_len=256,
    )  # fmt: skip
    ids = engine.generate(PROMPT, wanted(100))[0].outputs[0].token_ids
    compiler = GrammarCompiler(
        engine.tokenizer, engine.model.config.vocab_size, engine.model.config.eos_token_ids
    )
    grammar = compiler.start(wanted(1).structured_outputs.source)
    steps = []
    for i, token in enumerate(ids):
        grammar.read(ids[:i])
        allowed = np.unpackbits(compiler.allowed([(grammar, [])]), bitorder="little").nonzero()[0].tolist()
        steps.append((engine.tokenizer.decode([token]), allowed))
    lab.say(f"""The schema wants a hero (one of three), an age and a wish. The model has {compiler.vocab_size:,} tokens.
        Before each token of its answer the grammar allows so many of them:""")
    lab.show(" ".join(f"{text}[{len(allowed):,}]" for text, allowed in steps))
    lab.figure(draw_masks(steps, compiler.vocab_size), "structured_output")
    return engine


def draw_masks(steps: list[tuple[str, list[int]]], vocab_size: int) -> Figure:
    """A row for each token of the answer, a mark for each token of the vocabulary that was allowed there."""
    forced = sum(len(allowed) == 1 for _, allowed in steps)
    fig, (ax,) = new_figure(
        f"In {forced} of {len(steps)} steps the schema leaves the model no choice",
        f"each row: the tokens allowed, of {vocab_size:,}, before the token named on the left was sampled",
        size=(7.2, 1.4 + 0.23 * len(steps)),
    )
    for row, (_, allowed) in enumerate(steps):
        ax.scatter(allowed, [row] * len(allowed), s=60, marker="|", color=BLUE, linewidths=0.8)
        ax.annotate(
            f"{len(allowed):,}", (1.01, row), xycoords=("axes fraction", "data"), va="center", color=MUTED
        )
    ax.set_yticks(range(len(steps)), [text.replace("\n", "\\n") or "end" for text, _ in steps])
    ax.set(xlim=(0, vocab_size), ylim=(len(steps) - 0.5, -0.5), xlabel="token id")
    return fig


def many_answers(lab: Lab, engine: LLMEngine) -> None:
    """Sixteen users at a time: are all answers valid, and what does the mask cost?"""
    lab.title("Valid, if the answer is complete")
    number = 32 if lab.args.quick else 96
    times, finished, valid = {}, {}, {}
    for name, params in (
        ("free", SamplingParams(max_tokens=40, ignore_eos=True)),
        ("masked", wanted(100)),
        ("masked, 12 tokens", wanted(12)),
    ):
        began = time.perf_counter()
        steps = engine.core.num_steps
        answers = [output.outputs[0] for output in engine.generate([PROMPT] * number, params)]
        times[name] = 1e3 * (time.perf_counter() - began) / (engine.core.num_steps - steps)
        finished[name] = sum(answer.finish_reason == "stop" for answer in answers)
        valid[name] = sum(is_valid(answer.text) for answer in answers)
    names = list(times)
    lab.table(
        f"{number} answers, 16 at a time",
        ["", "valid", "complete", "ms per step"],
        [[name, valid[name], finished[name], round(times[name], 2)] for name in names],
    )
    lab.predict(
        claim="structured-valid",
        question=f"valid answers of {number} with the mask and tokens enough",
        predicted=number,
        measured=valid["masked"],
    )
    lab.predict(
        claim="structured-valid",
        question=f"valid answers of {number} with the mask and at most 12 tokens",
        predicted=0,
        measured=valid["masked, 12 tokens"],
        note="""A mask keeps an answer on the way to valid JSON. It does not bring it to the end: max_tokens cuts it off, and
            then finish_reason is "length". A client must check it before it parses.""",
    )


def is_valid(text: str) -> bool:
    try:
        jsonschema.validate(json.loads(text), SCHEMA)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True
