"""`lab serve` with a model that lies in several processes."""

import json
import re
import urllib.error
import urllib.request

import psutil
import pytest

from labkit.errors import LabError
from phase2_attention_kvcache.model import SamplingParams
from phase4_scheduler.engine import LLMEngine
from phase4_scheduler.serve import build_parser, serve
from phase4_scheduler.server.client import running_server


def ask(address: str) -> str:
    body = {"prompt": "Once upon a time", "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    asked = urllib.request.Request(
        f"{address}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    return json.load(urllib.request.urlopen(asked, timeout=60))["choices"][0]["text"]


@pytest.mark.proof
def test_a_shared_model_is_served(capfd):
    """The same text; and if a rank dies, one line, and nobody is left."""
    engine = LLMEngine.from_pretrained("tales", "float32", "cpu")
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    expected = engine.generate(["Once upon a time"], params)[0].outputs[0].text
    with running_server("tales", "-tp", "2", "--dtype", "float32") as server:
        assert ask(server.address) == expected
        processes = psutil.Process(server.process.pid).children(recursive=True)
        assert len(processes) >= 4  # the engine, what starts its ranks, the ranks
        max(processes, key=psutil.Process.create_time).kill()
        with pytest.raises(urllib.error.HTTPError):
            ask(server.address)
    _, alive = psutil.wait_procs(processes, timeout=10)
    assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]
    err = capfd.readouterr().err
    assert len(re.findall(r"rank . ended \(exit code -9\), so no rank can go on", err)) == 1
    assert "Traceback" not in err


def test_what_one_device_does_is_not_estimated_for_several():
    asked = build_parser().parse_args(["nowhere", "--enable-mfu-metrics", "-pp", "2"])
    with pytest.raises(LabError, match="leave it out, or the parallel sizes"):
        serve(asked)
