"""Files are written whole or not at all, and where the outputs go."""

import os
import threading

import pytest

from labkit.errors import LabError
from labkit.paths import check_writable, write_whole


def test_a_full_disk_harms_no_file(tmp_path, full_disk):
    file = tmp_path / "report.json"
    file.write_text("old")
    with pytest.raises(OSError, match=r"report\.json"):
        write_whole(file, "x" * 1000)
    assert file.read_text() == "old" and os.listdir(tmp_path) == ["report.json"]


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "deep" / "file")
    write_whole(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "deep" / "file").read_text() == "text"


def test_what_is_no_file_is_written_to_and_not_replaced(tmp_path):
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    check_writable(pipe)
    write_whole(pipe, "text")
    reader.join()
    assert read == ["text"] and pipe.is_fifo() and os.listdir(tmp_path) == ["pipe"]


@pytest.mark.parametrize("path", [".", "file/x", "x" * 300])
def test_what_cannot_be_written_is_known_before(tmp_path, path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LabError, match="cannot write"):
        check_writable(tmp_path / path)
    assert os.listdir(tmp_path) == ["file"]
