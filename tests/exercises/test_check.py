"""check, hint and progress: what an answer may do to them, and what the learner then reads."""

import multiprocessing
import os
import signal
import sys
import time
from functools import partial
from textwrap import indent
from threading import Thread, Timer

import pytest

from exercises.grading import Exercise, NotYet, check, hint
from exercises.judging import progress, sandbox
from exercises.judging.answers import guard
from exercises.judging.engine_runs import same_or_stop
from exercises.judging.sources import execute
from labkit.errors import LabError
from tests.exercises.conftest import minus, right, stub, times


def written(body, arguments="a, b"):
    """A learner's function `add` with this body, whose lines a traceback finds."""
    names = {"os": os, "sys": sys, "time": time, "Thread": Thread}
    execute(f"def add({arguments}):\n{indent(body, '    ')}", f"<{body}>", names)
    return names["add"]


LOOPS = "while True: pass"
CATCHES_ALL = "while True:\n    try: time.sleep(0.01)\n    except BaseException: continue"
FILLS_MEMORY = "kept = []\nwhile True: kept.append(bytearray(1 << 28))"
STARTS_A_PROCESS = [
    "os.fork()",
    "os.execv('/bin/true', ['true'])",
    "__import__('ctypes').CDLL(None).system(b'true') or 1 / 0; raise PermissionError",
]
IN_A_THREAD = "out = []\nt = Thread(target=lambda: out.append(a + b))\nt.start(), t.join()\nreturn out[0]"
ON_LINUX = pytest.mark.skipif(
    sys.platform != "linux", reason="Linux alone limits memory, and refuses processes"
)


def verdict(answer, exercise):
    return sandbox.judge_safely(exercise, (answer,))


# ------------------------------------------------------------------ every kind of answer has its own word


@pytest.mark.parametrize(
    ("answer", "diagnosis", "says"),
    [
        (stub, "not-attempted", "is still empty"),
        (..., "not-attempted", "`add` has no value yet"),
        ({"a": ..., "b": None}, "not-attempted", "`add` has no value yet"),
        ([..., 0], "not-a-function", "this is [Ellipsis, 0]"),
        ((), "not-a-function", "this is ()"),
        (minus, "subtracts", "You take `b` away."),
        (times, "wrong-result", "2 where 3 is right"),
        (written("a + b"), "returns-nothing", "`return`"),
        (written("return str(a + b)"), "wrong-type", "return a number, not a str"),
        (
            written("\nreturn a / 0"),
            "raises",
            "ZeroDivisionError in line 3 of your `add`, `return a / 0`: division",
        ),
        (written("return sum([1 / n for n in range(2)])"), "raises", "line 2 of your `add`"),
        (written("return a", "a"), "wrong-signature", "Keep the arguments of the stub"),
        (0, "not-a-function", "this is 0"),
        (written("sys.exit('done')"), "ends-python", "line 2 of your `add`"),
        (written("os._exit(0)"), "ends-python", "exit code 0"),
        (written("__import__('ctypes').string_at(0)"), "crashes-python", "SIGSEGV"),
        (written("os.kill(os.getpid(), 9)"), "crashes-python", "SIGKILL"),
        pytest.param(written(FILLS_MEMORY), "raises", "MemoryError", marks=ON_LINUX),
        *(
            pytest.param(written(way), "raises", "PermissionError", marks=ON_LINUX)
            for way in STARTS_A_PROCESS
        ),
        (written("return add(a, b)"), "raises", "calls itself too often"),
        (written("return int(input('a number, please: '))"), "raises", "input() waits for a person"),
    ],
)
def test_every_kind_of_wrong_answer_has_its_own_word(adding, monkeypatch, answer, diagnosis, says):
    monkeypatch.setattr(sandbox, "MORE_MEMORY", 1 << 29)  # sooner filled than 2 GiB
    v = verdict(answer, adding)
    assert v.diagnosis == diagnosis, v
    assert says.lower() in v.says.lower(), v
    assert v.state == ("not attempted" if diagnosis == "not-attempted" else "not yet")


@pytest.mark.parametrize("body", [LOOPS, CATCHES_ALL])
def test_an_endless_loop_ends_with_a_message(adding, monkeypatch, body):
    monkeypatch.setattr(sandbox, "PATIENCE", 4 if body == CATCHES_ALL else 100)
    monkeypatch.setattr(adding, "seconds", 0.5)
    v = verdict(written(body), adding)
    seconds = 2 if body == CATCHES_ALL else 1  # it sleeps: what ends it is the clock
    assert v.diagnosis == "endless" and f"still ran after {seconds} s" in v.says, v


@pytest.mark.parametrize("answer", [right, written(IN_A_THREAD)])
def test_a_right_answer_passes_and_says_in_how_many_cases(adding, capfd, answer):
    assert check("p1t1_add", answer) is None
    out = capfd.readouterr().out
    assert "✓ Correct" in out and "Right in 3 cases." in out


def test_check_shows_one_box_and_raises(adding, capsys):
    with pytest.raises(NotYet, match="subtracts") as caught:
        check("p1t1_add", minus)
    out = capsys.readouterr().out
    assert out.count(" ─ ") == 1
    for part in ("✗ Not yet", "You take `b` away.", "add(1, 2)", "-1", "3", 'Stuck? hint("p1t1_add")'):
        assert part in out
    assert "Traceback" not in out and "subtracts" not in out  # the id is for `lab progress` and for tests
    assert (caught.value.diagnosis, caught.value.got, caught.value.expected) == ("subtracts", "-1", "3")


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: check(), 'in quotes: check("NAME")'),
        (lambda: check("p1t1_add"), 'takes 1 answer, not 0: check("p1t1_add", add)'),
        (lambda: check("p1t1_add", right, right), 'takes 1 answer, not 2: check("p1t1_add", add)'),
        (lambda: check("nonsense", right), "no exercise is called 'nonsense'. It is called as its notebook"),
        (lambda: hint(3), 'in quotes: hint("NAME")'),
        (lambda: hint("p1e1", 5), "there are 4 hints, 1 to 4, not 5"),
    ],
)
def test_a_slip_in_a_call_is_told_in_one_line(adding, call, says):
    with pytest.raises(LabError) as caught:
        call()
    (line,) = caught.value._render_traceback_()
    assert line.startswith("error: ") and says in line and "\n" not in line
    assert progress.load() == {}


@pytest.mark.parametrize(
    ("mine", "course", "shown"),
    [([1, 2, 3], [1, 2, 4], ["At [2]: 3 where 4 is right.", "[1, 2, 4]"]), (3 < 2, True, [])],
)
def test_same_or_stop(capsys, mine, course, shown):
    assert same_or_stop(course, course, "it writes something else") is None
    assert capsys.readouterr().out == ""
    with pytest.raises(NotYet, match="differs-in-engine"):
        same_or_stop(mine, course, "it writes something else")
    out = capsys.readouterr().out
    assert out.count(" ─ ") == 1 and "It writes something else." in out
    assert (len(out.splitlines()) == 3) is (not shown)
    for part in shown:
        assert part in out
    assert progress.load() == {}


def test_a_grader_that_trips_over_the_result_blames_it_in_words_and_one_that_fails_blames_the_course():
    exercise = Exercise("p1t3", f={})
    exercise.grade = lambda f: guard(f, (2, 3), "f(2, 3)").shape
    v = verdict(right, exercise)
    assert v.diagnosis == "unusable-result" and "`right`" in v.says and v.got == "5"
    assert verdict(written("a + b"), exercise).diagnosis == "returns-nothing"
    exercise.grade = lambda f: guard(partial(lambda pool, n: pool().take(n), f), (2,), "take(2)")
    v = verdict(type("Pool", (), {}), exercise)  # no line of the grader's is the learner's
    assert (v.diagnosis, v.says) == ("raises", "AttributeError: 'Pool' object has no attribute 'take'")
    exercise.grade = lambda f: {}["oops"]
    v = verdict(right, exercise)
    assert v.diagnosis == "grader-failed" and "fault of the course" in v.says


# ------------------------------------------------------------------ what the child process may not harm


def test_prints_of_the_answer_are_passed_on_up_to_a_length(adding, capsys):
    def chatty(a, b):
        print("adding", a)
        os.write(1, b"from below\n")
        print("é" * 3_000_000)
        return a + b

    check("p1t1_add", chatty)
    out = capsys.readouterr().out
    assert out.count("adding 1\n") == 1 and "from below" in out
    assert out.count("é") == sandbox.MOST_PRINTED - len("adding 1\nfrom below\n")
    assert out.index("adding") < out.index("more bytes that your answer printed") < out.index("Correct")


def test_an_interrupt_ends_the_child_too_and_shows_no_traceback(adding):
    Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt) as caught:
        check("p1t1_add", written(LOOPS))
    assert len(caught.value._render_traceback_()) == 1
    assert progress.of("p1t1_add") == progress.FRESH and not multiprocessing.active_children()
