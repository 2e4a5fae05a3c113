"""Reads the claims of the source articles (`claims.toml`), and keeps the ledger of verdicts.

Each script compares its measurements with the claims (see `labkit/lab.py`) and writes a report to
`outputs/reports/`. The ledger collects these reports, beside those of one committed run (`reference_run.json`).

The sources are in SOURCES, by the letter that each claim names.
"""

import json
import tomllib
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from labkit.predictions import Prediction, show_value
from labkit.reports import all_predictions

REFERENCE_RUN = Path(__file__).with_name("reference_run.json")


@dataclass(frozen=True)
class Claim:
    id: str
    source: str
    says: str


SOURCES = {
    "A": '"How vLLM Actually Works: I Built It From Scratch So You Don\'t Have To"',
    "B": '"LLM & vLLM Inference, from the ground up", and its recap',
    "C": "an SRE's walk through the inference pipeline (Karthika Raghavan)",
    "D": '"Mistral 7B" (Jiang et al., 2023), section 2',
    "E": '"RoFormer" (Su et al., 2021), section 4.2',
    "F": '"GLU Variants Improve Transformer" (Shazeer, 2020), table 1',
}

CLAIMS: dict[str, list[Claim]] = {
    phase: [Claim(name, source, says) for name, (source, says) in claims.items()]
    for phase, claims in tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8")).items()
}
"""By phase, in the order of `claims.toml`."""

SOURCE_OF = {claim.id: claim.source for claims in CLAIMS.values() for claim in claims}
"""The letters of the articles that make a claim, such as "A B", by its id."""

# Of several measurements of one claim, the gravest verdict counts.
GRAVITY = ["reproduced", "needs a download", "needs vLLM", "needs a GPU", "differs here", "corrected"]


def measured_claims() -> tuple[dict[str, list[Prediction]], list[str]]:
    """Return all predictions of the reports in the outputs folder, by claim id, and a line for each damaged report."""
    reports, problems = all_predictions()
    found: dict[str, list[Prediction]] = {}
    for p in chain.from_iterable(reports):
        found.setdefault(p.claim, []).append(p)
    return found, problems


def verdict_of(predictions: list[Prediction]) -> str:
    """Return one verdict for all measurements of a claim; "not run yet" if there are none."""
    if not predictions:
        return "not run yet"
    return max((p.verdict for p in predictions), key=GRAVITY.index)


def values_of(predictions: list[Prediction]) -> str:
    """Return the measurements of a claim as text."""
    return "; ".join(show_value(p.measured, p.unit) for p in predictions if not p.needs)


def reference_run() -> dict[str, Any]:
    """Return the committed run: `machine`, `when`, and `claims`: verdict and values by claim id."""
    return json.loads(REFERENCE_RUN.read_text(encoding="utf-8"))


def write_reference_run() -> None:
    """Make the reports in the outputs folder the reference run."""
    from labkit.machine import environment

    here = environment()
    gpu = f", {here['gpu']['name']}" if here["gpu"] else ", no GPU"
    machine = f"{here['cpu']}, {here['cores']} cores{gpu}, torch {here['packages']['torch']}"
    found, _ = measured_claims()
    claims = {name: [verdict_of(ps), values_of(ps)] for name, ps in found.items() if name in SOURCE_OF}
    document = {"machine": machine, "when": here["when"][:10], "claims": claims}
    REFERENCE_RUN.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_reference_run()
