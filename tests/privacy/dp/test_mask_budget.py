"""Groups of entries chosen under a budget: their sizes, chances and epsilons by hand."""

import math

import pytest
import torch
from scipy.stats import chisquare

from tests.scripts import mask, params
from vergence.core.client import ClientContext
from vergence.core.masks import Mask
from vergence.core.params import Layout, Params
from vergence.core.randomness import RandomStream
from vergence.core.serialization import unpack_file
from vergence.errors import ConfigError, StateError
from vergence.privacy.dp.mask_budget import Groups, MaskBudget, groups
from vergence.privacy.dp.private_selection import PrivateMaskSelector, spent
from vergence.privacy.keyed_noise import NoiseKey
from vergence.privacy.release_log import ReleaseLog

NETWORK = Layout(
    ("conv.weight", "conv.bias", "fc.weight", "fc.bias", "scale"),
    ((2, 1, 3), (2,), (1, 4), (1,), ()),
)


def test_what_feeds_a_channel_or_a_neuron_is_one_group():
    """Two filters of 3 weights and a bias, one neuron of 4 and a bias, a number by itself."""
    by = groups(NETWORK, "filter")
    assert by.of.tolist() == [0, 0, 0, 1, 1, 1, 0, 1, 2, 2, 2, 2, 2, 3]
    assert by.sizes.tolist() == [4, 4, 5, 1]
    assert groups(NETWORK, "tensor").sizes.tolist() == [6, 2, 4, 1, 1]
    assert groups(NETWORK, "entry").sizes.tolist() == [1] * 14


def test_groups_are_open_that_fit_and_of_which_nothing_is_taken():
    """With entry 3 personal, filter 1 is closed; the neuron has 5 entries and does not fit in 4.

    Open are 4 + 1 entries in 2 groups; of them 4 are to be chosen: 4 / 5 of 2 groups, 2 of them.
    """
    by, taken = groups(NETWORK, "filter"), Mask.none(NETWORK)
    taken.bits[3] = True
    open = by.candidates(4, ~taken)
    assert open.bits.tolist() == [True, False, False, True]
    assert by.share(4, open) == 2
    assert by.share(1, by.candidates(1, ~taken)) == 1
    assert by.share(0, by.candidates(0, ~taken)) == 0
    bits = by.draw_entries(open, 4, open, 1.0, NoiseKey(bytes(32)).draws())
    assert sum(bits.tolist()) in (4, 1)  # together they are 5, and one is left out


def test_groups_are_ranked_by_their_mean_and_nan_is_nothing():
    by, free = groups(NETWORK, "filter"), Mask.full(NETWORK)
    score = Params(torch.zeros(14), NETWORK)
    score.flat[8:13] = 1.0  # the neuron: 5 of 5
    score.flat[3] = 4.1  # filter 1: 4.1 of 4
    score.flat[0] = math.nan
    assert by.best(score, 1, by.candidates(14, free)).bits.tolist() == [False, True, False, False]
    assert by.best(score, 2, by.candidates(14, free)).bits.tolist() == [False, True, True, False]


def test_epsilon_of_draws_is_what_they_were_spread_over():
    for epsilon in (0.5, 8.0, 100.0):
        policy = MaskBudget(epsilon)
        for draws in (1, 30, 5000):
            assert policy.epsilon_of([(policy.epsilon_per_draw(draws), draws)]) == pytest.approx(
                epsilon
            )
    rho = (2 * 0.1**2 + 3 * 0.2**2) / 8
    both = MaskBudget(8.0).epsilon_of([(0.1, 2), (0.2, 3)])
    assert both == pytest.approx(min(0.8, rho + 2 * math.sqrt(rho * math.log(1e5))))
    assert MaskBudget(8.0).epsilon_of([]) == 0


def test_what_belongs_in_the_mask_is_likelier_by_half_a_draws_epsilon():
    """Of 4 groups one is best: chance w / (w + 3), w = e^(2 / 2); another client's ratio <= e^2."""
    layout = Layout(("weight",), ((4,),))
    by, open = groups(layout, "entry"), Mask.full(layout)
    best, draws = mask(0, 1, 0, 0), NoiseKey(bytes(32)).draws()
    counts = torch.zeros(4)
    for _ in range(800):
        counts += by.draw_entries(best, 1, open, 2.0, draws)
    w = math.e
    chances = [800 * share / (w + 3) for share in (1, w, 1, 1)]
    assert chisquare(counts.tolist(), chances).pvalue > 0.01


def chooser(tmp_path, epsilon=8.0, draws=4):
    policy = MaskBudget(epsilon, of="entry")
    return PrivateMaskSelector(policy, policy.epsilon_per_draw(draws), tmp_path, 0)


def choice(chooser, score, round=0, client="p00", k=2):
    site = ClientContext(client, None, None, None, round, RandomStream("run", 0, client, round))
    score = params(*score)
    return chooser.at(site).choose(score, k, Mask.full(score.layout)).bits.tolist()


def test_a_turn_chooses_once_and_another_spends_again(tmp_path):
    """Two choices of 2 draws were foreseen: a third one would spend too much, and is not made."""
    high = [0.0, 1, 2, 3, 4, 5, 6, 7]
    first = choice(chooser(tmp_path), high)
    assert sum(first) == 2
    assert [choice(chooser(tmp_path), high) for _ in range(3)] == [first] * 3
    book = tmp_path / "privacy" / "seed0.mask.p00.csv"
    assert [entry.steps for entry in ReleaseLog(book).entries] == [2]
    assert sum(choice(chooser(tmp_path), high, round=1)) == 2
    assert spent(ReleaseLog(book).entries, MaskBudget(8.0)) == pytest.approx(8.0)
    before = book.read_text()
    assert sum(choice(chooser(tmp_path), high, round=2)) == 0
    assert choice(chooser(tmp_path), high[::-1]) == first  # released already
    assert book.read_text() == before
    assert sum(choice(chooser(tmp_path), high, client="p01")) == 2


def test_who_asks_twice_is_told_the_same_whatever_the_data(tmp_path):
    """Neighbours: the scores of one agree in both goes at a turn, those of the other do not."""
    rising = [float(i) for i in range(64)]
    marks = []
    for person, again in (("one", rising), ("other", rising[::-1])):
        budget = chooser(tmp_path / person, 8.0, 20)
        assert choice(budget, rising, k=20) == choice(budget, again, k=20)
        book = ReleaseLog(tmp_path / person / "privacy" / "seed0.mask.p00.csv")
        marks.append([entry.mark for entry in book.entries])
    assert marks[0] == marks[1]
    assert len(marks[0]) == 1


def test_whoever_dies_before_paying_has_shown_nothing_and_chooses_no_second_time(
    tmp_path, monkeypatch
):
    def dies(*_):
        raise KeyboardInterrupt

    rising = [float(i) for i in range(64)]
    with monkeypatch.context() as killed:
        killed.setattr(ReleaseLog, "enter", dies)
        with pytest.raises(KeyboardInterrupt):
            choice(chooser(tmp_path, 8.0, 20), rising, k=20)
    (kept,) = (tmp_path / "privacy").glob("seed0.mask.p00.*")
    drawn = unpack_file(kept).bits.tolist()
    assert choice(chooser(tmp_path, 8.0, 20), rising[::-1], k=20) == drawn
    (entry,) = ReleaseLog(tmp_path / "privacy" / "seed0.mask.p00.csv").entries
    assert entry.steps == 20
    kept.unlink()
    with pytest.raises(StateError, match="is not a readable"):
        choice(chooser(tmp_path, 8.0, 20), rising, k=20)


def test_noise_is_bound_to_the_secret_the_client_and_the_turn(tmp_path):
    """With nearly no budget what is drawn is noise: alike only where all of it is the same."""
    rising = [float(i) for i in range(64)]
    base = choice(chooser(tmp_path / "a", 0.1, 1000), rising, k=20)
    others = [
        choice(chooser(tmp_path / "a", 0.1, 1000), rising, k=20, **more)
        for more in ({"round": 1}, {"client": "p01"})
    ]
    others.append(choice(chooser(tmp_path / "b", 0.1, 1000), rising, k=20))
    assert all(other != base for other in others)


def test_choices_within_each_tensor_are_refused(tmp_path):
    site = ClientContext("p00", None, None, None, 0, RandomStream("run"))
    score = params(1, 2)
    with pytest.raises(ConfigError, match='among the entries of each tensor; use scope = "global"'):
        chooser(tmp_path).at(site).choose(score, {"weight": 1}, Mask.full(score.layout))


@pytest.mark.parametrize(
    ("k", "drawn"), [(1, 1), (4, 1), (5, 1), (6, 2), (8, 2), (10, 2), (11, 3), (99, 3)]
)
def test_as_many_groups_are_drawn_as_hold_so_many_entries(k, drawn):
    """Three groups of 2, 4 and 6 entries, 4 in the mean; a fourth one is no candidate."""
    of = torch.tensor([0] * 2 + [1] * 4 + [2] * 6 + [3] * 5)
    made = Groups(of, torch.bincount(of))
    layout = Layout(("groups",), ((4,),))
    some = Mask(torch.tensor([True, True, True, False]), layout)
    assert made.share(k, some) == drawn
    assert made.share(k, Mask.none(layout)) == 0
