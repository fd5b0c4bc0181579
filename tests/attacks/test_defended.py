"""What defended clients send is what an attacker imitates: the same mean, the same spread."""

import pytest
import torch

from vergence.attacks.defended_clients import Clipped, PixelNoise, UndefendedClient, client_messages
from vergence.attacks.inverse_network import outputs_without_graph
from vergence.attacks.view import AttackerView
from vergence.core.params import Params
from vergence.models.small_eye import SmallEye
from vergence.privacy.keyed_noise import NoiseKey
from vergence.privacy.split.bottleneck import Bottleneck
from vergence.privacy.split.pixel_dp import sensitivity

SECRET = NoiseKey(bytes(range(32)))
IMAGES = torch.rand(40, 1, 9, 15, generator=torch.Generator().manual_seed(0))


def front(stages=("conv1",)):
    torch.manual_seed(0)
    network = SmallEye(pose=False).build()
    network.stages = {name: network.stages[name] for name in stages}
    return network


def seen(defence, rounds, network):
    clean = outputs_without_graph(network, IMAGES)
    batches = client_messages("p00", clean, defence, rounds, Params.of(network), SECRET, batch=16)
    return AttackerView("server", batches).averaged("p00")[1]


@pytest.mark.parametrize("rounds", [1, 8])
@pytest.mark.parametrize(
    "defence", [UndefendedClient(), PixelNoise(0.5), Clipped(Bottleneck(1.0, 0.3))]
)
def test_imitations_have_the_mean_and_the_spread_of_what_is_sent(defence, rounds):
    network = front()
    true = seen(defence, rounds, network)
    made = defence.imitation(rounds)(
        outputs_without_graph(network, IMAGES), torch.Generator().manual_seed(1)
    )
    assert true.shape == made.shape
    assert float(true.mean()) == pytest.approx(float(made.mean()), abs=0.01)
    assert float(true.std()) == pytest.approx(float(made.std()), rel=0.02)


def test_averaging_thins_pixel_noise_and_not_a_bottlenecks():
    network = front()
    clean = outputs_without_graph(network, IMAGES)
    noise, bottleneck = PixelNoise(0.5), Clipped(Bottleneck(1.0, 0.3))
    one, many = (float((seen(noise, n, network) - clean).std()) for n in (1, 16))
    assert one == pytest.approx(0.5 * 2**0.5, rel=0.02)
    assert many == pytest.approx(one / 4, rel=0.03)
    assert torch.allclose(seen(bottleneck, 1, network), seen(bottleneck, 16, network), atol=1e-5)


def test_layers_are_kept_at_norm_one():
    network = front()
    assert sensitivity(network.conv1, 9, 15) > 1.5
    PixelNoise(0.5).constrain(network, 9, 15)
    assert sensitivity(network.conv1, 9, 15) == pytest.approx(1, abs=1e-5)
