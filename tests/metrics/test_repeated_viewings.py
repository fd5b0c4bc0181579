"""Scores of repeated viewings: by hand, who is measured, and what is refused."""

import numpy as np
import pytest
import torch

from tests.refusals import refuses
from vergence.core.data import Samples
from vergence.metrics.repeated_viewings import viewing_scores


def viewed(*places, scene=0):
    """Viewings of one picture, each with one fixation at the middle of a pixel of 4 x 4."""
    points = torch.tensor([[[[(x + 0.5) / 4, (y + 0.5) / 4]]] for x, y in places])
    return Samples({"points": points, "scene": torch.full((len(places),), scene)})


def z(counts, place):
    heat = np.zeros((4, 4))
    for (x, y), weight in counts.items():
        heat[y, x] = weight
    return (heat[place[1], place[0]] - heat.mean()) / heat.std()


def test_scores_by_hand():
    """Hardly any blur: a map is its counts. Mia looks twice at (0, 0), the three others at (3, 3)
    and one other place each, whichever of them is the stranger. Half the weight is Mia's own."""
    people = {"mia": viewed((0, 0), (0, 0))} | {
        name: viewed((3, 3), (3, 3), scene=0) for name in ("ada", "bea", "cem")
    }
    scores = viewing_scores(people, 4, 4, share=0.5, sigma=1e-3)
    own, alone = (0, 0), {(3, 3): 1.0}
    assert scores["mia"].others == pytest.approx(z(alone, own), abs=1e-6)
    assert scores["mia"].with_own == pytest.approx(z({own: 0.5, (3, 3): 0.5}, own), abs=1e-6)
    assert scores["mia"].with_another == pytest.approx(z(alone, own), abs=1e-6)
    assert scores["mia"].personal == scores["mia"].with_own - scores["mia"].others > 1


def test_the_viewing_that_is_scored_and_the_strangers_viewings_are_not_in_the_others():
    """Ada's two viewings differ: each is predicted by the other alone, which is elsewhere. With
    three people there are one stranger and one other, whose viewing is all of the others' map."""
    people = {
        "ada": viewed((0, 0), (1, 0)),
        "bea": viewed((2, 2), (2, 2), (2, 2)),
        "cem": viewed((3, 3)),
    }
    scores = viewing_scores(people, 4, 4, share=0.2, sigma=1e-3)
    assert scores.keys() == {"ada", "bea"}
    ada = scores["ada"]
    rest, stranger = ((2, 2), (3, 3))
    for other, odd in ((rest, stranger), (stranger, rest)):
        expected = (
            z({other: 1.0}, (0, 0)),
            z({other: 0.8, (1, 0): 0.2}, (0, 0)),
            z({other: 0.8, odd: 0.2}, (0, 0)),
        )
        assert list(ada) == pytest.approx(list(expected), abs=1e-6)


def test_a_stranger_gives_as_many_viewings_as_the_person_has_others():
    """Bea's third viewing is elsewhere. With two viewings, Ada gets one of the stranger's."""
    people = {"ada": viewed((3, 3), (0, 0))} | {
        name: viewed((0, 0), (0, 0), (3, 3)) for name in ("bea", "cem")
    }
    ada = viewing_scores(people, 4, 4, share=0.2, sigma=1e-3)["ada"]
    mixed = {(0, 0): 0.8 * 2 / 3 + 0.2, (3, 3): 0.8 / 3}
    expected = np.mean([z(mixed, place) for place in ((3, 3), (0, 0))])
    assert ada.with_another == pytest.approx(float(expected), abs=1e-6)


def test_the_seed_chooses_the_stranger():
    people = {"ada": viewed((0, 0), (0, 0))} | {
        name: viewed((0, 0) if name == "bea" else (i, 3)) for i, name in enumerate(("bea", "cem"))
    }
    seen = {viewing_scores(people, 4, 4, sigma=1e-3, seed=s)["ada"].others for s in range(9)}
    assert len(seen) == 2
    again = [viewing_scores(people, 4, 4, sigma=1e-3, seed=3)["ada"] for _ in range(2)]
    assert again[0] == again[1]


@pytest.mark.parametrize(
    "people",
    [
        {"ada": viewed((0, 0)), "bea": viewed((0, 0)), "cem": viewed((0, 0))},
        {"ada": viewed((0, 0), (0, 0)), "bea": viewed((0, 0), (0, 0))},
        {name: viewed((0, 0), (0, 0), scene=i) for i, name in enumerate("abc")},
        {name: viewed((0, 0), (0, 0), scene=-1) for name in "abc"},
    ],
)
def test_without_repeated_viewings_there_is_nothing_to_measure(people):
    with refuses("data", "several times"):
        viewing_scores(people, 4, 4)
