"""Pages and figures of more people than can be drawn one by one, over made-up tables."""

import re

import numpy as np
import pandas as pd
import pytest

from tests.made_up_runs import write_study
from vergence.reports import html as reporting
from vergence.reports.html import figure, report
from vergence.results.figure_style import canvas, distribution
from vergence.results.layout import CROWD
from vergence.results.read import means_over_seeds


@pytest.fixture(scope="module")
def crowd(tmp_path_factory):
    """150 people, three methods, one seed."""
    out = tmp_path_factory.mktemp("crowd") / "OUT"
    return write_study(out, people=150, seeds=(0,), rounds=2)


def listed(page):
    block = page[page.index('<h2 id="people">') : page.index("<details>")]
    return re.findall(r'<tr><th scope="row">([^<]+)</th>', block)


def test_page_of_a_crowd_lists_percentiles_and_the_worst_people(crowd, monkeypatch):
    """NSS grows by .1 a person; FedCPF's gains change the order of its first ones a little."""
    monkeypatch.setattr(reporting, "SECTIONS", ())
    page = report(crowd).read_text(encoding="utf-8")
    names = listed(page)
    assert names[:7] == ["lowest", "5 %", "25 %", "median", "75 %", "95 %", "highest"]
    assert names[7:] == [*(f"p{i}" for i in range(1, 11)), "p11"]
    assert "Of 150 people" in page
    # Local-only has 2.0 - .02 to 16.9 - .02, of which the middle is 9.43.
    row = page[page.index('<th scope="row">median</th>') :]
    assert '<td class="">9.43</td>' in row[: row.index("</tr>")]


def test_as_many_people_as_fit_are_listed_one_by_one(tmp_path, monkeypatch):
    monkeypatch.setattr(reporting, "SECTIONS", ())
    page = report(write_study(tmp_path / "OUT", people=CROWD, seeds=(0,), rounds=1))
    names = listed(page.read_text(encoding="utf-8"))
    assert names == [f"p{i + 1}" for i in range(CROWD)]


@pytest.mark.slow
def test_page_of_a_thousand_people_is_small(tmp_path):
    """It was 5 MB when each of them was drawn; a picture of the maps has 200 kB of it."""
    out = write_study(tmp_path / "OUT", people=1000, seeds=(0,), rounds=2)
    path = report(out)
    assert path.stat().st_size < 600_000
    page = path.read_text(encoding="utf-8")
    assert "how many people end where" in page
    assert page.count("<svg") == page.count("</svg>") == 9
    assert page.count('class="point"') < 200, "the ends of six rows, and the points of curves"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("persons", "<title>p150: "),
        ("slope", "150 of 150 better"),
        ("overlap", "Jaccard index of two people; 150 of 150 people"),
        ("layers", "150 of 150 people, in order"),
        ("overview", "145 more clients not drawn"),
    ],
)
def test_figures_of_a_crowd(crowd, tmp_path, name, said):
    svg = figure(crowd, name, tmp_path / f"{name}.svg").read_text(encoding="utf-8")
    assert said in svg
    assert "p75" not in svg, "somebody in the middle"
    assert len(svg) < 150_000


def test_a_distribution_is_as_wide_as_there_are_people():
    """Of 40 values two thirds are 1 and a third is 2; NaN and infinity are nowhere."""
    axes = canvas(4, 3).add_subplot()
    distribution(axes, 5, [1.0] * 20 + [2.0] * 10 + [np.nan, np.inf], "red")
    (shape,) = axes.collections
    outline = shape.get_paths()[0].vertices
    near_one, near_two = (outline[abs(outline[:, 0] - x) < 0.02, 1] for x in (1, 2))
    assert (near_one.min(), near_one.max()) == pytest.approx((4.7, 5.3))
    assert (near_two.min(), near_two.max()) == pytest.approx((4.85, 5.15))


def test_means_over_seeds_are_those_of_each_person_alone():
    """Bits of NumPy's own mean, also of people with fewer seeds, in the order of the table."""
    rng = np.random.default_rng(1)
    people = [p for _ in range(11) for p in ("b", "a", "c")] + ["d", "a"]
    values = rng.normal(size=len(people)) * 10.0 ** rng.integers(-8, 8, len(people))
    frame = pd.DataFrame({"person": people, "evaluation": "P0", "metric": "error", "value": values})
    means = means_over_seeds(frame)["P0", "error"]
    assert list(means) == ["b", "a", "c", "d"]
    for person, mean in means.items():
        own = values[[p == person for p in people]]
        assert mean == np.mean(own)
