"""A room: where handed-in answers run.

With Linux namespaces (`unshare` of util-linux) the kernel shows an answer the course, Python and its libraries, all read-only,
and 64 MB of memory to write in, fresh for each answer. No home, no network, no other process of the machine. It has no capabilities,
may start no process, and has 2 GiB. When the room's first process ends, all in it ends.

Without namespaces a room is a new copy in a temporary folder and a new process with the rights of the person who grades.
"""

import ctypes
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from labkit.paths import ROOT

SCRATCH = "/scratch"  # in a room: the only place to write in
NAMESPACES = ["unshare", "--user", "--map-root-user", "--fork", "--kill-child"]
NAMESPACES += ["--mount", "--pid", "--net", "--ipc", "--uts"]
LONGEST = 600  # seconds of one answer, several times what any exercise allows
PACKAGES = ("exercises", "labkit", *(p.name for p in sorted(ROOT.glob("phase?_*")) if p.is_dir()))


class Room:
    """A process that judges the answers of one learner, one after the other, each in a fork of its own.

    Args:
        answers: the cells by exercise. isolated: with namespaces.
    """

    def __init__(self, answers: Mapping[str, list[str]], isolated: bool) -> None:
        settings = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": "1"}
        self.folder = None
        if isolated:
            settings |= {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL") if name in os.environ}
            command = [*NAMESPACES, sys.executable, "-m", "exercises.classroom.room"]
            course = str(ROOT)
            settings |= {"HOME": SCRATCH, "TMPDIR": SCRATCH, "INFERENCE_LAB_OUTPUTS": f"{SCRATCH}/outputs"}
        else:
            self.folder = tempfile.TemporaryDirectory(prefix="lab-grade-", ignore_cleanup_errors=True)
            course = self.folder.name
            for package in PACKAGES:
                shutil.copytree(
                    ROOT / package, Path(course) / package, ignore=shutil.ignore_patterns("*.tmp*", "*.pyc.*")
                )
            command = [sys.executable, "-m", "exercises.classroom.answering", "plain"]
            settings = os.environ | settings | {"INFERENCE_LAB_OUTPUTS": f"{course}/outputs"}
        with tempfile.TemporaryFile("w+") as asked:
            json.dump(answers, asked)
            asked.seek(0)
            self.process = subprocess.Popen(
                command,
                cwd=course,
                env=settings | {"PYTHONPATH": course},
                stdin=asked,
                stdout=subprocess.PIPE,  # when this process ends, the room's next line ends the room
                stderr=subprocess.DEVNULL,
                text=True,
                encoding="utf-8",
                errors="replace",
                start_new_session=True,  # out of reach of Ctrl-C: `close` ends it
            )

    def is_ready(self) -> bool:
        return self._line() == "ready\n"

    def results(self) -> Iterator[dict[str, Any]]:
        """What came out of each answer; of fewer if an answer ended the room."""
        with suppress(ValueError):
            while line := self._line():
                yield json.loads(line)

    def _line(self) -> str:
        """The next line; "" when the room ends, or an answer has brought it to a stop."""
        stop = threading.Timer(LONGEST, self.process.kill)
        stop.daemon = True
        stop.start()
        try:
            return self.process.stdout.readline()
        finally:
            stop.cancel()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        if self.folder:
            self.folder.cleanup()


def has_walls() -> bool:
    """Whether this machine has the namespaces that a room needs."""
    with suppress(OSError), closing(Room({}, isolated=True)) as room:  # OSError: no such program
        return room.is_ready()
    return False


# ------------------------------------------------------------------ the walls, put up within new namespaces

STAGE = Path("/dev/shm")  # the new root grows here: it is on every Linux, and holds nothing of the course
SHOWN = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/sys/devices/system")
SHOWN += ("/etc/ld.so.cache", "/etc/localtime")
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
NOSUID, NODEV, NOEXEC, BIND, RECURSIVE = 2, 4, 8, 4096, 16384  # <sys/mount.h>
SETATTR, BELOW = 442, 0x8000  # mount_setattr, which Linux has since 5.12, and its flag for all mounts below
NEW_MOUNTS = 0x20000  # CLONE_NEWNS


def _system(call: str, *args: Any) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), call)(*args):
        raise OSError(ctypes.get_errno(), f"{call}: {os.strerror(ctypes.get_errno())}")


def _mount(source: str, target: Path, kind: str, flags: int, data: str = "") -> None:
    _system("mount", source.encode(), bytes(target), kind.encode(), ctypes.c_ulong(flags), data.encode())


def _show(path: Path, place: str = "") -> None:
    """Let a file or a folder of the machine be seen in the new root; there or in another place."""
    target = STAGE / (place or str(path))[1:]
    if target.exists() or target.is_symlink() or not path.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():
        target.symlink_to(os.readlink(path))
        _show(path.resolve())  # a virtual environment may be a link
        return
    target.mkdir() if path.is_dir() else target.touch()
    _mount(str(path), target, "", BIND | RECURSIVE)


def enter_new_root() -> None:
    """Make a root that holds Python, the course without its notebooks and tests, and no more, and enter it."""
    _mount("tmpfs", STAGE, "tmpfs", NOSUID | NODEV, "size=1m,mode=755")
    for folder in (SCRATCH, "/proc"):
        (STAGE / folder[1:]).mkdir()
    for place in (*SHOWN, *DEVICES, sys.base_prefix, sys.prefix):
        _show(Path(place))
    for package in PACKAGES:
        _show(ROOT / package, f"/course/{package}")
    if not (STAGE / "tmp").exists():  # the course may lie in it
        (STAGE / "tmp").symlink_to(SCRATCH)
    read_only = struct.pack("QQQQ", 1, 0, 0, 0)
    _system("syscall", SETATTR, -1, bytes(STAGE), BELOW, read_only, ctypes.c_size_t(len(read_only)))
    _mount("proc", STAGE / "proc", "proc", NOSUID | NODEV | NOEXEC)
    os.chroot(STAGE)
    os.chdir("/course")


def shut_in() -> None:
    """In the fork that runs an answer: a fresh /scratch, no capabilities, bounded memory, no other processes."""
    from exercises.judging.sandbox import calm_down, refuse_new_processes

    _system("unshare", NEW_MOUNTS)
    _mount("tmpfs", Path(SCRATCH), "tmpfs", NOSUID | NODEV, "size=64m,mode=777")
    os.chdir(SCRATCH)
    _system("capset", struct.pack("Ii", 0x20080522, 0), bytes(24))
    calm_down()
    refuse_new_processes()  # here it is no courtesy: without it no answer runs


if __name__ == "__main__":
    ctypes.CDLL("libseccomp.so.2")  # no room without it
    enter_new_root()
    os.environ["PYTHONPATH"] = "/course"
    os.execv(sys.executable, [sys.executable, "-m", "exercises.classroom.answering", "isolated"])
