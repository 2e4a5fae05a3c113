"""llama.cpp loads the files that we write, and goes on with the same tokens.

Set LLAMA_CPP_PYTHON to a Python that has the package `xllamacpp` (an environment of its own: pip install xllamacpp).
"""

import json
import os
import subprocess

import pytest
import torch

from labkit.models import find_model
from labkit.paths import ROOT
from phase1_tokens_embeddings.weights.gguf_model import load_tokenizer
from phase1_tokens_embeddings.weights.gguf_writer import write_gguf
from phase2_attention_kvcache.model import NoCache, Transformer, generate_cached

PYTHON = os.environ.get("LLAMA_CPP_PYTHON")
pytestmark = [
    pytest.mark.proof,
    pytest.mark.skipif(not PYTHON, reason="needs llama.cpp: LLAMA_CPP_PYTHON=a Python that has xllamacpp"),
]
NEW = 40
GREEDY = """
import json, sys, xllamacpp
path, prompts, new = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
params = xllamacpp.CommonParams()
params.model.path, params.n_parallel, params.n_ctx, params.verbosity = path, 1, 1024, -1
server, found = xllamacpp.Server(params), []
for prompt in prompts:
    ask = {"prompt": prompt, "max_tokens": new, "temperature": 0, "logprobs": 2, "cache_prompt": False}
    answer = server.handle_completions(ask)["choices"][0]["logprobs"]["content"]
    found.append([[token["id"], token["logprob"]] for token in answer])
print("found " + json.dumps(found))
"""
# How far the two engines' log probabilities of one token may be apart. llama.cpp keeps keys and values in 16 bits, and
# with quantised weights it rounds activations to 8 bits as well; ours stay float32.
NOISE = {"F32": 0.01, "Q8_0": 0.15, "Q4_0": 0.15}


@pytest.mark.parametrize("kind", NOISE)
def test_the_same_greedy_tokens_on_twenty_prompts(tmp_path, kind):
    """Where an answer parts, it is a tie: two tokens whose scores differ by less than the engines do."""
    text = (ROOT / "phase1_tokens_embeddings" / "texts" / "prose.txt").read_text(encoding="utf-8")
    write_gguf(find_model("tales"), tmp_path / "x.gguf", kind)
    tok, model = load_tokenizer(tmp_path / "x.gguf"), Transformer.from_pretrained(tmp_path / "x.gguf")
    ids = tok.encode(text)
    prompts = [ids[20 * i : 20 * i + 5 + 2 * i] for i in range(20)]
    command = [PYTHON, "-c", GREEDY, str(tmp_path / "x.gguf"), json.dumps(prompts), str(NEW)]
    told = subprocess.run(command, capture_output=True, text=True, timeout=250, check=True).stdout
    theirs = json.loads(next(line for line in told.splitlines() if line.startswith("found "))[6:])
    ties, noise = [], 0.0
    for prompt, their in zip(prompts, theirs, strict=True):
        ours = generate_cached(model, prompt, NEW).token_ids
        seen = torch.tensor(prompt + ours)
        rows = model.logits(model(seen, torch.arange(len(seen)), NoCache())).log_softmax(-1)[
            len(prompt) - 1 :
        ]
        for row, token, (their_token, logprob) in zip(rows, ours, their):
            if token != their_token:
                ties.append((row[token] - row[their_token]).item())
                break
            noise = max(noise, abs(row[token].item() - logprob))
    print(
        f"{kind}: {20 - len(ties)} of 20 answers are the same; largest difference of one token {noise:.4f}; ties {ties}"
    )
    assert noise < NOISE[kind] and len(ties) <= 8
    assert all(0 <= tie < 2 * noise for tie in ties)
