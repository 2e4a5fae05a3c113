"""`lab convert`: a folder in, one file out, and whatever runs the folder runs the file."""

import json
import shutil

import pytest

from labkit.models import find_model
from phase1_tokens_embeddings.weights import read_gguf_header
from phase2_attention_kvcache import convert_model, tell_story


def test_tales_becomes_a_file_that_tells_a_story(tmp_path, capsys):
    out = tmp_path / "tales.gguf"
    assert convert_model.main(["tales", str(out), "--type", "Q8_0"]) == 0
    types = {t.type for t in read_gguf_header(out).tensors.values()}
    assert (
        types == {"F32", "Q8_0"}
        and out.stat().st_size < 0.65 * (find_model("tales") / "model.safetensors").stat().st_size
    )
    argv = ["--tokens", "8", "--temperature", "0", "--json", str(tmp_path / "r.json")]
    assert tell_story.main(["--model", str(out), *argv]) == 0
    told = json.loads((tmp_path / "r.json").read_text())["results"]["token_ids"]
    assert tell_story.main(["--model", "tales", *argv]) == 0
    assert told == json.loads((tmp_path / "r.json").read_text())["results"]["token_ids"]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["tales", "x.bin"], "x.bin does not end in .gguf"),
        (["nosuch/model/here", "x.gguf"], "no model folder at 'nosuch/model/here'"),
        (["nothing.gguf", "x.gguf"], "no file at nothing.gguf"),
        (["{folder}", "{folder}/x.gguf", "--type", "Q4_0"], "holds no config.json"),
    ],
)
def test_what_cannot_be_converted_is_one_line(argv, said, tmp_path, capsys):
    shutil.copy(find_model("tales") / "model.safetensors", tmp_path)
    assert convert_model.main([word.format(folder=tmp_path) for word in argv]) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1


def test_a_full_disk_leaves_the_old_file(tmp_path, capsys, full_disk):
    out = tmp_path / "tales.gguf"
    out.write_bytes(b"old")
    assert convert_model.main(["tales", str(out)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: cannot write {out}") and said.count("\n") == 1
    assert out.read_bytes() == b"old" and list(tmp_path.iterdir()) == [out]
