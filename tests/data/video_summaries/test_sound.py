"""Stretches of sound: every sample of a WAV where it should be, silence where there is none."""

import numpy as np
import pytest
from scipy.io import wavfile

from tests.data.footage import write_video
from vergence.data.video_summaries.sound import RATE, sound_blocks
from vergence.errors import DataError


@pytest.fixture
def tone(tmp_path):
    """Half a second of noise, 16 bits in stereo."""
    samples = np.random.default_rng(0).integers(-9000, 9000, (RATE // 2, 2)).astype(np.int16)
    wavfile.write(tmp_path / "noise.wav", RATE, samples)
    return tmp_path / "noise.wav", samples.T / 2**15


def test_spans_are_cut_to_the_sample(tone):
    """Apart, within one block, side by side, and over the end: silence there."""
    path, samples = tone
    spans = [(0.0, 0.1), (0.1, 0.001), (0.102, 0.001), (0.3, 0.3), (0.8, 0.1)]
    found = np.concatenate(list(sound_blocks(path, spans)), axis=1)
    padded = np.concatenate([samples, np.zeros((2, RATE))], axis=1)
    pieces = [padded[:, round(s * RATE) : round((s + n) * RATE)] for s, n in spans]
    np.testing.assert_allclose(found, np.concatenate(pieces, axis=1), atol=1e-7)


def test_lengths_add_up_without_drift(tone):
    """A thousand spans of a third of a sample more than ten: 10 333, not 10 000."""
    spans = [(i * 30 / RATE, (10 + 1 / 3) / RATE) for i in range(1000)]
    assert sum(block.shape[1] for block in sound_blocks(tone[0], spans)) == 10_333


def test_a_video_without_sound_has_none(tmp_path):
    assert sound_blocks(write_video(tmp_path / "a.mp4", np.arange(3) / 10), [(0, 0.1)]) is None


def test_what_cannot_be_read_is_refused(tmp_path):
    (tmp_path / "a.mp4").write_bytes(b"no")
    with pytest.raises(DataError, match="sound of"):
        sound_blocks(tmp_path / "a.mp4", [(0, 1)])
