"""Ctrl-C at a program of the course: one line and code 130, wherever it is. Each in a process of its own."""

import signal
import subprocess
import sys

import pytest

from labkit.paths import ROOT

SWALLOWS = """
import time
print("now", flush=True)
try:
    time.sleep(60)
except KeyboardInterrupt:
    pass
"""  # as torch and transformers do here and there, while they are imported
IN_THE_STORY = """
from labkit.lab import run_lab
def story(lab):
    {}
raise SystemExit(run_lab(story, "doc", argv=[]))
"""
SLEEP = "import time; print('now', flush=True); time.sleep(60)"

CALLBACK = """
    import ctypes, time
    source = "def told():\\n    print('now', flush=True)\\n    time.sleep(0.5)"
    exec(compile(source, "llvmlite/binding/executionengine.py", "exec"), names := {"time": time})
    ctypes.CFUNCTYPE(None)(names["told"])()
    time.sleep(60)"""
FREED = f"import time, weakref; weakref.finalize(set(), exec, {SLEEP.replace('60', '.5')!r}); time.sleep(60)"


def press_ctrl_c(folder, program, name="lab.py"):
    """Start a program, press Ctrl-C once it says "now"; its exit code and what it says then."""
    (folder / "swallows.py").write_text(SWALLOWS)
    (folder / name).write_text(program)
    process = subprocess.Popen(
        [sys.executable, folder / name], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={"PYTHONPATH": f"{ROOT}:{folder}", "INFERENCE_LAB_OUTPUTS": str(folder / "outputs")},
    )  # fmt: skip
    assert "now\n" in iter(process.stdout.readline, "")
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    return process.returncode, error


@pytest.mark.parametrize(
    "program",
    [
        "import labkit; import swallows",
        f"import labkit; {SLEEP}",
        IN_THE_STORY.format(SLEEP),
        IN_THE_STORY.format("import swallows"),
        IN_THE_STORY.format(CALLBACK),
        IN_THE_STORY.format(FREED),
        IN_THE_STORY.format("pass") .replace("raise SystemExit(", "code = (") + SLEEP,
    ],
    ids=["importing", "before the story", "in the story", "importing in the story", "called from C", "as something is freed", "after the story"],
)  # fmt: skip
def test_ctrl_c_is_one_line(tmp_path, program):
    assert press_ctrl_c(tmp_path, program) == (130, "stopped\n")


def test_an_import_that_is_interrupted_leaves_no_temporary_folder(tmp_path):
    program = f"import tempfile\n    kept = tempfile.TemporaryDirectory(dir={str(tmp_path)!r}, prefix='scratch')\n    import swallows"
    assert press_ctrl_c(tmp_path, IN_THE_STORY.format(program)) == (130, "stopped\n")
    assert not list(tmp_path.glob("scratch*"))


def test_an_import_that_is_interrupted_leaves_no_socket_of_a_fork_server(tmp_path):
    program = f"""import tempfile; from multiprocessing import forkserver
    tempfile.tempdir = {str(tmp_path)!r}
    forkserver.ensure_running()
    import swallows"""
    assert press_ctrl_c(tmp_path, IN_THE_STORY.format(program)) == (130, "stopped\n")
    assert not list(tmp_path.glob("pymp*"))


def test_a_program_of_others_keeps_its_ctrl_c(tmp_path):
    code, error = press_ctrl_c(tmp_path, f"import labkit; {SLEEP}", "other.py")
    assert code == -signal.SIGINT and "KeyboardInterrupt" in error


def test_ctrl_c_that_is_ignored_stays_ignored(tmp_path):
    program = f"import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); import labkit; {SLEEP.replace('60', '.2')}"
    assert press_ctrl_c(tmp_path, program) == (0, "")
