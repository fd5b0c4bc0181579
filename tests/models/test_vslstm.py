"""vsLSTM equals torch's own bidirectional LSTM on packed clips, and its published size."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from vergence.models.vslstm import VsLSTM, turned


def test_clips_are_turned_up_to_their_end():
    x = torch.arange(10.0).view(2, 5, 1)
    back = turned(x, torch.tensor([5, 3]))
    assert back.squeeze(2).tolist() == [[4, 3, 2, 1, 0], [7, 6, 5, 8, 9]]
    assert turned(back, torch.tensor([5, 3])).equal(x)


def test_two_lstms_are_a_bidirectional_one():
    torch.manual_seed(0)
    net = VsLSTM(3, 4).build()
    both = nn.LSTM(3, 4, batch_first=True, bidirectional=True)
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    own = dict(both.named_parameters())
    with torch.no_grad():
        for name in names:
            own[name].copy_(getattr(net.forwards, name))
            own[f"{name}_reverse"].copy_(getattr(net.backwards, name))
    x, steps = torch.randn(3, 7, 3), torch.tensor([2, 7, 4])
    packed = pack_padded_sequence(x, steps, batch_first=True, enforce_sorted=False)
    states, _ = pad_packed_sequence(both(packed)[0], batch_first=True)
    wanted = net.score(torch.sigmoid(net.mix(torch.cat([states, x], 2)))).squeeze(2)
    for row, expected, count in zip(net(x, steps), wanted, steps, strict=True):
        torch.testing.assert_close(row[:count], expected[:count])


def test_size_as_published():
    """2 * 4 * 256 * (1024 + 256 + 2) of the LSTMs, 256 * 1537 of the layer, 257 of the score."""
    count = sum(p.numel() for p in VsLSTM().build().parameters())
    assert count == 2 * 4 * 256 * 1282 + 256 * 1537 + 257
