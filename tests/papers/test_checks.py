"""What the published numbers give when they are computed again (`--check-paper`)."""

import io

import numpy as np
import pytest
from rich.console import Console
from scipy.stats import ttest_ind
from vergence_papers.adaptive.checks import check_adaptive, mean_gaze
from vergence_papers.fedcpf import checks

from tests.conftest import research_data
from vergence_papers import command as app


def test_the_published_f1_is_the_harmonic_mean_but_for_two_rows():
    """Rows of 37.56 and 37.32, where 2PR / (P + R) is 37.543 and 37.302."""
    first, twins, chosen = checks.findings()[:3]
    assert not first.ok
    assert first.computed.startswith("36 of 38 rows")
    assert "rho_10: 37.56, computed 37.54" in first.computed
    assert "rho_70: 37.32, computed 37.30" in first.computed
    assert not twins.ok
    assert "Table 2 rho_30 = Table 3 acc_10, (54.79, 30.56, 39.24)" in twins.computed
    assert twins.computed.count(" = ") == 1
    assert not chosen.ok


def sample(mean, deviation, n):
    """n numbers with exactly this mean and standard deviation."""
    z = np.arange(n, dtype=float)
    z = (z - z.mean()) / z.std(ddof=1)
    return mean + deviation * z


@pytest.mark.parametrize(("at", "runs"), [(0, 9), (1, 10), (2, 38), (3, 10)])
def test_the_t_tests_need_different_numbers_of_runs(at, runs):
    """SciPy's t-test on samples with the printed mean and SD gives the printed p for these n."""
    _, _, one, other, p = checks.printed_tests()[at]
    samples = [sample(float(m), float(s), runs) for m, s in (one, other)]
    assert ttest_ind(*samples).pvalue == pytest.approx(float(p), abs=0.0025)
    assert runs in checks.runs_fitting(one, other, p)
    assert f"about {runs} runs" in checks.findings()[3 + at].computed


def test_the_findings_about_the_text():
    found = {f.says: f for f in checks.findings()}
    (text,) = [f for says, f in found.items() if "precision of FedCPF, 25.2," in says]
    assert (text.ok, text.computed) == (False, "Table 1 prints 25.07")
    assert found["14596 train clips"].ok
    assert not found["the four t-tests are of one experiment, with one number of runs"].ok
    holm = found["FedCPF is significantly better than FedSelect"]
    assert "0.092, 0.092, 0.092, 0.092" in holm.computed, "4 * .023, then never less"
    assert [f.verdict for f in found.values() if "is best at" in f.says] == ["ok", "ok"]


def test_the_findings_about_adaptive_fl():
    """(10.63 - 8.95) / 10.63 = 15.80 %; the mean gaze, 9.21, is better than FedAvg by 1.42."""
    gain, constant, best, single, *_ = check_adaptive()
    assert gain.ok
    assert "15.8 %" in gain.computed
    assert not constant.ok
    assert "9.21" in constant.computed
    assert "+1.42" in constant.computed
    assert (best.ok, single.ok) == (True, False)
    measured = check_adaptive(8.0, 11)
    assert not measured[2].ok, "a constant of 8.0 would beat adaptive FL"
    assert "11 people" in measured[1].computed


def test_check_paper_prints_a_verdict_for_each():
    text = io.StringIO()
    found = app.check_paper(["fedcpf"], Console(file=text, width=240))
    assert text.getvalue().count("does not hold") == sum(not f.ok for f in found) > 3


@pytest.mark.data
def test_the_mean_gaze_of_eleven_real_people():
    """The evaluation subset of all 15 people gives 9.21 degrees; eleven of them nearly so."""
    research_data("eyes/mpiigaze_9x15")
    error, people = mean_gaze()
    assert people == 11
    assert error == pytest.approx(9.21, abs=0.1)
