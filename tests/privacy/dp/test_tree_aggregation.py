"""Noise of a tree over rounds: which nodes, how much, and what one person may add."""

from itertools import combinations

import numpy as np
import pytest
import torch

from vergence.core.aggregation import Aggregate
from vergence.core.params import Params
from vergence.privacy.dp.tree_aggregation import nodes, squared, steps
from vergence.privacy.dp.user_level import UserLevel
from vergence.privacy.keyed_noise import NoiseKey


def test_sums_are_made_of_the_powers_of_two_in_their_number():
    assert nodes(6) == [(0, 4), (4, 2)]
    assert nodes(7, restart=3) == [(0, 2), (2, 1), (3, 2), (5, 1), (6, 1)]
    assert steps(3, 4) == [(1, (0, 4)), (-1, (0, 2)), (-1, (2, 1))]
    for rounds in range(1, 40):
        assert len(nodes(rounds)) == rounds.bit_count()
        for restart in (0, 3, 8):
            covered = [
                r for start, size in nodes(rounds, restart) for r in range(start, start + size)
            ]
            assert covered == list(range(rounds))


@pytest.mark.parametrize("restart", [0, 3, 4])
@pytest.mark.parametrize("turns", [1, 2, 3, 9])
def test_what_a_person_adds_is_the_worst_of_all_ways_to_take_part(turns, restart):
    """By hand: every node that was ever in a sum, every choice of rounds."""
    for rounds in range(1, 10):
        ever = {node for done in range(1, rounds + 1) for node in nodes(done, restart)}
        worst = max(
            sum(sum(start <= r < start + size for r in there) ** 2 for start, size in ever)
            for count in range(min(turns, rounds) + 1)
            for there in combinations(range(rounds), count)
        )
        assert squared(rounds, turns, restart) == worst


def test_once_each_costs_what_the_library_says():
    dp = pytest.importorskip("dp_accounting")
    from dp_accounting.rdp import RdpAccountant

    def accountant():
        return RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_SPECIAL)

    for rounds in (1, 2, 7, 8, 100, 512):
        tree = accountant().compose(dp.SingleEpochTreeAggregationDpEvent(3.0, rounds))
        plain = accountant().compose(dp.GaussianDpEvent(3.0 / squared(rounds, 1) ** 0.5))
        assert tree.get_epsilon(1e-5) == pytest.approx(plain.get_epsilon(1e-5), rel=1e-9)


def test_noise_of_the_sum_of_all_rounds_is_that_of_its_nodes_and_no_more():
    """Seven rounds are three nodes: variance 3 z^2 C^2, where new noise every round has 7."""
    level, secret, n, total = UserLevel(1.0, 2.0), NoiseKey(bytes(32)), 20_000, 0
    whole = Aggregate({"model": Params.named(a=torch.zeros(n))}, {"model": 1.0}, 1, {})
    for done in range(1, 8):
        moved = [(sign, secret.child("tree", *node)) for sign, node in steps(done - 1, done)]
        come, gone = ([s for sign, s in moved if sign == way] for way in (1, -1))
        total = total + level.noised(whole, 1, *come, less=gone).totals["model"].flat.double()
    alone = sum(level.share(n, secret.child("tree", *node).child("model")) for node in nodes(7))
    np.testing.assert_array_equal(total.numpy(), alone * level.step)
    assert float(total.var()) == pytest.approx(3 * 4, rel=0.05)
