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
    offsets,
    whole_prior,
    width_within,
)
from vergence.models.small_eye import SmallEye
from vergence.tasks.gaze_angle import CENTRE, SPREAD, GazeAngle
from vergence.tasks.gaze_map import GazeMap

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
    assert GazeMap(FlatModel()).lent(data, None) is data


def test_samples_that_were_never_prepared_are_refused():
    with pytest.raises(
        ConfigError, match=r"no prior, which task\.personal_prior needs.*task\.lent"
    ):
        TASK.forward(TASK.module(), PEOPLE.people["ann"].test.take(slice(0, 1)))


def test_new_samples_get_their_owner_s_prior_and_a_stranger_s_the_common_one():
    new, ann = person([0.5, 0.5]).test, TASK.prepare(PEOPLE).people["ann"]
    mine = whole_prior(TASK.lent(new, ann))
    assert torch.equal(mine, whole_prior(ann.test))
    torch.testing.assert_close(whole_prior(TASK.lent(new, None)), common_map(*GRID).log().float())
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
    strange = task.lent(splits.test, None).take(slice(0, 4))
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
