"""An attacker of the command line: options of every script.

Whatever comes, a program ends in time, with a code that means something and at most one line of complaint: no
traceback, no control codes. They are tried in processes forked from one that has imported all scripts. (Ctrl-C at any
moment: signals.py.)
"""

import contextlib
import importlib
import io
import multiprocessing
import os
import random
import re
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from unittest import mock

from exercises.judging.sandbox import limit_memory
from labkit.catalog import all_scripts
from labkit.interrupts import end_at_once

ENOUGH = (0.5, 8)  # seconds; a run that is in order for so long, by chance, is ended with Ctrl-C
PATIENCE = 45  # seconds that a program may take to end then, on a busy machine
SPARE_BYTES = 8 * 2**30
LONGEST_LINE = 2200  # characters

NUMBERS = [
    "0", "1", "-1", "2", "3.5", "-0", "1e-320", "1e308", "1e999", "nan", "inf", "-inf", "9" * 20, "1" + "0" * 400, "9" * 5000,
    "1_0", "0x10", "٣", str(2**31), str(2**32), str(2**63), str(-(2**63)), "1" * 9,
]  # fmt: skip
TEXTS = [
    "", " ", "x", "\n", "a\nb", "\x1b[2J\x1b[31merror: all is lost", "\u202eabc", os.fsdecode(b"\xff\xfe"), "\ud800", "é👍\u0301",
    "x" * 10_000, "[red]bold[/]", "[/]", "%s%d{0}{x}", "$x$", "--", "-", "@", "tales", "auto", "gpt2", "a,b", ",",
]  # fmt: skip
PATHS = [
    ".", "..", "no/such/file", "file", "file/x", "folder", "folder/new.json", "/dev/null", "/dev/null/x", "/dev/full", "/proc/x",
    "x" * 300, "link", "loop", "pipe", "binary", "~", "~nobody/x",
]  # fmt: skip
NAMES = [f"{script.parent.name}.{script.stem}" for script in all_scripts()]
NAMES.append("phase5_real_gpu.measure_machine")


def furnish(folder: Path) -> None:
    """What the paths of PATHS meet."""
    (folder / "folder").mkdir()
    (folder / "file").write_text("{}")
    (folder / "binary").write_bytes(bytes(range(256)) * 10)
    (folder / "link").symlink_to("nowhere")
    (folder / "loop").symlink_to("loop")


def options_of(name: str) -> list[tuple[str, str]]:
    """The options of a script and what follows them, from its help: ("--seed", "SEED"), ("--quick", "")."""
    text = io.StringIO()
    wide = mock.patch.dict(os.environ, COLUMNS="10000")
    with wide, contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        importlib.import_module(name).main(["--help"])
    return re.findall(r"\[(--[\w-]+)(?: ([^\]\[]+))?", text.getvalue().splitlines()[0])


# ------------------------------------------------------------------ in a forked process


def forked(rng: random.Random, folder: Path) -> None:
    """One case, as the process of a program."""
    for number, target in ((0, os.devnull), (1, folder / "stdout"), (2, folder / "stderr")):
        os.dup2(os.open(target, os.O_RDWR | os.O_CREAT), number)
    os.chdir(folder)
    os.environ |= {"INFERENCE_LAB_OUTPUTS": str(folder / "outputs"), "HF_HUB_OFFLINE": "1"}
    limit_memory(SPARE_BYTES)
    signal.signal(signal.SIGINT, end_at_once)
    try:
        code = run_script(rng, folder)
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)


def run_script(rng: random.Random, folder: Path) -> int:
    """A script with one to three options, of which most have values that no sane person gives."""
    furnish(folder)
    name = rng.choice(NAMES)
    known, argv = options_of(name), []
    if rng.random() < 0.1:
        os.environ["INFERENCE_LAB_OUTPUTS"] = rng.choice([p for p in PATHS if p[0] not in ".~"])
    for option, value in rng.sample(known, min(len(known), rng.choice([1, 1, 2, 3]))):
        if not value:
            argv.append(option)
            continue
        choices = value.strip("{}").split(",") if value.startswith("{") else []
        values = rng.choice([NUMBERS, TEXTS, PATHS, choices or NUMBERS])
        argv.append(f"{option}={rng.choice(values)}")
    if rng.random() < 0.05:
        argv.append(rng.choice([*TEXTS, "--no-such-option", "file"]))
    if ("--quick", "") in known and "--quick" not in argv:
        argv.append("--quick")
    (folder / "case").write_text(ascii([name, argv]))
    return importlib.import_module(name).main(argv)


def in_a_fork(rng: random.Random, folder: Path) -> tuple[str, int | None]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, *NAMES])
    process = context.Process(target=forked, args=(rng, folder))
    process.start()
    while process.is_alive() and not (folder / "stderr").exists():  # the first time it imports for long
        process.join(0.1)
    process.join(rng.uniform(*ENOUGH))
    if process.is_alive():
        os.kill(process.pid, signal.SIGINT)
        process.join(PATIENCE)
    code = process.exitcode
    if process.is_alive():
        process.kill()
    process.join()
    name = folder / "case"
    return name.read_text() if name.exists() else "its beginning", code


# ------------------------------------------------------------------ the judge


def complaint(code: int | None, out: str, err: str) -> str | None:
    """What is wrong with an end, if something is."""
    if code is None:
        return "does not end"
    if code == -signal.SIGINT and "site-packages" not in err:
        return None  # Python itself was beginning, or unloading
    if "Traceback" in out + err or "Exception ignored" in err:
        return err[-600:]
    if code not in (0, 1, 2, 130, 141):
        return f"code {code}: {err[-600:]}"
    if found := re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", out + err):
        return f"prints {found[0]!r}"
    lines = err.splitlines()
    if code == 2 and (not lines or len(lines[-1]) > LONGEST_LINE):
        return f"a mistake is told in {len(err)} characters"
    if code == 2 and len(lines) > 1 and not lines[0].startswith("usage:"):
        return f"a mistake is told in {len(lines)} lines: {err[:600]}"
    return None


def try_program(rng: random.Random) -> list[str]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        what, code = in_a_fork(rng, folder)
        out, err = ((folder / s).read_text("utf-8", "replace") for s in ("stdout", "stderr"))
    wrong = complaint(code, out, err)
    return [f"{what}: {wrong}"] if wrong else []
