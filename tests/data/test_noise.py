"""Noisy clients: who, where the noise goes, and what stays clean."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from vergence.core.data import Samples, SharedRows, Splits
from vergence.core.federation import Federation
from vergence.data.noise import Noise
from vergence.data.synthetic.crowd import Crowd
from vergence.data.synthetic.eyes.eye_synthetic import EyeSynthetic
from vergence.data.synthetic.toy import Toy
from vergence.errors import ConfigError, DataError

EYES = EyeSynthetic(people=4, samples=60)


def shared_bank():
    """Two viewers of the same four grey frames; viewer a trains on frames 1 and 3."""
    bank = SharedRows(torch.full((4, 16, 16, 3), 128, dtype=torch.uint8), "frame_ids")

    def part(rows):
        ids = torch.tensor(rows)[:, None]
        return Samples({"frame_ids": ids, "points": torch.rand(len(rows), 1, 2)}, {"frames": bank})

    splits = Splits(part([3, 1, 3]), part([0]), part([2]))
    return Federation("shown", {"a": splits, "b": splits})


def test_a_larger_share_holds_the_smaller_one():
    clients = [f"p{i:02d}" for i in range(20)]
    chosen = [Noise(share=share).noisy_clients(clients) for share in (0, 0.3, 0.5, 0.7, 1)]
    assert [len(c) for c in chosen] == [0, 6, 10, 14, 20]
    for small, large in pairwise(chosen):
        assert set(small) <= set(large)
        assert list(large) == sorted(large)
    assert Noise(share=0.3, seed=1).noisy_clients(clients) != chosen[1]
    assert set(Noise(share=0.3).noisy_clients(clients[::-1])) == set(chosen[1])


def test_nobody_noisy_is_the_same_federation():
    federation = EYES.load()
    assert Noise().apply(federation) is federation
    assert Noise(share=1.0, std=0.0).apply(federation) is federation


def test_only_training_pictures_of_the_chosen_change():
    federation = EYES.load()
    noise = Noise(share=0.5, seed=3)
    noisy = noise.apply(federation)
    chosen = noise.noisy_clients(federation.clients)
    assert len(chosen) == 2
    for client, clean in federation.people.items():
        made = noisy.people[client]
        assert made.val is clean.val
        assert made.test is clean.test
        image = made.train.columns["image"]
        assert image.dtype == torch.uint8
        assert torch.equal(image, clean.train.columns["image"]) == (client not in chosen)
        for name in ("gaze", "pose"):
            assert torch.equal(made.train.columns[name], clean.train.columns[name])
    assert all(client in noisy.about["noise"] for client in chosen)
    assert "2 of 4 people" in noisy.about["noise"]
    again = noise.apply(EYES.load()).people[chosen[0]].train
    assert torch.equal(again.columns["image"], noisy.people[chosen[0]].train.columns["image"])


def test_the_deviation_is_that_of_values_between_0_and_1():
    """Grey 128 with sd 0.1: 25.5 levels; with 0.5, 31.7 % beyond one sd: clipped at both ends."""
    federation = shared_bank()
    bank = Noise(share=1.0, std=0.1).apply(federation).people["a"].train.banks["frames"].rows
    assert bank.double().std() == pytest.approx(25.5, rel=0.05)
    strong = Noise(share=1.0, std=0.5).apply(federation).people["a"].train.banks["frames"].rows
    ends = ((strong == 0) | (strong == 255)).double().mean()
    assert float(ends) == pytest.approx(0.317, abs=0.03)


def test_shared_rows_stay_clean_for_everybody_else():
    federation = shared_bank()
    noise = Noise(share=0.5)
    (client,) = noise.noisy_clients(federation.clients)
    made = noise.apply(federation).people
    other = "b" if client == "a" else "a"
    assert made[other] is federation.people[other]
    assert (federation.people["a"].train.banks["frames"].rows == 128).all()
    train = made[client].train
    assert train.banks["frames"].rows.shape[0] == 2  # the frames 1 and 3
    assert train.columns["frame_ids"].flatten().tolist() == [1, 0, 1]
    batch = train.take(slice(0, 3))["frames"]
    assert torch.equal(batch[0], batch[2])
    assert (batch != 128).any()
    assert (made[client].val.take(slice(0, 1))["frames"] == 128).all()


def test_plain_inputs_get_noise_and_targets_none():
    toy = Toy(people=2, samples=200).load()
    made = Noise(share=1.0).apply(toy).people["p00"].train.columns
    change = made["x"] - toy.people["p00"].train.columns["x"]
    assert float(change.std()) == pytest.approx(0.5, rel=0.1)
    assert torch.equal(made["y"], toy.people["p00"].train.columns["y"])


def test_people_made_on_demand_stay_so():
    crowd = replace(Crowd(), people=50).load()
    noise = Noise(share=0.4)
    made = noise.apply(crowd)
    assert list(made.clients) == list(crowd.clients)
    assert made.recipe != crowd.recipe
    for client in crowd.clients:
        same = torch.equal(
            made.people[client].train.columns["x"], crowd.people[client].train.columns["x"]
        )
        assert same == (client not in noise.noisy_clients(crowd.clients))
    with pytest.raises(ConfigError, match="people"):
        noise.apply(Crowd().load())


@pytest.mark.parametrize(
    ("options", "parts"),
    [({"share": 1.2}, ("noise", "share", "<= 1")), ({"std": -0.1}, ("std", ">= 0", "-0.1"))],
)
def test_bad_options_say_what_is_allowed(options, parts):
    with pytest.raises(ConfigError) as caught:
        Noise(**options)
    for part in parts:
        assert part in str(caught.value)


def test_data_without_inputs_are_refused():
    part = Samples({"label": torch.arange(3)})
    with pytest.raises(DataError, match="'a' has label"):
        Noise(share=1.0).apply(Federation("none", {"a": Splits(part, part, part)}))


def test_a_share_is_rounded_up():
    """0.1 of 5 people is one, 0.5 three; 0.7 of 15 is 10.5, so eleven are over 70 %."""
    names = [f"p{i:02d}" for i in range(15)]
    counts = [len(Noise(share=s).noisy_clients(names[:5])) for s in (0.1, 0.3, 0.5, 0.7, 0.9)]
    assert counts == [1, 2, 3, 4, 5]
    assert len(Noise(share=0.7).noisy_clients(names)) == 11
