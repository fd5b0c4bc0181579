"""Generated features: the known best answer, who saw what, and that meaning is what tells."""

import pytest
import torch

from benchmarks.zero_shot import likelihood
from tests.conftest import research_data
from vergence.data.owner import OWNER
from vergence.data.synthetic.zsl_synthetic import NAMES, UNSEEN, ZslSynthetic, check
from vergence.data.zero_shot.semantics import meanings
from vergence.errors import ConfigError, DataError
from vergence.metrics.zero_shot import eszsl, zero_shot_scores

HIDDEN = [NAMES.index(name) for name in UNSEEN]


def parts(federation):
    splits = federation.people[OWNER]
    return [(s.columns["x"], s.columns["y"]) for s in (splits.train, splits.val, splits.test)]


def test_names_are_an_orthogonal_array_and_seen_ones_tell_all_words():
    words = [set(name.split()) for name in NAMES]
    assert {len(a & b) for i, a in enumerate(words) for b in words[:i]} <= {0, 1}
    vectors = meanings(NAMES, "words").vectors
    seen = vectors[[i for i in range(16) if i not in HIDDEN]]
    assert torch.linalg.matrix_rank(seen) == torch.linalg.matrix_rank(vectors) == 10
    assert vectors.shape == (16, 12)


def test_means_and_noise_are_those_told():
    """5,000 samples a class: means within five standard errors, deviation `noise` of the mean."""
    federation, means = ZslSynthetic(features=4, images=5000, noise=0.5).made()
    x, y = parts(federation)[0]
    for kind in (0, HIDDEN[0]):
        own = x[y == kind]
        error = 5 * 0.5 * means[kind] / len(own) ** 0.5
        assert ((own.mean(0) - means[kind]).abs() < error).all()
        assert torch.allclose(own.std(0) / own.mean(0), torch.tensor(0.5), atol=0.03)


def test_likelihood_by_hand():
    """Shape 4, mean 2 at x = 3: -4 (ln 2 + 3 / 2)."""
    found = likelihood(torch.tensor([[3.0]]), torch.tensor([[2.0], [1.0]]), noise=0.5)
    assert found.tolist() == [pytest.approx([-4 * (0.6931472 + 1.5), -12.0])]


def test_nobody_beats_the_likeliest_class_and_words_tell_unseen_classes():
    """Learned from seen classes alone; chance is 1/4 for T1. Seeds and bounds fixed in advance."""
    data = ZslSynthetic(teacher="quasi")
    federation, means = data.made()
    (x, y), _, (test, label) = parts(federation)
    best = zero_shot_scores(likelihood(test, means, data.noise), label, HIDDEN)
    assert best["H"] > 0.98
    found = {}
    for source in ("words", "random"):
        meaning = meanings(NAMES, source).vectors
        scores = test @ eszsl(x, y, meaning, lamda=0.1) @ meaning.T
        found[source] = zero_shot_scores(scores, label, HIDDEN)
    assert 0.9 < found["words"]["T1"] <= best["T1"]
    assert found["words"]["H"] < best["H"]
    assert found["random"]["T1"] < 0.4


def test_who_saw_what():
    quasi, whole = (ZslSynthetic(teacher=t).load() for t in ("quasi", "omniscient"))
    for federation, counts in ((quasi, (0, 0, 60)), (whole, (43, 5, 12))):
        for (_, y), count in zip(parts(federation), counts, strict=True):
            assert y.bincount(minlength=16)[HIDDEN].tolist() == [count] * 4
    assert quasi.about["unseen"] == whole.about["unseen"] == ", ".join(UNSEEN)
    assert quasi.about["teacher"].startswith("quasi, saw 12 of 16 classes: tiny green square,")
    assert UNSEEN[0] not in quasi.about["teacher"]
    assert "saw 16 of 16" in whole.about["teacher"]


def test_what_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="share must be > 0 and <= 1"):
        ZslSynthetic(share=2.0)
    with pytest.raises(ConfigError, match="'tiny pink round', which is no class"):
        ZslSynthetic(unseen=("tiny pink round",)).load()
    with pytest.raises(DataError, match=r"missing file .*att_splits.mat.*xlsa17"):
        ZslSynthetic().load(str(tmp_path))
    assert [line.actual for line in check()] == ["960"]


@pytest.mark.data
@pytest.mark.parametrize("teacher", ["quasi", "omniscient"])
def test_on_real_lists_a_share_keeps_their_proportions(teacher):
    root = research_data("zsl_splits") / "APY"
    federation, means = ZslSynthetic(teacher=teacher, features=8, share=0.1).made(str(root))
    (_, y), (_, val), (x, test) = parts(federation)
    unseen = 792 if teacher == "quasi" else 159
    assert len(y) + len(val) == 593 + (633 if teacher == "omniscient" else 0)
    assert len(test) == 148 + unseen
    assert means.shape == (32, 8)
    assert x.min() >= 0
    names = federation.about["classes"].split(", ")
    hidden = [names.index(name) for name in federation.about["unseen"].split(", ")]
    assert int(torch.isin(test, torch.tensor(hidden)).sum()) == unseen
    found = meanings(tuple(names), federation.about["semantics"])
    assert found.vectors.shape == (32, 64)
