"""The core of a phase stays small and knows no feature. (That it imports none is the import linter's to hold.)"""

import gc
import re
import sys
from pathlib import Path

import pytest

import phase4_scheduler
from labkit.paths import ROOT
from phase2_attention_kvcache.model import SamplingParams
from phase4_scheduler.engine import LLMEngine, ModelRunner
from tests.test_house import imports

FEATURES = {  # folder of the core -> its budget in lines, docstrings included; words of features that attach to it
    "phase1_tokens_embeddings/tokens": (900, "gguf|chat|sentencepiece|librarytokenizer"),
    "phase2_attention_kvcache/model": (1800, "gguf|quanti[sz]|few.bits|compressed.tensors|yarn|llama3|roofline|speculat"),
    "phase3_paged_attention/paging": (1100, "specul|draft|connector|swap|sliding|copy_on_write|journal|quanti[sz]|kv_cache_dtype"),
    "phase5_real_gpu/kernels": (1500, "fused|speculat|int8|int4|compressed.tensors|mxfp4"),
    # The list of features that attach to it is features/README.md.
    "phase4_scheduler/engine": (1500, "specul|draft|connector|remote_kv|swap|sliding|fork|sibling|journal|quanti[sz]|kv_cache_dtype|tensor_parallel"),
}  # fmt: skip


def core_files(folder: str) -> list[Path]:
    """The files of a folder that its public names need, and the runner of a device."""
    package = folder.replace("/", ".")
    found, new = set(), [ROOT / folder / "__init__.py", *(ROOT / folder).glob("gpu_runner.py")]
    while new:
        found.add(file := new.pop())
        inside = [
            name.removeprefix(f"{package}.") for name in imports(file) if name.startswith(f"{package}.")
        ]
        files = {ROOT / folder / f"{name.split('.')[0]}.py" for name in inside}
        new += [f for f in files if f.is_file() and f not in found]
    return sorted(found)


@pytest.mark.parametrize("folder", FEATURES)
def test_a_core_is_within_its_budget_and_names_no_feature(folder):
    budget, words = FEATURES[folder]
    texts = {file.name: file.read_text(encoding="utf-8") for file in core_files(folder)}
    lines = {name: len(text.splitlines()) for name, text in texts.items()}
    assert len(lines) > 4 and sum(lines.values()) <= budget, lines
    assert max(lines.values()) <= 300, lines
    named = {name: re.findall(words, text, re.IGNORECASE) for name, text in texts.items()}
    assert {name: found for name, found in named.items() if found} == {}


@pytest.mark.parametrize(("device", "num_files", "num_lines"), [("torch", 13, 2210), ("cpu", 19, 3000)])
def test_a_decode_step_goes_through_few_files(device, num_files, num_lines, monkeypatch):
    """From `EngineCore.step` to tensors and back, whole files; those of the compiled functions that it calls included."""
    engine = LLMEngine.from_pretrained("tales", device="cpu", num_blocks=20, block_size=16)
    if device == "torch":  # the plain core, without a backend and without features
        monkeypatch.setattr(phase4_scheduler, "ASSEMBLY", None)
        engine = LLMEngine.from_pretrained("tales", dtype="float32", device="cpu", num_blocks=20)
        assert type(engine.core.runner) is ModelRunner
    engine.add_request("alice", [5, 6, 7], SamplingParams(temperature=0, max_tokens=9))
    engine.step()
    codes = set()
    gc.collect()  # or an engine of an earlier test ends in this step, and its files count
    sys.setprofile(lambda frame, event, arg: codes.add(frame.f_code) if event == "call" else None)
    try:
        engine.core.step()
    finally:
        sys.setprofile(None)
    files = {Path(code.co_filename) for code in codes}
    loaded = [m for m in list(sys.modules.values()) if Path(getattr(m, "__file__", None) or "-") in files]
    compiled = [x for m in loaded for x in vars(m).values() if type(x).__name__ == "CPUDispatcher"]
    files |= {Path(function.py_func.__code__.co_filename) for function in compiled}
    own = {f: len(f.read_text(encoding="utf-8").splitlines()) for f in files if is_ours(f)}
    assert "core.py" in {f.name for f in own}
    assert len(own) <= num_files and sum(own.values()) <= num_lines, own


def is_ours(file: Path) -> bool:
    return file.is_relative_to(ROOT) and not {".venv", "tests"} & set(file.relative_to(ROOT).parts)
