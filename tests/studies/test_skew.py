"""`vergence data skew`: names and experiment files, the table, the picture, bad input."""

import io

import pytest
from rich.console import Console

from tests.cli.commands import write
from vergence.errors import ConfigError
from vergence.studies.skew import load, show, skew_of

ALONE = ["appearance", "crop", "kappa", "light"]
EYES = ["people=4", "samples=160", "label_range=1.0", *(f"{name}=0.0" for name in ALONE)]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VERGENCE_CACHE", str(tmp_path / "cache"))


def shown(target, *sets, picture=None):
    text = io.StringIO()
    show(str(target), None, Console(file=text, width=160), sets, picture)
    return text.getvalue()


@pytest.mark.slow
def test_a_name_with_options_gives_a_row_per_client_and_a_picture(tmp_path):
    picture = tmp_path / "deep" / "skew.png"
    text = shown("eye_synthetic", *(f"federation.{e}" for e in EYES), picture=picture)
    for word in ("p00", "p03", "P(y|x)", "degrees", "mean", "Gini coefficient", "dominating"):
        assert word in text
    assert "P(y) 4 of 4 people" in text
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_an_experiment_file_is_read_and_its_noise_applied(tmp_path):
    path = write(tmp_path, 'federation = { name = "toy", people = 4 }\nnoise = { share = 0.5 }\n')
    assert "2 of 4 people" in load(str(path), None).about["noise"]
    assert "noise" not in load(str(path), None, ["noise.share=0.0"]).about
    assert "p03" in shown(path)


def test_bad_input_is_one_clear_error(tmp_path):
    with pytest.raises(ConfigError, match="no data set named 'eye_syntetic'"):
        load("eye_syntetic", None)
    with pytest.raises(ConfigError, match="kapa"):
        load("eye_synthetic", None, ["federation.kapa=1"])
    with pytest.raises(ConfigError, match="needs federation"):
        load(str(write(tmp_path, "run = {}\n")), None)
    with pytest.raises(ConfigError, match="at most 200 people"):
        skew_of(load("toy", None, ["federation.people=201"]))
