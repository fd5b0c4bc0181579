"""Records written as tables of an experiment file, and bound again, are what they were."""

from dataclasses import replace

import pytest

from tests.conformance.test_methods import build
from tools import same_bits
from vergence.core.federation import Dataset
from vergence.core.local_training import LocalTraining
from vergence.core.method import Method
from vergence.core.task import Model
from vergence.errors import ConfigError
from vergence.experiment.record_tables import (
    NotWritable,
    method_table,
    plan_tables,
    table_of,
    toml_value,
)
from vergence.experiment.registry import find, names
from vergence.experiment.schema import build_method, build_plan, check
from vergence.experiment.table_binding import record_from_table
from vergence.methods.fedavg import FedAvg
from vergence.wire.codecs import Compression

LIST = same_bits.experiments()
OTHERS = LocalTraining(lr=0.3, batch=7, optimizer="adamw", clip=0.0)


@pytest.mark.parametrize("name", names("methods", Method))
@pytest.mark.parametrize(
    "common", [LocalTraining(optimizer="sgd"), OTHERS], ids=["default", "others"]
)
def test_methods(name, common):
    method = build(name)
    _, again = build_method(method_table(method, common), table_of(common))
    if name == "ap_fl" and method.base is None:  # a file's default is another than Python's
        method = replace(method, base=FedAvg(local=method.local))
    assert again == method


@pytest.mark.parametrize("name", LIST)
def test_plans_methods_and_protections_of_many_experiments(name):
    found = check(LIST[name])
    tables = plan_tables(found.plan)
    assert build_plan(tables) == found.plan
    assert set(tables) - {"run"} <= set(LIST[name]) | {"presence", "delivery", "wire"}
    local = next(iter(found.methods.values())).local
    for method in found.methods.values():
        assert build_method(method_table(method, local), table_of(local))[1] == method


@pytest.mark.parametrize(("kind", "base"), [("data", Dataset), ("models", Model)])
def test_data_sets_and_networks(kind, base):
    for name in names(kind, base):
        record = find(kind, name, base)()
        assert table_of(record) == {}, "nothing is said that is the default"
        assert record_from_table(type(record), table_of(record), name) == record


def test_values_that_no_file_can_hold():
    assert toml_value((1, (2.5, "a"), {"b": True})) == [1, [2.5, "a"], {"b": True}]
    for value in (None, lambda: 0, object()):
        with pytest.raises(NotWritable, match=type(value).__name__):
            toml_value(value)


def test_the_former_name_of_an_option_is_read_with_a_warning():
    """`wire.kept` became `value_codec`; files that people have keep working."""
    with pytest.warns(FutureWarning, match="value_codec"):
        plan = build_plan({"wire": {"codec": "topk", "kept": "int8"}})
    assert plan.wire == Compression("topk", value_codec="int8")


@pytest.mark.filterwarnings("ignore:'kept' in wire:FutureWarning")
def test_an_option_under_both_of_its_names_is_refused():
    with pytest.raises(ConfigError, match="value_codec' is given twice"):
        build_plan({"wire": {"codec": "topk", "value_codec": "fp16", "kept": "int8"}})
