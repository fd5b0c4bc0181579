"""Verdicts of pages computed again from the CSV files beside them, by hand and with adversaries."""

import csv
import shutil

import pytest

from tools import examiner

SCORES = ("row", "seed", "split", "person", "round", "metric", "value", "steps")
CLAIMS = (
    *("claim", "whose", "metric", "gate", "lower", "gate_lower", "these", "rival"),
    *("margin", "within", "everybody", "verdict"),
)
FLAT, RISING = {10: 5.0, 20: 5.0, 30: 5.0}, {10: 2.0, 20: 4.0, 30: 5.0}
CENTRE = (1.0, 2.0, 3.0)


def evidence(folder, rows, curves=None, images=0, claim=None, seeds=False):
    """Numbers of people a, b, c, or of three seeds, and one claim: row a is better than row b."""
    folder.mkdir(parents=True, exist_ok=True)
    units = [("", p) for p in "abc"] if not seeds else [(str(s), "") for s in range(3)]
    found = [
        (row, seed, 0, person, "end", "nss", value, "")
        for row, values in rows.items()
        for (seed, person), value in zip(units, values, strict=False)
    ]
    told = dict.fromkeys((row for row in rows if not row.startswith("prior")), FLAT)
    for row, curve in (told | (curves or {})).items():
        found += [(row, "", 0, "", at, "nss", value, "") for at, value in curve.items()]
    if images:
        found.append(("test", "", 0, "", "end", "nss", images, ""))
    told = {"claim": "a beats b (1)", "whose": "paper", "metric": "nss", "gate": "nss"}
    told |= {"lower": 0, "gate_lower": 0, "these": "a", "rival": "b", "margin": 0.0}
    told |= {"within": 0.0, "everybody": 0, "verdict": ""} | (claim or {})
    for name, head, lines in (
        ("scores.csv", SCORES, found),
        ("claims.csv", CLAIMS, [[told[column] for column in CLAIMS]]),
    ):
        with (folder / name).open("w", newline="") as file:
            csv.writer(file).writerows([head, *lines])


def page(path, word, interval):
    head = "| claim | whose | verdict | better by | 95 % interval | people | printed | reason |"
    line = f"| a beats b (1) | paper | {word} | +1 | {interval} | 3 of 3 |  |  |"
    path.write_text(f"# t\n\n## Verdicts\n\n{head}\n{'| --- ' * 8}|\n{line}\n")
    return path


CASES = [
    # Differences 4, 5, 6: 5 -/+ t(.975, 2) / sqrt 3 = 2.48. Row b is above the prior by as much.
    ({"a": (9, 12, 15), "b": (5, 7, 9)}, {}, "holds", "[2.52, 7.48]"),
    ({"a": (5, 7, 9), "b": (9, 12, 15)}, {}, "contradicted", "[\u22127.48, \u22122.52]"),
    # Differences 1, 2, 3: 2 -/+ 2.48.
    ({"a": (6, 9, 12), "b": (5, 7, 9)}, {}, "not shown", "[\u22120.48, 4.48]"),
    # Of row a the leads over 1, 2, 3 are .1, 0, -.1; of row b -.1, -.2, -.3.
    ({"a": (1.1, 2, 2.9), "b": (0.9, 1.8, 2.7)}, {}, "neither learned", "[0.20, 0.20]"),
    # Row b is half of the prior: destroyed, and loses.
    ({"a": (9, 12, 15), "b": (0.5, 1, 1.5)}, {}, "holds", "[4.79, 17.21]"),
    # 1.0 in ten rounds is more than a hundredth of 5; it makes 3.0 in as many rounds again.
    (
        {"a": (9, 12, 15), "b": (5, 7, 9)},
        {"b": RISING},
        "not trained (gaining 0.10 a round)",
        "[2.52, 7.48]",
    ),
    ({"a": (9, 12, 15), "b": (5, 7, 9)}, {"a": RISING}, "holds", "[2.52, 7.48]"),
    ({"a": (10, 13, 16), "b": (5, 7, 9)}, {"b": RISING}, "holds", "[3.52, 8.48]"),
    ({"a": (9, 12, 15), "b": (5, 7, 9)}, {"b": {}}, "open (not recorded)", "[2.52, 7.48]"),
    ({"a": (9, 12, 15), "b": (9, 12, 15)}, {}, "same run", "[0.00, 0.00]"),
]


def examined(tmp_path, rows, curves, word, interval, **more):
    evidence(tmp_path / "data/p", {**rows, "prior: centre": CENTRE}, curves, **more)
    return examiner.examine(page(tmp_path / "p.md", word, interval), tmp_path / "data/p")


@pytest.mark.parametrize(("rows", "curves", "word", "interval"), CASES)
def test_every_word_by_hand(tmp_path, rows, curves, word, interval):
    assert examined(tmp_path, rows, curves, word, interval) == ("agrees", [])


@pytest.mark.parametrize(("rows", "curves", "word", "interval"), CASES)
def test_a_word_changed_by_hand_is_found(tmp_path, rows, curves, word, interval):
    for other in {"holds", "contradicted", "not shown", "neither learned"} - {word}:
        state, wrong = examined(tmp_path, rows, curves, other, interval)
        assert state == "disagrees"
        assert f"the page says '{other}'" in wrong[0]


@pytest.mark.parametrize("name", ["kernel ridge alone", "nearest picture", "other people"])
def test_a_learner_of_own_samples_and_other_people_are_no_constant(tmp_path, name):
    """Neither row need be better than these, by which both would have learned nothing."""
    rows, curves, word, interval = CASES[0]
    best = {f"prior: {name}": (90, 90, 90)}
    assert examined(tmp_path, {**rows, **best}, curves, word, interval) == ("agrees", [])


def test_changed_numbers_are_found(tmp_path):
    """One person's score, the prior, the curve, a row left out, and a claim left out."""
    rows, curves, word, interval = CASES[0]
    assert examined(tmp_path, rows, curves, word, interval)[0] == "agrees"
    path = tmp_path / "data/p/scores.csv"
    text = path.read_text()
    changes = (
        ("a,,0,c,end,nss,15", "a,,0,c,end,nss,16"),
        ("prior: centre,,0,a,end,nss,1.0", "prior: centre,,0,a,end,nss,90.0"),
        ("b,,0,,20,nss,5.0", "b,,0,,20,nss,4.0"),
        ("b,,0,a,end,nss,5,\n", ""),
    )
    for old, new in changes:
        assert old in text
        path.write_text(text.replace(old, new))
        assert examiner.examine(tmp_path / "p.md", path.parent)[0] == "disagrees", old
    path.write_text(text)
    claims = path.with_name("claims.csv")
    claims.write_text(claims.read_text().splitlines()[0] + "\n")
    assert "not in claims.csv" in examiner.examine(tmp_path / "p.md", path.parent)[1][0]


def test_ceiling_and_images(tmp_path):
    """.1 on 400 images, b .5 and a .6: half of the interval is 1.96 sqrt(.25 / 400 + .24 / 400)."""
    chance = {"prior: chance": (0.1, 0.1, 0.1)}

    def found(a, b, word, interval, images):
        rows = {"a": a, "b": b, **chance}
        evidence(tmp_path / "data/p", rows, images=images, seeds=True)
        return examiner.examine(page(tmp_path / "p.md", word, interval), tmp_path / "data/p")[0]

    same = ((0.6,) * 3, (0.5,) * 3)
    assert found(*same, "holds", "[0.03, 0.17]", 400) == "agrees"
    assert found(*same, "not shown", "[\u22120.04, 0.24]", 100) == "agrees"
    assert found(*same, "not testable here", "[\u2013, \u2013]", 0) == "agrees", "no width"
    assert found((0.995,) * 3, (1.0,) * 3, "ceiling", "[\u22120.01, 0.00]", 500) == "agrees"
    assert found((0.13,) * 3, (0.11,) * 3, "neither learned", "[\u22120.02, 0.06]", 500) == "agrees"
    # a learns to between .5 and .7; b always has 0: by .6, .1 times 4.30 / sqrt(3) at either side.
    assert found((0.5, 0.6, 0.7), (0.0,) * 3, "holds", "[0.35, 0.85]", 0) == "agrees"
    assert (
        found((0.0,) * 3, (0.5, 0.6, 0.7), "contradicted", "[\u22120.85, \u22120.35]", 0)
        == "agrees"
    )


def test_a_verdict_without_numbers_fails(tmp_path):
    for word in ("holds", "contradicted", "not shown"):
        made = page(tmp_path / "p.md", word, "[0.00, 1.00]")
        assert examiner.examine(made, tmp_path / "data/p")[0] == "disagrees"
    made = page(tmp_path / "p.md", "open (not recorded)", "[0.00, 1.00]")
    assert examiner.examine(made, tmp_path / "data/p") == ("not recorded", [])
    assert examiner.main([tmp_path]) == 0
    made.write_text("# t\n\na against b: +1; different (Holm's p 0.010).\n")
    assert examiner.main([tmp_path]) == 1


def test_pairs_of_a_comparison_by_wilcoxon_after_holm(tmp_path):
    """The committed quickstart with another word, and with its curves flat: then by the test.

    Of 15 people FedAvg is behind FedSelect for 11; both are above the centre, so with flat curves
    the words follow from Holm's p, .021, and 1 for local-only against FedAvg.
    """
    text = (examiner.RESULTS / "quickstart.md").read_text()
    shutil.copytree(examiner.RESULTS / "data/quickstart", tmp_path / "data/quickstart")
    made = tmp_path / "quickstart.md"
    made.write_text(text)
    assert examiner.examine(made, tmp_path / "data/quickstart") == ("agrees", [])
    made.write_text(text.replace("not trained (gaining 0.015 a round)", "different", 1))
    assert examiner.examine(made, tmp_path / "data/quickstart")[0] == "disagrees"
    path = tmp_path / "data/quickstart/scores.csv"
    rows = [line.split(",") for line in path.read_text().splitlines()]
    flat = [[*r[:6], "2.6", r[7]] if r[5] == "curve" else r for r in rows]
    path.write_text("".join(",".join(row) + "\n" for row in flat))
    wrong = examiner.examine(made, tmp_path / "data/quickstart")[1]
    said = {each.partition(": ")[2].partition(":")[0]: each.rpartition("'")[0] for each in wrong}
    assert said["FedSelect against FedAvg"].endswith("'different")
    assert said["FedAvg against local-only"].endswith("'no difference shown")


def test_no_page_of_results_disagrees_with_its_numbers(capsys):
    assert examiner.main() == 0, capsys.readouterr().err
    told = capsys.readouterr().out
    assert "quickstart.md: agrees" in told


@pytest.mark.parametrize(
    ("gains", "right"), [((-0.9, 0.5, -0.7), True), ((-1.2, 0.5, -0.7), False)]
)
def test_an_interval_of_shares_may_be_cut_at_one(gains, right):
    ends = (-1.0721, 0.3242, *gains)
    assert examiner.same_interval("[\u2212107.21, 32.42]", ends, False)
    assert examiner.same_interval("[\u2212100.00, 32.42]", ends, False) is right
    assert not examiner.same_interval("[\u221290.00, 32.42]", ends, False)
