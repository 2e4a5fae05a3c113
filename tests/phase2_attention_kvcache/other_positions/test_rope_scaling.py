"""Scaled rotations: what cannot be computed. (What can be, against transformers in whole models: model/test_families.py.)"""

import pytest

from phase2_attention_kvcache.model.positions import rotary_frequencies

LLAMA3 = dict(rope_type="llama3", factor=8.0, high_freq_factor=1.0, original_max_position_embeddings=8192)


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        (dict(rope_type="yarn", factor=2.0), "needs original_max_position_embeddings above 0, got None"),
        (dict(rope_type="linear"), "needs factor above 0, got None"),
        (dict(type="linear", factor=0), "needs factor above 0, got 0"),
        (LLAMA3, "needs low_freq_factor above 0"),
        (LLAMA3 | {"low_freq_factor": 1.0}, "low_freq_factor 1.0 must be below"),
    ],
)
def test_mistakes_get_one_clear_line(scaling, message):
    with pytest.raises(ValueError, match=message) as error:
        rotary_frequencies(8, scaling=scaling)
    assert "\n" not in str(error.value)
