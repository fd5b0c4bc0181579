"""Tables and paired differences over a study whose every number is known."""

import csv
import io
import json
import math
import shutil

import pytest
from rich.console import Console

from tests.app.conftest import write_study
from vergence.app.compare import comparisons, gather, paired, show, table, to_csv, to_markdown
from vergence.errors import ConfigError, DataError, StateError
from vergence.metrics.intervals import interval


def test_interval_is_student_t_over_people():
    """Values 1, 2, 3: mean 2, s = 1, t(0.975, 2) = 4.30265, half = 4.30265 / sqrt(3) = 2.48414."""
    assert interval([1, 2, 3]) == pytest.approx((2 - 2.484138, 2 + 2.484138), abs=1e-6)


def test_interval_of_one_value_and_of_none():
    assert all(math.isnan(end) for end in interval([1.5]))
    with pytest.raises(DataError, match="at least one person"):
        interval([])


def test_rows_priors_first_then_methods_in_index_order(out):
    """FedCPF per person: 2.5 + 0.1 p + gain = 2.8, 2.6, 2.6, 3.0; seeds -/+ 0.02 cancel; mean 2.75.

    Prior "centre": 0.6 .. 0.9, mean 0.75, s = 0.1290994, t(0.975, 3) = 3.1824463,
    half = 3.1824463 * 0.1290994 / 2 = 0.2054260.
    """
    rows = table([out])
    assert [(r.label, r.prior) for r in rows] == [
        ("uniform", True),
        ("centre", True),
        ("other_people", True),
        ("local_only", False),
        ("fedavg", False),
        ("fedcpf", False),
    ]
    centre, best = rows[1].metrics["nss"], rows[5]
    assert centre[:3] == pytest.approx((0.75, 0.544574, 0.955426), abs=1e-6)
    assert centre.worst == 0.6
    assert rows[1].metrics["kld"].worst == pytest.approx(0.9), "kld: lower is better"
    assert list(best.metrics) == ["nss", "kld"], "headline first"
    assert best.metrics["nss"].mean == pytest.approx(2.75)
    assert best.metrics["nss"].worst == pytest.approx(2.6)
    assert (best.harmed, best.mb_up, best.mb_down) == (0.25, 0.0054, 0.01)


def test_paired_averages_seeds_within_a_person_first(out):
    """FedCPF - FedAvg per person = 0.3 + gain = 0.6, 0.3, 0.2, 0.5: mean 0.4.

    Squared deviations .04 .01 .04 .01, s = sqrt(.1 / 3) = 0.1825742,
    half = 3.1824463 * 0.1825742 / 2 = 0.2905163.
    """
    p = paired(gather([out]), "fedcpf", "fedavg", "nss")
    assert (p.mean, p.lo, p.hi) == pytest.approx((0.4, 0.1094837, 0.6905163), abs=1e-6)
    assert (p.better, p.people, p.clear) == (4, 4, True)


def test_better_follows_the_direction_of_the_metric(out, tmp_path):
    """KLD is lower-is-better: 1.0 against 1.25 for one person counts as better, 1.5 as worse."""
    copy = shutil.copytree(out, tmp_path / "OUT")
    people = copy / "fedcpf" / "people.csv"
    text = people.read_text().replace("p1,P0,kld,1.25", "p1,P0,kld,1.0")
    people.write_text(text.replace("p2,P0,kld,1.25", "p2,P0,kld,1.5"))
    p = paired(gather([copy]), "fedcpf", "fedavg", "kld")
    assert p.better == 1
    assert p.mean == pytest.approx(0.0)
    assert not p.clear


def test_every_method_is_paired_with_both_references(out):
    pairs = [(p.a, p.b) for p in comparisons(gather([out]))]
    assert pairs == [
        ("local_only", "fedavg"),
        ("fedcpf", "fedavg"),
        ("fedavg", "local_only"),
        ("fedcpf", "local_only"),
    ]


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("task", "gaze_angle", "task differs, local_only has gaze_map, .*fedavg has gaze_angle"),
        ("federation", "gazecom", "federation differs.*osie.*gazecom"),
        ("seeds", [0, 2], r"seeds differs.*\[0, 1\].*\[0, 2\]"),
    ],
)
def test_runs_that_differ_are_refused(out, tmp_path, key, value, told):
    other = shutil.copytree(out / "fedavg", tmp_path / "fedavg")
    results = json.loads((other / "results.json").read_text())
    (other / "results.json").write_text(json.dumps({**results, key: value}))
    with pytest.raises(ConfigError, match=told):
        table([out / "local_only", other])


def test_equal_labels_from_two_folders_stay_apart(out, tmp_path):
    second = write_study(tmp_path / "AGAIN", methods=("fedavg",))
    labels = [r.label for r in table([out, second]) if not r.prior]
    assert labels == ["local_only", "fedavg", "fedcpf", "AGAIN/fedavg"]


def test_csv_keeps_full_precision(out):
    rows = list(csv.DictReader(io.StringIO(to_csv(table([out])))))
    assert rows[5]["row"] == "fedcpf"
    assert rows[5]["kind"] == "method"
    assert float(rows[5]["nss"]) == pytest.approx(2.75, abs=1e-12)
    assert float(rows[5]["nss_lo"]) == pytest.approx(2.4453040, abs=1e-6)
    assert rows[4]["harmed_vs_local"] == ""
    assert rows[0]["seconds"] == ""


def test_markdown_line(out):
    lines = to_markdown(table([out])).splitlines()
    assert lines[-1] == (
        "| FedCPF | 2.75 | [2.45, 3.05] | 2.60 | 25% | 0.0054 | 0.0100 | 12 | 1.25 |"
    )
    assert lines[2].startswith("| *uniform* (prior) | 0.15 | [\u22120.06, 0.36] | 0.00 |")
    assert len({line.count("|") for line in lines}) == 1


@pytest.mark.parametrize("width", [70, 100])
def test_printed_tables_fit_and_carry_the_pairs(out, width):
    console = Console(width=width, record=True, file=io.StringIO())
    show(gather([out]), console)
    text = console.export_text()
    assert "[2.45, 3.05]" in text
    assert "centre (prior)" in text
    assert "+0.400" in text
    assert "[0.109, 0.691]" in text
    assert "…" not in text


def test_unknown_metric_and_run_are_named(out):
    study = gather([out])
    with pytest.raises(ConfigError, match="no run has the metric 'nsss'"):
        show(study, Console(file=io.StringIO()), "nsss")
    with pytest.raises(ConfigError, match=r"no run 'fedcfp'.*did you mean 'fedcpf'"):
        paired(study, "fedcfp", "fedavg")


def test_unfinished_and_damaged_runs_say_what_to_do(out, tmp_path):
    with pytest.raises(StateError, match=r"no index\.json, no results\.json"):
        gather([tmp_path])
    copy = shutil.copytree(out, tmp_path / "OUT")
    (copy / "fedavg" / "results.json").unlink()
    with pytest.raises(StateError, match="unfinished; continue it with vergence resume"):
        gather([copy])
    people = copy / "fedcpf" / "people.csv"
    people.write_text(people.read_text().replace("value", "worth", 1))
    with pytest.raises(StateError, match="lacks the columns value"):
        gather([copy / "fedcpf"]).runs[0].scores("nss")
