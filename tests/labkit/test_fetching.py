"""Fetching models, from a small hub on this machine: files in ranges, connections that break off, wrong bytes, licences.

Hugging Face's own client asks it. Only the hub is small: it answers as the real one does.
"""

import hashlib
import json
import shutil
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from huggingface_hub import constants

from labkit import fetching, open_models
from labkit.errors import LabError
from labkit.models import find_model, in_hub_cache
from labkit.open_models import OPEN_MODELS, fits
from labkit.paths import EMBEDDED_MODELS
from phase2_attention_kvcache import fetch_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class SmallHub(ThreadingHTTPServer):
    """One repository. `breaks`: after how many bytes the next answers end; `asked`: (file, first byte) of each request."""

    daemon_threads = True

    def __init__(self, name, files):
        super().__init__(("127.0.0.1", 0), Answer)
        self.name, self.files, self.gated = name, files, False
        self.breaks, self.asked, self.spoilt, self.ranges = [], [], "", True

    def info(self):
        siblings = []
        for path, data in self.files.items():
            git = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
            sibling = {"rfilename": path, "size": len(data), "blobId": git}
            if path.endswith(".safetensors"):
                sha = hashlib.sha256(data).hexdigest()
                sibling["lfs"] = {"sha256": sha, "size": len(data), "pointerSize": 134}
            siblings.append(sibling)
        return {
            "_id": "1", "id": self.name, "modelId": self.name, "sha": COMMIT, "gated": "manual" if self.gated else False,
            "cardData": {"license": "apache-2.0"}, "siblings": siblings, "private": False, "tags": [], "downloads": 0,
        }  # fmt: skip


class Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def reply(self, code, body=b"", **headers):
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        hub, path = self.server, self.path.partition("?")[0]
        if path in (f"/api/models/{hub.name}", f"/api/models/{hub.name}/revision/main"):
            return self.reply(200, json.dumps(hub.info()).encode(), Content_Type="application/json")
        if path == f"/api/models/{hub.name}/auth-check":
            return self.reply(403, X_Error_Code="GatedRepo") if hub.gated else self.reply(200, b"{}")
        prefix = f"/{hub.name}/resolve/{COMMIT}/"
        if not path.startswith(prefix):
            return self.reply(404, X_Error_Code="RepoNotFound")
        name = path.removeprefix(prefix)
        data = hub.files[name]
        if name == hub.spoilt:
            data = data[:-1] + bytes([data[-1] ^ 1])
        wanted = self.headers.get("Range")
        first = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and hub.ranges else 0
        hub.asked.append((name, first))
        end = hub.breaks.pop(0) if hub.breaks else None
        self.send_response(206 if wanted and hub.ranges else 200)
        self.send_header("ETag", '"x"')
        self.send_header("Content-Length", str(len(data) - first))
        self.end_headers()
        self.wfile.write(data[first:][:end])
        if end is not None:
            self.close_connection = True  # before all of it was there
        return None


@pytest.fixture
def hub(monkeypatch, tmp_path):
    names = ("config.json", "tokenizer.json", "model.safetensors")
    files = {name: (EMBEDDED_MODELS / "tales-draft" / name).read_bytes() for name in names}
    unwanted = dict.fromkeys(("pytorch_model.bin", "original/x.safetensors", "consolidated.safetensors"), b"")
    server = SmallHub("small/model", files | unwanted)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("INFERENCE_LAB_MODELS", str(tmp_path / "models"))
    monkeypatch.setattr(fetching, "PAUSE", 0.0)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)  # the tests are, the small hub is not
    yield server
    server.shutdown()
    server.server_close()


@contextmanager
def fails_with(message):
    with pytest.raises(LabError, match=message) as caught:
        yield
    assert "\n" not in str(caught.value)


def test_a_model_is_fetched_checked_and_found(hub, capsys):
    assert fetch_model.main(["small/model"]) == 0
    out = capsys.readouterr().out
    assert "licence apache-2.0: 3 files" in out and "GB to load. This machine: fits." in out
    assert "all hashes agree" in out
    folder = find_model("small/model")
    assert sorted(p.name for p in folder.iterdir()) == [
        "config.json", fetching.RECORD, "model.safetensors", "tokenizer.json",
    ]  # fmt: skip
    asked = list(hub.asked)
    assert fetch_model.main(["small/model"]) == 0  # nothing is loaded twice
    assert "every byte is as it was fetched" in capsys.readouterr().out and hub.asked == asked
    with (folder / "model.safetensors").open("r+b") as file:
        file.seek(5000)
        file.write(b"?")
    assert fetch_model.main(["small/model"]) == 0
    assert "1 files have changed since" in capsys.readouterr().out
    assert hub.asked == [*asked, ("model.safetensors", 0)]
    assert (folder / "model.safetensors").read_bytes() == hub.files["model.safetensors"]


def test_a_download_that_breaks_off_goes_on(hub):
    """Within a call a few times; after that in the next one, from the byte where it stopped."""
    whole = len(hub.files["model.safetensors"])
    hub.files = {"config.json": hub.files["config.json"], "model.safetensors": hub.files["model.safetensors"]}
    plan = fetching.make_plan("small/model")
    piece = fetching.PIECE
    hub.breaks = [None, 5 * piece, 2 * piece] + [0] * fetching.TRIES
    with fails_with(
        r"breaks off \(.*\) at 458,752 of .* bytes of model.safetensors: `lab fetch small/model` goes on"
    ):
        fetching.fetch_files(plan)
    assert hub.asked[1:4] == [("model.safetensors", at) for at in (0, 5 * piece, 7 * piece)]
    with fails_with("only half here: `lab fetch small/model` goes on"):
        find_model("small/model")
    assert plan.missing_bytes == whole - 7 * piece
    hub.asked, hub.breaks, came = [], [], []
    fetching.fetch_files(plan, came.append)
    assert hub.asked == [("model.safetensors", 7 * piece)] and sum(came) == sum(f.size for f in plan.files)
    assert (find_model("small/model") / "model.safetensors").read_bytes() == hub.files["model.safetensors"]


def test_an_empty_file_is_fetched_too(hub):
    hub.files["merges.txt"] = b""
    folder = fetching.fetch_files(fetching.make_plan("small/model"))
    assert (folder / "merges.txt").read_bytes() == b"" and not fetching.damaged_files(folder)


@pytest.mark.parametrize(
    ("index", "is_whole"),
    [(b'{"weight_map": {"a": "x.safetensors"}}', True), (b"{", False), (b"[]", False), (b"{}", False)],
)
def test_a_damaged_index_in_the_cache_of_the_hub(monkeypatch, tmp_path, index, is_whole):
    """Such a model is not here: it is fetched anew."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    model = tmp_path / "models--small--model"
    folder, refs = model / "snapshots" / COMMIT, model / "refs"
    files = {"model.safetensors.index.json": index, "x.safetensors": b"", "config.json": b"{}"}
    for path, data in [(folder / n, d) for n, d in files.items()] + [(refs / "main", COMMIT.encode())]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    assert in_hub_cache("small/model") == (folder if is_whole else None)


def test_a_hub_without_ranges_sends_it_again(hub):
    hub.ranges = False
    plan = fetching.make_plan("small/model")
    hub.breaks = [None, None, 3 * fetching.PIECE]
    came = []
    fetching.fetch_files(plan, came.append)
    assert hub.asked[2:] == [("model.safetensors", 0)] * 2 and -3 * fetching.PIECE in came
    assert sum(came) == sum(f.size for f in plan.files) and not fetching.damaged_files(plan.folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_wrong_bytes_are_not_kept(hub, name):
    hub.spoilt = name
    with fails_with(f"{name} is not what the hub announces .its hash differs., and was deleted"):
        fetching.fetch_files(fetching.make_plan("small/model"))
    assert not list((fetching.models_folder() / "small/model").glob(f"{name}*"))


def test_what_the_hub_refuses_is_one_line(hub, monkeypatch):
    with fails_with("unknown model 'nobody/nothing': `lab fetch` lists some"):
        fetching.make_plan("nobody/nothing")
    with fails_with("unknown model 'a b'"):
        fetching.make_plan("a b")
    hub.gated = True
    with fails_with("asks for a licence: accept it on huggingface.co"):
        fetching.make_plan("small/model")
    hub.gated = False
    plan = fetching.make_plan("small/model")
    hub.name = "moved/away"
    with fails_with(r"the hub refuses config.json \(404"):
        fetching.fetch_files(plan)
    hub.name, hub.files = "small/model", {"config.json": b"{}", "pytorch_model.bin": b""}
    with fails_with("no config.json with .safetensors"):
        fetching.make_plan("small/model")


def test_what_does_not_fit_is_said_before_anything_is_loaded(hub, monkeypatch, capsys):
    monkeypatch.setattr(open_models, "memory_bytes", lambda: 10**6)
    assert fetch_model.main(["small/model"]) == 2
    assert "too large for the memory, 0.0 GB: choose a smaller one" in capsys.readouterr().err
    assert hub.asked == []
    assert fetch_model.main(["small/model", "--anyway"]) == 0


def change(name, **settings):
    def changed(files):
        files[name] = json.dumps(json.loads(files[name]) | settings).encode()

    return changed


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (change("config.json", model_type="bert"), "its model_type is 'bert'; this course knows gpt2, llama"),
        (change("config.json", sliding_chunk=7), "its setting 'sliding_chunk' (7) is not known here"),
        (change("config.json", quantization_config={"quant_method": "gptq"}), "its quantization_config is of a kind"),
        (lambda files: files.update({"tokenizer.json": b"{"}), "tokenizer.json cannot be used: it is not JSON"),
        (lambda files: files.pop("tokenizer.json"), "no tokenizer at"),
    ],
)  # fmt: skip
def test_what_the_course_cannot_run_is_said_before_the_weights_come(hub, capsys, spoil, message):
    spoil(hub.files)
    assert fetch_model.main(["small/model"]) == 2
    error = capsys.readouterr().err
    assert message in error and error.endswith("Its weights were not loaded (--anyway loads them)\n")
    assert error.count("\n") == 1
    asked = {name for name, _ in hub.asked}
    assert "config.json" in asked and "model.safetensors" not in asked
    assert fetch_model.main(["small/model", "--anyway"]) == 0
    assert ("model.safetensors", 0) in hub.asked


def test_the_list_of_models(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(open_models, "memory_bytes", lambda: 4 * 10**9)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**12, 0, 3 * 10**9))
    gb = {
        text: fits(size * 1e9, tmp_path / "not" / "there").why
        for text, size in (("s", 1), ("t", 2.9), ("m", 4.1), ("d", 3.5))
    }
    assert gb == {
        "s": "fits", "t": "tight: hardly any memory for the KV cache",
        "m": "too large for the memory, 4.0 GB", "d": "too large for the disk, 3.0 GB free",
    }  # fmt: skip
    assert fits(3.5e9, tmp_path, still_to_load=1e9).ok
    assert fetch_model.main([]) == 0
    out = capsys.readouterr().out
    assert all(m.name in out for m in OPEN_MODELS) and open_models.AS_OF in out
    # 16 bits a weight, or a little more: some files hold a table twice; GPT-2's are in 32.
    for m in OPEN_MODELS:
        assert 1.9 < m.gigabytes / m.parameters < (4.6 if "gpt2" in m.name else 2.6)
