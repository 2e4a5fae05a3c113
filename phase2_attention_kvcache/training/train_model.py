"""Train a tokenizer and a small GPT-2 on a folder of texts, and save both in the Hugging Face layout.

    python phase2_attention_kvcache/training/train_model.py --text TEXTS --valid VALID.txt --preset tales --out my_model

This is how the course's own models `tales` and `tales-draft` were made.

Texts are .txt files; several documents in one file are parted by a line `<|endoftext|>`.
"""

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from transformers import GPT2Config, GPT2LMHeadModel

from labkit.machine import cpu_name, pick_device
from labkit.options import Parser, whole
from labkit.terminal import run
from phase1_tokens_embeddings.tokens import END_OF_TEXT, BPETokenizer
from phase2_attention_kvcache.measuring.evaluation import bits_per_byte, read_documents
from phase2_attention_kvcache.model import Transformer

# Width, layers and heads (of 64 numbers each). Both share one tokenizer, so that the small one can
# draft for the large one (speculative decoding).
PRESETS = {
    "tales": dict(n_embd=256, n_layer=6, n_head=4),
    "tales-draft": dict(n_embd=128, n_layer=1, n_head=2),
}
CONTEXT = 1024
TOKENS_PER_STEP = 4096
# Short windows first: most of the language is learned from near words, and they cost less attention.
# The last part runs at the full context, so that the late positions are learned too.
WINDOW_SCHEDULE = [(0.45, 256), (0.75, 512), (1.0, 1024)]  # (until this share of the steps, window)
# The text is read four to five times. Without dropout the model would learn it by heart.
DROPOUT = 0.1


def encode_documents(tok: BPETokenizer, documents: list[str]) -> np.ndarray:
    """One long row of ids: <|endoftext|> document <|endoftext|> document ... <|endoftext|>."""
    ids: list[int] = [tok.eos_token_id]
    for document in documents:
        ids += tok.encode(document)
        ids.append(tok.eos_token_id)
    return np.array(ids, dtype=np.int64)


def windows_of_epoch(ids: np.ndarray, window: int, rng: np.random.Generator) -> np.ndarray:
    """Cut the row into windows of `window` + 1 ids at a random phase, in random order."""
    phase = int(rng.integers(0, window))
    count = (len(ids) - phase - 1) // window
    return phase + window * rng.permutation(count)


def window_at(step: int, steps: int) -> int:
    share = step / steps
    return next(window for until, window in WINDOW_SCHEDULE if share < until)


def learning_rate_scale(step: int, steps: int) -> float:
    """Warm up over 2% of the steps, stay, then fall to zero over the last half."""
    warm_up, fall_from = max(1, steps // 50), steps // 2
    if step < warm_up:
        return (step + 1) / warm_up
    return 1.0 if step < fall_from else (steps - step) / (steps - fall_from)


def make_optimizers(model: torch.nn.Module) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the blocks, AdamW for embeddings, biases and norms.

    Muon (Jordan et al., 2024) makes each update of a matrix nearly orthogonal. On this little data
    and time it reaches a lower loss than AdamW alone.
    """
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and ".h." in n]
    tables = [p for n, p in model.named_parameters() if p.ndim == 2 and ".h." not in n]
    vectors = [p for n, p in model.named_parameters() if p.ndim == 1]
    groups = [dict(params=tables, weight_decay=0.1), dict(params=vectors, weight_decay=0.0)]
    return [
        torch.optim.Muon(matrices, lr=3e-3, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(groups, lr=2e-3, betas=(0.9, 0.98)),
    ]


def make_loss(model: GPT2LMHeadModel, device: str, compiled: bool):
    def loss(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device, torch.bfloat16):
            hidden = model.transformer(inputs).last_hidden_state
            logits = F.linear(hidden, model.lm_head.weight)
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())

    return torch.compile(loss, dynamic=False) if compiled else loss


def main() -> None:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--text", type=Path, required=True, help="training texts: a .txt file or a folder")
    add("--valid", type=Path, required=True, help="texts that are only measured, never learned")
    add("--out", type=Path, required=True, help="folder for the finished model")
    add("--preset", choices=PRESETS, default="tales", help="size of the model")
    add("--tokenizer", type=Path, help="tokenizer.json to use; without it one is trained")
    add("--vocab-size", type=whole(257, 2**18), default=8192, help="tokens of a new tokenizer (8192)")
    add("--steps", type=whole(1, 10**7), default=3000, help=f"steps of {TOKENS_PER_STEP} tokens (3000)")
    add("--seed", type=whole(0, 2**32 - 1), default=0)
    add("--no-compile", action="store_true", help="without torch.compile: slower, starts at once")
    args = parser.parse_args()
    device = pick_device("auto")

    args.out.mkdir(parents=True, exist_ok=True)
    documents, valid_documents = read_documents(args.text), read_documents(args.valid)
    if args.tokenizer:
        tok = BPETokenizer.from_file(args.tokenizer)
    else:
        print(f"training a tokenizer of {args.vocab_size} tokens ...", flush=True)
        tok = BPETokenizer.train(documents, args.vocab_size)
    tok.save(args.out / "tokenizer.json")
    if tok.eos_token_id is None:
        raise SystemExit(f"{args.tokenizer} has no {END_OF_TEXT}: train one (leave --tokenizer out)")
    ids, valid_ids = encode_documents(tok, documents), encode_documents(tok, valid_documents)
    valid_bytes = sum(len(d.encode()) for d in valid_documents)
    print(f"{len(ids):,} training tokens, {len(valid_ids):,} validation tokens", flush=True)

    if len(ids) < 4 * CONTEXT:
        raise SystemExit(f"{args.text} gives {len(ids):,} tokens: at least {4 * CONTEXT:,} are needed")

    torch.manual_seed(args.seed)
    sizes = PRESETS[args.preset] | dict(vocab_size=tok.vocab_size, n_positions=CONTEXT)
    ends = dict.fromkeys(("bos_token_id", "eos_token_id"), tok.eos_token_id)
    config = GPT2Config(**sizes, **ends, resid_pdrop=DROPOUT, embd_pdrop=DROPOUT, attn_pdrop=0.0)
    model = GPT2LMHeadModel(config).to(device)
    optimizers = make_optimizers(model)
    loss_of = make_loss(model, device, compiled=not args.no_compile)

    seconds, log = 0.0, []
    base_rates = [[3e-3], [2e-3, 2e-3]]
    model.train()
    for step in range(args.steps):
        began = time.perf_counter()
        window = window_at(step, args.steps)
        per_step = TOKENS_PER_STEP // window
        first = step * TOKENS_PER_STEP  # tokens seen so far
        epoch, offset = divmod(first, len(ids) - 2 * window)
        starts = windows_of_epoch(ids, window, np.random.default_rng([args.seed, epoch, window]))
        chosen = [starts[(offset // window + i) % len(starts)] for i in range(per_step)]
        batch = torch.from_numpy(np.stack([ids[s : s + window + 1] for s in chosen])).to(device)

        scale = learning_rate_scale(step, args.steps)
        for optimizer, rates in zip(optimizers, base_rates, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * scale
        loss = loss_of(batch[:, :-1], batch[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        seconds += time.perf_counter() - began

        done = step + 1
        row = dict(step=done, tokens=done * TOKENS_PER_STEP, loss=round(loss.item(), 4))
        if done % 10 == 0 or done == args.steps:
            log.append(row)
            speed = TOKENS_PER_STEP / (time.perf_counter() - began)
            left = (args.steps - done) * seconds / done / 60
            print(
                f"step {done:5}/{args.steps}  loss {row['loss']:.3f}  window {window:4}  "
                f"{speed:6.0f} tok/s  about {left:.0f} min left",
                flush=True,
            )

    cpu = f"{os.cpu_count()} cores of an {cpu_name()} CPU"
    model = model.to(torch.bfloat16)
    model.save_pretrained(args.out)
    bits = bits_per_byte(
        Transformer.from_pretrained(args.out, device=device), valid_ids.tolist(), valid_bytes
    )
    summary = dict(
        preset=args.preset,
        parameters=sum(p.numel() for p in model.parameters()),
        steps=args.steps,
        tokens_per_step=TOKENS_PER_STEP,
        training_tokens=len(ids),
        training_bytes=sum(len(d.encode()) for d in documents),
        valid_tokens=len(valid_ids),
        valid_bytes=valid_bytes,
        valid_bits_per_byte=round(bits, 4),
        seconds=round(seconds),
        machine=torch.cuda.get_device_name() if device == "cuda" else cpu,
        seed=args.seed,
        torch=torch.__version__,
        log=log,
    )
    (args.out / "training_log.json").write_text(json.dumps(summary, indent=1))
    print(f"saved {args.out}: {bits:.3f} bits per byte on the validation text")


if __name__ == "__main__":
    raise SystemExit(run(main))
