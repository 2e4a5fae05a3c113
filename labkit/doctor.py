"""`lab doctor`: lists what this machine has, what runs on it, and how to change that."""

import os
import shutil
import sys
from dataclasses import dataclass
from importlib.metadata import entry_points

from labkit.machine import cpu_name, gpu_too_old, has_gpu, memory_bytes, version_of
from labkit.measured import load_measured
from labkit.models import embedded_models
from labkit.paths import ROOT

INSTALL = "pip install -r requirements.txt"
LEAST_DRIVER = {11: 450, 12: 525, 13: 580}
"""NVIDIA's driver for each major version of CUDA. Source: docs.nvidia.com/deploy/cuda-compatibility, minor version compatibility."""


@dataclass(frozen=True)
class Finding:
    """One line of the report. `effect`: what runs or is skipped. `remedy`: how to change it."""

    what: str
    value: str
    ok: bool
    effect: str
    remedy: str = ""


def examine() -> list[Finding]:
    """Examine everything that determines what runs here. It downloads and changes nothing."""
    import torch
    from huggingface_hub import try_to_load_from_cache

    weights = isinstance(try_to_load_from_cache("gpt2", "model.safetensors"), str)
    models = ", ".join(embedded_models())
    memory, free = memory_bytes(), shutil.disk_usage(ROOT).free / 2**30
    return [
        Finding("Python", sys.version.split()[0], (3, 11) <= sys.version_info < (3, 15),
                "the course needs 3.11 to 3.14", "install such a Python, make a new virtual environment"),
        Finding("torch", torch.__version__, True, "every phase from 2 on"),
        *(_package(name) for name in ("transformers", "tiktoken", "numpy", "matplotlib", "jupyter", "pytest", "nbval")),
        _package("numba", "attention on a CPU reads blocks in place; without numba the engine copies them, and is slower"),
        _linear_layers(),
        _gpu(),
        _triton(),
        Finding("GPT-2 weights", "present" if weights else "not here", weights,
                "only --model gpt2 needs them", "`lab fetch gpt2` once, while online (550 MB)"),
        Finding("embedded models", models or "missing", bool(models), "the default of every script"),
        Finding("CPU", f"{cpu_name()}, {os.cpu_count() or 1} cores", True, "timings depend on it, results do not"),
        Finding("memory", f"{memory / 2**30:.0f} GiB", memory >= 4 * 2**30,
                "4 GiB are enough for all CPU scripts", "close other programs; use --quick"),
        Finding("free disk", f"{free:.0f} GiB", free > 1, "figures and reports take a few MB"),
    ]  # fmt: skip


def _package(name: str, effect: str = "") -> Finding:
    version = version_of(name)
    return Finding(name, version or "missing", version is not None, effect, INSTALL)


def _linear_layers() -> Finding:
    """Find the library that computes linear layers on a CPU, and the number of measured shapes (phase 4, `cpu/`)."""
    import torch

    what = "linear layers on the CPU"
    if not entry_points(group="inference_lab.runners", name="cpu"):
        return Finding(what, "torch's own", False, "the CPU backend is not installed, so the engine is slower",
                       "pip install -e . in the course's folder")  # fmt: skip
    if not (torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")):
        return Finding(
            what, "torch's own: this build has no oneDNN", True, "correct, but slower for many users"
        )
    shapes = {key.partition(",")[0] for key in load_measured() if key.startswith("linear ")}
    told = f"{len(shapes)} shapes measured" if shapes else "not measured yet"
    return Finding(
        what,
        told,
        True,
        "the first engine measures each shape, one second in total, and keeps the fastest method",
    )


def _gpu() -> Finding:
    import torch

    if not torch.cuda.is_available():
        driver, cuda = _driver(), torch.version.cuda
        least = LEAST_DRIVER.get(int((cuda or "0").split(".")[0]), 0)
        if driver and int(driver.split(".")[0]) < least:
            return Finding("GPU", f"NVIDIA's driver {driver} is too old for torch {torch.__version__}", False,
                           f"everything runs on the CPU: this torch is built for CUDA {cuda}, which needs driver {least} or newer",
                           f"update the driver to {least} or newer (nvidia-smi shows it), or install a torch that pytorch.org "
                           "builds for an older CUDA")  # fmt: skip
        built = "this torch is built without CUDA" if torch.version.cuda is None else "torch finds no GPU"
        return Finding("GPU", f"none ({built})", False, "everything runs on the CPU; --device cuda is refused",
                       "a machine with an NVIDIA GPU, and torch's CUDA build")  # fmt: skip
    if problem := gpu_too_old():
        return Finding("GPU", problem, False, "everything runs on the CPU", "a torch built for this card")
    p = torch.cuda.get_device_properties(0)
    effect = "every script that computes with a model takes --device cuda"
    return Finding("GPU", f"{p.name}, {p.total_memory / 2**30:.0f} GiB", True, effect)


def _driver() -> str | None:
    """Return the version of NVIDIA's driver, such as "580.65.06"; None if there is none."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return pynvml.nvmlSystemGetDriverVersion()
    except Exception:  # a missing package and a missing driver raise different errors
        return None


def _triton() -> Finding:
    try:
        import triton
    except ImportError:
        return Finding("triton", "missing", False, "the GPU kernels of Phase 5 are skipped",
                       f"Linux: {INSTALL}; Triton does not exist for macOS and Windows")  # fmt: skip
    if has_gpu() and not any(shutil.which(name) for name in ("gcc", "clang")):
        return Finding("triton", f"{triton.__version__}, no C compiler", False,
                       "Triton cannot start kernels; the engine uses torch alone",
                       "install gcc and Python's headers (python3-dev)")  # fmt: skip
    return Finding("triton", triton.__version__, True, "kernels: interpreted on a CPU, compiled on a GPU")
