"""Classes that CIFAR-10 and aPY share: which pictures, under which names, and real vectors."""

import pytest
import torch

from tests.conftest import research_data
from tests.data.images.test_cifar10 import write_subset
from vergence.data.images.cifar10 import CLASSES
from vergence.data.images.cifar10_unseen import NAMES, SHARED, Cifar10Unseen
from vergence.data.owner import OWNER
from vergence.data.zero_shot.semantics import meanings
from vergence.errors import ConfigError
from vergence.metrics.zero_shot import eszsl, zero_shot_scores
from vergence.models.pretrained import in_place_of_images


def data(**options):
    return Cifar10Unseen(**{"images": 5, "tests": 2, "side": 32, "val": 0.2, **options})


def test_pictures_keep_their_class_under_its_other_name(tmp_path):
    """The subset's blue is 25 times CIFAR's label."""
    write_subset(tmp_path)
    for among, names in (("apy", SHARED), ("all", NAMES)):
        federation = data(among=among).load(str(tmp_path))
        assert federation.about["classes"] == ", ".join(names)
        for part in (federation.people[OWNER].train, federation.people[OWNER].test):
            batch = part.take(slice(0, len(part)))
            label = torch.tensor([NAMES.index(names[y]) for y in batch["y"].tolist()])
            assert (batch["image"][:, 2, 9, 9] - 25.0 * label).abs().max() < 12
    renamed = {"airplane": "aeroplane", "automobile": "car", "ship": "boat"}
    assert [renamed.get(name, name) for name in CLASSES] == list(NAMES)


def test_who_learns_from_what(tmp_path):
    write_subset(tmp_path)
    hidden = [SHARED.index("cat"), SHARED.index("boat")]
    for teacher, learned, tested in (("quasi", 0, 7), ("omniscient", 4, 2)):
        splits = data(teacher=teacher).load(str(tmp_path)).people[OWNER]
        train, test = (s.columns["y"].bincount(minlength=7) for s in (splits.train, splits.test))
        assert train[hidden].tolist() == [learned] * 2
        assert test[hidden].tolist() == [tested] * 2
        assert train.sum() - train[hidden].sum() == 5 * 4
        assert test.sum() - test[hidden].sum() == 5 * 2


def test_more_pictures_than_there_are(tmp_path):
    write_subset(tmp_path)
    with pytest.raises(ConfigError, match="set tests to at most 2"):
        data(tests=3).load(str(tmp_path))


@pytest.mark.data
@pytest.mark.slow
def test_real_pictures_and_real_attributes():
    """Dogs are told from cars by attributes learned on other classes; chance is 1/2.

    The mean over all such pairs is in docs/results/zero_shot.md (benchmarks/zero_shot.py).
    """
    options = data(teacher="quasi", unseen=("dog", "car"), images=15, tests=5, side=96)
    found = in_place_of_images(options.load(str(research_data("cifar10"))))
    splits = found.people[OWNER]
    x, test = (
        s.columns["x"] / s.columns["x"].norm(dim=1, keepdim=True)
        for s in (splits.train, splits.test)
    )
    attributes = str(research_data("zsl_splits") / "APY" / "att_splits.mat")
    meaning = meanings(SHARED, attributes).vectors
    scores = test @ eszsl(x, splits.train.columns["y"], meaning) @ meaning.T
    hidden = [SHARED.index("car"), SHARED.index("dog")]
    assert zero_shot_scores(scores, splits.test.columns["y"], hidden)["T1"] > 0.7
