"""The ledger of claims as a page: what each source says, and what was measured here."""

import html

from labkit.catalog import SCRIPTS
from labkit.claims import CLAIMS, SOURCES, reference_run

INTRODUCTION = """# The ledger of claims

The course grew out of articles that explain LLM inference with many figures. None is repeated here unchecked. *Reproduced*: our
measurement agrees within the tolerance that the script states. *Corrected*: it does not, and the script says why. *Differs here*:
a time that depends on the machine. `lab claims` shows the same for your machine, once you have run the scripts.
"""


def ledger_page() -> str:
    """Markdown."""
    run = reference_run()
    lines = [INTRODUCTION, f"Measured on {run['machine']}, {run['when']}.\n"]
    lines += [f"- {letter}: {title}" for letter, title in SOURCES.items()]
    for number, phase in enumerate(SCRIPTS, 1):
        lines += [f"\n## Phase {number}\n", "| claim | source | verdict | measured |", "|---|---|---|---|"]
        for claim in CLAIMS[phase]:
            cells = (claim.says, claim.source, *run["claims"].get(claim.id, ("not measured", "")))
            lines.append("| " + " | ".join(html.escape(cell).replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)
