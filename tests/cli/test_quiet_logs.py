"""Progress is for whoever watches a terminal: nothing of it lands in a log."""

import pytest
import torch

from vergence.data.gaze_video import clip_cache
from vergence.data.io import checks
from vergence.experiment.run import progress_bar
from vergence.models import pretrained


def decoding():
    with clip_cache._progress(3) as bar:
        bar.advance(3)


def rounds():
    with progress_bar() as bar:
        bar.advance(bar.add_task("fedavg", total=2, score=""))


@pytest.mark.parametrize(
    "work",
    [
        decoding,
        rounds,
        lambda: list(pretrained._shown(torch.zeros(40, 1))),
        lambda: list(checks.with_progress(["a", "b"], "pictures")),
    ],
    ids=["decoding", "rounds", "features", "reading"],
)
@pytest.mark.parametrize("forced", ["", "1"])
def test_no_bar_is_drawn_into_a_file(work, forced, monkeypatch, capfd):
    """Also where a build machine asks for colours, and however long it takes."""
    monkeypatch.setenv("FORCE_COLOR", forced)
    for module, name in ((clip_cache, "PATIENCE_S"), (checks, "PATIENCE_S")):
        monkeypatch.setattr(module, name, -1.0)
    work()
    assert capfd.readouterr() == ("", "")
