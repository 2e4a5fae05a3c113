"""The learner's own engine: complete it writes the course's tokens and decides as vLLM; right answers become its parts."""

import importlib
import itertools
import random
import re
import subprocess
import sys

import pytest

from exercises import grading
from exercises.capstone import decisions, scoreboard, your_engine
from exercises.capstone.parts import COMPLETE, PARTS, folder, make_folder, parts, put
from exercises.capstone.recorder import Recorder
from exercises.classroom.submission import cells_of_answer, is_copied, submit
from exercises.grading import NotYet, Verdict, check
from exercises.judging import sources
from exercises.judging.plain_runs import run_cells
from exercises.judging.sources import all_sources, execute, source_of
from exercises.publishing import build_notebooks, student_edition
from exercises.publishing.build_notebooks import build_solution
from exercises.publishing.student_edition import write_edition
from labkit.errors import LabError
from labkit.models import find_model
from labkit.paths import ROOT
from notebooks.solutions.my_engine import engine as own
from phase2_attention_kvcache.model import SamplingParams
from phase4_scheduler.engine import LLMEngine
from tests.exercises.changed import solution
from web.pieces.replay import SHOWN

WORDS = "the king and his three sons went into deep forest where an old woman lived in a little house by sea"


@pytest.fixture
def my_engine(monkeypatch):
    """Imports the learner's engine of this test, and forgets it afterwards."""

    def forget():
        for name in [name for name in sys.modules if name.partition(".")[0] == "my_engine"]:
            del sys.modules[name]

    def load(module):
        monkeypatch.syspath_prepend(str(folder().parent))
        forget()
        return importlib.import_module(f"my_engine.{module}")

    yield load
    forget()


def prompts(number):
    rng = random.Random(3)
    return [" ".join(rng.choices(WORDS.split(), k=rng.randrange(1, 40))) for _ in range(number)]


def test_its_tokens_are_the_courses():
    """Greedy and sampled, in a cache that is too small for all, with common beginnings."""
    course = LLMEngine.from_pretrained("tales", dtype="float32", device="cpu", max_num_seqs=16)
    mine = own.Engine(find_model("tales"), 60, limits=own.Limits(max_num_seqs=16, max_num_batched_tokens=64))
    texts = prompts(40)
    settings = [(0.0, 1.0, None) if i % 2 else (0.8, (1.0, 0.9, 0.5)[i % 3], i) for i in range(40)]
    theirs = [SamplingParams(max_tokens=24, temperature=t, top_p=p, seed=s) for t, p, s in settings]
    ours = mine.generate(texts, [own.Params(24, *setting) for setting in settings])
    assert ours == [output.token_ids for output in course.generate(texts, theirs)]
    assert mine.scheduler.manager.allocator.num_free == 59


def differences(package, recordings):
    return [d for d in (decisions.first_difference(package, r) for r in recordings) if d]


def test_it_decides_as_vllm_on_all_plain_workloads_without_priorities():
    found = decisions.workloads()
    assert len(found) == 97 and differences(COMPLETE, found) == []


def test_a_scheduler_that_preempts_the_first_is_told_where(monkeypatch):
    scheduler = importlib.import_module(f"{COMPLETE}.scheduler")
    (step,) = solution("p4e2_preemption", {"running.pop()": "running.pop(0)"})
    monkeypatch.setattr(scheduler, "step", step)
    found = differences(COMPLETE, decisions.workloads(40))
    assert found and "yours" in found[0] and "step 0" not in found[0]


def test_right_answers_become_parts_that_write_and_decide_the_same(my_engine, monkeypatch):
    # Other tests judge the solutions.
    monkeypatch.setattr(grading, "judge_safely", lambda *_: Verdict("correct"))
    for name in PARTS:
        nb = build_solution(source_of(name))
        nb.cells = [cell for cell in nb.cells if "engine" not in cell.metadata.get("tags", [])]
        run_cells(nb, name)
    assert [([*part.names], part.lines > 0) for part in parts()] == [
        (names, True) for _, *names in PARTS.values()
    ]
    assert put("p1e5_kv_bytes", solution("p1e5_kv_bytes", {"// heads": "/ heads"}))  # gives floats
    files = [path.read_text() for path in folder().glob("*.py")]
    assert not any("course_part" in text for text in files)
    assert 500 <= sum(len(text.splitlines()) for text in files) <= 800  # to be read in one sitting
    engine = my_engine("engine")
    texts = prompts(5)
    expected = own.Engine(find_model("tales")).generate(texts, [own.Params(12)] * 5)
    assert engine.Engine(find_model("tales")).generate(texts, [engine.Params(12)] * 5) == expected
    assert differences("my_engine", decisions.workloads(5)) == []


@pytest.mark.parametrize(
    ("part", "diagnosis"),
    [
        ({"slots": lambda table, first, n, size: [0] * n}, "differs-in-engine"),
        ({"tokens_now": lambda request, budget, *_: min(1, budget)}, "differs-in-engine"),
        ({"percentile": lambda values, rank: max(values)}, "differs-in-engine"),
        ({"Cache": lambda *_: 1 / 0}, "fails-in-the-engine"),
        ({"step": lambda *_, pool: []}, "fails-in-the-engine"),  # and never ends
    ],
)
def test_a_part_that_does_otherwise_is_told(monkeypatch, part, diagnosis):
    monkeypatch.setattr(your_engine, "passed", lambda *_: None)
    with pytest.raises(NotYet, match=diagnosis):
        your_engine.in_your_engine("p3e2_block_table", None, parts=part)


def cell(text):
    names = {"__name__": "__main__"}
    execute(text, "<a cell>", names)
    return names


HELPED = """import math as m
SIZE = 4
def place(token):
    return m.floor(token / SIZE) * 0
def slots(block_table, first, num_tokens, block_size):
    return [block_table[t // block_size] * block_size + t % block_size + place(t) for t in range(first, first + num_tokens)]
"""


def test_what_an_answer_uses_comes_along_and_changes_by_hand_stay(my_engine):
    for _ in range(2):  # again: the helper is not there twice, and a change by hand stays
        assert "my_engine/cache.py" in put("p3e2_block_table", [cell(HELPED)["slots"]])
        (folder() / "cache.py").open("a").write("\n\nMINE = 1\n")
    text = (folder() / "cache.py").read_text()
    assert text.count("def place") == 1 and text.count("MINE = 1") == 2
    assert my_engine("cache").slots([7, 3, 9], 6, 1, 4) == [14]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import torch\nt = torch.ones(2)\ndef slots(a, b, c, d): return t", "uses t"),
        ("def attention(): pass\ndef slots(a, b, c, d): return attention()", "attention has a name"),
        ("slots = eval('lambda a, b, c, d: 1')\nslots.__name__ = 'slots'", "was not found"),
        ("slots = lambda a, b, c, d: 1", "was not found"),
    ],
)
def test_what_cannot_be_kept_is_told_and_changes_nothing(text, says):
    make_folder()
    before = (folder() / "cache.py").read_text()
    assert says in put("p3e2_block_table", [cell(text)["slots"]])
    assert (folder() / "cache.py").read_text() == before


def test_a_wrong_answer_is_not_put_there():
    with pytest.raises(NotYet):
        check("p3e2_block_table", cell("def slots(a, b, c, d): return [0]")["slots"])
    assert not folder().exists()


def test_a_recording_has_what_the_glass_engine_shows():
    engine, events = own.Engine(find_model("tales"), 14), []
    Recorder(engine, events.append)
    engine.generate(["Once upon a time there was a king who"] * 5, [own.Params(40)] * 5)
    assert set(SHOWN) <= events[0].keys() and any(event["preempted"] for event in events)
    for event in events:  # no block is lost: those in use after the step, and the free ones
        tables = (blocks for name, blocks in event["blocks"].items() if name not in event["finished"])
        assert len({b for blocks in tables for b in blocks}) + event["free_blocks"] == 13
    assert events[-1]["free_blocks"] == 13 and any(event["evicted"] for event in events)


def test_an_edition_for_students_holds_no_solution_and_knows_copies(tmp_path, monkeypatch):
    """Though the teacher has done an exercise in the course, and keeps a second solution beside it."""
    full, course = tmp_path / "full", tmp_path / "course"
    subprocess.run(["git", "clone", "-q", ROOT, full], check=True)
    solved = (full / "notebooks" / "solutions" / "p1e1_pairs.ipynb").read_bytes()
    for name in ("p1e1_pairs", "my_pairs"):
        (full / "notebooks" / "exercises" / f"{name}.ipynb").write_bytes(solved)
    subprocess.run(["git", "add", "."], cwd=full, check=True)
    monkeypatch.setattr(student_edition, "ROOT", full)
    monkeypatch.setattr(build_notebooks, "NOTEBOOKS", full / "notebooks")
    assert write_edition(course) > 500
    assert not [*course.glob("notebooks/solutions/*.ipynb")]
    for source in all_sources():
        text = (course / source.relative_to(ROOT)).read_text()
        assert "# BEGIN SOLUTION" not in text and "check(" in text
    assert {p.stem for p in course.glob("notebooks/exercises/*")} == set(sources.all_names())
    with pytest.raises(LabError, match="no answer yet"):
        submit("ada", course / "notebooks" / "exercises")
    told = "".join(file.read_text("utf-8") for file in [course / "README.md", *course.glob("*/README.md")])
    assert not re.search("for teachers|TEACHING|same notebooks, solved|notebooks/solutions", told)
    assert "ask your teacher" in told and not (course / "docs" / "TEACHING.md").exists()
    copied = cells_of_answer(build_solution(source_of("p1e1_pairs")))
    monkeypatch.setattr(sources, "SOURCES", course / "exercises")
    monkeypatch.setattr(sources, "PACKED", course / "exercises" / "solutions.bin")
    assert is_copied("p1e1_pairs", copied)
    with pytest.raises(LabError, match="exists already"):
        write_edition(course)
    companion = full / "notebooks" / "phase1_tokens_embeddings.ipynb"
    companion.write_text(companion.read_text("utf-8").replace("Guess", "My guess"), "utf-8")
    with pytest.raises(LabError, match="holds work of yours"):
        write_edition(tmp_path / "another")


@pytest.mark.parametrize(
    ("steps", "says"),
    [([[(0, 0, 3)]], "request 0 got 1 of 2 tokens"), (itertools.repeat([(0, 0, 0)]), "10,000 steps")],
    ids=["loses-a-request", "never-goes-on"],
)
def test_the_scoreboard_refuses_a_scheduler_that(steps, says):
    steps, trace = iter(steps), [scoreboard.Line(0.0, [1, 2, 3], answer_tokens=2)]
    with pytest.raises(LabError, match=says):
        scoreboard.serve(trace, lambda *_: None, lambda: next(steps, []), seconds=len)


def test_the_scoreboard_serves_all_alike_and_an_order_of_ones_own_moves_its_row(my_engine):
    """The learner's scheduler and its policy are first come, first served at the beginning, as the course's first row."""
    make_folder()
    assert not any(part.lines for part in parts())
    my_engine("engine")
    fcfs, *rivals, policy, scheduler = scoreboard.scores()
    assert fcfs[1:] == policy[1:] == scheduler[1:]
    assert len({tuple(row[1:]) for row in (fcfs, *rivals)}) == 1 + len(rivals)
    assert max(row[1] for row in rivals) > fcfs[1] > 0
    longest_prefix = next(row for row in rivals if row[0].startswith("longest cached"))
    assert longest_prefix[-1] > fcfs[-1]  # finds more of the prompts in the cache
