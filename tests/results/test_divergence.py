"""Notes on a training that diverged, though the final models have finite scores."""

import pytest

import vergence as vg
from tests.experiment.made_up import trained
from vergence.methods.fedavg import FedAvg


def trained_with(lr, rounds=3, **options):
    local = vg.LocalTraining(lr=lr, clip=0.0, optimizer="sgd", batch=8)
    return trained(method=FedAvg(local=local), rounds=rounds, **options)


def test_a_loss_that_rises_is_no_training():
    run = trained_with(0.5)
    line, *_ = [line for line in repr(run).splitlines() if "lower local.lr" in line]
    assert line.startswith("fedavg diverged: the training loss was ")
    assert line in run._repr_html_()


def test_replies_that_are_not_finite_are_counted():
    """All five people's replies in each of three rounds, from which nothing was learned."""
    with pytest.raises(vg.PartialRun, match="nobody's reply counted in any round"):
        trained_with(1e30)


@pytest.mark.parametrize("lr", [0.01, 1e-6])
def test_a_loss_that_falls_or_stays_has_no_note(lr):
    assert "lower local.lr" not in repr(trained_with(lr))


def test_a_comparison_says_it_as_well():
    comparison = vg.compare(
        trained_with(0.5, label="fast"), trained_with(0.01, label="slow"), allow=["local.lr"]
    )
    assert "fast diverged: the training loss was" in repr(comparison)
    assert "slow diverged" not in repr(comparison)
