"""Printed numbers and claims: what the files say is read as it stands, and mistakes are named."""

import hashlib
import json
from dataclasses import fields, is_dataclass

import pytest

from vergence.errors import ConfigError
from vergence_papers import command, printed
from vergence_papers.claims import Claim, Pair
from vergence_papers.data_sets import DEFAULT, GROUNDS
from vergence_papers.printed import HOME, numbers, paper, paper_tables, table_parts

GOLDEN = "bb5f499d3c429d018f73f938e00f5a925bee62f1c9467696acdbe966835378f7"
"""SHA-256 of all tables and claims by id, as they were as code; a new one needs a reason."""
SOUND = """
source = "a paper"
[texts]
who = "everybody trains"
[[tables]]
id = "one/table1"
title = "methods"
columns = ["main", "worst"]
unit = "toy"
note = "{who}."
[tables.printed.Data]
fedavg = [1, nan]
fedcpf = [2.5]
[[tables.claims]]
text = "FedCPF is best"
where = "3"
better = "fedcpf"
than = ["fedavg", "local_only"]
margin = 0.1
[[tables.claims]]
text = "in this order"
where = "4"
order = ["local_only", "fedavg", "fedcpf"]
[[tables.claims]]
text = "it is faster"
where = "5"
untestable = "{who}"
"""


@pytest.fixture
def read(tmp_path):
    def given(text, name="one"):
        paper.cache_clear()
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "tables.toml").write_text(text)
        return paper(name, tmp_path)

    yield given
    paper.cache_clear()


def plain(value):
    if is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value) if f.name != "parts"}
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, tuple | list):
        return [plain(one) for one in value]
    return repr(value) if isinstance(value, float) else value


def test_every_printed_number_and_claim_is_what_it_was():
    told = [plain(table) for _, table in sorted(command.TABLES.items())]
    found = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
    assert (len(told), found) == (63, GOLDEN)


def test_every_table_of_every_file_is_tested_by_a_command():
    written = [id_ for file in HOME.glob("*/tables.toml") for id_ in paper(file.parent.name).tables]
    assert sorted(written) == sorted(command.TABLES)


def test_a_file_is_read_as_it_stands(read):
    found = read(SOUND)
    assert found.source == "a paper"
    table = found.tables["one/table1"]
    assert table.note == "everybody trains."
    assert table.parts == ()
    assert repr(table.printed) == "{'Data': {'fedavg': (1.0, nan), 'fedcpf': (2.5,)}}"
    best, order, faster = table.claims
    both = (Pair(("fedcpf",), "fedavg"), Pair(("fedcpf",), "local_only"))
    assert best == Claim("FedCPF is best", "3", both, margin=0.1)
    assert order.pairs == (Pair(("fedavg",), "local_only"), Pair(("fedcpf",), "fedavg"))
    assert faster == Claim("it is faster", "5", untestable="everybody trains")


@pytest.mark.parametrize(
    ("was", "now", "told"),
    [
        ("title =", "titel =", "table one/table1: unknown key 'titel' (did you mean 'title'?)"),
        ('unit = "toy"', "", "table one/table1: 'unit' must be given"),
        ("[1, nan]", "[1, nan, 3]", "row 'fedavg': has 3 numbers for 2 columns"),
        ("[1, nan]", '[1, "-"]', "row 'fedavg': must be a list of numbers"),
        ("{who}.", "{whom}.", "note: no text 'whom' (texts of this file: who)"),
        ("than = ", "rivals = ", "claim 1: unknown key 'rivals'"),
        ('better = "fedcpf"', "", "claim 1: needs one of better, order, pairs, untest"),
        ('where = "4"', 'where = "4"\nuntestable = "x"', "has order, untestable"),
        ("margin = 0.1", 'margin = "0.1"', "claim 1: margin must be a number; got '0.1'"),
        ("margin = 0.1", "margin = -1.25", "claim 1: margin must lie between -1 and 1, a share of"),
        ('"one/table1"', '"two/table1"', "its id must begin with 'one/'"),
        ("[[tables]]", "[[tables]", "papers/one/tables.toml: "),
    ],
)
def test_a_mistake_is_named_with_its_place(read, was, now, told):
    assert was in SOUND
    with pytest.raises(ConfigError) as error:
        read(SOUND.replace(was, now, 1))
    assert str(error.value).startswith("papers/one/tables.toml: ")
    assert told in str(error.value)


def test_two_tables_of_one_id_and_unknown_names_are_refused(read, monkeypatch):
    with pytest.raises(ConfigError, match="there are two of this id"):
        read(SOUND + SOUND[SOUND.index("[[tables]]") : SOUND.index("[tables.printed")])
    with pytest.raises(ConfigError, match=r"no printed numbers of paper 'fedcfp' \(did you mean"):
        paper("fedcfp")
    runs = {"tables": {"fedcpf/table11": []}, "parts": {}}
    monkeypatch.setattr(printed, "_experiments", lambda _: runs)
    with pytest.raises(ConfigError, match=r"no table 'fedcpf/table11' \(did you mean"):
        paper_tables("fedcpf")


def test_the_mean_of_people_is_the_printed_one():
    """Table 4.2 of the SplitFed thesis prints people; its table here has their mean."""
    (rows,) = command.TABLES["splitfed/table4.2"].printed.values()
    people = numbers("splitfed")["by_parties"]
    assert [told for (told,) in rows.values()] == [sum(people[n]) / 4 for n in ("0", "3", "4")]


def named(template):
    """Names of a data set's values in a template."""
    if isinstance(template, dict):
        return {name for one in template.values() for name in named(one)}
    return {template} if isinstance(template, str) and template.startswith("$") else set()


@pytest.mark.parametrize("name", DEFAULT)
def test_every_part_stands_in_a_table_and_names_values_that_a_data_set_has(name):
    parts, tables = table_parts(name), paper_tables(name)
    used = {(part.name, part.protocol) for table in tables for part in table.parts}
    assert {(part.name, part.protocol) for part in parts.values()} == used
    places = [place for place in GROUNDS.values() if name in place.papers]
    for part in parts.values():
        for value in {v for one in (*part.methods, *part.above) for v in named(one)}:
            top, _, rest = value[1:].partition(".")
            held = [place.values[top] for place in places if top in place.values]
            assert any(not rest or rest in one for one in held), (part.name, value)
