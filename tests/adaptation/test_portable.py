"""`vergence adapt --portable` and `--from`: the file, the run made of it, and files that lie."""

import base64
import hashlib
import json
import stat
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import vergence as vg
from tests.adaptation.test_adapted_run import EYES
from tests.cli.commands import ONE, run, vergence
from tests.live.fabricated import write_eyes
from tests.refusals import refuses
from vergence.adaptation import portable
from vergence.adaptation.fine_tuning import SHARED
from vergence.adaptation.other_people import RESIDUAL
from vergence.adaptation.own_data import OwnData
from vergence.core.data import Samples
from vergence.data.own_samples import pack_samples
from vergence.data.synthetic.eyes.eye_synthetic import EyeSynthetic
from vergence.experiment.trained_run import read_run
from vergence.live.command import _opened


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return run(tmp_path_factory.mktemp("eyes"), EYES)


@pytest.fixture(scope="module")
def newcomer():
    """Nine dots, four pictures each, of a fourth person whose gaze is turned by 0.3 radians."""
    people = EyeSynthetic(people=4, samples=60, days=(3, 3), size="9x15").load().people
    parts = people["p03"]
    every = Samples.concatenate([parts.train, parts.val, parts.test])
    samples = every.subset(torch.arange(36))
    gaze = samples.columns["gaze"] + torch.tensor([0.3, 0.0])
    target = torch.arange(36) // 4
    return Samples({**samples.columns, "gaze": gaze, "target": target})


@pytest.fixture(scope="module")
def made(trained, newcomer, tmp_path_factory):
    """The folder of an adapted run with a correction file."""
    folder = tmp_path_factory.mktemp("portable")
    (folder / "mine.npz").write_bytes(pack_samples(newcomer))
    options = ("--data", folder / "mine.npz", "--portable", "--out", folder / "me")
    said = vergence("adapt", trained, *options)
    assert said.code == 0, said.err
    return folder / "me"


@pytest.fixture
def content(made):
    return json.loads((made / portable.FILE).read_text())


def test_only_ways_that_a_page_computes_are_tried(made, trained, content):
    about = json.loads((made / "provenance.json").read_text())["adapted"]
    assert set(about["errors"]) == {SHARED, *portable.PORTABLE} == set(content["errors"])
    assert content["way"] == about["way"] != SHARED
    assert content["fingerprint"] == read_run(trained).fingerprint
    assert content["samples"]["size"] == [9, 15]
    assert stat.S_IMODE((made / portable.FILE).stat().st_mode) == 0o600


def test_the_run_made_of_the_file_answers_as_the_first(made, trained, newcomer, tmp_path):
    file = made / portable.FILE
    said = vergence("adapt", trained, "--from", file, "--out", tmp_path / "again")
    assert said.code == 0, said.err
    folders = (made, tmp_path / "again")
    first, again = (vg.open_run(folder).predict(None, newcomer) for folder in folders)
    assert torch.equal(first, again)
    about = json.loads((tmp_path / "again" / "provenance.json").read_text())["adapted"]
    assert about["correction"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert vergence("verify", tmp_path / "again").code == 0


def short(content):
    content["samples"]["pose"].pop()


def pixels(content):
    content["samples"]["image"] = base64.b64encode(b"abc").decode()


def bent(content):
    name = "linear" if "linear" in content["numbers"] else "slope"
    content["numbers"][name][0][0] += 0.01


def fewer(content):
    content["numbers"] = {"linear": [[0, 0]] * 6, "coefficients": [[0, 0]]}


def better_errors(content):
    content["errors"] = dict.fromkeys(content["errors"], 0.01)


def looked_elsewhere(content):
    content["samples"]["gaze"][0][1] += 0.1


HOSTILE = {
    "another run": (lambda c: c.update(fingerprint="0" * 64), 2, "fingerprint"),
    "another version": (lambda c: c.update(version=2), 3, "version"),
    "a key of its own": (lambda c: c.update(code="import os"), 3, "code"),
    "another way": (lambda c: c.update(way="whole model"), 3, "way"),
    "a way that was not chosen": (lambda c: c.update(way=SHARED), 3, SHARED),
    "no correction": (lambda c: c.update(way=SHARED, numbers=None), 3, "another version"),
    "better errors": (better_errors, 3, "errors"),
    "fewer errors": (lambda c: c["errors"].popitem(), 3, "errors"),
    "an error of no number": (lambda c: c["errors"].update({SHARED: None}), 3, "errors"),
    "other inputs": (lambda c: c.update(inputs="x"), 3, "inputs"),
    "NaN": (lambda c: c["samples"]["gaze"][0].__setitem__(0, float("nan")), 3, "gaze"),
    "infinity": (lambda c: c["samples"]["pose"][0].__setitem__(0, float("inf")), 3, "pose"),
    "a large number": (lambda c: c["numbers"]["coefficients"][0].__setitem__(0, 1e7), 3, "numbers"),
    "degrees": (lambda c: c["samples"]["gaze"][0].__setitem__(0, 30.0), 3, "gaze"),
    "a number as text": (lambda c: c["samples"]["gaze"][0].__setitem__(0, "0"), 3, "gaze"),
    "a third eye": (lambda c: c["samples"]["side"].__setitem__(0, 2), 3, "side"),
    "no image": (lambda c: c["samples"].pop("image"), 3, "image"),
    "a picture too large": (lambda c: c["samples"].update(size=[10**6, 10**6]), 3, "size"),
    "fewer rows": (short, 3, "pose"),
    "fewer pixels": (pixels, 3, "grey levels"),
    "another number": (bent, 3, "radians"),
    "fewer coefficients": (fewer, 3, "coefficients"),
    "another label": (looked_elsewhere, 3, "correction.json"),
}


@pytest.mark.parametrize("change", HOSTILE)
def test_a_file_that_lies_is_refused_in_one_line(trained, content, tmp_path, change):
    edit, code, noun = HOSTILE[change]
    edit(content)
    path = tmp_path / "correction.json"
    path.write_text(json.dumps(content))
    out = tmp_path / "me"
    vergence("adapt", trained, "--from", path, "--out", out).complains(code, noun)
    assert not out.exists()


@pytest.mark.parametrize("text", [b"", b"[" * 10**5, b"\xff\xfe", b"[]", b"{}", b"null"])
def test_a_file_that_is_no_correction_is_refused(trained, tmp_path, text):
    (tmp_path / "it.json").write_bytes(text)
    said = vergence("adapt", trained, "--from", tmp_path / "it.json", "--out", tmp_path / "me")
    said.complains(3, "it.json")


def test_files_that_are_missing_or_huge_are_refused(trained, tmp_path):
    vergence("adapt", trained, "--from", tmp_path / "none.json").complains(3, "none.json")
    vergence("adapt", trained, "--from", tmp_path).complains(3, str(tmp_path))
    with (tmp_path / "huge.json").open("wb") as file:
        file.truncate(portable.BYTES + 1)
    vergence("adapt", trained, "--from", tmp_path / "huge.json").complains(3, "bytes")


def test_a_file_that_grows_before_it_is_read_does_not_fill_the_memory(made, tmp_path):
    class Growing(type(tmp_path)):
        """A path to a file that was small whenever its size was looked at."""

        def stat(self, **options):
            return (made / portable.FILE).stat()

    path = Growing(tmp_path / "huge.json")
    with path.open("wb") as file:
        file.truncate(8 * portable.BYTES)
    tracemalloc.start()
    with refuses("data", "huge.json", "is no correction"):
        portable.read_correction(path)
    assert tracemalloc.get_traced_memory()[1] < portable.BYTES
    tracemalloc.stop()


@pytest.mark.parametrize("place", ["errors", "target", "a new key"])
def test_many_small_values_do_not_fill_the_memory(made, tmp_path, place):
    """A file of a megabyte took up to 350 MB of memory, and one of 28 up to 9 GB."""
    whole, many = (made / portable.FILE).read_text(), portable.VALUES + 1
    values = ",".join(f'"{number}":0' for number in range(many))
    changed = {
        "errors": whole.replace('"errors": {', f'"errors": {{{values},'),
        "target": whole.replace('"target": [', f'"target": [{"{}," * many}'),
        "a new key": f"{{{values},{whole[1:]}",
    }
    path = tmp_path / "many.json"
    path.write_text(changed[place])
    tracemalloc.start()
    with refuses("data", "many.json", "values", f"{portable.VALUES:,}"):
        portable.read_correction(path)
    # The text and the message; the values take ten times that and more.
    assert tracemalloc.get_traced_memory()[1] < 2 * path.stat().st_size
    tracemalloc.stop()


def test_the_largest_correction_is_read(content, tmp_path):
    """A thousand samples with a number of every kind, of 36 x 60 pixels."""
    pairs = [[0.123456789012345678, -0.123456789012345678]] * portable.SAMPLES
    numbers = {"linear": pairs[:6], "coefficients": pairs}
    image = base64.b64encode(bytes(portable.SAMPLES * 36 * 60)).decode()
    column = [1] * portable.SAMPLES
    samples = {"size": [36, 60], "image": image, "side": column, "target": column}
    content["samples"] = {**samples, "pose": pairs, "gaze": pairs}
    path = tmp_path / "most.json"
    path.write_text(json.dumps({**content, "way": RESIDUAL, "numbers": numbers}))
    assert portable.read_correction(path).samples.samples(path).columns["gaze"].shape == (1000, 2)


def test_runs_and_options_without_a_portable_correction_are_refused(trained, made, tmp_path):
    toy = run(tmp_path, ONE)
    np.savez(tmp_path / "mine.npz", x=np.zeros((2, 2), np.float32))
    options = ("--data", tmp_path / "mine.npz", "--portable", "--out", tmp_path / "me")
    vergence("adapt", toy, *options).complains(2, "gaze_angle")
    file = ("--from", made / portable.FILE)
    vergence("adapt", trained, *file, "--portable").complains(2, "--portable")
    vergence("adapt", trained, *file, "--samples", 3).complains(2, "--samples")
    vergence("adapt", trained, *file, "--data", "d").complains(2, "--data and --from")


def adapted(trained, samples, folder, *options):
    """Adapt to samples with a correction file, and make a run of that file."""
    (folder / "mine.npz").write_bytes(pack_samples(samples))
    given = ("--data", folder / "mine.npz", "--portable", "--out", folder / "me", *options)
    said = vergence("adapt", trained, *given)
    assert said.code == 0, said.err
    return folder / "me" / portable.FILE


def test_columns_of_other_types_are_written_as_the_file_has_them(trained, newcomer, tmp_path):
    """Targets on a scale of one's own, sides as a column: as Matlab and pandas write them."""
    columns = dict(newcomer.columns)
    columns["target"] = columns["target"].float()[:, None] / 10 - 1
    columns["side"] = columns["side"].float()[:, None]
    file = adapted(trained, Samples(columns), tmp_path)
    written = json.loads(file.read_text())["samples"]
    assert written["target"] == newcomer.columns["target"].tolist()
    assert written["side"] == newcomer.columns["side"].tolist()
    said = vergence("adapt", trained, "--from", file, "--out", tmp_path / "again")
    assert said.code == 0, said.err


def refused_when_written(trained, samples, folder, *nouns):
    (folder / "mine.npz").write_bytes(pack_samples(samples))
    options = ("--data", folder / "mine.npz", "--portable", "--out", folder / "me")
    vergence("adapt", trained, *options).complains(3, "mine.npz", *nouns)
    assert not (folder / "me").exists()


def test_a_file_too_large_is_refused_before_anything_is_written(
    trained, newcomer, tmp_path, monkeypatch
):
    monkeypatch.setattr(portable, "BYTES", 1000)
    refused_when_written(trained, newcomer, tmp_path, "1,000", "--samples")


def test_pictures_too_wide_for_a_file_are_refused():
    columns = {"image": torch.zeros(2, 1, 9, 516, dtype=torch.uint8), "gaze": torch.zeros(2, 2)}
    own = OwnData("me", Samples({**columns, "pose": torch.zeros(2, 2)}), "wide.npz")
    unchanged = SimpleNamespace(
        own=own,
        rows=torch.arange(2),
        adapter=SimpleNamespace(trained=SimpleNamespace(fingerprint="f")),
        choice=SimpleNamespace(way=SHARED, errors={}),
        model=SimpleNamespace(correction=None),
    )
    with refuses("data", "wide.npz", "size", "512", "--portable"):
        portable._checked_text(unchanged)


@pytest.fixture(scope="module")
def second_seed(newcomer, tmp_path_factory):
    """A run of two seeds, and a correction file of the second one."""
    folder = tmp_path_factory.mktemp("seeds")
    several = run(folder, EYES, "run.seeds=[4,5]")
    return several, adapted(several, newcomer, folder, "--seed", 5)


def test_the_seed_of_a_file_is_found(second_seed, trained, tmp_path):
    several, file = second_seed
    assert json.loads(file.read_text())["fingerprint"] == read_run(several, 5).fingerprint
    said = vergence("adapt", several, "--from", file, "--out", tmp_path / "again")
    assert said.code == 0, said.err
    about = json.loads((tmp_path / "again" / "provenance.json").read_text())["adapted"]
    assert about["seed"] == 5
    options = ("--from", file, "--seed", 4, "--out", tmp_path / "other")
    vergence("adapt", several, *options).complains(2, "seed 5", "--seed 4", "leave --seed out")
    said = vergence("live", trained, "--camera", tmp_path / "none.mp4", "--correction", file)
    said.complains(2, "(seed 0)", "name the run")
    assert "--seed" not in said.err


@pytest.mark.slow
def test_live_finds_the_seed_of_a_file(second_seed):
    several, file = second_seed
    with _opened(several, None, 1, file) as network:
        assert (network.height, network.width) == (9, 15)


def test_a_way_of_the_same_angles_is_accepted(trained, newcomer, tmp_path):
    """Where the shared model has no error, any way is as good: another library may choose it."""
    gaze = vg.open_run(trained).predict(None, newcomer)
    exact = Samples({**newcomer.columns, "gaze": gaze})
    file = adapted(trained, exact, tmp_path)
    content = json.loads(file.read_text())
    nothing = {"centre": [0, 0], "offset": [0, 0], "slope": [[0, 0], [0, 0]]}
    ways = {SHARED: None, "shrunk offset": nothing, "shrunk affine": nothing}
    for number, (way, numbers) in enumerate(ways.items()):
        file.write_text(json.dumps({**content, "way": way, "numbers": numbers}))
        out = tmp_path / f"{number}"
        said = vergence("adapt", trained, "--from", file, "--out", out)
        assert said.code == 0, said.err


@pytest.mark.slow
def test_live_draws_what_the_adapted_run_predicts(trained, made, tmp_path):
    """The table of a session is that of a session with the adapted folder, and not the run's."""
    video = write_eyes(tmp_path / "eyes.mp4", 4, lambda n: n)
    tables = {}
    for name, model, more in (
        ("shared", trained, ()),
        ("folder", made, ()),
        ("file", trained, ("--correction", made / portable.FILE)),
    ):
        record = tmp_path / f"{name}.mp4"
        said = vergence("live", model, "--camera", video, "--headless", "--record", record, *more)
        assert said.code == 0, said.err
        rows = np.genfromtxt(record.with_suffix(".csv"), delimiter=",", names=True)
        tables[name] = np.stack([rows["pitch_rad"], rows["yaw_rad"]])
    assert np.abs(tables["file"] - tables["folder"]).max() < 1e-5
    assert np.abs(tables["file"] - tables["shared"]).max() > 0.01


def test_live_refuses_a_correction_of_somebody_who_took_part(trained, made):
    both = ("--correction", made / portable.FILE, "--person", "p01")
    vergence("live", trained, *both).complains(2, "--person")
