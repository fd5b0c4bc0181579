"""The verdict rule: a claim against the intervals of paired differences, by hand."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from tests.papers.claims import alike, better, order, peak
from vergence_papers import command as app
from vergence_papers.claims import OTHERS, OWN, Claim, Pair, PaperTable
from vergence_papers.data_sets import COSTS, GROUNDS
from vergence_papers.outcome import COLOUR
from vergence_papers.verdicts import KINDS, Evidence, bounds, judge, tally

TOY = GROUNDS["toy"]


FLAT = ((1, 2, 3), (1.0, 1.0, 1.0))
"""Rounds and means of a row that has finished training."""


def evidence(scores, lower=(), missing=None, barred=None, prior=None, curves=None):
    """Rows of one metric, `error`: label -> values of people a, b, c.

    All have learned, and finished, unless a prior or other means of rounds are given.
    """
    constant = prior or [1000.0 if lower else -1000.0] * 3
    rows = {**scores, "mean (prior)": constant}
    told = {k: {"error": dict(zip("abc", v, strict=False))} for k, v in rows.items()}
    found = {k: {"error": v} for k, v in (dict.fromkeys(scores, FLAT) | (curves or {})).items()}
    return Evidence(told, frozenset(lower), missing or {}, barred or {}, curves=found)


def table(*claims, printed=None, unit="toy"):
    return PaperTable("fedcpf/none", "none", ("main",), printed or {}, unit, (), claims)


def verdict(claim, found, **more):
    return judge(table(claim, **more), claim, TOY, found)


@pytest.mark.parametrize(
    ("ours", "lower", "word", "why"),
    [
        ((14, 25, 36), (), "holds", "claimed side"),
        ((11, 22, 33), (), "not shown", "no difference shown here against fedavg"),
        ((6, 15, 24), (), "contradicted", "opposite found against fedavg"),
        ((6, 15, 24), ("error",), "holds", "claimed side"),
    ],
)
def test_the_interval_over_people_decides(ours, lower, word, why):
    """Against 10, 20, 30 the differences are 4 5 6, then 1 2 3, then -4 -5 -6.

    Their deviation is 1 and the half width t(0.975, 2) / sqrt(3) = 2.484138: 5 -/+ 2.48 is above
    0, 2 -/+ 2.48 is not, -5 -/+ 2.48 is below, and above where less is better.
    """
    found = evidence({"fedcpf": ours, "fedavg": (10, 20, 30)}, lower)
    judged = verdict(better("c", "1", "fedcpf", "fedavg"), found)
    assert (judged.word, why in judged.reason) == (word, True), judged
    (gap,) = judged.differences
    sign = -1 if lower else 1
    assert gap.mean == pytest.approx(sign * (np.mean(ours) - 20))
    assert gap.hi - gap.mean == pytest.approx(2.484138, abs=1e-6)
    assert gap.share == pytest.approx(gap.mean / 20)


def test_a_claim_holds_only_if_all_its_pairs_do():
    """fedcpf beats low by 5 -/+ 2.48; against high 0, 0, 1: no difference shown against high."""
    found = evidence({"fedcpf": (14, 25, 36), "low": (10, 20, 30), "high": (14, 25, 37)})
    judged = verdict(better("c", "1", "fedcpf", "low", "high"), found)
    assert judged.word == "not shown"
    assert judged.reason.startswith("no difference shown here against high; with the mean and ")
    assert judged.reason.endswith("10,000 people would not show it")
    assert [d.better for d in judged.differences] == [3, 0]


def test_what_is_not_shown_says_how_many_people_would_show_it():
    """Differences 1 2 3, so 2 with the deviation 1: five people have a power of 0.8 and more."""
    found = evidence({"fedcpf": (11, 22, 33), "fedavg": (10, 20, 30)})
    judged = verdict(better("c", "1", "fedcpf", "fedavg"), found)
    assert judged.differences[0].needed == 5
    told = "with the mean and spread seen here, 5 people show it with 80% power"
    assert judged.reason == f"no difference shown here against fedavg; {told}"
    against = verdict(better("c", "1", "fedavg", "fedcpf"), found)
    assert against.differences[0].needed is None, "no number of people shows the opposite"


def test_an_order_is_its_neighbours_worst_first():
    assert order("c", "1", "a", "b", "c").pairs == (Pair(("b",), "a"), Pair(("c",), "b"))


def test_a_peak_averages_its_settings_person_by_person():
    """(12 + 16) / 2 = 14, (23 + 27) / 2 = 25, (34 + 38) / 2 = 36: 4, 5, 6 above 10, 20, 30."""
    found = evidence({"x": (12, 23, 34), "y": (16, 27, 38), "z": (10, 20, 30)})
    judged = verdict(peak("c", "1", ("x", "y"), ("z",)), found)
    assert judged.word == "holds"
    assert judged.differences[0].mean == pytest.approx(5)


def test_a_margin_forgives_its_share_of_the_rival():
    """9 19 29 against 10 20 30 is 1 worse for all, an interval of [-1, -1].

    A margin of 20 % adds 2, 4, 6: 1 3 5, deviation 2, so 3 -/+ 2 * 2.484138. With rivals 10 10 10
    it adds 2 to everybody: 1 1 1, which holds.
    """
    scores = {"a": (9, 19, 29), "b": (10, 20, 30)}
    claim = better("c", "1", "a", "b", margin=0.2)
    judged = verdict(claim, evidence(scores))
    assert judged.differences[0].eased == pytest.approx((3 - 4.968275, 3 + 4.968275), abs=1e-5)
    assert judged.word == "not shown"
    assert "margin of 20%" in judged.reason
    assert verdict(replace(claim, margin=0.0), evidence(scores)).reason.startswith("opposite")
    even = evidence({"a": (9, 9, 9), "b": (10, 10, 10)})
    assert verdict(claim, even).word == "holds"


def test_a_margin_or_limit_may_be_missed_by_rows_that_still_gain():
    """A worse row need only come as near as the claim allows.

    a is 9, 10, 11 worse than b: -10 -/+ 2.484, with a limit of 2 behind by 5.5 at least. It gains
    1 a round in the last of three rounds, which is 3 in as many rounds again; of twice that it
    might come near enough. A row that has not learned is apart as well, but never alike.
    """
    scores = {"a": (11, 10, 9), "b": (20, 20, 20)}
    limit = alike("c", "1", 2, "a", "b")
    margin = better("c", "1", "a", "b", margin=0.1)
    slow, fast = ({"a": ((1, 2, 3), (8.0, 10 - gain, 10.0))} for gain in (1.0, 2.0))
    for claim in (limit, margin):
        assert verdict(claim, evidence(scores, curves=slow)).word == "contradicted"
        assert verdict(claim, evidence(scores, curves=fast)).word.startswith("not trained")
        assert verdict(claim, evidence(scores, prior=[10, 10, 10])).word == "contradicted"
    near = evidence(
        {"a": (19.9, 20, 20.1), "b": (20, 20, 20)}, curves={"a": ((1, 2, 3), (8, 9, 20))}
    )
    assert verdict(limit, near).word.startswith("not trained")
    unlearned = evidence({"a": (9.9, 10, 10.1), "b": (10.5, 10.6, 10.7)}, prior=[10] * 3)
    assert verdict(limit, unlearned).word == "winner not learned"


def test_a_row_that_was_better_in_an_earlier_round_may_be_so_again():
    """b leads by 10, -/+ 2.484, and still gains; a has lost 8 since round 1, or 7."""
    scores = {"a": (9, 10, 11), "b": (20, 20, 20)}
    rising = ((1, 2, 3), (10.0, 15.0, 20.0))
    for best, word in ((18.0, "not trained (gaining 5 a round)"), (17.0, "holds")):
        falls = {"a": ((1, 2, 3), (best, 10.0, 10.0)), "b": rising}
        assert verdict(better("c", "1", "b", "a"), evidence(scores, curves=falls)).word == word


def test_what_other_people_did_is_no_constant_in_any_part_of_a_table():
    """People agree at 30, random importance has 1: a row with 11 has learned."""
    rows = {"a": (11, 12, 13), "b": (5, 5, 5.5)}
    for name in ("people with 1 class", "kernel ridge alone in m + 1 groups", "other people"):
        found = evidence(rows, prior=[1, 1, 1])
        found = replace(
            found, scores={**found.scores, f"{name} (prior)": {"error": dict.fromkeys("abc", 30.0)}}
        )
        assert verdict(better("c", "1", "a", "b"), found).word == "holds", name
        assert list(found.priors("error")) == ["mean (prior)"]


def test_only_a_curve_of_ones_own_metric_says_what_can_be_caught_up():
    """b leads by 10 and a gains .5 a round, by the main metric: nobody knows how much by this."""
    scores = {"a": (11, 10, 9), "b": (20, 20, 20)}
    claim = better("c", "1", "b", "a")
    rising = ((1, 2, 3), (9.0, 9.5, 10.0))
    found = evidence(scores, curves={"a": rising})
    assert verdict(claim, found).word == "holds"
    other = replace(found, curves={**found.curves, "a": {"main": rising}})
    assert verdict(claim, other).word == "not trained (gaining 0.5 a round)"
    flat = replace(found, curves={**found.curves, "a": {"main": FLAT}})
    assert verdict(claim, flat).word == "holds", "it has finished when the main metric has"


def test_a_page_says_which_rows_took_more_steps_and_which_are_past_their_best():
    falling, short = ((1, 2, 3), (0.2, 0.4, 0.39)), ((1, 2, 3), (0.2, 0.4, 0.397))
    found = evidence(dict.fromkeys("abc", (1, 2, 3)), curves={"a": falling, "b": short})
    assert app.uneven(found) == ["past their best: a (best in round 2)"]
    runs = {"a": SimpleNamespace(steps=400.0), "b": SimpleNamespace(steps=790.0)}
    runs |= {"c": SimpleNamespace(steps=400.0), "d": SimpleNamespace(steps=math.nan)}
    steps, _ = app.uneven(replace(found, runs=runs))
    assert steps == "gradient steps of a client in all, by row: 400: a, c; 790: b"
    assert len(app.uneven(replace(found, runs={"a": runs["a"]}))) == 1


def test_a_pair_without_spread_hides_no_contradiction():
    """Seeds on one test that differ alike say nothing, and b is far behind c in all three."""
    seeds = [f"seed {i}" for i in range(3)]
    rows = {"a": (5, 5, 5), "b": (5, 5, 5), "c": (30, 31, 32), "mean (prior)": (-99, -90, -97)}
    scores = {k: {"error": dict(zip(seeds, v, strict=True))} for k, v in rows.items()}
    found = Evidence(scores, frozenset(), {}, {}, curves={key: {"error": FLAT} for key in "abc"})
    assert verdict(better("c", "1", "a", "c"), found).word == "contradicted"
    assert verdict(better("c", "1", "a", "b", "c"), found).word == "contradicted"
    assert verdict(better("c", "1", "a", "b"), found).word == "same run"
    folds = {
        k: {"error": {f"fold{u[4:]}": x for u, x in v["error"].items()}} for k, v in scores.items()
    }
    apart = replace(
        found, scores={**folds, "b": {"error": dict.fromkeys(folds["a"]["error"], 4.0)}}
    )
    assert verdict(better("c", "1", "a", "b"), apart).word == "not testable here"


@pytest.mark.parametrize(
    ("claim", "found", "why"),
    [
        (Claim("c", "1", untestable="not printed"), evidence({}), "not printed"),
        (better("c", "1", "a", "b"), evidence({"a": (1, 2)}), "no row 'b'"),
        (
            better("c", "1", "a", "b"),
            evidence({"a": (1, 2)}, missing={"b": "no method"}),
            "b: no method",
        ),
        (
            better("c", "1", "a", "b"),
            evidence({"a": (1, 2), "b": (1, 2)}, barred={"a": "empty"}),
            "a: empty",
        ),
        (
            better("c", "1", "a", "b", quantity="recall"),
            evidence({"a": (1, 2), "b": (1, 2)}),
            "the task toy has no recall",
        ),
        (better("c", "1", "a", "b"), evidence({"a": (2,), "b": (1,)}), "one person"),
    ],
)
def test_what_cannot_be_tested_says_why(claim, found, why):
    judged = verdict(claim, found)
    assert judged.word == "not testable here"
    assert why in judged.reason


def test_the_papers_own_difference_has_the_same_sense():
    """Errors 10.63 and 8.95: better by 1.68, as less is better; F1 40.48 and 39.28: by 1.20."""
    found = evidence({"fedadam": (1, 2, 3), "fedavg": (2, 3, 5)}, ["error"])
    angles = {"MPIIGaze": {"fedadam": (8.95,), "fedavg": (10.63,)}}
    claim = better("c", "1", "fedadam", "fedavg")
    gap = judge(table(claim, printed=angles, unit="gaze_angle"), claim, TOY, found).differences[0]
    assert gap.printed == {"MPIIGaze": pytest.approx(1.68)}
    maps = {"EGTEA": {"fedadam": (40.48,), "fedavg": (39.28,)}}
    gap = judge(table(claim, printed=maps, unit="gaze_map"), claim, TOY, found).differences[0]
    assert gap.printed == {"EGTEA": pytest.approx(1.20)}


def test_verdicts_are_counted_apart():
    words = ["not trained (gaining 0.03 a round)", "contradicted", "holds", "not shown", "holds"]
    assert tally(words) == "2 hold, 1 contradicted, 1 not shown, 1 not trained"
    assert tally([]) == "0 hold, 0 contradicted, 0 not shown"
    assert [COLOUR.get(word) for word in ("holds", "contradicted", "ceiling")] == [
        "green",
        "red",
        None,
    ]
    assert len(set(map(tally, map(list, zip(KINDS))))) == 9
    with pytest.raises(KeyError):
        tally(["does not hold"])


def rows_on(one, *places):
    """Return the rows of a table on any of these data sets."""
    return (
        {OWN, OTHERS, "random (prior)", "chance (prior)", "mean gaze (prior)", *one.quoted}
        | {
            entry.get("label", entry["name"]) + part.suffix
            for part in one.parts
            for place in places
            for entry in part.entries(place)
        }
        | {row for part in one.parts for row in part.rows}
    )


def test_every_claim_names_rows_that_its_table_runs():
    for one in app.TABLES.values():
        made = rows_on(one, *(place for place in GROUNDS.values() if one.paper in place.papers))
        for claim in one.claims:
            named = {label for pair in claim.pairs for label in (*pair.these, pair.rival)}
            assert named <= made, (one.id, claim.text)
            assert bool(claim.pairs) != bool(claim.untestable), claim.text
        for printed in one.printed.values():
            assert set(printed) <= made, one.id
            told = set(one.columns) - set(COSTS) if "up" in one.columns else one.columns
            assert all(len(row) == len(told) for row in printed.values()), one.id


def test_the_printed_orders_are_those_of_the_printed_numbers():
    """The order of the rows by F1 in Table 1, read off the numbers, is what the claim says."""
    orders = [c for c in app.TABLES["fedcpf/table1"].claims if c.text.startswith("order of")]
    for claim, printed in zip(orders, app.TABLES["fedcpf/table1"].printed.values(), strict=True):
        labels = [claim.pairs[0].rival, *(pair.these[0] for pair in claim.pairs)]
        assert labels == sorted(printed, key=lambda label: printed[label][2])


@pytest.mark.parametrize(
    ("metric", "ends"),
    [
        *[(name, (0, 1)) for name in ("H", "f", "f1_glc", "pooled_accuracy")],
        ("members found, % at 1 % false alarms", (0, 100)),
        ("tau", (-1, 1)),
        *[(name, None) for name in ("angle_error_deg", "nss", "seconds", "MB up")],
    ],
)
def test_bounds_are_those_of_shares(metric, ends):
    assert bounds(metric) == ends
