"""Comparisons are the tables of `vergence compare`, in a notebook too."""

import io
import re

import pandas as pd
import pytest

import vergence as vg
from tests.cli.commands import vergence as command
from tests.experiment.made_up import arrays, regression, trained
from vergence.api.comparison import html_table
from vergence.results.text_tables import TextTable


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    return [
        trained(out / label, method=method)
        for label, method in (
            ("alone", vg.methods.LocalOnly()),
            ("shared", vg.methods.FedAvg()),
            ("mixed", vg.methods.FedPer()),
        )
    ]


def test_the_tables_are_those_of_the_command(runs):
    found = vg.compare(*runs)
    folders = [run.folder for run in runs]
    said = command("compare", *folders, "--format", "markdown").out
    headings = re.findall(r"^## (.*)$", said, re.MULTILINE)
    assert len(headings) == 3
    for heading in headings:
        assert heading in found.markdown()
        assert " ".join(heading.split()) in " ".join(repr(found).split())
    csv = command("compare", *folders, "--format", "csv").out
    table = found.table
    assert table.equals(pd.read_csv(io.StringIO(csv), index_col="row"))
    assert list(table.index) == ["best constant", "local_only", "fedavg", "fedper"]
    for run in runs:
        mean = run.summary.loc["test_loss", "mean"]
        assert table.loc[run.label, "test_loss"] == pytest.approx(mean)
    assert set(found.tests["a"]) | set(found.tests["b"]) == {"local_only", "fedavg", "fedper"}
    assert len(found.ranks) == 3
    assert len(found.fairness) == 3


def test_runs_of_one_name_are_told_apart_by_a_label(runs):
    said = repr(vg.compare(runs[1], trained(method=vg.methods.FedAvg())))
    assert "several runs are called 'fedavg': give train label= to tell them apart" in said
    assert "label=" not in repr(vg.compare(*runs))


def test_one_comparison_is_not_comparisons(runs):
    assert "Holm over 1 comparison, a pair" in repr(vg.compare(runs[1], runs[2]))


def test_a_refusal_says_what_to_write_in_python_too(runs):
    other = trained(method=vg.methods.FedPer(), rounds=4, label="longer")
    with pytest.raises(vg.ConfigError, match=r'--allow rounds, or allow=\["rounds"\] in Python'):
        vg.compare(runs[1], other)


def test_a_notebook_shows_every_table_as_html(runs):
    page = vg.compare(*runs)._repr_html_()
    assert page.count("<table>") == page.count("</table>") >= 4
    assert "<td>FedPer</td>" in page
    assert "<caption>test loss: mean and 95 % interval over 5 people, 1 seed, lower is" in page


def test_names_are_escaped():
    page = html_table(TextTable("a <b>", ["", "<i>"], [["<script>", "1 & 2"]], notes=["x < y"]))
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "1 &amp; 2" in page
    assert "<p>x &lt; y</p>" in page


def test_folders_and_mappings_compare_as_runs_do(runs):
    folders = vg.compare(*(run.folder for run in runs))
    assert repr(folders) == repr(vg.compare({run.label: run for run in runs}))
    paired = vg.compare(*runs, reference="fedper", metric="test_loss").tests
    assert set(paired["b"]) == {"fedper"}


def test_runs_that_are_not_comparable_are_refused(runs):
    longer = trained(rounds=4)
    with pytest.raises(vg.ConfigError, match="cannot compare: rounds differs"):
        vg.compare(runs[0], longer)
    assert "Note: rounds differs" in vg.compare(runs[0], longer, allow="rounds")._repr_html_()
    others = trained(people=vg.Federation.from_arrays(arrays(seed=3)))
    with pytest.raises(vg.ConfigError, match="cannot compare: data differs"):
        vg.compare(runs[1], others)
    scored = trained(task=regression(inputs="x", head=["2.*"]), label="other_head")
    with pytest.raises(vg.ConfigError, match=r"cannot compare: model.head differs"):
        vg.compare(runs[1], scored)
    with pytest.raises(vg.ConfigError, match=r"compare takes runs, .* got 3"):
        vg.compare(runs[0], 3)
    with pytest.raises(vg.ConfigError, match="nothing to compare"):
        vg.compare()


def test_a_figure_of_the_report_shows_in_a_notebook_and_is_saved(runs, tmp_path):
    picture = vg.compare(*runs).figure("convergence")
    assert picture._repr_png_().startswith(b"\x89PNG")
    said = {text.get_text() for axes in picture.figure.axes for text in axes.texts}
    assert {"local-only", "FedAvg", "FedPer"} <= said
    assert picture.save(tmp_path / "rounds.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(vg.ConfigError, match=r"no figure 'person' \(did you mean 'persons'\?\)"):
        vg.compare(*runs).figure("person")
    with pytest.raises(vg.ConfigError, match="figure 'classes' needs"):
        vg.compare(*runs).figure("classes")


def test_several_methods_are_trained_on_the_same_people(tmp_path):
    people = vg.Federation.from_arrays(arrays())
    options = {"rounds": 2, "seeds": [0, 1], "workers": 1, "progress": False}
    methods = [vg.methods.FedAvg(), vg.methods.FedPer()]
    made = vg.train_all(methods, regression(), people, out=tmp_path, **options)
    assert {label: run.folder for label, run in made.items()} == {
        "fedavg": tmp_path / "fedavg",
        "fedper": tmp_path / "fedper",
    }
    alone = vg.train(vg.methods.FedPer(), regression(), people, **options)
    assert made["fedper"].fingerprint == alone.fingerprint
    assert set(vg.compare(made).table.index) >= {"fedavg", "fedper"}
    by_folder = vg.compare(tmp_path).table
    assert by_folder["test_loss"].equals(vg.compare(*sorted(tmp_path.iterdir())).table["test_loss"])
    again = vg.train_all(methods, regression(), people, out=tmp_path, resume=True, **options)
    assert again["fedavg"].scores.equals(made["fedavg"].scores)
    near, far = vg.methods.FedProx(mu=1.0), vg.methods.FedProx(mu=0.01)
    named = vg.train_all({"near": near, "far": far}, regression(), people, **options)
    assert [run.label for run in named.values()] == ["near", "far"]
    with pytest.raises(vg.ConfigError, match="several methods are called 'fedprox': give each"):
        vg.train_all([near, far], regression(), people, **options)
    for wrong in (near, "fedavg", [], vg.methods.FedAvg):
        with pytest.raises(vg.ConfigError, match="methods must be a list of methods, as"):
            vg.train_all(wrong, regression(), people)
    with pytest.raises(vg.ConfigError, match=r"write vergence\.methods\.FedAvg"):
        vg.train_all(["fedavg"], regression(), people)
    with pytest.raises(TypeError, match="round"):
        vg.train_all(methods, regression(), people, round=3)
