"""What all tests share: no network, no dice, nothing written to the learner's outputs."""

import json
import os
import random
import shutil
import signal
import threading
import time
from pathlib import Path

import labkit  # noqa: F401 - before torch: it says how threads wait

# Before any test imports a library that reads them.
os.environ["HF_HUB_OFFLINE"] = "1"
ROOT = Path(__file__).resolve().parent.parent
# What is measured while tests keep the machine busy is not what the engine should count on.
os.environ.setdefault("INFERENCE_LAB_CACHE", str(ROOT / ".pytest_cache" / "inference-lab"))

# A shell lets what it starts in the background ignore Ctrl-C, and children inherit that. Some tests press it.
if (
    threading.current_thread() is threading.main_thread()
    and signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):
    signal.signal(signal.SIGINT, signal.default_int_handler)

import numpy as np  # noqa: E402
import pytest  # noqa: E402
import tiktoken.registry  # noqa: E402
import torch  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

from labkit import models  # noqa: E402

CHROMIUM = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]

# Property-based tests see the same examples in every run on every machine; those of `make fuzz` are new each time.
# A busy machine is no failure: no deadline, and slow examples are no complaint.
common = dict(
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.register_profile("same", derandomize=True, **common)
settings.register_profile("fuzz", derandomize=False, **common)
settings.load_profile("same")

torch.set_num_threads(max(1, (os.cpu_count() or 2) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))))


def pytest_collection_modifyitems(items):
    """What clicks in Chromium is for `make proof`."""
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker("proof")


def pytest_runtest_setup(item):
    """`make fuzz` begins no test after its time."""
    if time.time() > float(os.environ.get("FUZZ_UNTIL", "inf")):
        pytest.skip("time is up")


@pytest.fixture(autouse=True)
def own_outputs(tmp_path, monkeypatch):
    """Figures and reports of tests go to a temporary folder."""
    monkeypatch.setenv("INFERENCE_LAB_OUTPUTS", str(tmp_path / "outputs"))


@pytest.fixture(autouse=True)
def no_dice():
    """Every test begins with the same random numbers, whichever ran before it."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture
def full_disk():
    """No file of this process may grow beyond 10 bytes: the system refuses as a full disk does."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def run_script(tmp_path, capsys):
    """Run a script as a learner does. Its report, with what it claims by name (of several the first) and what it
    printed, once its figures lie there and its lines fit a terminal."""

    def run(script, *argv, figures=()):
        file, folder = tmp_path / "report.json", tmp_path / "figures"
        assert script.main([*map(str, argv), "--json", str(file), "--figures", str(folder)]) == 0
        for name in figures:
            assert (folder / f"{name}.png").stat().st_size > 10_000
            (folder / f"{name}.png").unlink()
        report = json.loads(file.read_text(encoding="utf-8"))
        assert all(p["holds"] for p in report["predictions"] if p["kind"] == "structure" and not p["needs"])
        report["claims"] = {p["claim"]: p for p in reversed(report["predictions"])}
        report["out"] = capsys.readouterr().out
        assert max(len(line.rstrip()) for line in report["out"].splitlines()) <= 100
        return report

    return run


@pytest.fixture
def mistake_of(tmp_path, capsys):
    """Run a script with a mistake in its options: what it says of it, in one line (argparse adds the usage). There
    is no report then."""

    def run(script, *argv):
        file, one_line = tmp_path / "report.json", True
        try:
            code = script.main(["--json", str(file), *map(str, argv)])
        except SystemExit as stop:  # how argparse ends
            code, one_line = stop.code, False
        error = capsys.readouterr().err
        assert code == 2 and not file.exists()
        assert "Traceback" not in error and (error.count("\n") == 1 or not one_line)
        return error

    return run


@pytest.fixture(scope="module")
def browser():
    """Chromium without a window, or a skip that says what is missing. While it is there, no test can run asyncio."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    with playwright.sync_playwright() as p:
        try:
            chromium = p.chromium.launch(executable_path=path, args=CHROMIUM)
        except playwright.Error as error:
            pytest.skip(f"{path} does not start: {str(error).splitlines()[0]}")
        yield chromium
        chromium.close()


@pytest.fixture
def no_gpt2_vocabulary(tmp_path, monkeypatch) -> None:
    """A machine that has no GPT-2 vocabulary."""
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(models, "WHISPER", "no_such_package")
    monkeypatch.setattr(tiktoken.registry, "ENCODINGS", {})  # forget what other tests loaded


@pytest.fixture(scope="session")
def being_worked_in() -> frozenset[str]:
    """Notebooks that a learner has changed. In continuous integration all have to be as generated."""
    from exercises.judging.sources import all_names
    from exercises.publishing.build_notebooks import NOTEBOOKS, companions, has_been_worked_in

    if os.environ.get("CI"):
        return frozenset()
    student = [NOTEBOOKS / "exercises" / f"{name}.ipynb" for name in all_names()]
    paths = [*student, *companions()]
    return frozenset(path.stem for path in paths if path.is_file() and has_been_worked_in(path))
