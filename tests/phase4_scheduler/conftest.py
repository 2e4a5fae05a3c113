"""A small random model with a tokenizer of its own, engines on it, and transformers as the judge."""

import random
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from labkit.paths import ROOT
from phase1_tokens_embeddings.tokens.tokenizer import BPETokenizer
from phase2_attention_kvcache.model.transformer import Transformer
from phase4_scheduler.engine.config import EngineConfig
from phase4_scheduler.engine.engine import LLMEngine

TIE = 1e-4  # logits nearer than this are equal: two ways of adding may order them differently
CONTEXT = 128
made: list[LLMEngine] = []  # by the test that runs


@dataclass
class Small:
    """A model, three times: as a folder, as transformers runs it, and as the course runs it."""

    folder: Path
    reference: torch.nn.Module
    model: Transformer
    tokenizer: BPETokenizer

    def engine(self, **settings) -> LLMEngine:
        """An engine; settings that are no field of EngineConfig go to the engine itself."""
        parts = {k: settings.pop(k) for k in list(settings) if k not in EngineConfig.__dataclass_fields__}
        tokenizer = parts.pop("tokenizer", self.tokenizer)
        engine = LLMEngine(parts.pop("model", self.model), tokenizer, EngineConfig(**settings), **parts)
        made.append(engine)
        return engine

    @torch.inference_mode()
    def logits(self, sequences: list[list[int]]) -> list[torch.Tensor]:
        """transformers' scores after each token of each sequence, float32, without a cache."""
        return [self.reference(torch.tensor([ids])).logits[0] for ids in sequences]

    def assert_greedy(self, prompts: list[list[int]], answers: list[list[int]]) -> int:
        """Each token is the likeliest one after those before it. Returns how many ties it met."""
        ties = 0
        for prompt, answer, logits in zip(
            prompts, answers, self.logits([p + a for p, a in zip(prompts, answers)]), strict=True
        ):
            assert answer
            for i, token in enumerate(answer):
                row = logits[len(prompt) - 1 + i]
                best = row.argmax().item()
                if token != best:
                    assert row[best] - row[token] < TIE, f"token {i} of {answer} after {prompt}"
                    ties += 1
        return ties


@pytest.fixture(scope="session")
def tiny(tmp_path_factory) -> Small:
    """GPT-2, 3 layers, 32 wide, context 128, 400 tokens, the last of which ends a text."""
    text = (ROOT / "phase1_tokens_embeddings" / "texts" / "prose.txt").read_text(encoding="utf-8")
    tokenizer = BPETokenizer.train([text], vocab_size=400)
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=400, n_positions=CONTEXT, n_embd=32, n_layer=3, n_head=2, bos_token_id=399,
        eos_token_id=399, initializer_range=0.3,
    )  # fmt: skip
    folder, reference = tmp_path_factory.mktemp("tiny"), GPT2LMHeadModel(config).eval()
    reference.save_pretrained(folder)
    return Small(folder, reference, Transformer.from_pretrained(folder, "float32", "cpu"), tokenizer)


@pytest.fixture(scope="session")
def make_prompts():
    """Random prompts; some begin alike, so that a prefix cache has something to find."""

    def make(number: int, vocab: int, lengths: tuple[int, int] = (1, 40), seed: int = 0) -> list[list[int]]:
        rng = random.Random(seed)
        beginnings = [[rng.randrange(vocab) for _ in range(lengths[1])] for _ in range(3)]
        prompts = []
        for _ in range(number):
            length = rng.randint(*lengths)
            shared = rng.choice([0, 0, rng.randint(0, length)])
            own = [rng.randrange(vocab) for _ in range(length - shared)]
            prompts.append(rng.choice(beginnings)[:shared] + own)
        return prompts

    return make


@pytest.fixture
def after_forward():
    """after_forward(engine, call): after each forward pass `call(token_ids, hidden)` runs; it may raise, or spoil the hidden states."""
    handles = []

    def attach(engine: LLMEngine, call) -> None:
        def hook(model, given, hidden):
            call(given[0], hidden)

        handles.append(engine.model.register_forward_hook(hook))

    yield attach
    for handle in handles:
        handle.remove()


@pytest.fixture(autouse=True)
def assert_empty():
    """Nothing is left in an engine: no request, no answer, no block, no swap slot. Checked after every test."""

    def check(engine: LLMEngine) -> None:
        manager = engine.core.block_manager
        manager.check_integrity()
        assert not engine.has_unfinished_requests
        assert not engine.core.scheduler.has_requests
        assert not engine.core.requests and not engine.output_processor.parents
        assert not engine.output_processor.states
        assert manager.num_free_blocks == manager.num_blocks - 1
        assert all(block.ref_count == 0 for block in manager.allocator.blocks[1:])
        assert not getattr(manager, "swapped", None)

    made.clear()
    yield check
    for engine in made:
        check(engine)
