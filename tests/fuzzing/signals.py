"""An attacker with signals: Ctrl-C and SIGTERM at any moment of a program's start, run and end.

Whatever the moment, soon nothing of the program is left: no process, no shared memory, no temporary file, no file half
written. A signal goes to the program alone, as `kill` sends it, or to all its processes, as a terminal does. Linux only.
"""

import os
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from uuid import uuid4

import psutil

from labkit.catalog import all_scripts
from labkit.paths import ROOT

SECONDS = 20.0  # in which everything has to be gone, on a machine however busy
LONGEST = 14.0  # seconds after which the signal comes at the latest
SERVE = "phase4_scheduler/serve.py --port 0"
PROGRAMS = {
    "serve": SERVE,
    "serve, 4 ranks": f"{SERVE} -tp 2 -pp 2",
    "serve, 2 ranks": f"{SERVE} -tp 2",
    "serve, drafts": f'{SERVE} --speculative-config \'{{"model": "tales-draft", "num_speculative_tokens": 3}}\'',
    "convert": "phase2_attention_kvcache/convert_model.py tales OUT/tales.gguf --type Q8_0",
    "chat": "phase4_scheduler/chat.py --tokens 50",
}
PROGRAMS |= {s.stem: f"{s} --quick" for s in all_scripts() if '"quick"' in s.read_text(encoding="utf-8")}
SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGTERM]


def processes_of(mark: str) -> list[psutil.Process]:
    """All processes with this mark in their environment, which children inherit."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("FUZZ_MARK") == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def told(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())[:150]
    except psutil.Error:
        return "gone meanwhile"


def shared_memory() -> set[Path]:
    return set(Path("/dev/shm").glob("inference-lab-*"))


def try_signal(rng: random.Random) -> list[str]:
    """One program, ended by a signal. Returns what it left."""
    name, after = rng.choice(sorted(PROGRAMS)), rng.choice([rng.uniform(0, 2), rng.uniform(0, LONGEST)])
    number, everywhere = rng.choice(SIGNALS), rng.random() < 0.3
    mark = uuid4().hex
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for part in ("tmp", "out", "outputs"):
            (folder / part).mkdir()
        before = shared_memory()
        environment = os.environ | {"FUZZ_MARK": mark}
        environment |= {"TMPDIR": str(folder / "tmp"), "INFERENCE_LAB_OUTPUTS": str(folder / "outputs")}
        words = [word.replace("OUT", str(folder / "out")) for word in shlex.split(PROGRAMS[name])]
        program = subprocess.Popen(
            [sys.executable, *words],
            cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            start_new_session=True,
            # What a shell starts in the background ignores Ctrl-C, and so would the program.
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
        try:
            program.wait(after)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                (os.killpg if everywhere else os.kill)(program.pid, number)
        until = time.monotonic() + SECONDS
        while (left := processes_of(mark)) and time.monotonic() < until:
            time.sleep(0.05)
        findings = [f"process {process.pid} is left: {told(process)}" for process in left]
        for process in left:
            with suppress(psutil.Error):
                process.kill()
        program.wait(SECONDS)
        said = program.stderr.read().decode(errors="replace")
        program.stderr.close()
        if "Traceback" in said:
            findings.append(f"a traceback: {said[-600:]}")
        findings += [f"shared memory is left: {path}" for path in shared_memory() - before]
        # What several programs keep for the next one is no remainder: compiled kernels, and folders of libraries.
        kept = {"torchinductor", "numba", "triton"}
        findings += [
            f"a temporary file is left: {path.name}"
            for path in (folder / "tmp").iterdir()
            if not any(word in path.name for word in kept)
        ]
        findings += [f"half a file is left: {path.name}" for path in folder.rglob("*.tmp")]
        where = "to all its processes" if everywhere else "to the program"
    return [f"{name}, {number.name} after {after:.2f} s {where}: {finding}" for finding in findings]
