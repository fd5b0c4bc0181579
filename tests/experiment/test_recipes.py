"""Recipes: named settings below an experiment's own values, the same from files and from Python."""

import tomllib
from pathlib import Path

import pytest

import vergence as vg
from tests.cli.commands import vergence
from tests.conftest import ROOT
from vergence.core.federation import Federation
from vergence.errors import ConfigError
from vergence.experiment.packaged import RECIPES, recipe_names, recipe_table, with_recipe
from vergence.experiment.schema import check, load

DATA = 'federation = { name = "eye_synthetic", people = 2, samples = 100, size = "9x15" }\n'


def write(folder: Path, text: str) -> Path:
    path = folder / "a.toml"
    path.write_text('recipe = "eyes"\n' + DATA + text)
    return path


def test_values_of_the_file_win_and_others_are_the_recipes():
    recipe = recipe_table("pictures")
    own = {"local": {"lr": 0.5}, "federation": {"name": "toy"}}
    table = with_recipe({"recipe": "pictures", **own})
    assert table["local"] == {**recipe["local"], "lr": 0.5} != recipe["local"]
    assert table["model"] == recipe["model"]
    assert table["federation"] == {"name": "toy"}
    assert "recipe" not in table
    without = {"local": {"lr": 0.5}}
    assert with_recipe(without) == without


def test_a_model_of_another_name_has_none_of_the_recipes_options():
    """`features` is no option of lenet: a file that was merged with it could not be read."""
    assert with_recipe({"recipe": "eyes", "model": {"name": "lenet"}})["model"] == {"name": "lenet"}
    same = with_recipe({"recipe": "eyes", "model": {"name": "kernel_eye", "features": 8}})["model"]
    assert same == {**recipe_table("eyes")["model"], "features": 8}
    assert with_recipe({"recipe": "eyes", "model": {"features": 8}})["model"] == same


@pytest.mark.parametrize("own", [{"method": {"name": "fedavg"}}, {"methods": ["fedavg", "ditto"]}])
def test_methods_of_the_file_replace_the_recipes_method(own):
    table = with_recipe({"recipe": "eyes", **own})
    assert {key: table[key] for key in ("method", "methods") if key in table} == own


@pytest.mark.parametrize("name", recipe_names())
def test_the_page_shows_every_value(name):
    page = (ROOT / "docs/how-to/recipes.md").read_text()
    assert f"```toml\n{(RECIPES / f'{name}.toml').read_text()}```\n" in page


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_is_the_same_from_python(name, tmp_path):
    (tmp_path / "a.toml").write_text(f'recipe = "{name}"\nfederation = {{ name = "toy" }}\n')
    read, made = load(tmp_path / "a.toml", ["local.lr=0.25"]), vg.recipe(name, local={"lr": 0.25})
    (method,) = read.methods.values()
    assert (method, read.task(0), read.plan) == (made["method"], made["task"], made["plan"])
    assert method.local.lr == 0.25
    whole = check({"recipe": name, "federation": {"name": "toy"}, "local": {"lr": 0.25}})
    assert (whole.methods, whole.plan) == (read.methods, read.plan)


@pytest.mark.slow
def test_the_runs_config_has_every_value_and_needs_no_recipe(tmp_path):
    vergence("run", write(tmp_path, ""), "--out", tmp_path / "run", "--set", "model.features=8")
    written = tomllib.loads((tmp_path / "run/config.toml").read_text())
    recipe = recipe_table("eyes")
    assert "recipe" not in written
    assert written["model"] == {**recipe["model"], "features": 8}
    assert written["method"] == recipe["method"]
    assert recipe["run"].items() <= written["run"].items()
    vergence("verify", tmp_path / "run")


@pytest.mark.slow
def test_python_trains_by_it_and_arguments_of_train_take_precedence():
    made = vg.recipe("eyes", model={"features": 8}, method={"ridge": 2.0}, run={"rounds": 2})
    people: Federation = vg.data.EyeSynthetic(people=2, samples=100, size="9x15").load()
    run = vg.train(people=people, **made, rounds=1, progress=False)
    (method,) = run.experiment.methods.values()
    assert method.ridge == 2.0
    assert run.experiment.plan.rounds == 1


def test_unknown_names_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"got 'eye'.*did you mean 'eyes'"):
        vg.recipe("eye")
    with pytest.raises(ConfigError, match=r"no table 'locl'.*local"):
        vg.recipe("eyes", locl={"lr": 1})
    with pytest.raises(ConfigError, match="got 3"):
        with_recipe({"recipe": 3})
    vergence("run", write(tmp_path, ""), "--set", "recipe=vidoe").complains(2, "video")
