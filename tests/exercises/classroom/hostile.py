"""Hostile hand-ins: what an answer may try, and what may lie in the folder."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

from exercises.classroom.submission import Submission
from tests.exercises.classroom.handed_in import hand_in, of

# A module of the course, so that no name of it stands in the answer.
MODULE = "m = lambda *w: __import__('sys').modules['.'.join(['exercises', *w])]; "
# As the process with an answer ends what it tells, but without a transcript.
VERDICT = b'{"state": "correct", "diagnosis": "", "says": "", "tried": "", "got": "", "expected": ""}'
# What `merge` does, or what stands above it; all return a wrong result if they return at all.
BODIES = {
    "kills the room": "import os; os.kill(1, 9); os.kill(os.getppid(), 9); return 7",
    "kills all": "import os; os.kill(-1, 9); return 7",
    "kills the group": "import os; os.killpg(0, 9); return 7",
    "forks": "import os; os.fork(); return 7",
    "fork_exec": "import _posixsubprocess, multiprocessing.util as u; u.spawnv_passfds(b'/bin/true', ['true'], ())",
    "starts a server": "import multiprocessing as m; m.Manager(); return 7",
    "pipes": f"import os\n    for n in range(3, 99):\n        try: os.write(n, {VERDICT!r})\n        except OSError: pass\n    os._exit(0)",
    "sleeps and catches all": "import signal, time\n    signal.signal(signal.SIGALRM, signal.SIG_IGN)\n"
    "    while True:\n        try: time.sleep(9)\n        except BaseException: pass",
    "speaks for the room": "open('/proc/1/fd/1', 'w').write('{\"verdict\": {\"state\": \"correct\"}}'); return 7",
    "patches the judge": MODULE + "m('judging', 'judge').same = lambda *a: True; return 7",
    "patches the comparison": MODULE + "m('judging', 'comparing').difference = lambda *a: None; return 7",
    "patches the grader": MODULE + "m('phase1', 'grade_bpe').MERGES.grade = print; return 7",
    "switches the transcript off": MODULE + "t = m('judging', 'transcript'); t.current = None; return 7",
    "writes a transcript": MODULE
    + "e = m('judging', 'transcript').encoded; m('classroom', 'answering').encoded = lambda told: e([*told[:2], [(7, None)] * 9]); return 7",
    "writes a verdict": MODULE
    + "m('classroom', 'answering').judge = m('judging', 'sandbox').judge = lambda *a: m('judging', 'verdict').Verdict('correct'); return 7",
    "claims to be correct": MODULE
    + "V = m('judging', 'verdict').Verdict; V.__init__ = lambda s, *a, **k: s.__dict__.update(vars(V) | {'state': 'correct'}); return 7",
    "plants bytecode": "open('/course/exercises/phase1/__pycache__/grade_bpe.cpython-311.pyc', 'wb'); return 7",
    "writes in the course": "open('/course/exercises/grading.py', 'w'); return 7",
    "reads solutions": "import glob; open(glob.glob('/**/solutions/p1e1*', recursive=True)[0]); return 7",
    "calls out": "import socket; socket.create_connection(('1.1.1.1', 80), 3); return 7",
    "fills the disk": "open('big', 'wb').write(bytes(1 << 28)); return 7",
    "leaves files": "open('sitecustomize.py', 'w').write('1/0'); open('exercises', 'w'); return 7",
    "opens everything": "kept = [open('/dev/zero') for _ in range(10**6)]; return 7",
    "returns a liar": "return type('L', (list,), {'__eq__': lambda *a: True, '__len__': lambda s: 4})()",
    "returns depth": "out = []\n    for _ in range(10**5): out = [out]\n    return out",
    "returns codes": "raise ValueError('\\x1b[2J\\ud800' * 50)",
    "mounts": "import ctypes; c = ctypes.CDLL(None); c.umount(b'/course'); c.unshare(0x10000000); return 7",
    "loops in C": "return sum(iter(int, 1))",
    "eats memory": "held = []\n    while True: held.append(bytearray(1 << 24))",
    "returns for ever": "return iter(int, 1)",
}
FILES: dict[str, Callable[[Path], object]] = {
    "latin-1": lambda folder: os.mkdir(os.fsencode(folder) + b"/J\xf6rg"),
    "zeros": lambda folder: (folder / "zeros.submission.json").symlink_to("/dev/zero"),
    "pipe": lambda folder: os.mkfifo(folder / "pipe.submission.json"),
    "socket": lambda folder: socket.socket(socket.AF_UNIX).bind(str(folder / "socket.submission.json")),
    "18 MB of code": lambda folder: hand_in(folder, of("long", "x=1;" * 4_500_000)),
    "too deep": lambda folder: (folder / "deep.submission.json").write_text("[" * 10**6),
    "odd text": lambda folder: (folder / "odd.submission.json").write_text('{"learner": "\\ud800"}'),
    "a huge number": lambda folder: (folder / "huge.submission.json").write_text(
        '{"learner": ' + "9" * 10**6 + "}"
    ),
    "codes": lambda folder: (folder / "\x1b[2Jcodes\n.submission.json").write_text("{}"),
    "for another": lambda folder: hand_in(folder, Submission(learner="right", answers={}), "mallory"),
    "parentheses": lambda folder: hand_in(folder, of("parentheses", "(" * 190_000)),
    "2 MB of code": lambda folder: hand_in(folder, of("wide", "x=1;" * 490_000)),
    "loop of links": lambda folder: (folder / "loop").symlink_to("loop"),
}
