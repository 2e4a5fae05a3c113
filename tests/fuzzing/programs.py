"""An attacker of programs: options of every script, and Ctrl-C and SIGTERM at any moment of start, run and end.

Whatever comes, a program ends in time, with a code that means something and at most one line of complaint: no traceback, no
control codes. Soon nothing of it is left: no process, no shared memory, no temporary file, no file half written. A signal goes to
the program alone, as `kill` sends it, or to all its processes, as a terminal does. Linux only.
"""

import contextlib
import importlib
import io
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from unittest import mock
from uuid import uuid4

import psutil

from exercises.judging.sandbox import limit_memory
from labkit.catalog import all_scripts
from labkit.paths import ROOT

PATIENCE = 45.0  # seconds in which everything has to be gone after a signal, on a machine however busy
LONGEST = 14.0  # seconds after which the signal comes at the latest
SPARE_BYTES = 8 * 2**30
LONGEST_LINE = 2200  # characters

NUMBERS = [
    "0", "1", "-1", "2", "3.5", "-0", "1e-320", "1e308", "1e999", "nan", "inf", "-inf", "9" * 20, "1" + "0" * 400, "9" * 5000,
    "1_0", "0x10", "٣", str(2**31), str(2**32), str(2**63), str(-(2**63)), "1" * 9,
]  # fmt: skip
TEXTS = [
    "", " ", "x", "\n", "a\nb", "\x1b[2J\x1b[31merror: all is lost", "\u202eabc", os.fsdecode(b"\xff\xfe"), "é👍\u0301",
    "x" * 10_000, "[red]bold[/]", "[/]", "%s%d{0}{x}", "$x$", "--", "-", "@", "tales", "auto", "gpt2", "a,b", ",",
]  # fmt: skip
PATHS = [
    ".", "..", "no/such/file", "file", "file/x", "folder", "folder/new.json", "/dev/null", "/dev/null/x", "/dev/full", "/proc/x",
    "x" * 300, "link", "loop", "pipe", "binary", "~", "~nobody/x",
]  # fmt: skip
SCRIPTS = [*all_scripts(), ROOT / "phase5_real_gpu" / "measure_machine.py"]
SERVE = f"{ROOT}/phase4_scheduler/serve.py --port 0"
PROGRAMS = {
    "serve": SERVE,
    "serve, 4 ranks": f"{SERVE} -tp 2 -pp 2",
    "serve, 2 ranks": f"{SERVE} -tp 2",
    "serve, drafts": f'{SERVE} --speculative-config \'{{"model": "tales-draft", "num_speculative_tokens": 3}}\'',
    "convert": f"{ROOT}/phase2_attention_kvcache/convert_model.py tales tales.gguf --type Q8_0",
    "chat": f"{ROOT}/phase4_scheduler/chat.py --tokens 50",
}
PROGRAMS |= {s.stem: f"{s} --quick" for s in all_scripts() if '"quick"' in s.read_text(encoding="utf-8")}


def options_of(script: Path) -> list[tuple[str, str]]:
    """The options of a script and what follows them, from its help: ("--seed", "SEED"), ("--quick", "")."""
    text = io.StringIO()
    wide = mock.patch.dict(os.environ, COLUMNS="10000")
    with wide, contextlib.redirect_stdout(text), suppress(SystemExit):
        importlib.import_module(f"{script.parent.name}.{script.stem}").main(["--help"])
    return re.findall(r"\[(--[\w-]+)(?: ([^\]\[]+))?", text.getvalue().splitlines()[0])


# ------------------------------------------------------------------ a program, its end, and what is left


class Ended(NamedTuple):
    code: int | None  # None: it had to be killed
    out: str
    err: str
    left: list[str]


def processes_of(mark: str) -> list[psutil.Process]:
    """All processes with this mark in their environment, which children inherit."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("FUZZ_MARK") == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def shared_memory() -> set[Path]:
    return set(Path("/dev/shm").glob("inference-lab-*"))


def prepare() -> None:
    """In the program's process."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # what a shell starts in the background ignores it
    limit_memory(SPARE_BYTES)


def run(words: list[str], after: float, number: int, everywhere: bool = False, **settings: str) -> Ended:
    """Run a program in a folder of its own, which has what PATHS names, and send it a signal after so many seconds."""
    mark, before = uuid4().hex, shared_memory()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for part in ("tmp", "outputs", "folder"):
            (folder / part).mkdir()
        (folder / "file").write_text("{}")
        (folder / "binary").write_bytes(bytes(range(256)) * 10)
        (folder / "link").symlink_to("nowhere")
        (folder / "loop").symlink_to("loop")
        own = {"FUZZ_MARK": mark, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT), "TMPDIR": f"{folder}/tmp"}
        own |= {"INFERENCE_LAB_OUTPUTS": f"{folder}/outputs"} | settings
        with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
            program = subprocess.Popen(
                [sys.executable, *words],
                cwd=folder, env=os.environ | own, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                start_new_session=True, preexec_fn=prepare,
            )  # fmt: skip
        with suppress(subprocess.TimeoutExpired):
            program.wait(after)
        if program.poll() is None:
            (os.killpg if everywhere else os.kill)(program.pid, number)
        until = time.monotonic() + PATIENCE
        while (remain := processes_of(mark)) and time.monotonic() < until:
            time.sleep(0.05)
        code = None if remain else program.wait(PATIENCE)  # a process that ends has no environment any more
        left = [f"process {process.pid} is left" for process in remain]
        for process in remain:
            with suppress(psutil.Error):
                process.kill()
        program.wait()
        left += [f"shared memory is left: {path}" for path in shared_memory() - before]
        # What several programs keep for the next one is no remainder: compiled kernels, and folders of libraries.
        kept = re.compile("torchinductor|numba|triton")
        files = [path.name for path in (folder / "tmp").iterdir() if not kept.search(path.name)]
        files += [path.name for path in folder.rglob("*.tmp")]
        left += [f"a temporary file is left: {name}" for name in files]
        return Ended(code, *((folder / s).read_text("utf-8", "replace") for s in ("stdout", "stderr")), left)


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


# ------------------------------------------------------------------ the attacks


def try_options(rng: random.Random) -> list[str]:
    """A script with one to three options, of which most have values that no sane person gives. Returns what did not hold."""
    script = rng.choice(SCRIPTS)
    known, words = options_of(script), [str(script)]
    settings = {}
    if rng.random() < 0.1:
        settings["INFERENCE_LAB_OUTPUTS"] = rng.choice([p for p in PATHS if p[0] not in ".~"])
    for option, value in rng.sample(known, min(len(known), rng.choice([1, 1, 2, 3]))):
        choices = value.strip("{}").split(",") if value.startswith("{") else NUMBERS
        values = rng.choice([NUMBERS, TEXTS, PATHS, choices])
        words.append(f"{option}={rng.choice(values)}" if value else option)
    if rng.random() < 0.05:
        words.append(rng.choice([*TEXTS, "--no-such-option", "file"]))
    if ("--quick", "") in known and "--quick" not in words:
        words.append("--quick")
    ended = run(words, rng.uniform(4, LONGEST), signal.SIGINT, **settings)
    wrong = complaint(ended.code, ended.out, ended.err)
    return [f"{words}: {finding}"[:3000] for finding in [*[wrong] * bool(wrong), *ended.left]]


def try_signal(rng: random.Random) -> list[str]:
    """One program, ended by a signal. Returns what it left."""
    name, after = rng.choice(sorted(PROGRAMS)), rng.choice([rng.uniform(0, 2), rng.uniform(0, LONGEST)])
    number, everywhere = rng.choice([signal.SIGINT, signal.SIGTERM, signal.SIGTERM]), rng.random() < 0.3
    ended = run(shlex.split(PROGRAMS[name]), after, number, everywhere)
    told = [f"a traceback: {ended.err[-600:]}"] if "Traceback" in ended.err else []
    where = "to all its processes" if everywhere else "to the program"
    return [f"{name}, {number.name} after {after:.2f} s {where}: {found}" for found in told + ended.left]
