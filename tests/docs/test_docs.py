"""What the texts promise is there: links, figures, scripts. And the project speaks of itself only."""

import math
import re
import subprocess

import pytest

from exercises.judging.sources import all_sources, title_of
from labkit.catalog import CORE_EXERCISES, LEVELS, SCRIPTS, all_scripts, chapters_of, text_of_phase
from labkit.paths import ROOT
from phase1_tokens_embeddings.weights import CARDS, SHAPES
from phase5_real_gpu.kernels.triton_setup import INTERPRETED
from phase5_real_gpu.measuring.memory_step import step_bytes

READMES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *ROOT.glob("docs/*.md"),
    *ROOT.glob("phase*/*.md"),
    *ROOT.glob("phase*/chapters/*.md"),
    *ROOT.glob("labkit/models/*/README.md"),
]
CHAPTERS = [chapter for phase in SCRIPTS for chapter in chapters_of(phase)]
METADATA = re.compile(
    r"\*Level: (\w+)( · script: \[`\w+\.py`\]\(\.\./\w+\.py\)[^·\n]*)?( · exercises? [^·\n]+)?\*"
)


def words_of(text: str) -> int:
    """Words that a reader reads: no code blocks, addresses, displayed formulas. An identifier is one word."""
    prose = re.sub(r"```.*?```|<!--.*?-->|\]\([^)]*\)|\$\$.*?\$\$", " ", text, flags=re.DOTALL)
    return sum(any(c.isalnum() for c in word) for word in prose.split())


@pytest.mark.parametrize("file", READMES, ids=lambda f: str(f.relative_to(ROOT)))
def test_links_and_figures_exist(file):
    targets = re.findall(r"\]\(([^)#]+)\)", file.read_text(encoding="utf-8"))
    for target in targets:
        if not target.startswith("http"):
            assert (file.parent / target).exists(), target


@pytest.mark.parametrize("phase", SCRIPTS)
def test_a_phase_readme_presents_each_of_its_scripts(phase):
    text = (ROOT / phase / "README.md").read_text(encoding="utf-8")
    for name in SCRIPTS[phase]:
        assert f"`{name}`" in text


def minutes_of(text: str) -> int:
    """200 words a minute, half a minute per guess, 4 per worked problem, 2 per piece, rounded up to five minutes."""
    rest = text.count("**Guess now:**") / 2 + 4 * text.count("<summary>Sol") + 2 * text.count("<!-- piece:")
    return 5 * math.ceil((words_of(text) / 200 + rest) / 5)


@pytest.mark.parametrize("phase", SCRIPTS)
def test_the_minutes_of_reading_are_those_of_its_words(phase):
    text = text_of_phase(phase)
    assert int(re.search(r"\| read: (\d+) minutes;", text)[1]) == minutes_of(text)


@pytest.mark.parametrize("phase", SCRIPTS)
def test_a_readme_beside_chapters_is_a_map_of_them(phase):
    """At most 1,200 words, a line for each chapter with its level, and no second copy of the glossary."""
    text = (ROOT / phase / "README.md").read_text(encoding="utf-8")
    assert words_of(text) <= 1200
    assert "\n## Glossary\n" not in text and (ROOT / phase / "chapters" / "glossary.md").is_file()
    for number, chapter in enumerate(chapters_of(phase), 1):
        assert chapter.name.startswith(f"{number:02}-")
        row = re.search(rf"^\|.*\]\(chapters/{re.escape(chapter.name)}\).*$", text, re.MULTILINE)
        level = METADATA.search(chapter.read_text(encoding="utf-8"))[1]
        assert row and f" {level} " in row[0], chapter.name


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda f: str(f.relative_to(ROOT)))
def test_a_chapter_has_the_form_of_a_chapter(chapter):
    text = chapter.read_text(encoding="utf-8")
    title, _, line = text.splitlines()[:3]
    assert (
        title.startswith("# ")
        and len(re.findall(r"^# ", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.M)) == 1
    )
    assert (found := METADATA.fullmatch(line)) and found[1] in LEVELS, line
    assert words_of(text) <= 1800
    if not chapter.stem.endswith("checked"):
        assert "<details><summary>Solution</summary>" in text


def test_the_chapters_together_are_short():
    words = {chapter: words_of(chapter.read_text(encoding="utf-8")) for chapter in CHAPTERS}
    core = [c for c in CHAPTERS if METADATA.search(c.read_text(encoding="utf-8"))[1] == "core"]
    assert sum(words.values()) <= 34_000 and sum(words[c] for c in core) <= 16_000


def numbers_of(text: str) -> list[str]:
    """Numbers in running text: no table, title, code, formula or address, and no year, arXiv number or number of a list."""
    text = re.sub(r"```.*?```|<!--.*?-->|\$\$.*?\$\$", " ", METADATA.sub(" ", text), flags=re.DOTALL)
    text = re.sub(r"^(?:\||#| {4}).*$|^\d+\. |\]\([^)]*\)|`[^`]*`|\$[^$\n]*\$", " ", text, flags=re.MULTILINE)
    text = re.sub(r"arXiv\s\S+|\b(?:19|20)\d\d\b", " ", text)
    return re.findall(r"(?<![\w.,-])\d[\d.,]*\b", text)


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda f: str(f.relative_to(ROOT)))
def test_a_chapter_has_at_most_25_numbers_per_1000_words(chapter):
    text = chapter.read_text(encoding="utf-8")
    assert 1000 * len(numbers_of(text)) <= 25 * words_of(text), numbers_of(text)


def test_numbers_of_tables_code_and_citations_are_not_counted():
    assert numbers_of("It took 2.5 ms for 1,024 tokens on an H100.") == ["2.5", "1,024"]
    assert numbers_of("| 1 | 2 |\n\n    3\n\n1. `4`, $5$ (Kwon, 2023, arXiv 2309.06180)\n") == []


@pytest.mark.parametrize("phase", SCRIPTS)
def test_each_guess_is_asked_before_a_folded_answer(phase):
    """In the same paragraph or the next one begins what is folded."""
    guesses = text_of_phase(phase).split("**Guess now:**")[1:]
    assert len(guesses) >= 3
    for guess in guesses:
        question, _, below = guess.partition("<details><summary>")
        assert len(re.findall(r"\n\s*\n", question)) <= 1 and below, question[:80]


@pytest.mark.parametrize("file", READMES, ids=lambda f: str(f.relative_to(ROOT)))
def test_scripts_that_a_readme_names_exist(file):
    for path in re.findall(r"python ((?:phase|docs|benchmarks)\S+\.py)", file.read_text(encoding="utf-8")):
        assert (ROOT / path).is_file(), path


def test_no_path_of_one_machine_is_in_the_tree():
    """Absolute paths of the machine on which something was written break on every other one."""
    done = subprocess.run(
        ["git", "grep", "-nIE", r"/(tmp|root|home|Users)/[a-z]", "--", ".", ":!tests"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.stdout == ""


def test_drawings_name_files_and_states_that_are_there():
    drawn = {file.stem: file.read_text(encoding="utf-8") for file in (ROOT / "docs").glob("*.svg")}
    named = {word for text in drawn.values() for word in re.findall(r"[\w/]+\.py", text)}
    assert len(named) > 10
    for path in named:
        assert (ROOT / path).is_file() or list(ROOT.glob(f"phase*/**/{path}")), path
    assert set(re.findall(r">([A-Z]{6,})<", drawn["request_states"])) >= {"WAITING", "RUNNING", "PREEMPTED"}


def test_figures_in_drawings_are_those_of_the_shapes():
    card, step = CARDS["h100"], step_bytes(SHAPES["llama-3-8b"], 32, 4096)
    text = (ROOT / "docs" / "h100_decode.svg").read_text(encoding="utf-8")
    for wanted in (
        f"{1000 * step.seconds(card.bandwidth_gb_s):.1f} ms",
        f"weights: {step.weights / 1e9:.1f} GB",
        f"keys and values: {step.kv / 1e9:.1f} GB",
        f"{step.activations / 1e6:.0f} MB",
        f"{step.from_memory / 64e6:.0f} ms",
        f"{card.multiprocessors} x 256 KiB",
    ):
        assert wanted in text, wanted
    d, wide = SHAPES["gpt2"].d_model, SHAPES["gpt2"].d_ff
    text = (ROOT / "docs" / "block.svg").read_text(encoding="utf-8")
    for parameters in (4 * d * d, 2 * d * wide):
        assert f"{parameters / 1e6:.1f} million parameters" in text


TEACHING = (ROOT / "docs" / "TEACHING.md").read_text(encoding="utf-8")
LESSONS = [line.split("|") for line in TEACHING.splitlines() if re.match(r"\| \d \| \d+ \|", line)]


def test_the_syllabus_has_every_exercise_once():
    """By the numbers in the titles, each with minutes, which add up to the hours of its phase."""
    minutes = re.findall(r"((?:lab )?[\d.]+[a-c]?) \((\d+)", " ".join(row[5] + row[6] for row in LESSONS))
    assert set(re.findall(r"\b\d\.\d+", " ".join(row[5] for row in LESSONS))) == CORE_EXERCISES
    for script in all_scripts("core"):
        assert f"`{script.stem}`" in TEACHING, f"{script.stem} is shown in no lesson"
    titles = [title_of(source).partition(":")[0] for source in all_sources()]
    wanted = [t.replace("Debugging ", "") if "lab" in t else t.split()[0] for t in titles]
    assert sorted(name for name, _ in minutes) == sorted(wanted)
    total = 0.0
    for phase in SCRIPTS:
        hours = re.search(r"exercises: ([\d.]+) hours", (ROOT / phase / "README.md").read_text("utf-8"))[1]
        own = [int(m) for name, m in minutes if name.removeprefix("lab ")[0] == phase[5]]
        assert sum(own) == 60 * float(hours), phase
        total += float(hours)
    assert f"all exercises {total} hours" in TEACHING


def test_the_minutes_at_home_are_those_of_the_chapters_and_exercises():
    at_home, building = [0] * 5, [0] * 5
    assert len(LESSONS) == 12
    for _, lesson, _, _, _, core, _, home, _ in LESSONS:
        found = re.fullmatch(r" phase (\d): (README)?,? ?([\d, ]+): (\d+) \+ (\d+) ", home)
        phase, readme, numbers, read, finish = found.groups()
        folder = ROOT / [*SCRIPTS][int(phase) - 1]
        texts = [chapters_of(folder.name)[int(n) - 1].read_text("utf-8") for n in numbers.split(", ")]
        texts += [(folder / "README.md").read_text("utf-8")] * bool(readme)
        assert int(read) == minutes_of("\n\n".join(texts)), (phase, numbers)
        own = sum(map(int, re.findall(r"\((\d+)\)", core)))
        assert int(finish) == max(0, own - 40), core
        at_home[int(lesson) - 1] += int(read)
        building[int(lesson) - 1] += own
    told = [*map(str, at_home), *(str(max(0, minutes - 70)) for minutes in building)]
    assert "are then {}, {}, {}, {}, {}, and {}, {}, {}, {}, {} remain".format(*told) in TEACHING


def test_the_hours_of_the_core_are_those_of_all_its_parts():
    """Ten at most. The minutes of the scripts' output are stated; all else is counted again."""
    table = re.findall(r"^\| ([a-zR]\w+).*? \| ([\d,]*).*\|.* (\d+) \|$", TEACHING, re.MULTILINE)
    minutes = {part: int(told) for part, _, told in table}
    counts = {part: count for part, count, _ in table}
    levels = {c: METADATA.search(c.read_text(encoding="utf-8"))[1] for c in CHAPTERS}
    core = [c.read_text(encoding="utf-8") for c, level in levels.items() if level == "core"]
    maps = [(ROOT / phase / "README.md").read_text(encoding="utf-8") for phase in [*SCRIPTS][:4]]
    assert (
        f"in {len(core)} chapters" in TEACHING
        and f"| {len(all_scripts('core'))} of {len(all_scripts())} |" in TEACHING
    )
    assert minutes["READMEs"] == pytest.approx(sum(map(words_of, core + maps)) / 200, abs=3)
    each = {
        "guesses": ("**Guess now:**", 0.5),
        "worked": ("<summary>Solution", 4),
        "pieces": ("<!-- piece:", 2),
    }
    for part, (mark, length) in each.items():
        count = sum(chapter.count(mark) for chapter in core)
        assert (counts[part], minutes[part]) == (str(count), math.ceil(length * count)), part
    own = [int(told) for told in re.findall(r"\((\d+)\)", "".join(row[5] for row in LESSONS))]
    assert f"| {len(own)} |" in TEACHING and minutes["core"] == sum(own) + 5
    *parts, together = minutes.values()
    assert together == sum(parts) <= 600


def test_the_program_of_the_profiling_page_ends_at_its_guard_and_would_go_on():
    """Where there is a card it profiles; here the rest is interpreted, on a small batch and without Proton's session."""
    text = (ROOT / "docs" / "PROFILING.md").read_text(encoding="utf-8")
    program = re.search(r"```python\n(.*?)```", text, re.DOTALL)[1]
    assert words_of(text) <= 500
    if not INTERPRETED:
        pytest.skip("the program profiles, or there is no Triton")
    with pytest.raises(SystemExit, match="no GPU here"):
        exec(program, {})
    for there, here in {
        "not torch.cuda.is_available()": "False",
        "ladder_rungs import FULL_BATCH": "counted_loads import SMALL",
        "FULL_BATCH": "SMALL",
        "torch.bfloat16": "torch.float32",
        '"cuda"': '"cpu"',
        'proton.start("decode")': "pass",
        "range(20)": "range(1)",
    }.items():
        assert there in program
        program = program.replace(there, here)
    exec(program, {})
