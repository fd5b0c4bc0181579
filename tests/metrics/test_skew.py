"""Skew measures: against SciPy, by hand, and every generator switch against every measure."""

import numpy as np
import pytest
import torch
from scipy.stats import energy_distance, norm, wasserstein_distance

from tests.conftest import research_data
from vergence.core.data import Samples, SharedRows
from vergence.data.eye_images.mpiigaze_crops import MpiigazeCrops
from vergence.data.synthetic.eyes.eye_synthetic import EyeSynthetic
from vergence.errors import DataError
from vergence.metrics import skew
from vergence.metrics.sample_features import Compact, compact
from vergence.metrics.skew import (
    MEASURES,
    Runs,
    Skew,
    energy_coefficients,
    intraclass,
    measure_skew,
)
from vergence.studies.skew import skew_of

IID = {
    "people": 8,
    "samples": 160,
    "eyes": "left",
    "appearance": 0.0,
    "crop": 0.0,
    "kappa": 0.0,
    "light": 0.0,
    "seed": 1,
}
SWITCHES = {
    "covariate": {"appearance": 1.0},
    "label": {"label_range": 1.0},
    "x_given_y": {"crop": 1.0},
    "y_given_x": {"kappa": 2.0},
    "dependence": {"light": 0.7},
    "quantity": {"quantity": 1.0},
}


@pytest.fixture(scope="module")
def skews(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VERGENCE_CACHE", str(tmp_path_factory.mktemp("cache")))
        made = {"none": {}, **SWITCHES}
        return {n: skew_of(EyeSynthetic(**{**IID, **o}).load()) for n, o in made.items()}


@pytest.mark.slow
def test_without_skew_every_share_is_within_chance(skews):
    """48 comparisons at 99 %: 0.5 of them beyond chance are expected, 4 or more have p = 0.002."""
    found = skews["none"]
    assert found.is_beyond_chance.sum() <= 3
    assert np.abs(found.share.mean(0)).max() < 0.01
    assert found.gini == 0


@pytest.mark.slow
@pytest.mark.parametrize("switch", SWITCHES)
def test_each_switch_raises_its_own_measure_most(skews, switch):
    own = MEASURES.index(switch)
    found, without = skews[switch], skews["none"]
    raised = found.share.mean(0) - without.share.mean(0)
    assert found.is_beyond_chance[:, own].mean() >= 0.6
    assert raised.argmax() == own, dict(zip(MEASURES, raised.round(3), strict=True))
    named = [found.dominating(i) for i in range(8)]
    assert named.count(switch) >= 5


@pytest.mark.slow
def test_kappa_is_seen_in_degrees_and_leaves_inputs_alone(skews):
    """SD of kappa 2.4 and 3.2, of the frame 2 and 2: offsets of 4.4 degrees on average at most."""
    found = skews["y_given_x"]
    assert found.units[MEASURES.index("y_given_x")] == "degrees"
    assert 1.5 < found.value[:, MEASURES.index("y_given_x")].mean() < 4.4
    assert found.share[:, MEASURES.index("covariate")].mean() < 0.01


def test_energy_coefficient_equals_scipy():
    """SciPy: the square root of 2 E|X-Y| - E|X-X'| - E|Y-Y'|, with X = X' among the pairs."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=40), rng.normal(1, 2, size=60)
    both = np.concatenate([x, y])
    gaps = np.abs(both[:, None] - both)
    found = energy_coefficients(gaps, np.ones(100), np.repeat([0, 1], [40, 60]))
    across = np.abs(x[:, None] - y).mean()
    within = np.abs(x[:, None] - x).mean() * 40 / 39 + np.abs(y[:, None] - y).mean() * 60 / 59
    assert found[0] == pytest.approx((2 * across - within) / (2 * across))
    assert found[1] == pytest.approx(found[0])
    biased = energy_distance(x, y) ** 2
    plain = np.abs(x[:, None] - x).mean() + np.abs(y[:, None] - y).mean()
    assert biased == pytest.approx(2 * across - plain)


def test_energy_coefficient_by_hand():
    """X = 0, 0 and Y = 2, 2: nothing inside, all across, so 1; X = Y = 0, 2: -1, U-statistics.

    In the second case across is 1 on average and inside 2: (2 - 2 - 2) / 2.
    """
    apart, same = np.array([0, 0, 2, 2.0]), np.array([0, 2, 0, 2.0])
    owner = np.array([0, 0, 1, 1])
    for values, expected in ((apart, 1.0), (same, -1.0)):
        gaps = np.abs(values[:, None] - values)
        assert energy_coefficients(gaps, np.ones(4), owner).tolist() == [expected] * 2


def test_intraclass_by_hand():
    """Runs (0, 2), (4, 6): MSB = 16, MSW = 2, so (16 - 2) / 2 = 7 of 7 + 2 lies between runs."""
    assert intraclass(np.array([[0], [2], [4], [6.0]]), np.array([2, 2])) == pytest.approx(7 / 9)


def test_quantity_and_gini_by_hand():
    """Of 100 and 300: ratios 0.5 and 1.5, shares 1/3 and 1/5, Gini (2 x 200 / 4) / (2 x 200)."""
    rng = np.random.default_rng(0)
    own = Samples({"x": torch.randn(40, 2), "y": torch.from_numpy(rng.normal(size=40))})
    found = measure_skew({"a": compact(own, 40), "b": compact(own, 40)}, [100, 300], draws=20)
    last = MEASURES.index("quantity")
    np.testing.assert_allclose(found.value[:, last], [0.5, 1.5])
    np.testing.assert_allclose(found.share[:, last], [1 / 3, 1 / 5])
    assert found.gini == pytest.approx(0.25)


def test_dominating_is_the_largest_share_beyond_chance():
    share = np.array([[0.3, 0.2, 0, 0, 0, 0], [0.01] * 6])
    chance = np.full((2, 6), 0.05)
    chance[0, 0] = 0.4
    found = Skew(("a", "b"), np.array([9, 9]), ("",) * 6, share, share, chance)
    assert [found.dominating(i) for i in range(2)] == ["label", None]


def test_sessions_do_not_pass_for_differences_between_people():
    """Runs are permuted whole: with 20 sessions of 10 samples each, chance already differs much.

    Between-session variance 4, within 1: an independent permutation would call 6 people different.
    """
    rng = np.random.default_rng(3)
    people = {}
    for i in range(6):
        x = np.repeat(2 * rng.normal(size=(20, 3)), 10, 0) + rng.normal(size=(200, 3))
        y = rng.normal(size=200)
        people[f"p{i}"] = compact(
            Samples({"x": torch.from_numpy(x), "y": torch.from_numpy(y)}), 200
        )
    found = measure_skew(people, [200] * 6)
    assert found.is_beyond_chance[:, MEASURES.index("covariate")].sum() <= 1
    dependence = MEASURES.index("dependence")
    assert found.is_beyond_chance[:, dependence].all()
    # Three of four columns have intraclass correlation 0.8, y has none: about 200 / (1 + 9 x 0.6).
    assert 24 < found.value[:, dependence].mean() < 40


def test_compact_takes_frames_points_classes_and_degrees():
    points = torch.tensor([[[[0.2, 0.4], [0.4, 0.8]]], [[[float("nan")] * 2] * 2]])
    frames = torch.zeros(3, 24, 40, 3, dtype=torch.uint8)
    frames[2] = 255
    video = Samples(
        {"frame_ids": torch.tensor([[2], [0]]), "points": points},
        {"frames": SharedRows(frames, "frame_ids")},
    )
    found = compact(video, 10)
    np.testing.assert_allclose(found.labels, [[0.3, 0.6]], atol=1e-6)
    assert found.pictures.shape == (1, 12, 20)
    assert found.pictures.min() == 1.0
    image = torch.zeros(2, 1, 9, 15, dtype=torch.uint8)
    classes = compact(Samples({"image": image, "label": torch.tensor([1, 0])}), 10, classes=3)
    assert classes.labels.tolist() == [[0, 1, 0], [1, 0, 0]]
    gaze = Samples({"image": image, "gaze": torch.full((2, 2), torch.pi / 4)})
    np.testing.assert_allclose(compact(gaze, 10).labels, 45, atol=1e-4)


def test_bad_data_say_what_is_needed():
    x, y = torch.randn(9, 2), torch.randn(9)
    with pytest.raises(DataError, match="label column"):
        compact(Samples({"x": x}), 9)
    with pytest.raises(DataError, match="pictures"):
        compact(Samples({"y": y}), 9)
    own = compact(Samples({"x": x, "y": y}), 9)
    with pytest.raises(DataError, match="at least 2"):
        measure_skew({"a": own}, [9])
    few = compact(Samples({"x": x[:5], "y": y[:5]}), 9)
    with pytest.raises(DataError, match="'b' has 5"):
        measure_skew({"a": own, "b": few}, [9, 5])


@pytest.mark.slow
@pytest.mark.data
def test_real_people_differ_in_looks_and_not_in_amount():
    """MPIIGaze, evaluation subset: 3,000 patches of everybody, labels much alike (11 people)."""
    found = skew_of(MpiigazeCrops().load(str(research_data("eyes/mpiigaze_9x15"))))
    share = dict(zip(MEASURES, found.share.T, strict=True))
    assert found.is_beyond_chance[:, MEASURES.index("covariate")].all()
    assert share["covariate"].mean() > 4 * share["label"].mean()
    assert not share["quantity"].any()
    assert found.gini == 0


def brute_energy(values, owner):
    """Coefficients of every owner against all others, over single pairs of samples."""
    found = []
    for client in range(max(owner) + 1):
        mine = [v for v, o in zip(values, owner, strict=True) if o == client]
        rest = [v for v, o in zip(values, owner, strict=True) if o != client]
        across = np.mean([abs(a - b) for a in mine for b in rest])
        inside = [
            np.mean([abs(a - b) for i, a in enumerate(s) for j, b in enumerate(s) if i != j])
            for s in (mine, rest)
        ]
        found.append((2 * across - sum(inside)) / (2 * across))
    return found


def test_energy_coefficients_of_runs_are_those_of_their_samples():
    """Three people with runs of unequal size, one of them with a single run."""
    sizes, owner = np.array([3, 2, 4, 1, 5]), np.array([0, 0, 1, 2, 2])
    rows = np.repeat(owner, sizes)
    values = np.random.default_rng(4).normal(rows, 1)
    gaps, starts = np.abs(values[:, None] - values), np.cumsum([0, *sizes[:-1]])
    sums = np.add.reduceat(np.add.reduceat(gaps, starts, 0), starts, 1)
    found = energy_coefficients(sums, sizes, owner)
    np.testing.assert_allclose(found, brute_energy(values, rows), rtol=1e-12)
    # All samples at one point.
    assert not energy_coefficients(np.zeros((2, 2)), np.array([2, 2]), np.array([0, 1])).any()


def test_intraclass_of_unequal_runs_and_two_columns():
    """The variance of both columns together, by sums of squares over runs of 2, 3 and 4."""
    sizes = np.array([2, 3, 4])
    x = np.random.default_rng(5).normal(size=(9, 2)) + np.repeat([0, 1, 3], sizes)[:, None]
    runs = np.split(x, np.cumsum(sizes)[:-1])
    between = sum(((r.mean(0) - x.mean(0)) ** 2).sum() * len(r) for r in runs) / 2
    inside = sum(((r - r.mean(0)) ** 2).sum() for r in runs) / 6
    extra = (between - inside) / ((9 - (4 + 9 + 16) / 9) / 2)
    assert intraclass(x, sizes) == pytest.approx(extra / (extra + inside), rel=1e-12)
    assert intraclass(np.ones((4, 1)), np.array([2, 2])) == 0
    # Runs with one mean: (0 - 1/2) / 2 = -1/4 extra, of 1/4 in all.
    assert intraclass(np.array([[0.0], [1], [0], [1]]), np.array([2, 2])) == pytest.approx(-1)


@pytest.mark.parametrize(
    ("length", "sizes"),
    [
        (8, [4, 4]),
        (11, [5, 6]),
        (12, [4, 4, 4]),
        (79, None),
        (80, [4] * 20),
        (81, [4] * 19 + [5]),
        (200, [10] * 20),
    ],
)
def test_runs_are_twenty_or_of_four_samples(length, sizes):
    found = Runs.of([length, 8])
    mine = found.sizes[found.owner == 0]
    assert len(mine) == min(20, length // 4)
    assert mine.sum() == length
    assert set(mine.tolist()) <= {length // len(mine), -(-length // len(mine))}
    if sizes:
        assert mine.tolist() == sizes
    assert found.sizes[-2:].tolist() == [4, 4]
    assert found.owner[-3:].tolist() == [0, 1, 1]
    assert found.starts.tolist() == [0, *np.cumsum(found.sizes)[:-1]]
    assert found.rows.tolist() == [0] * length + [1] * 8
    assert found.folds.tolist() == [
        run % 5 for run, size in enumerate(found.sizes) for _ in range(size)
    ]


def test_ridge_predictions_of_a_fold_come_from_the_others():
    """The penalty as so many more rows of a plain least-squares problem, solved by lstsq."""
    rng, folds = np.random.default_rng(6), np.array([0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1])
    x, y = rng.normal(size=(12, 2)), rng.normal(size=(12, 3))
    for given, ridge in (((), 0.02), ((0.5,), 0.5)):
        found = skew._crossfit(x, y, folds, *given)
        for fold in range(5):
            held, known = folds == fold, folds != fold
            middle = x[known].mean(0)
            more = np.sqrt(ridge * known.sum()) * np.eye(2)
            rows = np.vstack([x[known] - middle, more])
            wanted = np.vstack([y[known] - y[known].mean(0), np.zeros((2, 3))])
            slopes = np.linalg.lstsq(rows, wanted, rcond=None)[0]
            np.testing.assert_allclose(
                found[held], (x[held] - middle) @ slopes + y[known].mean(0), rtol=1e-9
            )


def test_constant_columns_go_and_others_are_standardised():
    """A deviation of one part in a billion of the largest entry, or of 1, is rounding."""
    wave = np.tile([-1.0, 1.0], 4)
    kept = skew._standard(np.column_stack([5 + 3 * wave, 7 + 0 * wave, 2.5 * wave]))
    np.testing.assert_allclose(kept, np.column_stack([wave, wave]))
    assert skew._standard((1.1e-9 * wave)[:, None]).shape == (8, 1)
    assert skew._standard((0.9e-9 * wave)[:, None]).shape == (8, 0)
    small = 5e-9 * wave
    assert skew._standard(np.column_stack([small, 4 * wave])).shape == (8, 2)
    assert skew._standard(np.column_stack([small, 6 * wave])).shape == (8, 1)
    assert skew._standard(np.zeros((8, 0))).shape == (8, 0)
    assert skew._random_features(np.zeros((8, 0))).shape == (8, 300)


def two_by_hand():
    """Two people of 8 and 12 samples with two inputs, whose labels have one column."""
    rng, people = np.random.default_rng(7), {}
    for name, n, at in (("a", 8, 0.0), ("b", 12, 1.0)):
        x = np.cumsum(rng.normal(size=(n, 2)), 0) + at
        y = x[:, 0] + 0.3 * rng.normal(size=n) + at
        people[name] = compact(Samples({"x": torch.tensor(x), "y": torch.tensor(y)}), n)
    return people


def test_distances_dependence_and_chance_are_those_of_their_definitions():
    """P(x) on standardised inputs, P(y) in its unit, dependence over inputs and labels."""
    people = two_by_hand()
    x = np.concatenate([own.numbers for own in people.values()])
    y = np.concatenate([own.labels for own in people.values()])
    x, marks = (x - x.mean(0)) / x.std(0), (y - y.mean(0)) / y.std(0)
    found = measure_skew(people, [8, 12], draws=30, seed=3)
    of = dict(zip(MEASURES, zip(found.value.T, found.share.T, strict=True), strict=True))
    apart = [wasserstein_distance(x[:8, i], x[8:, i]) for i in range(2)]
    np.testing.assert_allclose(of["covariate"][0], np.hypot(*apart) / np.sqrt(2))
    np.testing.assert_allclose(of["label"][0], wasserstein_distance(y[:8, 0], y[8:, 0]))
    np.testing.assert_allclose(of["label"][1], brute_energy(y[:, 0], [0] * 8 + [1] * 12))
    assert found.units == (
        "SD",
        "units of y",
        "SD",
        "units of y",
        "effective samples",
        "of the mean",
    )
    scaled = np.hstack([x, marks])
    for client, (rows, sizes) in enumerate(((scaled[:8], [4, 4]), (scaled[8:], [4, 4, 4]))):
        share = intraclass(rows, np.array(sizes))
        assert of["dependence"][1][client] == pytest.approx(share)
        worth = len(rows) / (1 + (len(rows) / len(sizes) - 1) * max(share, 0))
        assert of["dependence"][0][client] == pytest.approx(worth)
    # Of people among whom 60 samples are dealt, |n - mean| / mean is below this with 99 %.
    three = {**people, "c": people["b"]}
    luck = norm.ppf(0.995) * np.sqrt((1 - 1 / 3) / 20)
    chance = measure_skew(three, [10, 20, 30], draws=2).chance[:, -1]
    np.testing.assert_allclose(chance, luck / (2 + luck))


def test_chance_is_a_quantile_over_runs_dealt_anew():
    """The same stream deals the owners of runs, measure by measure, then each client's samples."""
    people, draws = two_by_hand(), 25
    found = measure_skew(people, [8, 12], draws=draws, seed=3)
    parts, rng = list(people.values()), np.random.default_rng(3)
    runs = Runs.of([8, 12])
    views, marks = skew._views(parts, runs)
    for column, view in enumerate(views):
        gaps = np.sqrt(((view[:, None] - view) ** 2).sum(-1))
        parts_of = np.split(np.arange(20), runs.starts[1:])
        sums = np.array([[gaps[np.ix_(a, b)].sum() for b in parts_of] for a in parts_of])
        dealt = [
            energy_coefficients(sums, runs.sizes, rng.permutation(runs.owner)) for _ in range(draws)
        ]
        np.testing.assert_allclose(found.chance[:, column], np.quantile(dealt, 0.99, 0))
        np.testing.assert_allclose(
            found.share[:, column], energy_coefficients(sums, runs.sizes, runs.owner)
        )
    scaled = np.hstack([views[0], marks])
    for client, own in enumerate((scaled[:8], scaled[8:])):
        sizes = runs.sizes[runs.owner == client]
        dealt = [intraclass(rng.permutation(own), sizes) for _ in range(draws)]
        assert found.chance[client, 4] == pytest.approx(np.quantile(dealt, 0.99))


def test_views_of_pictures_and_labels_by_their_definitions():
    """Pictures of 9 x 11: looks, 8 and 40 principal components, and what a box of 7 leaves."""
    rng = np.random.default_rng(8)
    pictures, y = rng.random((60, 9, 11)).astype(np.float32), rng.normal(size=(60, 2))
    pictures += y[:, :1, None].astype(np.float32) * np.linspace(0, 1, 11, dtype=np.float32)
    numbers = rng.normal(size=(60, 1))
    parts = [
        Compact(pictures[a:b], numbers[a:b], y[a:b], "degrees", b - a)
        for a, b in ((0, 25), (25, 60))
    ]
    runs = Runs.of([25, 35])
    (x, labels, there, away), marks = skew._views(parts, runs)

    def standard(columns):
        return (columns - columns.mean(0)) / columns.std(0)

    flat = pictures.reshape(60, -1).astype(float)
    looks = np.stack([flat.mean(1), flat.std(1)], 1)
    axes = np.linalg.svd(flat - flat.mean(0), full_matrices=False)[2]
    components = (flat - flat.mean(0)) @ axes.T
    wanted = standard(np.hstack([numbers, looks, components[:, :8]]))
    np.testing.assert_allclose(np.abs(x), np.abs(wanted), atol=1e-5)
    np.testing.assert_array_equal(labels, y)
    np.testing.assert_allclose(marks, standard(y))
    padded = np.pad(pictures.astype(float), ((0, 0), (3, 3), (3, 3)), mode="symmetric")
    windows = np.lib.stride_tricks.sliding_window_view(padded, (7, 7), axis=(1, 2))
    detail = (pictures - windows.mean((-1, -2))).reshape(60, -1)
    a, b = marks.T
    terms = standard(np.column_stack([a, b, a * a, a * b, b * b]))
    rest = detail - skew._crossfit(terms, detail, runs.folds, 1e-4)
    slopes = np.linalg.lstsq(marks, detail - detail.mean(0), rcond=None)[0]
    np.testing.assert_allclose(there, standard(rest @ np.linalg.pinv(slopes)), atol=1e-6)
    inputs = standard(np.hstack([numbers, looks, components[:, :40]]))
    # A principal component's sign is free, and random features of it are not: as the code has it.
    centred = flat - flat.mean(0)
    own = centred @ np.linalg.svd(centred.T @ centred)[0][:, :40]
    inputs[:, 3:] = standard(own)
    draw = np.random.default_rng(0)
    weights, shift = draw.normal(size=(43, 300)) / np.sqrt(43), draw.normal(size=300)
    rich = np.hstack([inputs, np.maximum(inputs @ weights + shift, 0)])
    np.testing.assert_allclose(away, y - skew._crossfit(rich, y, runs.folds), atol=1e-5)


def test_labels_of_many_columns_explain_inputs_without_their_products():
    """Of three columns squares and products count, of four they do not."""
    rng = np.random.default_rng(9)
    for columns in (3, 4):
        y, x = rng.normal(size=(40, columns)), rng.normal(size=(40, 6))
        parts = [Compact(np.zeros((40, 0, 0), np.float32), x, y, "u", 40)]
        runs = Runs.of([40])
        (_, _, there, _), marks = skew._views(parts, runs)
        products = [marks[:, i] * marks[:, j] for i in range(columns) for j in range(i + 1)]
        terms = np.column_stack([marks, *products]) if columns == 3 else marks
        terms = (terms - terms.mean(0)) / terms.std(0)
        rest = x - skew._crossfit(terms, x, runs.folds, 1e-4)
        slopes = np.linalg.lstsq(marks, x - x.mean(0), rcond=None)[0]
        wanted = rest @ np.linalg.pinv(slopes)
        np.testing.assert_allclose(there, (wanted - wanted.mean(0)) / wanted.std(0), atol=1e-8)


@pytest.mark.parametrize("count", [7, 8])
def test_eight_samples_are_enough_and_seven_are_not(count):
    x, y = torch.randn(9, 2, generator=torch.Generator().manual_seed(0)), torch.arange(9.0)
    own = {n: compact(Samples({"x": x[:k], "y": y[:k]}), 9) for n, k in (("a", 9), ("b", count))}
    if count == 8:
        assert measure_skew(own, [9, 8], draws=2).share.shape == (2, 6)
        return
    with pytest.raises(DataError, match="'b' has 7 training samples with a label, skew needs 8"):
        measure_skew(own, [9, 7])


def test_a_share_as_large_as_chance_is_not_beyond_it():
    share = np.full((1, 6), 0.05)
    found = Skew(("a",), np.array([9]), ("",) * 6, share, share, share)
    assert not found.is_beyond_chance.any()
    assert found.dominating(0) is None
