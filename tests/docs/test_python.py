"""The Python of README and of how-to pages runs, and prints what the page says."""

import ast
import importlib.util
import re

import numpy as np
import pytest

from tests.cli.commands import vergence
from tests.conftest import ROOT
from tests.docs.pages import blocks, pages

NUMBER = re.compile(r"-?\d+\.\d+")


def run_cell(text, names):
    spec = importlib.util.spec_from_file_location("notebook", ROOT / "tools" / "run_notebook.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.run_cell(text, names)


def cells(page):
    """Every block that is run, with the block of output that follows it, if there is one."""
    listed = blocks(page, None)
    for block, after in zip(listed, [*listed[1:], None], strict=True):
        if block.language == "python" and not block.label:
            yield block, after.text if after is not None and after.language == "text" else None


QUICK = [
    "README.md",
    "docs/how-to/python.md",
    "docs/how-to/recipes.md",
    "docs/how-to/coming-from-flower.md",
    "docs/how-to/coming-from-lightning.md",
    "docs/how-to/gpu.md",
    "docs/how-to/many-experiments.md",
]
SLOW = ["docs/how-to/hugging-face.md"]
PAGES = [*QUICK, *(pytest.param(page, marks=pytest.mark.slow) for page in SLOW)]


def not_installed(text):
    """Return the packages that a block imports and that are not installed."""
    names = re.findall(r"^(?:from|import) (\w+)", text, re.MULTILINE)
    return [name for name in names if importlib.util.find_spec(name) is None]


@pytest.mark.parametrize("page", PAGES)
def test_the_python_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = list(cells(ROOT / page))
    assert found
    names = {"__name__": "__main__"}
    for block, output in found:
        # Blocks before it have run; those after it may use what it would import.
        if lacking := not_installed(block.text):
            pytest.skip(f"{block} and what follows need {', '.join(lacking)}, not installed here")
        value, _ = run_cell(block.text, names)
        if output is None:
            continue
        shown = repr(value)
        assert NUMBER.sub("#", shown).split() == NUMBER.sub("#", output).split(), block
        here, told = ([float(n) for n in NUMBER.findall(text)] for text in (shown, output))
        assert here == pytest.approx(told, rel=0.05), block


def test_the_partition_folder_of_pfllib_is_read_and_trained_on(tmp_path, monkeypatch):
    """Files as `save_file` of PFLlib's dataset_utils.py writes them: a mapping in an array."""
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    for name, rows in (("train", 20), ("test", 7)):
        folder = tmp_path / "dataset/FashionMNIST" / name
        folder.mkdir(parents=True)
        for client in range(3):
            x, y = draw.uniform(-1, 1, (rows, 1, 28, 28)), draw.integers(10, size=rows)
            np.savez_compressed(folder / f"{client}.npz", data={"x": x.astype("f4"), "y": y})
    names = {"__name__": "__main__"}
    for block, _ in cells(ROOT / "docs/how-to/coming-from-pfllib.md"):
        run_cell(block.text, names)
    people = names["people"].people
    assert [(len(s.train), len(s.test)) for s in people.values()] == [(20, 7)] * 3
    assert all(run.scores["accuracy"].between(0, 1).all() for run in names["runs"].values())


def test_the_network_and_data_in_a_file_train(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for block in blocks(ROOT / "docs/how-to/python.md", None):
        name = block.label.removeprefix("title=").strip('"')
        if "." in name:
            (tmp_path / name).write_text(block.text)
    (tmp_path / "eyes").mkdir()
    run_cell((tmp_path / "make.py").read_text(), {})
    told = vergence("run", "plan.toml", "--out", "runs/ours")
    assert told.code == 0, told.err
    assert (tmp_path / "runs/ours/fedper/results.json").exists()
    vergence("explain", "plan.toml").complains(2, "ours.py", "--trust-code")
    assert vergence("explain", "plan.toml", "--trust-code").code == 0
    assert vergence("data", "check", "ours.py", "--root", "eyes").code == 0


@pytest.mark.parametrize("page", [*QUICK, *SLOW, "CONTRIBUTING.md"])
def test_examples_import_from_the_package_alone(page):
    for block in blocks(ROOT / page, "python"):
        inner = re.findall(r"^\s*(?:from|import) (vergence\.[\w.]+)", block.text, re.MULTILINE)
        assert set(inner) <= {"vergence.methods.halfway"}, block


WRITTEN_LATER = "vergence.methods.halfway"
"""The worked example of CONTRIBUTING, which `test_pages.py` puts in place and tests."""
SHOWN = [
    block for page in pages() for block in blocks(page, "python") if WRITTEN_LATER not in block.text
]


@pytest.mark.parametrize("block", SHOWN, ids=str)
def test_every_block_of_python_parses_and_imports_what_is_there(block):
    statements = ast.parse(block.text).body
    if lacking := not_installed(block.text):
        pytest.skip(f"{', '.join(lacking)} is not installed here")
    for statement in statements:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            exec(compile(ast.Module([statement], []), str(block), "exec"), {})
