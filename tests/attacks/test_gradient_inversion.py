"""An eye from one gradient of the small network; cosine and total variation by hand."""

import numpy as np
import pytest
import torch

from vergence.attacks.gradient_inversion import (
    GradientInversion,
    cosine_distance,
    gradient_of_update,
    soft_signs,
    total_variation,
)
from vergence.attacks.score import mean_image, mse
from vergence.core.params import Params
from vergence.data.synthetic.eyes.eye_synthetic import EyeSynthetic
from vergence.models.small_eye import SmallEye


def eyes(people=4):
    made = EyeSynthetic(people=people, samples=40, size="9x15").load().people.values()
    return torch.cat([splits.train.columns["image"] for splits in made]).float() / 255


def seen(image, gaze):
    torch.manual_seed(0)
    network = SmallEye(pose=False).build()
    names, parameters = zip(*network.named_parameters(), strict=True)

    def loss(x):
        return (network(x) - gaze).abs().sum()

    gradient = torch.autograd.grad(loss(image), parameters)
    return loss, names, parameters, gradient


def test_an_eye_comes_back_from_its_gradient():
    images = eyes()
    image, mean = images[:1], mean_image(images[len(images) // 2 :], 1)
    loss, names, parameters, gradient = seen(image, torch.tensor([[0.5, -0.5]]))
    change = Params.named(**{n: -0.01 * g for n, g in zip(names, gradient, strict=True)})
    found = GradientInversion(steps=150).reconstruct(
        loss, parameters, gradient_of_update(change, names), mean
    )
    assert float(mse(image, found)) < 0.3 * float(mse(image, mean))
    assert float(found.min()) >= 0
    assert float(found.max()) <= 1


def test_an_alien_gradient_gives_no_eye():
    """Noise in the place of the gradient: nothing but chance can be had."""
    images = eyes()
    image, mean = images[:1], mean_image(images[len(images) // 2 :], 1)
    loss, _, parameters, gradient = seen(image, torch.tensor([[0.5, -0.5]]))
    rng = torch.Generator().manual_seed(1)
    alien = [torch.randn(g.shape, generator=rng) for g in gradient]
    found = GradientInversion(steps=60).reconstruct(loss, parameters, alien, mean)
    assert float(mse(image, found)) > 0.7 * float(mse(image, mean))


@pytest.mark.slow
def test_signs_are_enough():
    """A first step of Adam keeps nothing else of a gradient; compared as sizes they give less."""
    images = eyes()
    image, mean = images[:1], mean_image(images[len(images) // 2 :], 1)
    loss, _, parameters, gradient = seen(image, torch.tensor([[0.5, -0.5]]))
    signs = [g.sign() for g in gradient]
    error = {
        read: float(
            mse(
                image, GradientInversion(100, signs=read).reconstruct(loss, parameters, signs, mean)
            )
        )
        for read in (True, False)
    }
    assert error[True] < 0.3 * float(mse(image, mean))
    assert error[True] < error[False]


def test_soft_signs_by_hand():
    """Sizes 3, 1 and 4 have a median of 3; unsure below 1.5."""
    (found,) = soft_signs([torch.tensor([3.0, -1.0, 0.0, 4.0])])
    want = [3 / 11.25**0.5, -1 / 3.25**0.5, 0.0, 4 / 18.25**0.5]
    assert found.tolist() == pytest.approx(want)
    assert not soft_signs([torch.zeros(2)])[0].any()


def test_cosines_by_hand():
    a = [torch.tensor([3.0]), torch.tensor([0.0, 4.0])]
    b = [torch.tensor([4.0]), torch.tensor([0.0, 3.0])]
    assert cosine_distance(a, a).item() == pytest.approx(0, abs=1e-6)
    assert cosine_distance(a, b).item() == pytest.approx(1 - 24 / 25)
    assert cosine_distance(a, [-t for t in a]).item() == pytest.approx(2)


def test_total_variation_by_hand():
    """Down |2| and |1|: mean 1.5; across |1| and |0|: mean 0.5."""
    image = torch.tensor([[0.0, 1.0], [2.0, 2.0]]).view(1, 1, 2, 2)
    assert total_variation(image).item() == np.float32(2.0)
