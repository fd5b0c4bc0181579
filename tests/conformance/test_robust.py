"""Every method under every robust rule: it runs, or is refused in one sentence."""

import pytest

from tests.conformance.test_methods import NAMES, build, run
from vergence.data.synthetic.toy import Toy as People
from vergence.engine.compatibility_check import check
from vergence.engine.plan import Plan
from vergence.errors import ConfigError
from vergence.experiment.registry import find, names
from vergence.privacy.config import Privacy
from vergence.privacy.robust.base import RobustRule

RULES = names("privacy.robust", RobustRule)
PEOPLE = People(people=7).load()
"""As many as Krum needs for one liar in five."""
NO_RULE = {
    "ap_fl",
    "centralised",
    "cfedvs",
    "feddf",
    "fedgen",
    "fedgroup",
    "fedpac",
    "pe_zsl",
    "scaffold",
    "sg_zsl",
    "local_loss_split",
    "smashed_average",
    "split",
    "splitfed",
    "splitfed_u",
    "splitfed_v2",
}
MASKED = {"fedcpf", "fedselect", "ifca"}


def rule_of(name):
    return find("privacy.robust", name, RobustRule)(
        **({"root": "p03"} if name == "fltrust" else {})
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_it_runs_or_is_refused_in_one_sentence(name, tmp_path):
    method = build(name)
    for kind in RULES:
        rule = rule_of(kind)
        plan = {"rounds": 2, "solver": "sequential", "privacy": Privacy(robust=rule)}
        fits = name not in NO_RULE and (rule.entrywise or name not in MASKED)
        if fits:
            folder, _ = run(method, tmp_path / kind, PEOPLE, **plan)
            statuses = [
                r.split(",")[-1] for r in (folder.path / "turns.csv").read_text().splitlines()[1:]
            ]
            assert "ok" in statuses
            assert all(s == "ok" or s.startswith(f"left out: {kind}: ") for s in statuses)
            continue
        with pytest.raises(ConfigError, match=f"'{kind}' cannot judge") as error:
            check(Plan(**plan), method)
        assert "\n" not in str(error.value)
        assert len(str(error.value)) < 250
