"""SplitGuard: what its bounds promise, counted; and why labels are moved and not exchanged."""

import math

import numpy as np
import pytest
import torch

from vergence.errors import ConfigError
from vergence.privacy.keyed_noise import NoiseKey
from vergence.privacy.split.split_guard import (
    SplitGuard,
    SplitGuardConfig,
    SplitGuardTest,
    odd_one_out,
)

SECRET = NoiseKey(bytes(32))


class Places:
    """Draws that name these places, one after the other."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def uniform(self, count):
        return self.rng.random(count)


def led(guard, answer, blocks):
    """Give a guard whole blocks of answers, made of whether a batch lies; return the verdicts."""
    return [
        [guard.observe(answer(guard.lies)) for _ in range(guard.plan.every)][-1]
        for _ in range(blocks)
    ]


def plain(lies):
    return torch.tensor([[3.0 if lies else 1.0, 0.0]])


def deaf(guard):
    """Answers of which the odd one out is always the one after the lie."""

    def answer(_):
        after = (guard.place + 1) % guard.plan.every
        return torch.tensor([[3.0 if len(guard.block) == after else 1.0, 0.0]])

    return answer


def test_the_odd_one_out_by_hand():
    """Rows 0, 1, 5, 1: distances to the mean of the others 7/3, 1, 13/3, 1."""
    assert odd_one_out(torch.tensor([[0.0], [1.0], [5.0], [1.0]])) == 2


def test_verdicts_come_after_as_many_blocks_as_wald_says():
    """A block found weighs log 6, one not found log(0.4 / 0.9).

    log 100 / log 6 = 2.6: trusted after 3 blocks. The first test has 0.61 of 0.01:
    log 164 / log(0.9 / 0.4) = 6.3: accused after 7. The second has 0.15: log 658, 8.0, after 9.
    """
    assert SplitGuard().evidence == pytest.approx((math.log(6), math.log(4 / 9)))
    honest = SplitGuardTest(SplitGuard(), SECRET.draws())
    assert led(honest, plain, 3) == ["open", "open", "trusted"]
    other = SplitGuardTest(SplitGuard(), SECRET.draws())
    assert led(other, deaf(other), 7) == ["open"] * 6 + ["accused"]
    assert other.batches == 70
    later = led(honest, deaf(honest), 9)
    assert later.index("accused") == 8


def test_a_server_that_turns_is_accused_and_stays_so():
    guard = SplitGuardTest(SplitGuard(), SECRET.draws())
    assert led(guard, plain, 3)[-1] == "trusted"
    assert led(guard, deaf(guard), 9)[-1] == "accused"
    assert set(led(guard, plain, 4)) == {"accused"}


@pytest.mark.slow
def test_a_deaf_server_is_trusted_no_more_often_than_promised():
    """400 guards, answers of pure chance: 1 % may be trusted first, 4 in the mean, 12 at most
    with probability 0.9997; nearly all accuse within 200 batches."""
    ends, batches = [], []
    for trial in range(400):
        guard, rng = (
            SplitGuardTest(SplitGuard(), Places(trial)),
            torch.Generator().manual_seed(trial),
        )
        while guard.verdict == "open" and guard.batches < 400:
            guard.observe(torch.randn(1, 3, generator=rng))
        ends.append(guard.verdict)
        batches.append(guard.batches)
    assert ends.count("trusted") <= 12
    assert ends.count("accused") >= 380
    assert np.median(batches) <= 100


def test_an_honest_server_is_accused_no_more_often_in_a_long_run():
    """400 clients, 500 blocks each, found as often as expected: 4 accuse at most in the mean, more
    than 13 with probability below 0.001. With 0.01 for every test it was every third one."""
    plan, rng = SplitGuardConfig(), np.random.default_rng(0)
    found = rng.random((400, 500)) < plan.expected
    verdicts = [plan.read(blocks.tolist())[0] for blocks in found]
    assert verdicts.count("accused") <= 13
    assert verdicts.count("trusted") > 360


def odd_ones(falsified, blocks=60):
    """How often the answer of an honest linear server to a lie is the odd one out: it gives the
    gradient of mean |x w - y| / 2 for features x, the model right up to noise."""
    rng, found = torch.Generator().manual_seed(1), 0
    weight = torch.tensor([[1.0, 0.0], [0.5, 1.0], [0.0, -1.0]])
    for block in range(blocks):
        place, answers = block % 10, []
        for at in range(10):
            x = torch.randn(32, 3, generator=rng)
            y = x @ weight + 0.3 * torch.randn(32, 2, generator=rng)
            told = falsified(y) if at == place else y
            answers.append(((x @ weight - told).sign() / 64 @ weight.T).sum(0))
        found += odd_one_out(torch.stack(answers)) == place
    return found / blocks


def test_moved_labels_are_found_out_and_exchanged_or_mirrored_ones_are_not():
    plan, draws = SplitGuard(), SECRET.child("away").draws()
    assert odd_ones(lambda y: plan.falsified(y, draws)) > 0.9
    assert odd_ones(lambda y: y.roll(1, 0)) < 0.4
    assert odd_ones(lambda y: 2 * y.mean(0) - y) < 0.4


def test_labels_are_moved_by_one_deviation_all_the_same_way():
    labels = torch.randn(50, 2, generator=torch.Generator().manual_seed(0))
    ways = set()
    draws = SECRET.child("ways").draws()
    for _ in range(40):
        moves = SplitGuard(by=1.5).falsified(labels, draws) - labels
        assert torch.allclose(moves.abs(), 1.5 * labels.std(0).expand(50, 2), atol=1e-5)
        assert torch.allclose(moves, moves[:1].expand(50, 2), atol=1e-5)
        ways.add(tuple(moves[0].sign().tolist()))
    assert len(ways) == 4


def test_expectations_no_better_than_chance_are_refused():
    with pytest.raises(ConfigError, match="no more than chance, one in 5"):
        SplitGuard(every=5, expected=0.2)
