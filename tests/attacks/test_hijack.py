"""Hijacking a linear client, where what it is drawn to is known; and what is ignored."""

import pytest
import torch
from torch import nn

from vergence.attacks.hijacking import Hijacker, HijackSettings, critic
from vergence.attacks.score import mean_image, mse
from vergence.errors import ConfigError

HOW = HijackSettings(width=8, rank=4, critic_steps=5, penalty=1.0)
PATTERN = torch.linspace(-1, 1, 64).view(1, 1, 8, 8)


def pictures(count, seed):
    """One pattern, as strong as a number says whose distribution leans to one side."""
    rng = torch.Generator().manual_seed(seed)
    return 0.5 + 0.45 * torch.rand(count, 1, 1, 1, generator=rng) ** 3 * PATTERN


def linear(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 1))


def taken(images):
    """As a network takes them."""
    return 4 * (images - 0.5)


SHADOW, VICTIM = pictures(400, 0), pictures(200, 1)


def hijacked(steps, turned=False):
    """Let a linear client follow what it is sent; return server and client."""
    client, pilot = linear(3), linear(4)
    server = Hijacker(SHADOW, taken(SHADOW), pilot, HOW)
    optimiser = torch.optim.Adam(client.parameters(), 1e-3)
    order = torch.Generator().manual_seed(5)
    for _ in range(steps):
        given = client(taken(VICTIM)[torch.randint(len(VICTIM), (32,), generator=order)])
        optimiser.zero_grad()
        given.backward(-server.answer(given) if turned else server.answer(given))
        optimiser.step()
    return server, client


def apart(server, client):
    """How far the client's number for a picture is from the pilot's, in the pilot's deviations."""
    with torch.no_grad():
        mine, theirs = server.pilot(taken(VICTIM)), client(taken(VICTIM))
    return float((mine - theirs).square().mean().sqrt() / mine.std())


@pytest.mark.slow
def test_a_client_is_drawn_to_the_features_of_the_pilot():
    """One number per picture, of a distribution that leans: only the pilot's own map matches it.

    So client and pilot must agree on every picture of the victim, which neither shared.
    """
    start, end = (hijacked(steps) for steps in (1, 300))
    assert apart(*start) > 0.7
    assert apart(*end) < 0.5
    server, client = end
    with torch.no_grad():
        found = server.reconstruct(client(taken(VICTIM)))
    baseline = float(mse(VICTIM, mean_image(SHADOW, len(VICTIM))).mean())
    assert float(mse(VICTIM, found).mean()) < 0.4 * baseline


@pytest.mark.slow
def test_gradients_that_are_turned_round_draw_nobody_in():
    assert apart(*hijacked(100, turned=True)) > 2


@pytest.mark.slow
def test_the_same_seed_answers_the_same():
    one, other = (hijacked(3)[0].answer(torch.ones(4, 1)) for _ in range(2))
    assert torch.equal(one, other)


@pytest.mark.parametrize("shape", [(16, 9, 15), (20, 16, 28), (32,)])
def test_features_of_any_cut_have_a_critic(shape):
    features = torch.randn(2, *shape)
    assert critic(features, 4)(features).shape == (2, 1)


def test_rates_below_zero_are_refused():
    with pytest.raises(ConfigError, match="rate"):
        HijackSettings(rate=-1.0)
