"""`lab doctor`: what this machine has, what will run on it, and what would change that."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from dataclasses import dataclass

from labkit.machine import cpu_name, gpu_too_old, has_gpu, memory_bytes, version_of
from labkit.models import embedded_models, has_gpt2_vocabulary
from labkit.paths import ROOT


@dataclass(frozen=True)
class Finding:
    """One line of the report. `effect` says what runs or is skipped; `remedy` what would change it."""

    what: str
    value: str
    ok: bool
    effect: str
    remedy: str = ""


def examine() -> list[Finding]:
    """Look at everything that decides what runs here. Nothing is fetched or changed."""
    import torch

    findings = [
        Finding(
            "Python",
            sys.version.split()[0],
            sys.version_info >= (3, 11),
            "the course needs 3.11 or newer",
            "install a newer Python, make a new virtual environment",
        ),
        Finding("torch", torch.__version__, True, "every phase from 2 on"),
    ]
    for package in ("transformers", "tiktoken", "numpy", "matplotlib", "jupyter", "pytest", "nbval"):
        version = version_of(package)
        findings.append(
            Finding(package, version or "missing", version is not None, "", "pip install -r requirements.txt")
        )
    numba = version_of("numba")
    findings.append(
        Finding(
            "numba",
            numba or "missing",
            numba is not None,
            "attention on a CPU reads blocks in place; without it the engine copies them, and is slower",
            "pip install -r requirements.txt",
        )
    )
    findings.append(_gpu())
    findings.append(_triton())
    findings.append(
        Finding(
            "GPT-2 vocabulary",
            "present" if has_gpt2_vocabulary() else "not here",
            has_gpt2_vocabulary(),
            "the claims on GPT-2's token ids; without it they say 'needs a download'",
            "pip install -r requirements.txt",
        )
    )
    weights = _has_gpt2_weights()
    findings.append(
        Finding(
            "GPT-2 weights",
            "present" if weights else "not here",
            weights,
            "--model gpt2; everything else uses the embedded models",
            "`lab fetch gpt2` once, while online (550 MB)",
        )
    )
    names = embedded_models()
    findings.append(
        Finding("embedded models", ", ".join(names) or "missing", bool(names), "the default of every script")
    )
    cores, memory = os.cpu_count() or 1, memory_bytes()
    findings.append(
        Finding("CPU", f"{cpu_name()}, {cores} cores", True, "timings depend on it, results do not")
    )
    gib = (memory or 0) / 2**30
    findings.append(
        Finding(
            "memory",
            f"{gib:.0f} GiB" if memory else "unknown",
            memory is None or gib >= 4,
            "4 GiB are enough for all CPU scripts",
            "close other programs; use --quick",
        )
    )
    free = shutil.disk_usage(ROOT).free / 2**30
    findings.append(Finding("free disk", f"{free:.0f} GiB", free > 1, "figures and reports take a few MB"))
    return findings


def _gpu() -> Finding:
    import torch

    if torch.cuda.is_available():
        p = torch.cuda.get_device_properties(0)
        if problem := gpu_too_old():
            return Finding("GPU", problem, False, "everything runs on the CPU", "a torch built for this card")
        return Finding(
            "GPU",
            f"{p.name}, {p.total_memory / 2**30:.0f} GiB",
            True,
            "every script that computes with a model takes --device cuda",
        )
    built = "torch has no CUDA in it" if torch.version.cuda is None else "torch sees no GPU"
    return Finding(
        "GPU",
        f"none ({built})",
        False,
        "everything runs on the CPU; --device cuda is refused",
        "a machine with an NVIDIA GPU, and torch's CUDA build",
    )


def _triton() -> Finding:
    try:
        triton = importlib.import_module("triton")
    except ImportError:
        return Finding(
            "triton",
            "missing",
            False,
            "the GPU kernels of Phase 5 are skipped",
            "Linux: pip install -r requirements.txt; there is no triton for macOS and Windows",
        )
    if has_gpu() and not any(shutil.which(name) for name in ("gcc", "clang")):
        return Finding(
            "triton",
            f"{triton.__version__}, no C compiler",
            False,
            "Triton cannot start kernels; the engine uses torch alone",
            "install gcc and Python's headers (python3-dev)",
        )
    return Finding("triton", triton.__version__, True, "kernels: interpreted on a CPU, compiled on a GPU")


def _has_gpt2_weights() -> bool:
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache("gpt2", "model.safetensors"), str)
