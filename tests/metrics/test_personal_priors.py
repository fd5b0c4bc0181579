"""Personal priors: made of one's own training samples alone, and never seen by those they hold."""

import math
from dataclasses import replace

import pytest
import torch

from tests.oracles.test_gaze_map import FlatModel, samples
from vergence.core.data import Samples, Splits
from vergence.core.federation import Federation, PublicData
from vergence.errors import ConfigError
from vergence.metrics import personal_priors
from vergence.metrics.gaze_maps import label_maps, smoothed
from vergence.metrics.map_priors import static_priors
from vergence.metrics.personal_priors import (
    BANK,
    FOLDS,
    PSEUDO,
    ROW,
    WIDTHS,
    common_map,
    common_prior,
    cross_fitted,
    fold_numbers,
    losses,
    offsets,
    whole_prior,
    width_for,
    width_within,
)
from vergence.models.small_eye import SmallEye
from vergence.tasks.gaze_angle import AMOUNTS, CENTRE, SPREAD, GazeAngle
from vergence.tasks.gaze_map import EXPONENTS, GazeMap

GRID = (8, 8)


def looks(place, n=20, spread=0.01, seed=0):
    """Gaze `[n, 1, 1, 2]` near one place."""
    drawn = torch.Generator().manual_seed(seed)
    return (torch.tensor(place) + spread * torch.randn(n, 1, 1, 2, generator=drawn)).clamp(0, 0.99)


def person(place, n=20, seed=0):
    parts = [
        samples(looks(place, count, seed=seed + i).tolist()) for i, count in enumerate((n, 4, 4))
    ]
    return Splits(*parts)


PEOPLE = Federation("two", {"ann": person([0.2, 0.2]), "ben": person([0.8, 0.7], seed=9)})
TASK = GazeMap(FlatModel(), personal_prior=1.0)


def test_folds_are_neighbours_of_one_size():
    assert fold_numbers(10).tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert fold_numbers(0).tolist() == []


def test_a_map_that_a_sample_is_given_was_made_without_it(monkeypatch):
    """With blur and share fixed, moving the first fold's gaze moves every map but the first."""
    monkeypatch.setattr(personal_priors, "WIDTHS", (0.1,))
    monkeypatch.setattr(personal_priors, "SHARES", (0.1,))
    points = looks([0.3, 0.3], 10)
    moved = points.clone()
    moved[:2] = 0.95
    before, after = cross_fitted(points, GRID), cross_fitted(moved, GRID)
    assert torch.equal(before[0], after[0])
    assert all(not torch.equal(before[k], after[k]) for k in range(1, FOLDS + 1))
    torch.testing.assert_close(before.sum((1, 2)), torch.ones(FOLDS + 1, dtype=torch.float64))


def test_a_person_without_gaze_or_with_a_single_look_gets_the_common_map():
    none = torch.full((6, 1, 1, 2), math.nan)
    once = none.clone()
    once[0] = 0.9
    for points in (none, once, none[:0]):
        torch.testing.assert_close(cross_fitted(points, GRID)[-1], common_map(*GRID))


def test_gaze_that_repeats_itself_is_trusted_more_than_gaze_that_does_not():
    steady = cross_fitted(looks([0.2, 0.2], 40), GRID)[-1]
    drawn = torch.Generator().manual_seed(1)
    anywhere = 0.5 + 0.2 * torch.randn(10, 1, 1, 2, generator=drawn)
    restless = cross_fitted(anywhere.clamp(0, 0.99), GRID)[-1]
    assert float(steady.max()) > 0.3
    assert float((restless - common_map(*GRID)).abs().max()) < 0.05


def test_offsets_by_hand():
    """Ten equal looks and PSEUDO of the common mean; the deviation shrinks from the common one."""
    gaze = torch.tensor([[0.1, 0.2]]).expand(10, 2)
    mean, spread = offsets(gaze, torch.zeros(2).double(), torch.ones(2).double())[-1]
    torch.testing.assert_close(mean, torch.tensor([0.1, 0.2]).double() * 10 / (10 + PSEUDO))
    square = (10 * (gaze[0].double() - mean) ** 2 + PSEUDO) / (10 + PSEUDO)
    torch.testing.assert_close(spread, square.sqrt())
    nobody = offsets(gaze[:0], torch.full((2,), 0.3).double(), torch.ones(2).double())[-1]
    torch.testing.assert_close(nobody, torch.tensor([[0.3, 0.3], [1.0, 1.0]]).double())


def test_a_person_s_prior_depends_on_that_person_s_training_samples_alone():
    """Neither others' data nor one's own test samples may move it."""
    ready = TASK.prepare(PEOPLE)
    changed = {**PEOPLE.people, "ben": person([0.1, 0.9], seed=77)}
    ann = PEOPLE.people["ann"]
    changed["ann"] = Splits(ann.train, ann.val, person([0.9, 0.9], seed=5).test)
    again = TASK.prepare(replace(PEOPLE, people=changed))
    mine, same = (f.people["ann"].test.banks[BANK].rows for f in (ready, again))
    assert torch.equal(mine, same)
    assert not torch.equal(*(f.people["ben"].test.banks[BANK].rows for f in (ready, again)))


@pytest.mark.parametrize("where", ["training", "prediction"])
def test_a_map_is_the_network_s_times_the_prior_to_its_power(where):
    task = GazeMap(FlatModel(), temperature=2.0, personal_prior=0.5, prior_in=where)
    ready = task.prepare(PEOPLE).people["ann"]
    test = ready.test.take(slice(0, 1))
    heat = (task.forward(task.module(), test) / 2.0).flatten(2).softmax(-1)
    prior = cross_fitted(PEOPLE.people["ann"].train.columns["points"], GRID)[-1] ** 0.5
    torch.testing.assert_close(
        heat[0, 0].double(), (prior / prior.sum()).flatten(), rtol=1e-4, atol=1e-6
    )
    rows = ready.train.columns[ROW]
    assert rows.tolist() == (
        [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4 + [4] * 4 if where == "training" else [FOLDS + 1] * 20
    )


def test_without_the_option_data_are_left_as_they_are():
    assert GazeMap(FlatModel()).prepare(PEOPLE) is PEOPLE
    assert GazeAngle(SmallEye()).prepare(PEOPLE) is PEOPLE
    data = PEOPLE.people["ann"].test
    assert GazeMap(FlatModel()).prepare_for(data, None) is data


def test_samples_that_were_never_prepared_are_refused():
    with pytest.raises(
        ConfigError, match=r"no prior, which task\.personal_prior needs.*task\.prepare_for"
    ):
        TASK.forward(TASK.module(), PEOPLE.people["ann"].test.take(slice(0, 1)))


def test_new_samples_get_their_owner_s_prior_and_a_stranger_s_the_common_one():
    new, ann = person([0.5, 0.5]).test, TASK.prepare(PEOPLE).people["ann"]
    mine = whole_prior(TASK.prepare_for(new, ann))
    assert torch.equal(mine, whole_prior(ann.test))
    torch.testing.assert_close(
        whole_prior(TASK.prepare_for(new, None)), common_map(*GRID).log().float()
    )
    torch.testing.assert_close(common_prior(ann.test), common_map(*GRID).log().float())


def test_public_samples_are_nobody_s():
    held = person([0.1, 0.1])
    ready = TASK.prepare(replace(PEOPLE, proxies=PublicData(held.train, held.val)))
    assert ready.proxies is not None
    torch.testing.assert_close(whole_prior(ready.proxies.train), common_map(*GRID).log().float())


def eyes(mean, n=30):
    drawn = torch.Generator().manual_seed(0)
    return Samples(
        {
            "image": torch.zeros(n, 1, 9, 15, dtype=torch.uint8),
            "pose": torch.zeros(n, 2),
            "gaze": torch.tensor(mean) + 0.01 * torch.randn(n, 2, generator=drawn),
        }
    )


def test_angles_move_to_a_person_s_mean_and_shrink_to_that_person_s_spread():
    task = GazeAngle(SmallEye(), personal_prior=1.0)
    splits = Splits(*(eyes([0.3, -0.2]) for _ in range(3)))
    ready = task.prepare(Federation("one", {"ann": splits})).people["ann"]
    batch, module = ready.test.take(slice(0, 4)), task.module()
    bare = GazeAngle(SmallEye()).forward(module, splits.test.take(slice(0, 4)))
    mean, spread = whole_prior(ready.test)
    torch.testing.assert_close(
        task.forward(module, batch), mean + spread / SPREAD * (bare - CENTRE), rtol=1e-4, atol=1e-5
    )
    strange = task.prepare_for(splits.test, None).take(slice(0, 4))
    torch.testing.assert_close(task.forward(module, strange), bare, rtol=1e-4, atol=1e-6)


def test_widths_are_those_that_others_gaze_is_likeliest_under():
    near = looks([0.5, 0.5], 60, spread=0.005)
    far = looks([0.5, 0.5], 60, spread=0.15)
    assert width_within(near, 32, 32) == WIDTHS[0]
    assert width_within(far, 32, 32) > 0.05


def test_priors_of_tables_are_wider_where_people_differ_and_one_person_needs_no_others():
    alone = Federation("one", {"ann": person([0.2, 0.2])})
    assert static_priors(alone, 16, 16)["global prior"]("ann").sum() == pytest.approx(1)
    apart = {
        w: person(p, seed=i) for i, (w, p) in enumerate({"a": [0.4, 0.4], "b": [0.6, 0.6]}.items())
    }
    alike = {w: person([0.5, 0.5], seed=i) for i, w in enumerate("ab")}
    wide, sharp = (
        float(static_priors(Federation("f", p), 16, 16)["global prior"]("a").max())
        for p in (apart, alike)
    )
    assert wide < sharp


CHOOSING = GazeMap(FlatModel(), personal_prior="auto")


def nothing_seen(part):
    """Outputs of a network that says nothing: a flat map for every sample."""
    return torch.zeros(len(part), 1, *GRID)


def exponent_of(chosen):
    """Place in the grid of the exponent that a person's test samples are predicted with."""
    rows = chosen.test.columns[ROW].unique().tolist()
    assert len(rows) == 1
    return rows[0] // (FOLDS + 1)


def test_until_an_exponent_is_chosen_a_prior_says_nothing():
    """So neither training nor a validation score that a method steers by can tell of it."""
    ready, module = CHOOSING.prepare(PEOPLE).people["ann"], CHOOSING.module()
    for part in (ready.train, ready.val, ready.test):
        batch = part.take(slice(None))
        assert not batch[BANK].any()
        assert torch.equal(CHOOSING.forward(module, batch), CHOOSING.likelihood(module, batch))


def test_validation_data_choose_the_exponent_of_one_s_own_prior():
    """Ann looks where she looked in training, Ben's validation gaze is elsewhere each time."""
    ready = CHOOSING.prepare(PEOPLE).people["ann"]
    steady = CHOOSING.tune_prior(ready, nothing_seen)
    assert exponent_of(steady) >= EXPONENTS.index(1.0)
    prior = cross_fitted(PEOPLE.people["ann"].train.columns["points"], GRID)[-1].log()
    torch.testing.assert_close(
        whole_prior(steady.test), EXPONENTS[exponent_of(steady)] * prior.float()
    )
    ann = PEOPLE.people["ann"]
    moved = Splits(ann.train, person([0.8, 0.8]).val, ann.test)
    elsewhere = CHOOSING.prepare(Federation("one", {"ann": moved})).people["ann"]
    assert exponent_of(CHOOSING.tune_prior(elsewhere, nothing_seen)) == 0


def test_test_data_choose_nothing():
    ann = PEOPLE.people["ann"]
    moved = Splits(ann.train, ann.val, person([0.9, 0.1], seed=4).test)
    ready = (CHOOSING.prepare(Federation("one", {"ann": each})) for each in (ann, moved))
    ours, theirs = (
        exponent_of(CHOOSING.tune_prior(each.people["ann"], nothing_seen)) for each in ready
    )
    assert ours == theirs > 0


def test_one_validation_sample_is_not_enough_to_choose_by():
    ready = CHOOSING.prepare(PEOPLE).people["ann"]
    single = replace(ready, val=ready.val.subset(torch.tensor([0])))
    assert exponent_of(CHOOSING.tune_prior(single, nothing_seen)) == 0


def test_a_network_that_knows_better_is_left_alone():
    def knowing(part):
        points = part.columns["points"]
        return 50 * label_maps(points.float(), *GRID, sigma=CHOOSING.sigma)

    ready = CHOOSING.prepare(PEOPLE).people["ben"]
    assert exponent_of(CHOOSING.tune_prior(ready, knowing)) < exponent_of(
        CHOOSING.tune_prior(ready, nothing_seen)
    )


def test_losses_are_those_of_a_fixed_prior_of_each_exponent():
    ready = CHOOSING.prepare(PEOPLE).people["ann"]
    for part, row in ((ready.val, FOLDS), (ready.train, 0)):
        part = part.subset(torch.arange(4))
        found = losses(CHOOSING.loss_with_prior, nothing_seen(part), part)
        for exponent, loss in zip(EXPONENTS[1:], found[1:], strict=True):
            task = GazeMap(FlatModel(), personal_prior=exponent)
            fixed = task.prepare(PEOPLE).people["ann"].test.banks[BANK].rows[row]
            batch = task.prepare_for(part, None).take(slice(None))
            batch[BANK] = fixed.expand(4, *GRID)
            assert loss == pytest.approx(
                float(task.loss(task.with_prior(nothing_seen(part), batch), batch)), rel=1e-5
            )


def test_somebody_unknown_has_nothing_to_choose_from():
    ann = CHOOSING.prepare(PEOPLE).people["ann"]
    parts = Splits(*(CHOOSING.prepare_for(part, None) for part in (ann.train, ann.val, ann.test)))
    chosen = CHOOSING.tune_prior(parts, nothing_seen)
    assert not whole_prior(chosen.test).any()
    new = CHOOSING.prepare_for(person([0.5, 0.5]).test, CHOOSING.tune_prior(ann, nothing_seen))
    assert whole_prior(new).any(), "what is new gets the chosen prior of its owner"


def test_angles_are_moved_as_far_as_validation_data_say():
    task = GazeAngle(SmallEye(), personal_prior="auto")
    splits = Splits(*(eyes([0.3, -0.2]) for _ in range(3)))
    ready = task.prepare(Federation("one", {"ann": splits})).people["ann"]
    chosen = task.tune_prior(ready, lambda part: CENTRE.expand(len(part), 2))
    assert exponent_of(chosen) == AMOUNTS.index(1.0)
    mean, spread = whole_prior(chosen.test)
    whole = GazeAngle(SmallEye(), personal_prior=1.0)
    fixed = whole.prepare(Federation("one", {"ann": splits})).people["ann"]
    torch.testing.assert_close((mean, spread), tuple(whole_prior(fixed.test)))
    right = task.tune_prior(ready, lambda part: part.columns["gaze"].float())
    assert exponent_of(right) == 0
    torch.testing.assert_close(whole_prior(right.test), torch.stack([CENTRE, SPREAD]))


def test_the_former_word_for_auto_works_with_a_warning():
    with pytest.warns(FutureWarning, match='written "auto"'):
        task = GazeMap(FlatModel(), personal_prior="chosen")
    assert task.tunes_prior


@pytest.mark.parametrize("task", [GazeMap, GazeAngle])
def test_another_word_is_answered_with_what_is_allowed(task):
    network = FlatModel() if task is GazeMap else SmallEye()
    with pytest.raises(ConfigError, match=r"must be one of auto, chosen, or a number >= "):
        task(network, personal_prior="choosen")
    with pytest.raises(ConfigError, match="personal_prior must be >= 0"):
        task(network, personal_prior=-1.0)


def test_every_documented_blur_is_found_where_gaze_has_it():
    """A mixture is likeliest under itself: gaze blurred by a width chooses that width again."""
    assert WIDTHS == (0.03, 0.045, 0.07, 0.1, 0.15, 0.2)
    seen = torch.zeros(1, 32, 32, dtype=torch.float64)
    seen[0, 12, 20], seen[0, 25, 8] = 3.0, 1.0
    for width in (0.03, 0.045, 0.07, 0.1, 0.15, 0.2):
        heat = smoothed(seen, width)
        counts = 0.99 * heat / heat.sum() + 0.01 / 32**2
        assert width_for(counts, seen) == width


def test_gaze_in_a_single_fold_makes_no_personal_map():
    """Two folds with gaze are enough: then the map is not the common one."""
    points = torch.full((10, 1, 1, 2), math.nan)
    points[0] = points[1] = 0.1
    assert torch.equal(cross_fitted(points, GRID)[-1], common_map(*GRID))
    points[2] = 0.1
    assert not torch.allclose(cross_fitted(points, GRID)[-1], common_map(*GRID))
