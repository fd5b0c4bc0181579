"""Poisoning against hand-worked numbers and bisection, and what it leaves alone."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vergence.core.data import Samples, Splits
from vergence.core.federation import Federation
from vergence.core.masks import Mask
from vergence.core.messages import reply, seal
from vergence.core.params import Layout, Params
from vergence.data.noise import Noise
from vergence.errors import ConfigError, DataError
from vergence.privacy.poisoning.data import GazeOffset, change_clients
from vergence.privacy.poisoning.updates import Poison, alie, alie_z, min_max, min_sum, towards


def params(*values):
    return Params(torch.tensor(values, dtype=torch.float64), Layout(("w",), ((len(values),),)))


def sealed(rows, weight=1.0):
    return {
        f"c{i}": seal(reply(weight, {"loss": 1.0}, model=params(*row)), 0)
        for i, row in enumerate(rows)
    }


def sent(replies):
    return {c: r.trees["model"].total.flat.tolist() for c, r in replies.items()}


def phi(z):
    return 0.5 * (1 + math.erf(z / math.sqrt(2)))


def bisected(holds, high=1e6):
    """The largest number up to which `holds` is true."""
    low = 0.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def test_alie_z_of_the_paper_and_by_bisection():
    """n = 50, m = 24 needs s = 2 supporters: Phi(z) < 24/26, z = 1.43 (Baruch 2019, section 3)."""
    assert alie_z(50, 24) == pytest.approx(1.4261, abs=1e-4)
    for n, m in [(50, 24), (14, 3), (15, 4), (100, 20), (10, 4)]:
        s = n // 2 + 1 - m
        bound = bisected(lambda z, n=n, m=m, s=s: phi(z) < (n - m - s) / (n - m), 10)
        assert alie_z(n, m) == pytest.approx(bound, abs=1e-6)


def test_alie_without_supporters_to_win_stays_at_the_mean():
    """n = 10, m = 1: 5 of 9 honest must be further out than z: Phi(z) < 4/9 has no z > 0."""
    assert alie_z(10, 1) == 0.0


def test_alie_by_hand():
    """Mean (2, 0), standard deviation (1, 2)."""
    rows = np.array([[1.0, -2], [3, 2], [1, -2], [3, 2]])
    np.testing.assert_allclose(alie(rows, 1.5), [0.5, -3])


@pytest.mark.parametrize("direction", ["unit", "sign", "std"])
@given(seed=st.integers(0, 40))
def test_min_max_gamma_by_bisection(direction, seed):
    rows = np.random.default_rng(seed).normal(size=(6, 4)) + 1
    way, mean = towards(rows, direction), rows.mean(axis=0)
    widest = max(np.linalg.norm(a - b) for a in rows for b in rows)

    def inside(gamma):
        return max(np.linalg.norm(mean + gamma * way - u) for u in rows) <= widest

    np.testing.assert_allclose(min_max(rows, way), mean + bisected(inside) * way, rtol=1e-6)


@pytest.mark.parametrize("direction", ["unit", "sign", "std"])
@given(seed=st.integers(0, 40))
def test_min_sum_gamma_by_bisection(direction, seed):
    rows = np.random.default_rng(seed).normal(size=(6, 4)) + 1
    way, mean = towards(rows, direction), rows.mean(axis=0)
    most = max(sum(np.sum((a - b) ** 2) for b in rows) for a in rows)

    def inside(gamma):
        return sum(np.sum((mean + gamma * way - u) ** 2) for u in rows) <= most

    np.testing.assert_allclose(min_sum(rows, way), mean + bisected(inside) * way, rtol=1e-6)


def test_min_max_by_hand():
    """Updates 0 and 2: mean 1, way -1, widest 2. 2 is further: gamma + 1 <= 2, so 1 - 1 = 0.
    Min-sum: 2 + 2 gamma^2 <= 4: 1 - 1 = 0 too."""
    rows = np.array([[0.0], [2.0]])
    assert min_max(rows, np.array([-1.0])) == pytest.approx(0)
    assert min_sum(rows, np.array([-1.0])) == pytest.approx(0)


def test_where_all_agree_nothing_can_be_hidden():
    rows = np.ones((3, 2))
    for find in (min_max, min_sum):
        np.testing.assert_array_equal(find(rows, towards(rows, "unit")), [1, 1])
        np.testing.assert_array_equal(find(rows, towards(rows, "std")), [1, 1])


def test_sign_flip_and_scaling_change_the_liars_alone_and_their_values_alone():
    replies = sealed([(1, -2), (3, 4)], weight=5.0)
    flipped = Poison("sign_flip", factor=2.0).apply(replies, ["c1", "gone"])
    assert sent(flipped) == {"c0": [5, -10], "c1": [-30, -40]}
    assert flipped["c1"].trees["model"].weight == 5.0
    assert flipped["c1"].metrics == {"loss": 1.0}
    assert sent(Poison("scaling", factor=10.0).apply(replies, ["c0"]))["c0"] == [50, -100]
    assert sent(replies)["c1"] == [15, 20]


def test_made_from_many_is_one_update_of_all_liars():
    """Of five, two lie and know the others: mean 2, std sqrt(2/3); z = Phi^-1((3 - 1) / 3)."""
    rows = [(1,), (2,), (3,), (50,), (60,)]
    found = sent(Poison("alie").apply(sealed(rows), ["c3", "c4"]))
    assert found["c3"] == found["c4"] == pytest.approx([2 - 0.430727 * math.sqrt(2 / 3)], rel=1e-5)
    own = sent(Poison("alie", knows="liars").apply(sealed(rows), ["c3", "c4"]))
    assert own["c3"] == pytest.approx([55 - 0.430727 * 5], rel=1e-5)
    for attack in ("min_max", "min_sum"):
        crafted = sent(Poison(attack).apply(sealed(rows), ["c3", "c4"]))["c3"]
        assert crafted[0] < 2


def test_masks_stay_and_what_a_client_keeps_stays_erased():
    layout = params(0, 0).layout
    bits = [[True, True], [True, False], [False, True]]
    replies = {
        f"c{i}": seal(reply(Mask(torch.tensor(b), layout), model=params(1.0 + i, 5.0)), 0)
        for i, b in enumerate(bits)
    }
    for attack in ("sign_flip", "alie", "min_max", "min_sum"):
        found = Poison(attack).apply(replies, ["c2"])["c2"].trees["model"]
        assert isinstance(found.weight, Mask)
        assert found.weight.bits.tolist() == [False, True]
        assert found.total.flat[0] == 0
        assert found.total.flat[1] != 0


def test_who_lies_depends_on_the_seed_alone_and_more_liars_hold_the_fewer():
    clients = [f"p{i:02d}" for i in range(14)]
    few, many = (Poison(share=s).malicious_clients(clients) for s in (0.1, 0.3))
    assert (len(few), len(many)) == (2, 5)
    assert set(few) < set(many)
    assert set(few) == set(Poison(share=0.1).malicious_clients(clients[::-1]))
    assert many != Poison(share=0.3, seed=1).malicious_clients(clients)
    assert Poison().malicious_clients(clients) == ()
    with pytest.raises(ConfigError, match=r"share must be >= 0 and < 0\.5"):
        Poison(share=0.5)


def federation():
    def person(i):
        image = torch.full((4, 1, 2, 3), 100 + i, dtype=torch.uint8)
        gaze = torch.tensor([[0.1, 0.2], [-0.3, 0.0], [0.0, 3.1], [0.4, -0.2]])
        split = Samples({"image": image, "gaze": gaze})
        return Splits(split, split, split)

    return Federation("toy", {f"p{i}": person(i) for i in range(3)})


def direction(gaze):
    pitch, yaw = gaze.double().T
    return torch.stack([-pitch.cos() * yaw.sin(), -pitch.sin(), -pitch.cos() * yaw.cos()], dim=1)


def test_a_pitch_offset_is_that_angle_for_every_sample():
    before = federation()
    after = change_clients(before, ["p1"], GazeOffset(pitch=10.0).apply)
    was, now = (f.people["p1"].train.columns["gaze"] for f in (before, after))
    angle = torch.rad2deg((direction(was) * direction(now)).sum(dim=1).acos())
    assert angle.tolist() == pytest.approx([10] * 4, abs=1e-4)
    assert list(after.people) == ["p0", "p1", "p2"]
    assert after.people["p0"] is before.people["p0"]
    assert after.people["p1"].test is before.people["p1"].test
    assert "p1" in after.about["gaze_offset"]


def test_a_yaw_offset_stays_a_direction_and_two_halves_make_the_whole():
    once = GazeOffset(pitch=0.0, yaw=20.0).apply(federation())
    half = GazeOffset(pitch=0.0, yaw=10.0)
    twice = half.apply(half.apply(federation()))
    one, two = (f.people["p0"].train.columns["gaze"] for f in (once, twice))
    assert one[:, 1].abs().max() <= math.pi
    torch.testing.assert_close(one, two)
    flat = direction(federation().people["p0"].train.columns["gaze"][1:3] * torch.tensor([0, 1]))
    turned = direction(one[1:3] * torch.tensor([0, 1]))
    assert torch.rad2deg((flat * turned).sum(1).acos()).tolist() == pytest.approx(
        [20, 20], abs=1e-4
    )


def test_spoiled_pictures_are_the_noise_on_the_liars_alone():
    after = change_clients(federation(), ["p2"], Noise(share=1.0, std=0.5).apply)
    spoiled, clean = (after.people[p].train.columns["image"] for p in ("p2", "p0"))
    assert spoiled.float().std() > 30
    assert clean.unique().tolist() == [100]
    assert after.people["p2"].val.columns["image"].unique().tolist() == [102]
    same = federation()
    assert change_clients(same, [], Noise(share=1.0).apply) is same


def test_gaze_is_needed_to_turn_it():
    other = Samples({"x": torch.zeros(2, 3), "y": torch.zeros(2)})
    bare = Federation("bare", {"p": Splits(other, other, other)})
    with pytest.raises(DataError, match="'p' has x, y: choose another attack"):
        GazeOffset().apply(bare)
