"""Tables and paired differences over a study whose every number is known."""

import csv
import io
import json
import math
import shutil

import pytest
from rich.console import Console

from tests.cli.commands import vergence
from tests.made_up_runs import BASE, write_study
from vergence.errors import ConfigError, DataError, StateError
from vergence.metrics import statistics
from vergence.metrics.intervals import interval
from vergence.results.significance import fairness_by_run, family, judge, pairs_of, rank
from vergence.results.write import write_harm
from vergence.studies.compare import (
    blocks,
    gather,
    paired,
    print_parts,
    rows,
    tables_as_text,
    to_csv,
    to_markdown,
    without_tuning_people,
)


def table(dirs):
    """Rows for these folders: priors, then methods in the order of the index."""
    return rows(gather(dirs))


def show(study, console, metric=None):
    """Print all tables, in as many pieces as the width asks for."""
    print_parts(blocks(study, metric), console)


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
    listed = table([out])
    assert [(r.label, r.prior) for r in listed] == [
        ("uniform", True),
        ("centre", True),
        ("other_people", True),
        ("local_only", False),
        ("fedavg", False),
        ("fedcpf", False),
    ]
    centre, best = listed[1].metrics["nss"], listed[5]
    assert centre[:3] == pytest.approx((0.75, 0.544574, 0.955426), abs=1e-6)
    assert centre.worst == 0.6
    assert listed[1].metrics["kld"].worst == pytest.approx(0.9), "kld: lower is better"
    assert list(best.metrics) == ["nss", "kld"], "headline first"
    assert best.metrics["nss"].mean == pytest.approx(2.75)
    assert best.metrics["nss"].worst == pytest.approx(2.6)
    assert (best.worse_than_alone, best.mb_up, best.mb_down) == (0.25, 0.0054, 0.01)


def test_two_methods_that_look_alike_have_one_more_decimal(tmp_path, monkeypatch):
    """FedCPF has 2.75; FedSelect 0.15 more than its base: 2.754, which reads 2.75 too, or 2.76."""
    for of_fedselect, decimals in ((2.604, 3), (2.61, 2)):
        monkeypatch.setitem(BASE, "fedselect", of_fedselect)
        folder = tmp_path / str(decimals)
        write_study(folder, methods=("fedselect", "fedcpf"))
        study = gather([folder])
        cells = blocks(study)["methods"][0].lines[-1]
        assert len(cells[1].partition(".")[2]) == decimals


def test_paired_averages_seeds_within_a_person_first(out):
    """FedCPF - FedAvg per person = 0.3 + gain = 0.6, 0.3, 0.2, 0.5: mean 0.4.

    Squared deviations .04 .01 .04 .01, s = sqrt(.1 / 3) = 0.1825742,
    half = 3.1824463 * 0.1825742 / 2 = 0.2905163.
    """
    p = paired(gather([out]), "fedcpf", "fedavg", "nss")
    assert (p.mean, p.lo, p.hi) == pytest.approx((0.4, 0.1094837, 0.6905163), abs=1e-6)
    assert (p.better, p.people) == (4, 4)


def test_better_follows_the_direction_of_the_metric(out, tmp_path):
    """KLD is lower-is-better: 1.0 against 1.25 for one person counts as better, 1.5 as worse."""
    copy = shutil.copytree(out, tmp_path / "OUT")
    people = copy / "fedcpf" / "people.csv"
    text = people.read_text().replace("p1,P0,kld,1.25", "p1,P0,kld,1.0")
    people.write_text(text.replace("p2,P0,kld,1.25", "p2,P0,kld,1.5"))
    p = paired(gather([copy]), "fedcpf", "fedavg", "kld")
    assert p.better == 1
    assert p.mean == pytest.approx(0.0)


def test_every_method_is_paired_with_both_references(out):
    assert pairs_of(gather([out])) == [
        ("local_only", "fedavg"),
        ("fedcpf", "fedavg"),
        ("fedavg", "local_only"),
        ("fedcpf", "local_only"),
    ]


def test_one_reference_pairs_everybody_with_it(out):
    pairs = [("local_only", "fedcpf"), ("fedavg", "fedcpf")]
    assert pairs_of(gather([out]), reference="fedcpf") == pairs
    with pytest.raises(ConfigError, match=r"no run 'fedcp'.*did you mean 'fedcpf'"):
        pairs_of(gather([out]), reference="fedcp")


def test_all_equal_labels_from_several_folders_get_their_folders_name(out, tmp_path):
    second = write_study(tmp_path / "AGAIN", methods=("fedavg",))
    labels = [r.label for r in table([out, second]) if not r.prior]
    assert labels == ["local_only", "OUT/fedavg", "fedcpf", "AGAIN/fedavg"]
    turned = [r.label for r in table([second, out / "fedavg", out / "fedcpf"]) if not r.prior]
    assert turned == ["AGAIN/fedavg", "OUT/fedavg", "fedcpf"], "a run alone is named alike"


def test_folders_of_equal_names_are_told_apart_by_those_above(tmp_path):
    studies = [write_study(tmp_path / name / "OUT", methods=("fedavg",)) for name in "ab"]
    assert [r.label for r in table(studies) if not r.prior] == ["a/OUT/fedavg", "b/OUT/fedavg"]


def test_a_run_named_twice_is_refused(out):
    with pytest.raises(ConfigError, match=r"fedavg is named 2 times"):
        table([out, out / "fedavg"])


def test_steps_are_counted_once_per_turn(out, tmp_path):
    """2 seeds x 6 rounds x 4 people x 5 steps: 30 per client and seed. A tune adds 7, once a tree.

    A second row of the same turn (tree "other" after "model") adds nothing, a second turn does.
    """
    run = gather([out]).run("fedavg")
    assert run.steps == 30
    copy = shutil.copytree(out / "fedavg", tmp_path / "fedavg")
    more = [
        f"0,6,p1,{turn},0,0,80,80,8,,ok\n" for turn in ("tune,model", "tune,other", "tune,model")
    ]
    with (copy / "turns.csv").open("a") as file:
        file.writelines(more)
    assert gather([copy]).runs[0].steps == 30 + 2 * 8 / 4 / 2


def test_steps_that_nobody_says_are_not_called_none(out, tmp_path):
    """Under secure sums a reply does not say how many steps it took: a dash, not 0."""
    copy = shutil.copytree(out / "fedavg", tmp_path / "fedavg")
    with (copy / "turns.csv").open(newline="") as file:
        rows = [row | {"steps": 0} for row in csv.DictReader(file)]
    with (copy / "turns.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, rows[0])
        table.writeheader()
        table.writerows(rows)
    assert math.isnan(gather([copy]).runs[0].steps)


def test_judge_is_the_statistics_of_the_people(out):
    """FedCPF - FedAvg = 0.6, 0.3, 0.2, 0.5; every pair has an exact p of 2 / 2^4 over 3 pairs."""
    judged = judge(gather([out]), "nss", margin=0.7)
    assert [(j.pair.a, j.pair.b) for j in judged][1] == ("fedcpf", "fedavg")
    j, d = judged[1], [0.6, 0.3, 0.2, 0.5]
    assert family(judged) == 3, "local-only and FedAvg stand in the table twice"
    assert (j.p, j.holm) == (pytest.approx(0.125), pytest.approx(0.375))
    assert j.t == pytest.approx(statistics.paired_t(d))
    assert j.dz == pytest.approx(0.4 / 0.1825742, rel=1e-6)
    assert j.rank_biserial == 1
    assert j.bootstrap == pytest.approx(statistics.bootstrap(d))
    assert judged[0].holm == judged[2].holm, "a - b and b - a are one hypothesis"


def test_equivalence_needs_the_whole_interval_within_the_margin(out, tmp_path):
    """FedProx copies FedAvg + 0.05 for everybody: equivalent within 0.1, not within 0.04.

    Eight people: the exact p is 2 / 2^8, so it is different in any case. FedCPF - FedAvg of four
    people has an exact p of 2 / 2^4: equivalent within 0.7, without being different.
    """
    both = write_study(tmp_path / "OUT", methods=("fedavg", "fedprox"), people=8)
    within, beyond = (judge(gather([both]), margin=margin)[0] for margin in (0.1, 0.04))
    assert (within.pair.a, within.pair.mean) == ("fedprox", pytest.approx(0.05))
    assert (within.verdict, beyond.verdict) == (
        "different, but equivalent",
        "different",
    )
    four = write_study(tmp_path / "FOUR", methods=("fedavg", "fedcpf"))
    assert judge(gather([four]), margin=0.7)[0].verdict == "equivalent"
    assert judge(gather([four]), margin=0.4)[0].verdict == "undecided"
    assert beyond.p == pytest.approx(2 / 2**8)
    few = judge(gather([out]), "nss", reference="fedavg", margin=0.5)
    assert [j.verdict for j in few] == ["equivalent", "undecided"], "0.2 always; 0.2 to 0.6"
    with pytest.raises(ConfigError, match=r"--margin must be a positive number.*got -1"):
        judge(gather([out]), margin=-1)


def test_a_person_in_a_seed_as_unit(out):
    p = paired(gather([out]), "fedcpf", "fedavg", "nss", "person-seed")
    assert (p.people, p.better) == (8, 8)
    assert p.mean == pytest.approx(0.4)
    judged = judge(gather([out]), unit="person-seed")
    assert judged[1].p == pytest.approx(2 / 2**8)


def test_ranks_of_three_methods(out):
    """Everybody: FedCPF 1, FedAvg 2, local-only 3; Friedman 12 / (4 * 12) * 224 - 48 = 8."""
    found = rank(gather([out]))
    assert found is not None
    assert found.labels == ("local_only", "fedavg", "fedcpf")
    assert found.ranking.ranks == (3, 2, 1)
    assert found.ranking.statistic == pytest.approx(8)
    assert rank(gather([out / "fedavg", out / "fedcpf"])) is None


def test_treatment_of_people(out):
    """FedCPF 2.8 2.6 2.6 3.0 against 2.0 2.1 2.2 2.3 alone: nobody is harmed, p1 has most."""
    found = fairness_by_run(gather([out]))
    f = found["fedcpf"]
    assert (f.best_person, f.worst_person) == ("p4", "p2")
    assert (f.p10, f.p90) == pytest.approx((2.6, 2.94))
    assert (f.harmed, f.worst_harm) == (0, 0)
    assert fairness_by_run(gather([out / "fedcpf"]))["fedcpf"].harmed is None


def test_harm_is_against_local_only_of_the_same_experiment(out, tmp_path):
    """Where everybody has 3.0 alone, FedAvg with 2.2 + 0.1 i harms all; in the other nobody."""
    copy = shutil.copytree(out, tmp_path / "MORE")
    people = copy / "local_only" / "people.csv"
    lines = [
        line.rpartition(",")[0] + ",3.0" if ",nss," in line else line
        for line in people.read_text().splitlines()
    ]
    people.write_text("\n".join(lines) + "\n")
    found = fairness_by_run(gather([out, copy]))
    assert (found["OUT/fedavg"].harmed, found["MORE/fedavg"].harmed) == (0, 1)
    assert found["MORE/fedavg"].worst_harm == pytest.approx(0.8 / 3)
    assert found["MORE/fedavg"].most_harmed == "p1"


def test_csv_keeps_full_precision(out):
    lines = list(csv.DictReader(io.StringIO(to_csv(table([out])))))
    assert lines[5]["row"] == "fedcpf"
    assert lines[5]["kind"] == "method"
    assert float(lines[5]["nss"]) == pytest.approx(2.75, abs=1e-12)
    assert float(lines[5]["nss_lo"]) == pytest.approx(2.4453040, abs=1e-6)
    assert lines[4]["harmed_vs_local"] == ""
    assert lines[0]["seconds"] == lines[0]["steps"] == ""
    assert float(lines[5]["steps"]) == 30


def test_markdown_line(out):
    lines = to_markdown(table([out])).splitlines()
    assert lines[-1] == (
        "| FedCPF | 2.75 | [2.45, 3.05] | 2.60 | – | 0.0054 | 0.0100 | 12 | 30 | 1.25 |"
    )
    assert lines[2].startswith("| *uniform* (prior) | 0.15 | [\u22120.06, 0.36] | 0.00 |")
    assert len({line.count("|") for line in lines}) == 1


def test_results_hold_the_fairness_block_of_the_headline(out, tmp_path):
    """FedAvg against FedCPF as if that were alone: p1 loses most, 0.6 of 2.8."""
    copy = shutil.copytree(out, tmp_path / "OUT")
    write_harm(copy / "fedavg", copy / "fedcpf")
    told = json.loads((copy / "fedavg" / "results.json").read_text())
    assert told["harmed_vs_local"] == told["fairness"]["harmed"] == 1
    assert told["fairness"]["worst_harm"] == pytest.approx(0.6 / 2.8)
    assert told["fairness"]["most_harmed"] == "p1"
    assert told["fairness"]["spread"] == pytest.approx(0.24)
    assert set(told["fairness"]) >= {"best", "worst", "worst_person", "p10", "p90", "std"}


@pytest.mark.parametrize("width", [70, 80, 100, 160])
def test_printed_tables_fit_and_carry_the_pairs(out, width):
    console = Console(width=width, record=True, file=io.StringIO())
    show(gather([out]), console)
    text = console.export_text()
    assert "[2.45, 3.05]" in text
    assert "centre (prior)" in text
    assert "+0.400" in text
    assert "[0.109, 0.691]" in text
    told = " ".join(text.split())
    assert "Holm over 3 comparisons" in told
    assert "Wilcoxon's p cannot be below 0.125, nor Holm's below 0.375" in told
    assert "Fairness in NSS over 4 people" in text
    assert "a coarser look at all pairs than the paired tests, which give the verdict" in told
    assert "Not apart in mean ranks: FedCPF, FedAvg." in told
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= max(width, 80), "headings alone may be longer"


def test_markdown_has_every_table(out):
    """TOST of FedCPF - FedAvg: t = (0.4 - 0.7) / 0.0912871 = -3.286, p = 0.0231; two pairs are
    surer (local-only - FedAvg) or less sure (FedCPF - local-only), so Holm doubles it.
    """
    study = gather([out])
    text = tables_as_text(study, blocks(study, margin=0.7), "markdown")
    assert text.startswith(to_markdown(table([out])))
    assert "| FedCPF | 2.60 | p2 | 2.60 | 2.94 | 3.00 | 0.19 | 0.34 | 0% | 0.0% |" in text
    assert (
        "| FedCPF | FedAvg | +0.400 | [0.109, 0.691] | [0.225, 0.550] | 4 of 4 | 0.125 | 0.375 | "
        "0.022 | 2.19 | equivalent (0.046) |"
    ) in text
    assert "| FedCPF | 1.00 |" in text


@pytest.mark.parametrize(
    ("part", "line"),
    [
        ("fairness", {"row": "fedcpf", "worst_person": "p2", "harmed": "0.0", "most_harmed": ""}),
        ("tests", {"a": "fedcpf", "b": "fedavg", "holm_p": "0.375", "verdict": "", "margin": ""}),
        ("ranks", {"row": "fedcpf", "mean_rank": "1.0", "groups": "0"}),
    ],
)
def test_csv_holds_one_table(out, part, line):
    text = vergence("compare", out, "--format", "csv", "--table", part).out
    found = list(csv.DictReader(io.StringIO(text)))
    assert any(line.items() <= row.items() for row in found), found


def test_the_command_takes_reference_margin_and_unit(out):
    said = vergence(
        "compare",
        out,
        "--reference",
        "fedcpf",
        "--margin",
        0.3,
        "--table",
        "tests",
        "--unit",
        "person-seed",
    )
    assert (said.code, said.err) == (0, "")
    assert "within ±0.3" in said.out
    assert "8 of 8" not in said.out
    assert "0 of 8" in said.out, "nobody is better off than with FedCPF"
    assert "Seeds of one person are not independent" in said.out
    assert "NSS: mean" not in said.out
    vergence("compare", out, "--reference", "fedcp").complains(2, "no run 'fedcp'", "'fedcpf'")
    vergence("compare", out, "--margin", 0).complains(2, "--margin must be a positive number")
    vergence("compare", out / "fedcpf", "--table", "tests").complains(2, "tests needs a run")
    vergence("compare", out / "fedcpf", "--table", "ranks").complains(2, "ranks needs three")


def tuned(out, folder, *people):
    """Copy a study whose settings were chosen on these people."""
    copy = shutil.copytree(out, folder)
    for config in copy.glob("*/config.toml"):
        names = ", ".join(f'"{p}"' for p in people)
        config.write_text(f"{config.read_text()}tuning = {{ trials = 3, people = [{names}] }}\n")
    return copy


def test_people_that_settings_were_chosen_on_are_left_out_everywhere(out, tmp_path):
    """Without p1: FedCPF 2.6, 2.6, 3.0, FedAvg 2.3, 2.4, 2.5: differences 0.3, 0.2, 0.5.

    Mean 8.2 / 3, s = 0.2309401, half = 4.3026527 * s / sqrt(3) = 0.5736870; the prior "centre" has
    0.7, 0.8, 0.9. Nobody is worse off than alone, with 2.1, 2.2, 2.3.
    """
    study, note = without_tuning_people(gather([tuned(out, tmp_path / "OUT", "p1", "p9")]))
    assert note == "without p1: settings were chosen on them (tuning.people)"
    best = next(row for row in rows(study) if row.label == "fedcpf")
    assert best.metrics["nss"][:3] == pytest.approx((2.7333333, 2.1596463, 3.3070204), abs=1e-6)
    assert list(best.metrics) == ["nss", "kld"]
    assert best.worse_than_alone == 0
    assert rows(study)[1].metrics["nss"].mean == pytest.approx(0.8)
    p = paired(study, "fedcpf", "fedavg")
    assert (p.mean, p.people) == (pytest.approx(1 / 3), 3)
    assert fairness_by_run(study)["fedavg"].worst_person == "p2"
    found = rank(study)
    assert found is not None
    assert found.people == 3


def test_the_command_compares_on_unseen_people(out, tmp_path):
    copy = tuned(out, tmp_path / "OUT", "p1")
    said = vergence("compare", copy, "--unseen")
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith("Note: without p1: settings were chosen on them")
    assert "over 3 people" in said.out
    assert "over 4 people" not in said.out
    vergence("compare", out, "--unseen").complains(2, "--unseen", "vergence study sweep")
    everybody = tuned(out, tmp_path / "ALL", "p1", "p2", "p3", "p4")
    vergence("compare", everybody, "--unseen").complains(2, "everybody", "sweep.people")
    strange = vergence("compare", tuned(out, tmp_path / "ELSE", "q1"), "--unseen")
    assert strange.out.startswith("Note: q1 are not in these runs")


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
