"""Settings of delivery: what is refused in one line, and the page that tells them."""

import re

import pytest

from tests.conftest import ROOT
from vergence.engine.asynchronous_aggregation import Delivery
from vergence.engine.participation import Participation
from vergence.engine.plan import Plan
from vergence.engine.storage import run_directory
from vergence.errors import ConfigError
from vergence.experiment import schema as config
from vergence.experiment.table_binding import record_from_table

ASYNC = Delivery("fedasync")


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"name": "quorum", "seconds": 30}, "seconds is for deadline; leave it out with 'quorum'"),
        ({"name": "fedbuff", "a": 0.5}, "a is for fedasync"),
        ({"sigma": 1.0}, "with 'all', sigma needs clock = true"),
        ({"name": "quorum", "replies": 0}, "replies"),
        ({"name": "fedasync", "a": 1.5}, "a must be > 0 and <= 1; got 1.5"),
        ({"name": "buff"}, "name"),
        ({"name": "fedbuff", "reply": 3}, "unknown key 'reply'"),
    ],
)
def test_wrong_settings_are_told_in_one_line(given, line):
    with pytest.raises(ConfigError, match=line):
        record_from_table(Delivery, given, "delivery")


def test_what_asynchronous_delivery_cannot_go_with():
    with pytest.raises(ConfigError, match=r"presence\.lost = 1 loses all"):
        Plan(delivery=ASYNC, presence=Participation(lost=1.0))
    with pytest.raises(ConfigError, match="no rounds that people share"):
        Plan(
            delivery=ASYNC,
            pruning=record_from_table(type(Plan().pruning), {"amount": 0.5}, "pruning"),
        )


def test_an_experiment_reads_its_delivery():
    toy = config.read(ROOT / "src" / "vergence" / "experiments" / "toy.toml")
    read = config.check({**toy, "delivery": {"name": "quorum", "replies": 8}})
    assert read.plan.delivery == Delivery("quorum", replies=8)
    assert config.check(toy).plan.delivery == Delivery()


def test_the_page_leads_to_the_settings_and_tells_all_columns():
    page = ROOT / "docs/how-to/delivery.md"
    assert "(../reference/experiment.md#delivery)" in page.read_text()
    columns = {
        name
        for names in re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", page.read_text(), re.M)
        for name in re.findall(r"\w+", names)
    }
    assert set(run_directory.OPTIONAL["events.csv"]) <= columns
