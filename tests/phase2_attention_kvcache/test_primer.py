"""What the primer on tensors shows is what torch answers."""

import doctest

from labkit.paths import ROOT


def test_every_line_of_the_primer_gives_what_stands_below_it():
    text = (ROOT / "phase2_attention_kvcache" / "TENSORS.md").read_text(encoding="utf-8")
    without_fences = text.replace("```python\n", "\n").replace("```\n", "\n")
    primer = doctest.DocTestParser().get_doctest(without_fences, {}, "TENSORS.md", None, 0)
    results = doctest.DocTestRunner().run(primer)
    assert results.attempted > 20 and results.failed == 0
