"""`lab fetch`, from a small hub on this machine: sizes, licences, models that do not fit or cannot be run.

Hugging Face's own client asks it. Only the hub is small: it answers as the real one does.
"""

import hashlib
import json
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from huggingface_hub import constants

from labkit import open_models
from labkit.errors import LabError
from labkit.models import find_model, from_hub, in_hub_cache
from labkit.open_models import OPEN_MODELS, fits
from labkit.paths import EMBEDDED_MODELS
from phase2_attention_kvcache import fetch_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class SmallHub(ThreadingHTTPServer):
    """One repository. `asked`: the files whose bytes it sent."""

    daemon_threads = True

    def __init__(self, name, files):
        super().__init__(("127.0.0.1", 0), Answer)
        self.name, self.files, self.gated, self.asked = name, files, False, []

    def info(self):
        siblings = [
            {"rfilename": path, "size": len(data), "blobId": "x"} for path, data in self.files.items()
        ]
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
        if self.command == "GET":
            self.wfile.write(body)

    def do_GET(self):
        hub, path = self.server, self.path.partition("?")[0]
        if path in (f"/api/models/{hub.name}", f"/api/models/{hub.name}/revision/main"):
            return self.reply(200, json.dumps(hub.info()).encode(), Content_Type="application/json")
        if path == f"/api/models/{hub.name}/auth-check":
            return self.reply(403, X_Error_Code="GatedRepo") if hub.gated else self.reply(200, b"{}")
        if path == f"/api/models/{hub.name}/tree/{COMMIT}":
            tree = [{"type": "file", "path": p, "size": len(d), "oid": "x"} for p, d in hub.files.items()]
            return self.reply(200, json.dumps(tree).encode(), Content_Type="application/json")
        prefix = f"/{hub.name}/resolve/{COMMIT}/"
        if not path.startswith(prefix):
            return self.reply(404, X_Error_Code="RepoNotFound")
        name = path.removeprefix(prefix)
        if self.command == "GET":
            hub.asked.append(name)
        tag = hashlib.sha256(hub.files[name]).hexdigest()
        return self.reply(200, hub.files[name], ETag=f'"{tag}"', X_Repo_Commit=COMMIT)

    do_HEAD = do_GET


@pytest.fixture
def hub(monkeypatch, tmp_path):
    names = ("config.json", "tokenizer.json", "model.safetensors")
    files = {name: (EMBEDDED_MODELS / "tales-draft" / name).read_bytes() for name in names}
    unwanted = dict.fromkeys(("pytorch_model.bin", "original/x.safetensors", "consolidated.safetensors"), b"")
    server = SmallHub("small/model", files | unwanted)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)  # the tests are, the small hub is not
    yield server
    server.shutdown()
    server.server_close()


def test_a_model_is_fetched_and_found(hub, capsys):
    assert fetch_model.main(["small/model"]) == 0
    out = capsys.readouterr().out
    assert "licence apache-2.0: 3 files" in out and "GB to load. This machine: fits." in out
    folder = find_model("small/model")
    wanted = ["config.json", "model.safetensors", "tokenizer.json"]
    assert sorted(p.name for p in folder.iterdir()) == sorted(hub.asked) == wanted
    assert (folder / "model.safetensors").read_bytes() == hub.files["model.safetensors"]
    assert fetch_model.main(["small/model"]) == 0  # nothing is loaded twice
    assert "small/model is in" in capsys.readouterr().out and len(hub.asked) == 3


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


def test_what_the_hub_refuses_is_one_line(hub, capsys, monkeypatch):
    for name in ("nobody/nothing", "a b"):
        with pytest.raises(LabError, match=rf"^unknown model '{name}'.*$"):
            from_hub(name)
    hub.gated = True
    assert fetch_model.main(["small/model"]) == 2
    assert "asks for a licence: accept it on huggingface.co" in capsys.readouterr().err
    hub.gated, hub.files = False, {"config.json": b"{}", "pytorch_model.bin": b""}
    assert fetch_model.main(["small/model"]) == 2
    assert "no config.json with .safetensors" in capsys.readouterr().err
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # where no server listens
    with pytest.raises(LabError, match=r"^.*the hub cannot be reached.*go online.*$"):
        find_model("some-org/some-model")
    assert fetch_model.main(["small/other"]) == 2
    error = capsys.readouterr().err
    assert "the hub cannot be reached" in error and error.count("\n") == 1


def test_what_does_not_fit_is_said_before_anything_is_loaded(hub, monkeypatch, capsys):
    monkeypatch.setattr(open_models, "memory_bytes", lambda: 10**6)
    assert fetch_model.main(["small/model"]) == 2
    assert "too large for the memory, 0.0 GB: choose a smaller one" in capsys.readouterr().err
    assert hub.asked == []


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
    assert message in error and error.endswith("Its weights were not loaded\n")
    assert error.count("\n") == 1
    assert "config.json" in hub.asked and "model.safetensors" not in hub.asked


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
