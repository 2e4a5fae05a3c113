"""Fetching a model from the hub: what it takes is told first, a download that broke off goes on, and every byte is checked.

The small files come first: they tell whether the model can be used at all, and its weights are gigabytes.

The library huggingface_hub tells which files there are, how large, and with which hashes. The bytes are fetched here,
because its own client begins a file anew when it was ended in the middle, and a model is often a single file.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from pathlib import Path

from labkit.errors import LabError
from labkit.foreign import read_json, visible
from labkit.paths import write_whole, writing

MODEL_FILES = ["*.json", "*.safetensors", "*.txt", "*.jinja"]  # of a repository's top folder
UNFINISHED = ".incomplete"  # after a file's name, while it is loaded
RECORD = "fetched.json"  # is written last: where it is, the model is whole
TRIES = 5  # in a row without a byte
PIECE = 2**16  # what has not filled one is lost when a connection breaks
PAUSE = 1.0  # seconds, before another try


@dataclass(frozen=True)
class RemoteFile:
    """A file on the hub. `sha256` of large files; of small ones git's hash, `blob_id`: SHA-1 of "blob SIZE\\0" and the bytes."""

    path: str
    size: int
    blob_id: str
    sha256: str | None

    @property
    def holds_weights(self) -> bool:
        return self.path.endswith(".safetensors")

    def hasher(self) -> "hashlib._Hash":
        return hashlib.sha256() if self.sha256 else hashlib.sha1(b"blob %d\0" % self.size)

    def is_whole(self, file: Path) -> bool:
        """Whether a file on the disk has this size and this hash."""
        if not file.is_file() or file.stat().st_size != self.size:
            return False
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, self.hasher).hexdigest() == (self.sha256 or self.blob_id)


@dataclass(frozen=True)
class Plan:
    """What a download takes.

    Attributes:
        commit: the version. licence: as its card names it. folder: where the model will be.
    """

    name: str
    commit: str
    licence: str
    folder: Path
    files: list[RemoteFile]

    @property
    def weight_bytes(self) -> int:
        return sum(f.size for f in self.files if f.holds_weights)

    @property
    def missing_bytes(self) -> int:
        """What is not on the disk yet, by the sizes of what is."""
        return sum(f.size - min(f.size, max(map(_size, _places(self.folder, f)))) for f in self.files)


def models_folder() -> Path:
    """Where fetched models are: INFERENCE_LAB_MODELS, or a folder in the user's cache."""
    return Path(os.environ.get("INFERENCE_LAB_MODELS") or "~/.cache/inference-lab/models").expanduser()


def fetched_model(name: str) -> Path | None:
    """The folder of a model that was fetched; None if it was not.

    Raises:
        LabError: a download that did not end.
    """
    folder = models_folder() / name
    if (folder / RECORD).is_file():
        return folder
    if folder.is_dir() and any(folder.glob(f"*{UNFINISHED}")):
        raise LabError(
            f"{name} is only half here: `lab fetch {name}` goes on where it broke off, or says why it was not loaded"
        )
    return None


def make_plan(name: str) -> Plan:
    """Ask the hub what a model consists of. Nothing is loaded.

    Raises:
        LabError: no such model, no way to the hub, a licence that was not accepted, or no safetensors in it.
    """
    from huggingface_hub import HfApi

    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"))
    with hub_errors(name):
        info = api.model_info(name, files_metadata=True)
        api.auth_check(name)
    files = [
        RemoteFile(s.rfilename, s.size, s.blob_id, s.lfs.sha256 if s.lfs else None)
        for s in info.siblings
        if "/" not in s.rfilename and any(fnmatch(s.rfilename, pattern) for pattern in MODEL_FILES)
        and not s.rfilename.startswith("consolidated")  # Mistral's: the same weights in another form
    ]  # fmt: skip
    names = [f.path for f in files]
    if "config.json" not in names or not any(f.holds_weights for f in files):
        raise LabError(
            f"{name} holds no config.json with .safetensors files: choose a model in that form (`lab fetch` lists some)"
        )
    licence = (info.card_data or {}).get("license") or "unknown"
    return Plan(name, info.sha, str(licence), models_folder() / name, files)


def fetch_files(
    plan: Plan,
    on_bytes: Callable[[int], None] = lambda count: None,
    look_at: Callable[[Path], None] = lambda folder: None,
) -> Path:
    """Load what is missing, go on with what broke off, check everything.

    Args:
        on_bytes: called with the number of bytes that came, or were there already.
        look_at: called with the folder once all but the weights is there. What it raises ends the download.

    Raises:
        LabError: the hub cannot be reached any more, or what came is not what was announced.
    """
    with writing(plan.folder):
        plan.folder.mkdir(parents=True, exist_ok=True)
        (plan.folder / RECORD).unlink(missing_ok=True)
        for file in plan.files:
            if not file.holds_weights:
                _complete(plan, file, on_bytes)
        look_at(plan.folder)
        for file in plan.files:
            if file.holds_weights:
                _complete(plan, file, on_bytes)
        document = {"name": plan.name, "commit": plan.commit, "files": [asdict(f) for f in plan.files]}
        write_whole(plan.folder / RECORD, json.dumps(document, indent=1) + "\n")
    return plan.folder


def damaged_files(folder: Path) -> list[str]:
    """The files of a fetched model that are no longer what was fetched."""
    known = [RemoteFile(**f) for f in read_json(folder / RECORD, 2**22)["files"]]
    return [f.path for f in known if not f.is_whole(folder / f.path)]


def _complete(plan: Plan, file: RemoteFile, on_bytes: Callable[[int], None]) -> None:
    whole, part = _places(plan.folder, file)
    if file.is_whole(whole):
        on_bytes(file.size)
        return
    _load(plan, file, part, on_bytes)
    os.replace(part, whole)


def _load(plan: Plan, file: RemoteFile, part: Path, on_bytes: Callable[[int], None]) -> None:
    import requests
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import build_hf_headers

    url = hf_hub_url(plan.name, file.path, revision=plan.commit, endpoint=os.environ.get("HF_ENDPOINT"))
    have = min(_size(part), file.size)
    on_bytes(have)
    tries = TRIES
    if file.size == 0:
        part.touch()  # there is nothing to ask for
    while have < file.size:
        headers = build_hf_headers() | {"Range": f"bytes={have}-", "Accept-Encoding": "identity"}
        try:
            with requests.get(url, headers=headers, stream=True, timeout=30) as answer:
                answer.raise_for_status()
                if answer.status_code != 206:  # it sends the whole file, whatever was asked for
                    on_bytes(-have)
                    have = 0
                with part.open("r+b" if part.exists() else "wb") as out:
                    out.seek(have)
                    out.truncate()
                    for piece in answer.iter_content(PIECE):
                        out.write(piece)
                        have += len(piece)
                        on_bytes(len(piece))
                        tries = TRIES
        except requests.HTTPError as error:
            raise LabError(f"{plan.name}: the hub refuses {file.path} ({visible(error, 100)})") from None
        except requests.RequestException as error:
            failed = type(error).__name__
        else:
            failed = "it ended too early"
        if have < file.size:
            tries -= 1
            if tries == 0:
                raise LabError(
                    f"{plan.name}: the connection breaks off ({failed}) at {have:,} of {file.size:,} bytes of {file.path}: "
                    f"`lab fetch {plan.name}` goes on from there"
                )
            time.sleep(PAUSE)
    if not file.is_whole(part):
        part.unlink()
        raise LabError(
            f"{plan.name}: {file.path} is not what the hub announces (its hash differs), and was deleted: fetch it again"
        )


def _places(folder: Path, file: RemoteFile) -> tuple[Path, Path]:
    """Where a file is when it is whole, and while it is loaded."""
    return folder / file.path, folder / f"{file.path}{UNFINISHED}"


def _size(file: Path) -> int:
    return file.stat().st_size if file.is_file() else 0


@contextmanager
def hub_errors(name: str) -> Iterator[None]:
    """What the hub's client raises, as one line with the remedy.

    Raises:
        LabError: always that.
    """
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

    try:
        yield
    except GatedRepoError:
        raise LabError(
            f"{name!r} asks for a licence: accept it on huggingface.co, then `hf auth login`"
        ) from None
    except (HFValidationError, RepositoryNotFoundError):
        raise LabError(f"unknown model {name!r}: `lab fetch` lists some that the hub has") from None
    except Exception as error:  # every kind of network trouble, from DNS to a broken proxy
        raise LabError(
            f"model {name!r} is not on this machine and the hub cannot be reached ({type(error).__name__}): "
            f"go online and run `lab fetch {name}` once, or use --model tales"
        ) from None
