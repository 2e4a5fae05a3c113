"""The scripts of the course in reading order, each with its level."""

import ast
from contextlib import suppress
from pathlib import Path
from typing import Literal

from labkit.errors import LabError
from labkit.paths import ROOT

Level = Literal["core", "deep", "operations", "GPU"]
LEVELS: dict[Level, str] = {
    "core": "the shortest way from text to an engine that serves many users",
    "deep": "more on the same parts",
    "operations": "load, capacity, metrics and incidents",
    "GPU": "kernels and what limits them",
}
"""A path through the course is the core and one more level."""

SCRIPTS: dict[str, dict[str, Level]] = {
    "phase1_tokens_embeddings": {
        "tokenization_lab.py": "core",
        "embedding_explorer.py": "core",
        "model_file_anatomy.py": "deep",
        "gpu_memory_equation.py": "core",
    },
    "phase2_attention_kvcache": {
        "attention_lab.py": "core",
        "positions_lab.py": "deep",
        "transformer_lab.py": "core",
        "families_lab.py": "deep",
        "sampling_lab.py": "core",
        "kv_cache_lab.py": "core",
        "roofline_lab.py": "core",
        "quantization_lab.py": "deep",
        "tell_story.py": "core",
    },
    "phase3_paged_attention": {
        "block_manager_lab.py": "core",
        "paged_attention_lab.py": "core",
        "memory_waste.py": "core",
        "prefix_caching.py": "core",
    },
    "phase4_scheduler": {
        "scheduler_lab.py": "core",
        "continuous_batching.py": "core",
        "where_time_goes.py": "deep",
        "speculative_decoding.py": "deep",
        "structured_output.py": "operations",
        "workload_simulator.py": "operations",
        "capacity_planner.py": "operations",
        "scaling_strategies.py": "operations",
        "server_lab.py": "operations",
        "many_users.py": "core",
        "war_room.py": "operations",
    },
    "phase5_real_gpu": {
        "memory_hierarchy.py": "GPU",
        "triton_paged_attention.py": "GPU",
        "decode_ladder.py": "GPU",
        "compile_report.py": "GPU",
        "kernel_benchmark.py": "GPU",
        "engine_benchmark.py": "GPU",
        "disaggregation.py": "operations",
        "vllm_comparison.py": "deep",
        "tensor_parallel.py": "GPU",
        "compare_to_reference.py": "GPU",
    },
}


CORE_EXERCISES = frozenset({"1.1", "2.1", "2.2", "2.5", "3.1", "3.2", "3.3", "4.1", "4.2"})
"""By number: the parts of `my_engine` that every greedy token passes, and 4.1, which 4.2 extends."""


def chapters_of(phase: str) -> list[Path]:
    """The chapters of a phase in reading order, without its glossary."""
    return sorted((ROOT / phase / "chapters").glob("[0-9]*.md"))


def text_of_phase(phase: str) -> str:
    """The README and the chapters of a phase, without the glossary."""
    files = [ROOT / phase / "README.md", *chapters_of(phase)]
    return "\n\n".join(file.read_text(encoding="utf-8") for file in files)


def glossary_of(phase: str) -> tuple[str, str]:
    """The file with the glossary of a phase, and the lines of the glossary."""
    file = f"{phase}/chapters/glossary.md"
    return file, (ROOT / file).read_text(encoding="utf-8").partition("\n")[2]


def first_line(script: Path) -> str:
    """The first line of a script's docstring, read without running it."""
    doc = ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or ""
    return doc.split("\n", 1)[0].rstrip(".")


def all_scripts(level: Level | None = None) -> list[Path]:
    """All scripts, or those of a level."""
    return [
        ROOT / phase / name
        for phase, names in SCRIPTS.items()
        for name in names
        if level in (None, names[name])
    ]


def select(words: list[str]) -> list[Path]:
    """Scripts by phase or name: "1", "phase2", "kv_cache_lab", "phase1_tokens_embeddings/tokenization_lab.py".

    Without words: all. Raises LabError for a word that names neither.
    """
    if not words:
        return all_scripts()
    chosen: list[Path] = []
    for word in words:
        stem = Path(word).stem
        # phase1_tokens_embeddings, phase1 or 1
        phases = {
            p for p in SCRIPTS if word.rstrip("/\\") in (p, p.split("_")[0], p[len("phase") :].split("_")[0])
        }
        in_phase = [s for s in all_scripts() if s.parent.name in phases]
        fitting = in_phase or [s for s in all_scripts() if s.stem == stem]
        if not fitting:
            raise LabError(f"no phase or script is called {word!r}: `lab list` shows them all")
        chosen += [s for s in fitting if s not in chosen]
    return chosen


def is_script(word: str) -> bool:
    """Whether a word names a phase or a script."""
    with suppress(LabError):
        return bool(select([word]))
    return False
