"""The picture of who is served by which group's model."""

import pytest

from tests.made_up_runs import write_study
from vergence.errors import ConfigError
from vergence.reports.html import figure
from vergence.reports.plots import groups
from vergence.results.read import read


@pytest.fixture
def study(tmp_path):
    """FedAvg's run has groups: p2 is alone in the first seed, nobody in the second."""
    out = write_study(tmp_path / "OUT")
    first = "0,p1,1\n0,p2,0\n0,p3,1\n0,p4,1\n"
    second = "".join(f"1,p{i},0\n" for i in range(1, 5))
    (out / "fedavg" / "groups.csv").write_text(f"seed,person,group\n{first}{second}")
    return out


def test_people_of_the_first_seed_hang_at_their_groups_model(study, tmp_path):
    """Four people: p2 of group 0 stands first, and lines have the colours of their groups."""
    drawn = groups.of_study(read(study))
    assert drawn is not None
    (axes,) = drawn.axes
    told = [text.get_text() for text in axes.texts]
    assert told == [
        "server",
        *("group 0", "p2  2.28"),
        *("group 1", "p1  2.18", "p3  2.38", "p4  2.48"),
    ]
    tied = [line.get_color() for line in axes.lines if [*line.get_xdata()] == [1.0, 2.0]]
    assert tied == [groups.TINTS[0], *[groups.TINTS[1]] * 3]
    assert figure(study, "groups", tmp_path / "groups.png").stat().st_size > 1000


def test_without_groups_there_is_no_picture(tmp_path):
    out = write_study(tmp_path / "OUT")
    with pytest.raises(ConfigError, match="'groups' needs a method with groups"):
        figure(out, "groups", tmp_path / "groups.png")


def test_a_crowd_is_not_drawn(study, monkeypatch):
    monkeypatch.setattr(groups, "CROWD", 3)
    assert groups.of_study(read(study)) is None
