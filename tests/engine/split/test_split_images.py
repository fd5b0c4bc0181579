"""Split learning of an image classifier by people with other classes: the same bits as FedAvg."""

import pytest
import torch

from tests.engine.split.test_split import LOCAL, run, whole
from vergence.core.data import Samples, Splits
from vergence.core.federation import Federation
from vergence.core.stages import stages_of
from vergence.methods.centralised import Centralised
from vergence.methods.fedavg import FedAvg
from vergence.methods.split.splitfed import SplitFed
from vergence.models.small_cnn import SmallCnn
from vergence.tasks.images import Images

MODELS = {
    "grey": SmallCnn((1, 8, 8), 4, (3, 4), 6),
    "colour": SmallCnn((3, 9, 8), 4, (3, 4), 6),
}


def people_of(image):
    """Two people with two classes each."""
    draw = torch.Generator().manual_seed(0)

    def samples(count, low):
        pixels = torch.randint(256, (count, *image), dtype=torch.uint8, generator=draw)
        return Samples({"image": pixels, "label": low + torch.arange(count) % 2})

    people = {f"p{i}": Splits(*(samples(n, 2 * i) for n in (40, 8, 8))) for i in range(2)}
    return Federation("blocks", people)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_v1_is_fedavg_with_every_cut(name, tmp_path):
    model = MODELS[name]
    task, people = Images(model), people_of(model.image)
    expected = run(tmp_path / "whole", FedAvg(local=LOCAL, weights="equal"), people, task)
    assert not torch.equal(whole(expected.server), task.init().flat)
    for cut in stages_of(model):
        found = run(tmp_path / cut, SplitFed(local=LOCAL, cut=cut), people, task)
        assert torch.equal(whole(found.server), whole(expected.server)), cut


def test_one_client_is_the_data_centre(tmp_path):
    task, alone = Images(MODELS["grey"]), people_of((1, 8, 8)).pooled()
    expected = run(tmp_path / "centre", Centralised(local=LOCAL), alone, task, rounds=1)
    found = run(tmp_path / "split", SplitFed(local=LOCAL), alone, task, rounds=1)
    assert torch.equal(whole(found.server), whole(expected.server))
