"""The Cross-Encoder's network: roles of rows, swaps on hand-made codes, norm, stages, sizes."""

import pytest
import torch

from vergence.core.data import Samples, Splits
from vergence.core.federation import Federation
from vergence.core.params import Params
from vergence.core.stages import pieces
from vergence.errors import ConfigError
from vergence.models.cross_encoder import CrossEncoder, roles, swap
from vergence.models.unlabelled_eyes import glance_rows
from vergence.tasks.cross_encoder import CrossEncoderTask as Task

SMALL = CrossEncoder(size="9x15", width=4)


def chosen(mask):
    return mask.nonzero()[:, 0].tolist()


def codes(rows, eyes=2):
    """Eye code 10 row + side, gaze code -(10 row + side): three and two equal values."""
    number = torch.arange(rows)[:, None] * 10 + torch.arange(eyes)
    number = number[..., None].float()
    return torch.cat([number.expand(-1, -1, 3), -number.expand(-1, -1, 2)], 2)


def test_half_of_the_pairs_swaps_eye_codes_the_rest_gaze_codes():
    """Six rows of one person are three pairs, two of which (the first half) are eye-consistent."""
    dealt = roles(torch.zeros(6, dtype=torch.long), eyes=2)
    assert dealt.giver.tolist() == [1, 0, 3, 2, 4, 5]
    assert chosen(dealt.consistent) == [0, 1, 2, 3]
    assert chosen(dealt.similar) == [4, 5]


def test_pairs_are_of_the_same_person():
    """Rows 0, 3 and 1, 2 belong together; 4 is alone and stays with its own two eyes."""
    dealt = roles(torch.tensor([7, 5, 5, 7, 9]), eyes=2)
    # Pairs in the order of their second row: (1, 2), then (0, 3); the first half is (1, 2).
    assert dealt.giver.tolist() == [0, 2, 1, 3, 4]
    assert chosen(dealt.similar) == [0, 3, 4]


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 7, 16, 33])
def test_odd_batches_and_single_glances_leave_no_row_without_a_role(rows):
    """Fault 6: a batch is not cut in halves that must fit; fault 7: one row has two eyes still."""
    whose = torch.zeros(rows, dtype=torch.long)
    dealt = roles(whose, eyes=2)
    assert bool((dealt.consistent ^ dealt.similar).all())
    assert bool((whose[dealt.giver] == whose).all())
    assert bool((dealt.giver[dealt.giver] == torch.arange(rows)).all())
    # At most one pair more is eye-consistent than not.
    assert int(dealt.consistent.sum()) == 2 * ((rows // 2 + 1) // 2)


def test_single_eyes_have_eye_consistent_pairs_alone():
    dealt = roles(torch.tensor([0, 1, 0, 1, 0]), eyes=1)
    assert dealt.giver.tolist() == [2, 3, 0, 1, 4]
    assert not dealt.similar.any()


def test_swap_on_hand_made_codes():
    """Rows 0 and 1 exchange eye codes of the same side, rows 2 and 3 gaze codes of their eyes."""
    found = swap(codes(4), torch.zeros(4), gaze=2)
    assert found[:, :, 0].tolist() == [[10, 11], [0, 1], [20, 21], [30, 31]]
    assert found[:, :, -1].tolist() == [[0, -1], [-10, -11], [-21, -20], [-31, -30]]
    assert torch.equal(found[:, :, 0], found[:, :, 2])


def test_swaps_follow_the_numbers_that_travel_as_floats():
    """`whose` enters beside the input in single precision; the largest numbers differ there."""
    near = torch.tensor([2**22 - 1, 2**22 - 2, 2**22 - 1], dtype=torch.long)
    assert torch.equal(roles(near.float(), 2).giver, roles(near, 2).giver)
    assert roles(near.float(), 2).giver.tolist() == [2, 1, 0]


@pytest.mark.parametrize("options", [SMALL, CrossEncoder(width=8), CrossEncoder(width=4, eye=5)])
def test_the_gaze_code_is_one_unit_vector_the_eye_code_is_not(options):
    torch.manual_seed(0)
    network = options.build()
    found = network.encode(torch.rand(3, 2, 1, *network.size)).detach()
    assert tuple(found.shape) == (3, 2, options.eye + 12)
    assert found[..., -12:].norm(dim=2).flatten().tolist() == pytest.approx([1.0] * 6, abs=1e-5)
    assert abs(float(found[0, 0, : options.eye].norm()) - 1) > 1e-3


@pytest.mark.parametrize("size", ["36x60", "9x15"])
@pytest.mark.parametrize("kind", ["compact", "resnet18"])
def test_images_come_out_as_they_went_in_and_nothing_is_kept(kind, size):
    network = CrossEncoder(size=size, encoder=kind, width=4).build()
    eyes = torch.rand(3, 2, 1, *network.size)
    assert network(eyes, torch.zeros(3)).shape == eyes.shape
    # Params.of refuses running statistics; batch and alone agree, so none are of the batch either.
    Params.of(network)
    network.train()
    together, alone = network.encode(eyes), network.encode(eyes[:1])
    assert torch.allclose(together[:1], alone, atol=1e-5)
    assert torch.allclose(network.decode(together)[:1], network.decode(alone), atol=1e-4)


def test_other_sizes_are_refused():
    with pytest.raises(ConfigError, match="set the same size"):
        SMALL.build()(torch.rand(2, 2, 1, 36, 60), torch.zeros(2))


def test_gaze_codes_are_points_in_space():
    with pytest.raises(ConfigError, match="one of 3; got 16 and 11"):
        CrossEncoder(gaze=11)


def test_a_chain_of_pieces_is_the_whole_network():
    """Cut in the encoder and in the decoder: the client has both ends, the server the swap."""
    task = Task(SMALL)
    batch = {
        "eyes": torch.randint(256, (5, 2, 1, 9, 15), dtype=torch.uint8),
        "whose": torch.zeros(5, dtype=torch.long),
    }
    whole = task.forward(task.module(), batch)
    front, middle, back = pieces(task, "conv2", "up1")
    x = front.forward(front.module(), batch)
    x = middle.forward(middle.module(), {"smashed": x, "whose": batch["whose"]})
    x = back.forward(back.module(), {"smashed": x})
    assert torch.allclose(x, whole, atol=1e-6)
    names = [set(Params.of(piece.module()).layout.names) for piece in (front, middle, back)]
    assert set().union(*names) == set(Params.of(task.module()).layout.names)
    assert any(name.startswith("encoder") for name in names[1])
    assert any(name.startswith("decoder") for name in names[1])


def patches(n, side):
    image = torch.arange(n * 6, dtype=torch.uint8).view(n, 1, 2, 3)
    angles = torch.tensor([[0.1, 0.2]]).repeat(n, 1)
    return Samples({"image": image, "gaze": angles, "pose": 2 * angles, "side": side})


def federation(*names, side=(0, 1)):
    part = patches(len(side), torch.tensor(side))
    return Federation("patches", {name: Splits(part, part, part) for name in names})


def test_patches_of_right_eyes_are_turned_back_and_stand_alone():
    """Fault 5: pixels flipped, yaw negated, pitch kept; and no pair of eyes is made up."""
    rows = glance_rows(federation("ann")).people["ann"].train.columns
    assert tuple(rows["eyes"].shape) == (2, 1, 1, 2, 3)
    assert rows["eyes"][0, 0, 0, 0].tolist() == [0, 1, 2]
    assert rows["eyes"][1, 0, 0, 0].tolist() == [8, 7, 6]
    assert rows["gaze"][:, 0].tolist() == [pytest.approx([0.1, 0.2]), pytest.approx([0.1, -0.2])]
    assert rows["pose"][:, 0, 1].tolist() == pytest.approx([0.4, -0.4])
    assert rows["whose"].tolist()[1] == rows["whose"].tolist()[0] + 1
    assert "image" not in rows


def test_numbers_of_people_do_not_depend_on_who_else_takes_part():
    both, alone = glance_rows(federation("ann", "bob")), glance_rows(federation("bob"))
    number = {p: int(s.train.columns["whose"][0]) for p, s in both.people.items()}
    assert number["ann"] != number["bob"]
    assert int(alone.people["bob"].train.columns["whose"][0]) == number["bob"]


def test_data_without_sides_is_refused():
    columns = {"image": torch.zeros(2, 1, 9, 15, dtype=torch.uint8)}
    part = Samples(columns)
    with pytest.raises(ConfigError, match=r"has neither glances .* but image;"):
        glance_rows(Federation("plain", {"ann": Splits(part, part, part)}))
    part = Samples({**columns, "side": torch.tensor([0, 1])})  # nobody looks at gaze and pose
    found = glance_rows(Federation("plain", {"ann": Splits(part, part, part)})).people["ann"]
    assert {*found.train.columns} == {"eyes", "side", "whose"}
