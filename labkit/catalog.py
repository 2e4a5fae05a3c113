"""The scripts of the course, in the order in which they are meant to be run."""

import ast
from pathlib import Path

from labkit.errors import LabError
from labkit.paths import ROOT

SCRIPTS: dict[str, list[str]] = {
    "phase1_tokens_embeddings": [
        "tokenization_lab.py",
        "embedding_explorer.py",
        "model_file_anatomy.py",
        "gpu_memory_equation.py",
    ],
    "phase2_attention_kvcache": [
        "attention_lab.py",
        "positions_lab.py",
        "transformer_lab.py",
        "families_lab.py",
        "sampling_lab.py",
        "kv_cache_lab.py",
        "roofline_lab.py",
        "quantization_lab.py",
        "tell_story.py",
    ],
    "phase3_paged_attention": [
        "block_manager_lab.py",
        "paged_attention_lab.py",
        "memory_waste.py",
        "prefix_caching.py",
    ],
    "phase4_scheduler": [
        "scheduler_lab.py",
        "continuous_batching.py",
        "where_time_goes.py",
        "speculative_decoding.py",
        "structured_output.py",
        "workload_simulator.py",
        "capacity_planner.py",
        "scaling_strategies.py",
        "server_lab.py",
        "many_users.py",
        "war_room.py",
    ],
    "phase5_real_gpu": [
        "memory_hierarchy.py",
        "triton_paged_attention.py",
        "decode_ladder.py",
        "compile_report.py",
        "kernel_benchmark.py",
        "engine_benchmark.py",
        "disaggregation.py",
        "vllm_comparison.py",
        "tensor_parallel.py",
        "compare_to_reference.py",
    ],
}


def first_line(script: Path) -> str:
    """The first line of a script's docstring, read without running it."""
    doc = ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or ""
    return doc.split("\n", 1)[0].rstrip(".")


def all_scripts() -> list[Path]:
    return [ROOT / phase / name for phase, names in SCRIPTS.items() for name in names]


def select(words: list[str]) -> list[Path]:
    """Scripts by phase or name: "1", "phase2", "kv_cache_lab", "phase1_tokens_embeddings/tokenization_lab.py".

    No words: all. Raises LabError for a word that fits nothing.
    """
    if not words:
        return all_scripts()
    chosen: list[Path] = []
    for word in words:
        stem = Path(word).stem
        # phase1_tokens_embeddings, phase1 or 1
        phases = {
            p for p in SCRIPTS if word.rstrip("/") in (p, p.split("_")[0], p[len("phase") :].split("_")[0])
        }
        in_phase = [s for s in all_scripts() if s.parent.name in phases]
        fitting = in_phase or [s for s in all_scripts() if s.stem == stem]
        if not fitting and any(s.stem == f"{stem}_lab" for s in all_scripts()):
            raise LabError(f"{stem}.py is called {stem}_lab.py now: lab run {stem}_lab")
        if not fitting:
            raise LabError(f"no phase or script is called {word!r}: `lab list` shows them all")
        chosen += [s for s in fitting if s not in chosen]
    return chosen


def is_script(word: str) -> bool:
    """Whether `select` would know this word. A bare number is not counted: it may be the value of an option."""
    try:
        return not word.isdigit() and bool(select([word]))
    except LabError:
        return False
