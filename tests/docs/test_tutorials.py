"""The tutorials: notebooks that are what their texts say, open in Jupyter, and run in a minute."""

import json
import os
import re
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tools.coverage import anchors
from tools.make_notebook import VALUE, parts

TEXTS = sorted((ROOT / "tools" / "tutorials").glob("*.md"))
HERE = ROOT / "docs" / "tutorials"
BYTES = 150_000
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
SHOWN = {
    "1_first_federation": ["other people", "every single update", "auc_judd"],
    "2_own_data_and_network": [
        "'sensor_3' is nan in row 200",
        "Linear(in_features=32, out_features=1",
    ],
    "3_own_eye_tracker": ["table of gaze on stimuli", "Chose ", "largest difference from torch"],
    "4_write_a_method": ["which its exposure table does not declare", "got 1.4"],
    "5_add_privacy": ["one picture in one step; secure sums", "every single update", "epsilon"],
    "6_three_machines": ["3 clients expected", "True", "labC"],
}


def notebook(text):
    return json.loads((HERE / f"{text.stem}.ipynb").read_text(encoding="utf-8"))


def named(text):
    return text.stem


def outputs(made):
    return [output for cell in made["cells"] for output in cell.get("outputs", [])]


def kinds(made):
    return [
        (cell["cell_type"], [sorted(o.get("data", o["output_type"])) for o in cell["outputs"]])
        for cell in made["cells"]
        if cell["cell_type"] == "code"
    ]


def compared(made, text):
    """The numbers of the text that a run computes, but for those that are new in every run."""
    prose = ["".join(c["source"]) for c in made["cells"] if c["cell_type"] == "markdown"]
    found = []
    for part, told in zip(
        [p for p in parts(text.read_text(encoding="utf-8")) if p.kind == "markdown"],
        prose,
        strict=True,
    ):
        pieces = VALUE.split(part.text)
        pattern = "".join(
            re.escape(pieces[i]) + (rf"({NUMBER.pattern})" if i + 1 < len(pieces) else "")
            for i in range(0, len(pieces), 3)
        )
        match = re.fullmatch(pattern, told)
        assert match, f"{text.name}: the notebook's text is another one: {told}"
        anew = pieces[1::3]
        found += [float(n) for n, new in zip(match.groups(), anew, strict=True) if not new]
    return found


def test_there_are_six():
    assert [text.stem[0] for text in TEXTS] == list("123456")
    assert sorted(p.stem for p in HERE.glob("*.ipynb")) == [t.stem for t in TEXTS] == sorted(SHOWN)


@pytest.mark.parametrize("text", TEXTS, ids=named)
def test_a_notebook_is_its_text_with_outputs(text):
    made = notebook(text)
    code = ["".join(c["source"]) for c in made["cells"] if c["cell_type"] == "code"]
    assert code == [p.text for p in parts(text.read_text(encoding="utf-8")) if p.kind == "code"]
    compared(made, text)
    shown = json.dumps(outputs(made), ensure_ascii=False)
    for told in SHOWN[text.stem]:
        assert told in shown
    assert "image/png" in shown or text.stem.startswith("6"), "a picture"


@pytest.mark.parametrize("text", TEXTS, ids=named)
def test_a_notebook_opens_in_jupyter_is_small_and_names_no_machine(text):
    made, path = notebook(text), HERE / f"{text.stem}.ipynb"
    assert (made["nbformat"], made["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in made["cells"]}) == len(made["cells"])
    for cell in made["cells"]:
        wanted = {"cell_type", "id", "metadata", "source"}
        wanted |= {"execution_count", "outputs"} if cell["cell_type"] == "code" else set()
        assert set(cell) == wanted
    assert path.stat().st_size < BYTES
    raw = path.read_text(encoding="utf-8")
    assert not re.search(r"/tmp/|/home/|/root/|\.venv", raw)
    assert str(ROOT) not in raw
    assert not any(output["output_type"] == "error" for output in outputs(made))


@pytest.mark.parametrize("text", TEXTS, ids=named)
def test_links_of_a_notebook_lead_somewhere(text):
    for link in re.findall(r"\]\(([^)\s]+)\)", text.read_text(encoding="utf-8")):
        target, _, anchor = link.partition("#")
        page = HERE / target
        assert page.exists(), link
        if anchor:
            assert anchor in anchors(page.read_text(encoding="utf-8")), link


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [t if t.stem[0] in "24" else pytest.param(t, marks=pytest.mark.nightly) for t in TEXTS],
    ids=named,
)
def test_a_tutorial_runs_and_says_what_it_computes(text, tmp_path):
    """Its `check` blocks assert what the text says; numbers agree on any kind of processor."""
    if text.stem.startswith("3"):
        pytest.importorskip("onnxruntime")
        pytest.importorskip("onnxscript")
    if text.stem.startswith("6"):
        pytest.importorskip("flwr")
    path = tmp_path / f"{text.stem}.ipynb"
    command = [sys.executable, ROOT / "tools" / "make_notebook.py", text, path]
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    done = subprocess.run(command, env=env, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    made = json.loads(path.read_text(encoding="utf-8"))
    assert kinds(made) == kinds(notebook(text))
    assert compared(made, text) == pytest.approx(compared(notebook(text), text), rel=0.1, abs=0.05)
