"""What README, CONTRIBUTING, ARCHITECTURE and docs say is there: paths, names, links, options."""

import dataclasses
import doctest
import importlib
import pkgutil
import re
import sys
import tomllib
import types
from pathlib import Path

import pytest

import vergence.core
from tests.conftest import ROOT
from tests.docs.pages import TOP, blocks, options, pages, prose
from tools.coverage import anchors
from vergence.core.federation import Dataset
from vergence.core.method import Method
from vergence.core.task import Model, Task
from vergence.engine.storage import run_directory
from vergence.experiment import registry as binding
from vergence.experiment import schema as config

PAGES = pages()
METHODS = binding.names("methods", Method)
ROOMS = "src|docs|experiments|papers|tests|benchmarks|runs"
SHOWN = r"(?:\.ci|Makefile|pyproject\.toml|constraints\.txt|[A-Z]+\.md)"
PATH = re.compile(rf"(?<![\w./])((?:{ROOMS})/[\w./-]*[\w/]|{SHOWN}(?:/\w+)?)(?![\w/])")
NAME = re.compile(r"(?<![\w./])vergence(?:\.[A-Za-z_]\w*)+")
LINK = re.compile(r"\[(?:[^\]\n]|\n(?!\n))*\]\(([^)\s]+)\)")
MADE = ("runs/", "README.md")
"""Made by a run, or written last: not there in a fresh clone."""


def name_of(value):
    return value.relative_to(ROOT).as_posix() if isinstance(value, Path) else str(value)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_paths_exist(page):
    for path in PATH.findall(page.read_text(encoding="utf-8")):
        if path.startswith(MADE) or "NAME" in path:
            continue
        assert (ROOT / path).exists() or (page.parent / path).exists(), f"{page}: no {path}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_dotted_names_exist(page):
    for dotted in NAME.findall(page.read_text(encoding="utf-8")):
        if "NAME" in dotted or dotted == "vergence.methods.halfway":
            continue
        pkgutil.resolve_name(dotted)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_resolve(page):
    for link in LINK.findall(prose(page)):
        target, _, anchor = link.partition("#")
        if target.startswith(("https://", "mailto:")):
            continue
        place = (page.parent / target).resolve() if target else page
        assert place.exists(), f"{page}: broken link {link}"
        if anchor and place.suffix == ".md":
            assert anchor in anchors(prose(place)), f"{page}: no heading for {link}"


CODE = re.compile(r"\((?:(?!P\d|V\d)[A-Za-z]\d\d?(?:, )?)+\)|\bissue #?\d+")
"""Numbers of findings. P0 to P2 are points of evaluation, V1 to V3 variants of SplitFed."""


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_page_holds_the_code_of_a_list_that_readers_do_not_have(page):
    assert CODE.findall(prose(page)) == []


def plain(value):
    """Return a default as TOML would give it."""
    if isinstance(value, tuple | list):
        return [plain(v) for v in value]
    return value


def defaults(record, *without):
    found = {}
    for f in dataclasses.fields(record):
        if f.name not in without:
            made = f.default_factory is not dataclasses.MISSING
            found[f.name] = plain(f.default_factory() if made else f.default)
    return found


def written(page, heading):
    texts = options(ROOT / "docs" / page, heading)
    return {k: None if t == "none" else tomllib.loads(f"v = {t}")["v"] for k, t in texts.items()}


@pytest.mark.parametrize("name", METHODS)
def test_the_pages_of_methods_lead_to_their_options(name):
    """Options stand in the generated page alone; `test_reference_pages` holds it to the code."""
    page = ROOT / "docs/reference/methods" / f"{name}.md"
    assert f"\nOptions: [{name}](../options/methods.md#{name})." in page.read_text()
    listed = (ROOT / "docs/reference/options/methods.md").read_text()
    section = re.split(r"^## ", listed.partition(f"\n## {name}\n")[2], flags=re.MULTILINE)[0]
    told = set(re.findall(r"^\| `(\w+)` \| ", section, re.MULTILINE))
    assert told == defaults(binding.find("methods", name, Method), "local", "base").keys()


def test_the_columns_of_tables_are_true():
    text = (ROOT / "docs/reference/runs.md").read_text()
    for name, columns in run_directory.TABLES.items():
        assert f"| `{name}` | `{','.join(columns)}`" in text


def test_every_data_set_is_named():
    text = (ROOT / "docs/reference/data.md").read_text().partition("## What is refused")[0]
    assert [name for name in binding.names("data", Dataset) if f"`{name}`" not in text] == []


TOML = [block for page in PAGES for block in blocks(page, "toml")]


@pytest.mark.parametrize("block", TOML, ids=str)
def test_config_snippets_bind(block):
    """A snippet is accepted as it stands, or within the toy experiment where it is a part."""
    table = tomllib.loads(block.text)
    toy = config.read(ROOT / "src" / "vergence" / "experiments" / "toy.toml")
    for other in ("method", "methods"):
        if {"method", "methods"} & table.keys():
            toy.pop(other, None)
    whole = {**toy, **table}
    config.check(whole)
    for kind, base in (("task", Task), ("model", Model)):
        assert whole[kind]["name"] in binding.names(f"{kind}s", base)


CORE = [f"vergence.core.{info.name}" for info in pkgutil.iter_modules(vergence.core.__path__)]


def test_examples_in_core_docstrings_come_out_as_printed():
    results = [doctest.testmod(importlib.import_module(name)) for name in CORE]
    assert sum(r.failed for r in results) == 0
    assert sum(r.attempted for r in results) >= 4


@pytest.fixture
def halfway(monkeypatch):
    """The worked method of CONTRIBUTING, imported as if its file were there."""
    by_label = {b.label: b for b in blocks(ROOT / "CONTRIBUTING.md", "python")}
    module = types.ModuleType("vergence.methods.halfway")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(by_label['title="halfway.py"'].text, "halfway.py", "exec"), vars(module))
    test: dict = {}
    monkeypatch.setattr(importlib.import_module("vergence.methods"), "halfway", module, False)
    exec(compile(by_label['title="test_halfway.py"'].text, "test_halfway.py", "exec"), test)
    return binding.only_class(module, Method), test["test_halfway_by_hand"]


def test_the_worked_method_passes_its_own_test(halfway):
    _, oracle = halfway
    oracle()


def test_the_worked_method_passes_conformance(halfway, tmp_path, monkeypatch):
    from tests.conformance import test_methods as battery

    method = halfway[0](local=battery.LOCAL)
    battery.test_docstring_cites_its_source(method)
    battery.test_states_pack_and_unpack(method)
    battery.test_bytes_engine_equals_simulator(method, tmp_path / "bytes")
    battery.test_resuming_at_round_2_equals_running_through(method, tmp_path / "on", monkeypatch)
    battery.test_empty_reply_set_leaves_the_server_unchanged(method)
    battery.test_exposure_equals_the_committed_table(method)
    battery.test_nothing_undeclared_leaves_a_client(method)
    battery.test_beats_its_start(method, tmp_path / "start")
    battery.test_alike_people_agree_with_fedavg(method, tmp_path / "alike")


WRAPPED = ("docs/how-to/", "docs/explanation/", "docs/reference/", "docs/index.md", *TOP)
WORDS = re.compile(r"(?:`[^`]*`|\]\(\S+ \"[^\"]*\"\)|\S)+")
"""Words of a line; code, and the title of a link, are not broken."""


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_written_pages_are_wrapped_at_100_characters(page):
    text = prose(page)
    if not name_of(page).startswith(WRAPPED) or "Written by tools/" in text:
        return
    for line in text.splitlines():
        long = len(line) > 100 and max(map(len, WORDS.findall(line))) < 60
        assert not long or re.match(r"    |\s*(\||#|!|<|\[[^\]]+\]:)", line), line
