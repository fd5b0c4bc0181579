"""`make gpu`: rows run once, in their time, and a second call goes on where the first stopped."""

import json

import pytest
import torch

from benchmarks import gpu_session

TOML = """
[[row]]
name = "good"
about = "prints"
command = ["-c", "print('7 ms a step')"]
limit_s = 60

[[row]]
name = "bad"
about = "fails"
command = ["-c", "raise SystemExit('no kernel image')"]
limit_s = 60

[[row]]
name = "long"
about = "does not end"
command = ["-c", "import time; print('begun', flush=True); time.sleep(600)"]
limit_s = 60
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A pretended GPU, three rows, and a folder for results."""
    rows = tmp_path / "rows.toml"
    rows.write_text(TOML, encoding="utf-8")
    read = gpu_session.rows
    monkeypatch.setattr(gpu_session, "rows", lambda: read(rows))
    monkeypatch.setattr(gpu_session, "RESULTS", tmp_path)
    monkeypatch.setattr(gpu_session, "code", lambda: "one")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Pretended GPU")
    return tmp_path


def test_without_a_gpu_one_line_is_printed_and_nothing_written(place, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu_session.main([]) == 0
    assert "sees no GPU here; nothing was run or written" in capsys.readouterr().out
    assert not (place / "gpu_session.md").exists()


def test_a_second_call_runs_what_did_not_go_well(place, monkeypatch):
    assert gpu_session.main(["--only", "good", "bad"]) == 1
    page = (place / "gpu_session.md").read_text(encoding="utf-8")
    assert "| good | prints | went well |" in page
    assert "7 ms a step" in page
    assert "| bad | fails | failed with exit code 1 |" in page
    assert "no kernel image" in page
    assert "| long | does not end | not run yet |" in page
    ran = []
    monkeypatch.setattr(
        gpu_session,
        "run",
        lambda row, _: ran.append(row["name"]) or {"exit": 0, "seconds": 1.0, "output": []},
    )
    assert gpu_session.main([]) == 0
    assert ran == ["bad", "long"]
    monkeypatch.setattr(gpu_session, "code", lambda: "other")
    gpu_session.main([])
    assert ran == ["bad", "long", "good", "bad", "long"], "other code is measured again"


@pytest.mark.usefixtures("place")
def test_a_row_is_ended_at_its_limit_and_keeps_what_it_printed():
    row = gpu_session.rows()[2]
    record = gpu_session.run(row, 2)
    assert record["exit"] is None
    assert record["output"] == ["begun"]


def test_no_row_begins_without_time(place, capsys):
    assert gpu_session.main(["--minutes", "0"]) == 0
    assert "good: no time left; the next `make gpu` begins here" in capsys.readouterr().out
    assert not (place / "gpu_session.json").exists()


def test_rows_of_the_project_are_whole():
    found = gpu_session.rows()
    assert all(row["command"][0] in ("-m", "-c") for row in found)
    assert sum(row["limit_s"] for row in found) <= 900, "two sessions of eight minutes do them all"
    assert len(gpu_session.code()) == 16


def test_a_row_without_a_limit_is_refused(tmp_path):
    file = tmp_path / "rows.toml"
    file.write_text(TOML.replace("limit_s = 60", "", 1), encoding="utf-8")
    with pytest.raises(ValueError, match="lacks limit_s"):
        gpu_session.rows(file)
    file.write_text(TOML.replace('"bad"', '"good"'), encoding="utf-8")
    with pytest.raises(ValueError, match="two rows have one name"):
        gpu_session.rows(file)


def test_records_are_plain_json(place):
    gpu_session.main(["--only", "good"])
    record = json.loads((place / "gpu_session.json").read_text(encoding="utf-8"))["good"]
    assert record["gpu"] == "Pretended GPU"
    assert record["exit"] == 0
