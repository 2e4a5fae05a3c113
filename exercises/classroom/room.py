"""A room: where handed-in answers run, with a copy of the course without the solutions.

With Linux namespaces (`unshare` of util-linux) the kernel shows an answer a read-only copy of the course, Python and its libraries,
and 64 MB of memory to write in, fresh for each answer. No home, no network, no other process of the machine. It has no capabilities,
may start no process, and has 2 GiB. When the room's first process ends, all in it ends, and the copy was only in memory.

Without namespaces each answer gets a new copy in a temporary folder and a new process, and has the rights of the person who
grades.
"""

import ctypes
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from threading import Timer
from typing import Any

from exercises.judging.sources import take_solutions_out
from labkit.paths import ROOT

SCRATCH = "/scratch"  # in a room: the only place to write in
NAMESPACES = ["unshare", "--user", "--map-root-user", "--fork", "--kill-child"]
NAMESPACES += ["--mount", "--pid", "--net", "--ipc", "--uts"]
PACKAGES = ("exercises", "labkit", *(p.name for p in sorted(ROOT.glob("phase?_*")) if p.is_dir()))
LONGEST = 200.0  # seconds for one answer: more than any exercise has, and a new Python where there is no fork


class Room:
    """A process that judges one answer after the other. Without namespaces it serves for one, and a new one follows."""

    def __init__(self, isolated: bool) -> None:
        self.isolated = isolated
        self.process: subprocess.Popen[str] | None = None
        self.folder: tempfile.TemporaryDirectory | None = None
        self.closed = False

    def open(self) -> bool:
        """Start the process. Whether it is ready."""
        settings = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": "1"}
        shown = dict(os.environ)
        if self.isolated:
            shown = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL") if name in os.environ}
            command = [*NAMESPACES, sys.executable, "-m", "exercises.classroom.room"]
            settings |= {"PYTHONPATH": str(ROOT), "HOME": SCRATCH, "TMPDIR": SCRATCH}
            settings |= {"INFERENCE_LAB_OUTPUTS": f"{SCRATCH}/outputs"}
        else:
            self.folder = tempfile.TemporaryDirectory(prefix="lab-grade-", ignore_cleanup_errors=True)
            copy_course(Path(self.folder.name))
            command = [sys.executable, "-m", "exercises.classroom.answering", "plain"]
            settings |= {
                "PYTHONPATH": self.folder.name,
                "INFERENCE_LAB_OUTPUTS": f"{self.folder.name}/outputs",
            }
        try:
            self.process = subprocess.Popen(
                command,
                cwd=self.folder.name if self.folder else ROOT,
                env=shown | settings,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                encoding="utf-8",
                errors="replace",
                start_new_session=True,  # out of reach of Ctrl-C: `close` ends it
            )
        except OSError:  # no such program
            return False
        assert self.process.stdout
        return self.process.stdout.readline() == "ready\n"

    def ask(self, exercise: str, cells: list[str]) -> dict[str, Any] | None:
        """What came out of an answer; None if the room ended, or took too long."""
        if self.closed or (self.process is None and not self.open()):
            return None
        process = self.process
        assert process and process.stdin and process.stdout
        too_late = Timer(LONGEST, process.kill)
        too_late.start()
        try:
            print(json.dumps({"exercise": exercise, "cells": cells}), file=process.stdin, flush=True)
            return json.loads(process.stdout.readline())
        except (OSError, ValueError):  # it has ended
            self.close()
            return None
        finally:
            too_late.cancel()
            if not self.isolated:
                self.close()

    def close(self, for_good: bool = False) -> None:
        self.closed = self.closed or for_good
        process, folder, self.process, self.folder = self.process, self.folder, None, None
        if process:
            process.kill()
            process.wait()
        if folder:
            folder.cleanup()


def copy_course(folder: Path) -> None:
    """The course with stubs in the place of the solutions."""
    # What another process is writing has another name until it is whole, and may be gone a moment later.
    ignored = shutil.ignore_patterns("*.png", "*.tmp", "*.tmp.*", "*.pyc.*")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=ignored)
    take_solutions_out(folder)
    for compiled in folder.glob("exercises/phase*/__pycache__"):
        shutil.rmtree(compiled)


# ------------------------------------------------------------------ the walls, put up within new namespaces

STAGE = Path("/dev/shm")  # the new root grows here: it is on every Linux, and holds nothing of the course
SHOWN = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/sys/devices/system")
SHOWN += ("/etc/ld.so.cache", "/etc/localtime")
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
NOSUID, NODEV, NOEXEC, READ_ONLY, REMOUNT, BIND, RECURSIVE = 2, 4, 8, 1, 32, 4096, 16384  # <sys/mount.h>
NEW_MOUNTS = 0x20000  # CLONE_NEWNS


def _system(call: str, *args: Any) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), call)(*args):
        raise OSError(ctypes.get_errno(), f"{call}: {os.strerror(ctypes.get_errno())}")


def _mount(source: str, target: Path, kind: str, flags: int, data: str = "") -> None:
    _system("mount", source.encode(), bytes(target), kind.encode(), ctypes.c_ulong(flags), data.encode())


def _show(path: Path) -> None:
    """Let a file or a folder of the machine be seen in the new root, read-only."""
    target = STAGE / path.relative_to("/")
    if target.exists() or target.is_symlink() or not path.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():
        target.symlink_to(os.readlink(path))
        _show(path.resolve())  # a virtual environment may be a link
        return
    target.mkdir() if path.is_dir() else target.touch()
    _mount(str(path), target, "", BIND | RECURSIVE)
    if path.is_dir() or path.is_file():
        kept = os.statvfs(path).f_flag  # what the machine has forbidden there stays forbidden
        # And how it notes times of access.
        kept = kept & (NOSUID | NODEV | NOEXEC | 1024 | 2048) | (kept & 4096) << 9
        _mount("", target, "", BIND | REMOUNT | READ_ONLY | kept)


def enter_new_root() -> None:
    """Make a root that holds Python, a copy of the course and no more, and enter it."""
    _mount("tmpfs", STAGE, "tmpfs", NOSUID | NODEV, "size=512m,mode=755")
    copy_course(STAGE / "course")
    for folder in (SCRATCH, "/proc"):
        (STAGE / folder[1:]).mkdir()
    _mount("proc", STAGE / "proc", "proc", NOSUID | NODEV | NOEXEC)
    for place in (*SHOWN, *DEVICES, sys.base_prefix, sys.prefix):
        _show(Path(place))
    if not (STAGE / "tmp").exists():  # the course may lie in it
        (STAGE / "tmp").symlink_to(SCRATCH)
    _mount("", STAGE, "", REMOUNT | READ_ONLY | NOSUID | NODEV, "size=512m,mode=755")
    os.chroot(STAGE)
    os.chdir("/course")


def shut_in() -> None:
    """In the fork that runs an answer: a fresh /scratch, no capabilities, bounded memory, no other processes."""
    from exercises.judging.sandbox import calm_down

    _system("unshare", NEW_MOUNTS)
    _mount("tmpfs", Path(SCRATCH), "tmpfs", NOSUID | NODEV, "size=64m,mode=777")
    os.chdir(SCRATCH)
    _system("capset", struct.pack("Ii", 0x20080522, 0), bytes(24))
    calm_down()


if __name__ == "__main__":
    enter_new_root()
    os.environ["PYTHONPATH"] = "/course"
    os.execv(sys.executable, [sys.executable, "-m", "exercises.classroom.answering", "isolated"])
