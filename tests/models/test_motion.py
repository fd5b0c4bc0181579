"""Motion of video: causal, blind to moves of the camera, and beside everybody's samples."""

import pytest
import torch
from torch import Tensor

from vergence.core.data import Samples, SharedRows, Splits
from vergence.core.federation import Federation
from vergence.errors import ConfigError
from vergence.models import motion


def noise(height: int, width: int, seed: int = 0) -> Tensor:
    drawn = torch.Generator().manual_seed(seed)
    coarse = torch.randint(0, 256, (height // 4, width // 4), generator=drawn, dtype=torch.uint8)
    return coarse.repeat_interleave(4, 0).repeat_interleave(4, 1)


def video(*pictures: Tensor) -> Tensor:
    """Return one stream of grey pictures as RGB frames `[1, steps, H, W, 3]`."""
    return torch.stack(pictures)[None, ..., None].expand(-1, -1, -1, -1, 3).contiguous()


def test_what_changes_is_told_where_it_changes_and_nothing_else() -> None:
    """A square of 16 x 16 pixels appears over the feature in row 2, column 1, of 4 x 6.

    Its four quarters change by 128/255 and nothing else does; the mean over 8 x 12 places is
    4/96 of that, and motion is the change over that mean + 0.01: 16.2, cut at 10.
    """
    still = torch.full((64, 96), 64, dtype=torch.uint8)
    moved = still.clone()
    moved[32:48, 16:32] = 192
    found = motion.motion_of(video(still, still, moved))
    assert found.shape == (1, 3, motion.CHANNELS, 4, 6)
    assert found[:, :2].abs().max() == 0
    expected = torch.zeros(4, 4, 6)
    expected[:, 2, 1] = motion.MOST
    assert torch.equal(found[0, 2], expected)


def test_the_scale_is_the_frame_s_mean_change() -> None:
    """Half the picture changes by 51/255 = 0.2: its mean is 0.1, and 0.2 / (0.1 + 0.01) = 1.818."""
    still = torch.zeros(64, 96, dtype=torch.uint8)
    moved = still.clone()
    moved[:32] = 51
    found = motion.motion_of(video(still, moved))[0, 1]
    torch.testing.assert_close(found[:, :2], torch.full((4, 2, 6), 0.2 / 0.11))
    assert found[:, 2:].abs().max() == 0


def test_the_background_is_a_mean_of_all_frames_and_then_of_the_latest() -> None:
    """Frames of 0, 0.4, 0.2: mean 0.2 of the first two, so the third differs by nothing."""
    frames = [torch.full((32, 32), round(255 * v), dtype=torch.uint8) for v in (0, 0.4, 0.2)]
    background = motion.empty_background(1, 32, 32)
    for frame in frames:
        _, background = motion.observe(video(frame)[:, 0], background)
    torch.testing.assert_close(background.mean, torch.full((1, 8, 8), 0.2))
    assert background.seen.tolist() == [3.0]
    many = motion.Background(torch.zeros(1, 8, 8), torch.tensor([1e4]))
    _, after = motion.observe(video(frames[1])[:, 0], many)
    torch.testing.assert_close(after.mean, torch.full((1, 8, 8), 0.4 * motion.RATE))


@pytest.mark.parametrize(("down", "right"), [(8, 0), (0, -12), (-16, 20)])
def test_a_move_of_the_camera_is_no_motion(down: int, right: int) -> None:
    """The second frame is the same wide scene, seen from elsewhere."""
    scene = noise(160, 224)
    before = scene[32:96, 48:144]
    after = scene[32 - down : 96 - down, 48 - right : 144 - right]
    assert motion.motion_of(video(before, after)).abs().max() == 0
    background = motion.observe(video(before)[:, 0], motion.empty_background(1, 64, 96))[1]
    moved, known = motion.aligned(background.mean, motion.small_grey(video(after)[:, 0]))
    assert known.sum() == (16 - abs(down) // 4) * (24 - abs(right) // 4)
    assert torch.equal(moved * known, motion.small_grey(video(after)[:, 0]) * known)


def test_what_moves_before_a_moving_camera_is_told() -> None:
    scene = noise(160, 224)
    before, after = scene[32:96, 48:144], scene[32:96, 60:156].clone()
    after[16:32, 48:64] = 255 - after[16:32, 48:64]
    found = motion.motion_of(video(before, after))[0, 1].mean(0)
    assert found.flatten().argmax() == 1 * 6 + 3
    assert found[1, 3] > 5 * (found.sum() - found[1, 3])


def test_no_frame_looks_ahead_and_streams_do_not_meet() -> None:
    drawn = torch.Generator().manual_seed(1)
    frames = torch.randint(0, 256, (2, 5, 48, 64, 3), generator=drawn, dtype=torch.uint8)
    whole = motion.motion_of(frames)
    assert torch.equal(motion.motion_of(frames[:, :3]), whole[:, :3])
    assert torch.equal(motion.motion_of(frames[1:]), whole[1:])
    changed = frames.clone()
    changed[0, 3] = 0
    assert torch.equal(motion.motion_of(changed)[0, :3], whole[0, :3])
    assert not torch.equal(motion.motion_of(changed)[0, 4], whole[0, 4])


def federation() -> Federation:
    """Ann and Bob share six frames and one of the sequences."""
    drawn = torch.Generator().manual_seed(0)
    rows = torch.randint(0, 256, (6, 40, 64, 3), generator=drawn, dtype=torch.uint8)
    bank = SharedRows(rows, "frame_ids")

    def part(*sequences: list[int]) -> Samples:
        return Samples({"frame_ids": torch.tensor(sequences)}, {"frames": bank})

    own = {"ann": [[0, 1, 2], [3, 4, 5]], "bob": [[3, 4, 5], [1, 3, 5]]}
    return Federation("pair", {p: Splits(part(*s), part(s[0]), part(s[1])) for p, s in own.items()})


def test_everybody_s_samples_get_the_motion_of_their_own_frames() -> None:
    raw = federation()
    ready = motion.with_motion(raw, raw)
    (rows,) = {
        id(part.banks[motion.BANK].rows)
        for own in ready.people.values()
        for part in (own.train, own.val, own.test)
    }
    train = ready.people["bob"].train
    assert len(train.banks[motion.BANK].rows) == 3
    assert id(train.banks[motion.BANK].rows) == rows
    batch = train.take(slice(0, 2))
    assert batch[motion.BANK].shape == (2, 3, motion.CHANNELS, 3, 4)
    assert torch.equal(batch[motion.BANK], motion.motion_of(batch["frames"]).half())
    pooled = ready.pooled().people["everyone"].train
    assert torch.equal(pooled.take(slice(2, 4))[motion.BANK], batch[motion.BANK])


def test_samples_that_are_no_sequences_are_refused() -> None:
    bank = SharedRows(torch.zeros(2, 32, 32, 3, dtype=torch.uint8), "ids")
    part = Samples({"ids": torch.tensor([0, 1])}, {"frames": bank})
    single = Federation("single", {"ann": Splits(part, part, part)})
    with pytest.raises(ConfigError, match=r"sequences of frames; those of 'single'.*\[2\]"):
        motion.with_motion(single, single)
