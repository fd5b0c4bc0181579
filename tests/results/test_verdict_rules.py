"""When two rows may be judged: learned, finished, ceiling, same run, by hand."""

import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import vergence as vg
from tests.made_up_runs import METHODS, write_study
from vergence.api.comparison import compare
from vergence.results import verdict_rules
from vergence.results.read import read
from vergence.results.verdict_rules import (
    Standing,
    gain_a_round,
    instead_of_verdict,
    mean_curve,
    same_scores,
    standing,
    standings,
    training_curve,
    with_images,
)

PRIOR = {"centre": {"a": 1.0, "b": 2.0, "c": 3.0}, "worse": {"a": 0.5, "b": 0.5, "c": 9.0}}


def scores(*values):
    return dict(zip("abc", values, strict=True))


@pytest.mark.parametrize(
    ("mine", "learned", "below"),
    [
        ((5.0, 7.0, 9.0), True, False),
        ((2.0, 2.0, 3.0), False, False),
        ((0.5, 1.0, 1.5), False, True),
    ],
)
def test_a_row_has_learned_if_it_is_shown_to_be_above_the_best_prior(mine, learned, below):
    """Leads over 1, 2, 3: 4, 5, 6 is 5 -/+ 2.48; 1, 0, 0 is .33 -/+ 1.43. -.5, -1, -1.5 is -1 -/+
    1.24, but for everybody half of the prior, so below it. The best prior is that of the best mean,
    as it stands on the page: over `worse`, 3.33, the leads 4.5, 6.5, 0 and shares 9, 13, 0 prove
    nothing.
    """
    found = standing(scores(*mine), {"centre": PRIOR["centre"]}, False)
    assert (found.learned, found.below, found.prior) == (learned, below, "centre")
    assert standing(scores(5.0, 7.0, 9.0), PRIOR, False).prior == "worse", "the best mean counts"
    assert standing(scores(5.0, 7.0, 9.0), PRIOR, False).learned is False


def test_an_accuracy_is_above_chance_by_three_standard_errors_of_the_test():
    """500 images at .1: sqrt(51 / 502 * 451 / 502 / 500) = .0135, three of them .0405."""
    chance = {"chance": scores(0.1, 0.1, 0.1)}
    assert not standing(scores(0.13, 0.14, 0.15), chance, False, images=500).learned
    assert standing(scores(0.13, 0.14, 0.16), chance, False, images=500).learned


def test_an_accuracy_is_above_chance_in_every_seed():
    """10,000 images at .1: three standard errors are .009, and the mean of a lucky seed is .11."""
    chance = {"chance": {f"seed {i}": 0.1 for i in range(3)}}
    lucky = dict(zip(chance["chance"], (0.1, 0.1, 0.13), strict=True))
    assert standing(lucky, chance, False, images=10_000).learned is False
    every = dict(zip(chance["chance"], (0.11, 0.12, 0.13), strict=True))
    assert standing(every, chance, False, images=10_000).learned is True


def test_what_cannot_be_known_is_not_claimed():
    assert standing({"a": 5.0}, {"centre": {"a": 1.0}}, False).learned is None, "one person"
    assert standing(scores(1, 2, 3), {}, False).learned is None, "no prior"
    assert standing({}, PRIOR, False).learned is None
    alike = {f"seed {i}": 0.5 for i in range(3)}
    chance = {"chance": {f"seed {i}": 0.1 for i in range(3)}}
    assert standing(alike, chance, False).learned is None, "three seeds without any spread"


@pytest.mark.parametrize(
    ("rounds", "means", "gain"),
    [
        ((0, 10, 20, 30), (0, 50, 60, 60.5), 0.0),  # .05 a round, ten rounds: .5 of 60.5
        ((0, 10, 20, 30), (0, 50, 60, 61), 0.1),  # 1.0 is more than 1 % of 61
        ((0, 10, 20, 30), (-9, -8, -7.5, -7.45), 0.0),
        ((0, 10, 20, 30), (-9, -8, -7.5, -7.2), 0.03),
        ((0, 5, 8), (0, 50, 53), 1.0),
        ((0, 30), (0, 60), math.nan),
        ((), (), math.nan),
        ((0, 10, 20, 30), (0, 60, 50, 40), 0.0),
    ],
)
def test_a_row_has_finished_if_its_last_third_gains_a_hundredth_at_most(rounds, means, gain):
    found = gain_a_round(rounds, means)
    assert (math.isnan(found) and math.isnan(gain)) or found == pytest.approx(gain)


DONE, LOW = Standing(2.0, prior="centre"), Standing(1.0, learned=False, prior="centre")


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        (DONE, Standing(1.5), ""),
        (DONE, LOW, ""),
        (LOW, LOW, "neither learned"),
        (Standing(3.0, learned=False), DONE, "winner not learned"),
        (DONE, Standing(1.5, gaining=0.03), "not trained (gaining 0.03 a round)"),
        (DONE, Standing(1.5, gaining=math.nan), "open (not recorded)"),
        (DONE, Standing(1.5, learned=None), ""),
        (DONE, Standing(2.5, learned=None), "open (no baseline)"),
        (DONE, Standing(2.5, learned=None, prior="centre"), "open (no spread)"),
        (LOW, Standing(0.0, learned=None, prior="centre"), "neither learned"),
        (Standing(0.995, ceiling=True), Standing(1.0, ceiling=True), "ceiling"),
        (Standing(0.995, ceiling=True), Standing(0.9), ""),
    ],
)
def test_words_in_the_place_of_a_verdict(one, other, words):
    assert instead_of_verdict(one, other, equal=False) == words
    assert instead_of_verdict(other, one, equal=False) == words


def test_a_lead_that_would_outlast_as_many_rounds_again_is_judged():
    """The loser gains .03 in each of 10 rounds: .3 in ten more; the lead is at least .31 or .29.

    One that was .6 better in an earlier round might be so again, while the other still gains.
    """
    still = Standing(1.5, gaining=0.03, rounds=10)

    def words(one, other, **how):
        found = instead_of_verdict(one, other, equal=False, **how)
        assert found == instead_of_verdict(other, one, equal=False, **how)
        return found

    assert words(DONE, still, lead=0.31) == ""
    assert words(DONE, still, lead=0.29) == "not trained (gaining 0.03 a round)"
    assert words(DONE, still) == "not trained (gaining 0.03 a round)", "the interval has 0"
    ahead = Standing(2.0, gaining=0.1, rounds=10)
    assert words(ahead, Standing(1.5), lead=0.1) == "", "the better row may gain"
    assert words(ahead, Standing(1.5)) == "not trained (gaining 0.1 a round)"
    fallen = Standing(1.5, lost=0.6)
    assert words(ahead, fallen, lead=0.5) == "not trained (gaining 0.1 a round)"
    assert words(ahead, fallen, lead=0.7) == "" == words(DONE, fallen, lead=0.5)
    guess = Standing(3.0, learned=False, gaining=0.1, rounds=10)
    assert words(guess, DONE, lead=9.0) == "not trained (gaining 0.1 a round)"


def test_equal_rows_are_one_run():
    assert same_scores({"nss": scores(1, 2, 3)}, {"nss": scores(1, 2, 3), "kld": {}})
    assert not same_scores({"nss": scores(1, 2, 3)}, {"nss": scores(1, 2, 3.001)})
    assert not same_scores({"nss": scores(1, 2, 3)}, {"kld": scores(1, 2, 3)})
    assert instead_of_verdict(DONE, DONE, equal=True) == "same run"
    assert instead_of_verdict(DONE, LOW, equal=False, both=True) == "winner not learned"


def test_an_interval_over_seeds_carries_the_sampling_of_images():
    """.5 and .5 on 500: each has .02236 (as 251 of 502), so 1.96 sqrt 2 * .02236 = .06198."""
    low, high = with_images((0.1, 0.1), 0.5, 0.5, 500)
    assert (low, high) == pytest.approx((0.1 - 0.06198, 0.1 + 0.06198), abs=1e-5)


def changed(tmp_path, **values):
    """A study of eight people whose NSS under a method is a function of their number."""
    out = write_study(tmp_path / "OUT", people=8)
    for method, value in values.items():
        path = out / method / "people.csv"
        rows = [line.split(",") for line in path.read_text().splitlines()]
        rows = [[*r[:4], str(value(int(r[1][1:])))] if r[3] == "nss" else r for r in rows]
        path.write_text("".join(",".join(row) + "\n" for row in rows))
    return out


def word(out, a="fedcpf", b="fedavg"):
    tests = compare(out).tests.set_index(["a", "b"])
    return tests.word[a, b]


def test_compare_says_why_there_is_no_verdict(tmp_path):
    """The best prior, `centre`, is .6 + .1 i; people's scores are set below."""
    high = changed(tmp_path / "1", fedavg=lambda i: 2 + 0.1 * i, fedcpf=lambda i: 3 + 0.11 * i)
    assert word(high) == "different"
    low = changed(tmp_path / "2", fedavg=lambda i: 0.6 + 0.01 * i, fedcpf=lambda i: 0.1 + 0 * i)
    assert word(low) == "neither learned"
    lost = changed(tmp_path / "3", fedavg=lambda i: 2 + 0.1 * i, fedcpf=lambda i: 0.05 * i)
    assert word(lost) == "different: FedCPF is worse than a constant"
    assert "Worse than a constant: FedCPF." in repr(compare(lost))
    assert "Nothing was learned" not in repr(compare(lost))
    told = repr(compare(low))
    same = changed(tmp_path / "4", fedavg=lambda i: 2 + i, fedcpf=lambda i: 2 + i)
    assert word(same) == "same run"
    assert "neither learned" in told
    (high / "priors.csv").write_text("prior,person,metric,value\n")
    assert word(high) == "open (no baseline)"
    assert "No baseline" in repr(compare(high))


def test_a_run_that_still_gains_is_not_judged(tmp_path):
    out = write_study(tmp_path / "OUT", people=8)
    path = out / "fedcpf" / "rounds.csv"
    rows = [line.split(",") for line in path.read_text().splitlines()]
    rows = [[*r[:4], str(0.5 * int(r[1])), *r[5:]] if r[0] != "seed" else r for r in rows]
    path.write_text("".join(",".join(row) + "\n" for row in rows))
    assert word(out) == "not trained (gaining 0.5 a round)"
    assert "FedCPF gains 0.5 a round, at 30 steps" in repr(compare(out))
    assert read(out).run("fedcpf").steps == 30
    assert set(METHODS) >= {"fedavg", "fedcpf"}


def eyes(people):
    """Gaze that follows one pixel, in another direction for each person."""
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (people, 60, 1, 4, 4), dtype=np.uint8)
    gaze = image[:, :, 0, 1, :2] / 500 * (-1.0) ** np.arange(people)[:, None, None]
    pose = np.zeros((60, 2), np.float32)
    return vg.Federation.from_arrays(
        {f"p{i}": {"image": image[i], "gaze": gaze[i], "pose": pose} for i in range(people)}
    )


def ridge(people, **how):
    """A run in closed form, of which only people's own parts can learn."""
    model = vg.models.KernelEye(image=(1, 4, 4), features=20, own_centres=10, side=False)
    task = vg.tasks.GazeAngle(model)
    return vg.train(vg.methods.FedRidge(), task, eyes(people), progress=False, **how)


def test_a_run_in_closed_form_has_finished_however_its_scores_change():
    """Its own parts, which come after the rounds, are no training that goes on."""
    run = ridge(3, rounds=3, evaluate_every=1)
    (each,) = standings(read(run.folder), "angle_error_deg").values()
    assert each.gaining == 0
    assert each.learned is not None


def test_one_person_gives_no_verdict_on_what_was_learned():
    run = ridge(1, rounds=1, evaluate_every=0)
    assert "Too few people for an interval" in str(compare(run))
    assert "Nothing was learned" not in str(compare(run))


def fold(folder, values):
    """Write a fold's curve: means of one metric, evaluated in rounds 0, 2, 4 and so on."""
    folder.mkdir(parents=True)
    lines = [f"0,{2 * i},P0,score,{value}" for i, value in enumerate(values)]
    (folder / "rounds.csv").write_text("\n".join(["seed,round,evaluation,metric,value", *lines]))
    return SimpleNamespace(
        folder=folder,
        results={},
        rounds=pd.read_csv(folder / "rounds.csv"),
        lower_is_better=frozenset(),
    )


def test_a_run_of_folds_has_the_mean_of_their_curves(tmp_path, monkeypatch):
    """One fold gains 4 % in the last third, one loses as much: the mean has finished."""
    runs = {
        "p00": fold(tmp_path / "folds/p00", [0.1, 0.96, 0.96, 1.0]),
        "p01": fold(tmp_path / "folds/p01", [0.3, 1.04, 1.04, 1.0]),
    }
    monkeypatch.setattr(
        verdict_rules, "read_study", lambda path: SimpleNamespace(runs=[runs[path.name]])
    )
    folds = {name: f"folds/{name}" for name in runs}
    whole = SimpleNamespace(folder=tmp_path, results={"folds": folds})
    rounds, means = training_curve(whole, "score")
    assert list(rounds) == [0, 2, 4, 6]
    assert means == pytest.approx([0.2, 1.0, 1.0, 1.0])
    assert gain_a_round(*training_curve(runs["p00"], "score")) > 0
    assert gain_a_round(rounds, means) == 0


def test_folds_of_other_rounds_have_the_steepest_curve():
    slow, steep = ((0, 3, 6), (0.1, 1.0, 1.0)), ((0, 2, 4), (0.1, 1.0, 2.0))
    assert mean_curve([slow, steep]) == steep
