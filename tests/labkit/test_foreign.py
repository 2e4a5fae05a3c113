"""What comes from other people's files: how it is shown, and how JSON is read."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.errors import LabError
from labkit.foreign import harmless, quoted, read_json, read_texts, visible
from labkit.lab import run_lab

HOSTILE = "a\x1b[2J\x1b[31merror: all is lost\r\n\x07\u202e\x9b31m"
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(value=json_values)
def test_a_value_in_a_message_is_one_short_line(value):
    for shown in (quoted(value), visible(value, 90)):
        assert shown.isprintable() and len(shown) <= 90
    assert not set(harmless(str(value))) & set("\x1b\x9b\r\x07")


def test_control_codes_are_spelt_out_and_words_stay():
    assert visible("a\x1b[31mb\n\u202e") == r"a\x1b[31mb\n\u202e"
    assert visible("é 漢字 👍 क्षि") == harmless("é 漢字 👍 क्षि") == "é 漢字 👍 क्षि"
    assert harmless("two\n\tlines\x1b[2J\x9b\u2066") == "two\n\tlines\\x1b[2J\\x9b\\u2066"
    assert quoted("it's") == '"it\'s"' and quoted("\ud800") == r"'\ud800'"
    assert visible("x" * 100_000) == "x" * 57 + "..." and len(quoted("x" * 100_000)) == 60
    path = Path("/models") / ("m" * 200) / "\x1b[2J"
    assert visible(path) == f"/models/{'m' * 200}/\\x1b[2J"  # whole, so that it can be found


def test_nothing_that_a_story_shows_commands_the_terminal(capsys):
    def story(lab):
        lab.title(HOSTILE)
        lab.say(HOSTILE)
        lab.show(HOSTILE)
        lab.table(HOSTILE, ["a", HOSTILE], [[HOSTILE, 1]], note=HOSTILE)
        lab.predict("x", HOSTILE, predicted=HOSTILE, measured=HOSTILE, note=HOSTILE)
        raise ValueError(HOSTILE * 1000)

    assert run_lab(story, __doc__, argv=[]) == 2
    out, err = capsys.readouterr()
    assert not set(out + err) & set("\x1b\r\x07\u202e\x9b")
    assert err.count("\n") == 1 and len(err) < 2100


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON: .* at character 1; fetch or write it again"),
        (b"\xff", r"not UTF-8 text \(byte 0\)"),
        (b"[" * 100_000, "nested too deeply"),
        (b"NaN", "NaN is not a JSON number"),
        (b"-Infinity", "-Infinity is not"),
        (b"9" * 5000, "4300 digits"),
        (b" " * 1_001, "larger than 1,000 bytes"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_is_no_json_is_refused(tmp_path, raw, message):
    (tmp_path / "x.json").write_bytes(raw)
    with pytest.raises(ValueError, match=message):
        read_json(tmp_path / "x.json", at_most=1_000 if len(raw) < 5000 else 10**6)


def test_a_folder_names_its_file_that_is_no_text(tmp_path):
    (tmp_path / "folder.md").mkdir()
    (tmp_path / "a.txt").write_text("a")
    assert read_texts(tmp_path) == ["a"]
    (tmp_path / "folder.md" / "b.txt").write_bytes(b"caf\xe9")
    with pytest.raises(LabError, match=r"b\.txt cannot be read .*position 3"):
        read_texts(tmp_path)
