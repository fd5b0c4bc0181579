"""Parts of Flower that a deployment replaces: there in the pinned version, others refused."""

import pytest

from vergence.deployment.transport import flower_parts
from vergence.deployment.transport.flower_parts import check_flower, first_missing, replace_part
from vergence.errors import ConfigError

pytest.importorskip("flwr", reason="needs Flower")


def test_the_pinned_flower_has_every_part():
    check_flower()
    assert first_missing() is None


@pytest.mark.parametrize("other", ["1.42.0", "1.4.1", "2.0"])
def test_another_flower_is_refused_in_one_line_that_names_both(other, monkeypatch):
    monkeypatch.setattr(flower_parts, "version", lambda _: other)
    with pytest.raises(ConfigError, match=rf"Flower 1\.41, and Flower {other} is installed: pip"):
        check_flower()


def test_a_part_that_went_is_named(monkeypatch):
    monkeypatch.setattr(flower_parts, "version", lambda _: "1.42.0")
    gone = {**flower_parts.PARTS, "flwr.supercore.constant": ("PULL_BACKOFF_CUP",)}
    monkeypatch.setattr(flower_parts, "PARTS", gone)
    with pytest.raises(
        ConfigError, match=r"which has no flwr\.supercore\.constant\.PULL_BACKOFF_CUP"
    ):
        check_flower()


@pytest.mark.parametrize(
    ("module", "name"),
    [("flwr.supercore.constant", "PULL_BACKOFF_CUP"), ("flwr.supercore.constant", "SYSTEM")],
)
def test_nothing_is_replaced_that_is_not_listed_and_there(module, name):
    with pytest.raises(ConfigError, match=f"has no {module}.{name} to be replaced"):
        replace_part(module, name, None)


def test_a_replaced_part_comes_back(monkeypatch):
    import flwr.supercore.constant as constant

    monkeypatch.setattr(constant, "PULL_BACKOFF_CAP", 7)
    assert replace_part("flwr.supercore.constant", "PULL_BACKOFF_CAP", 3) == 7
    assert constant.PULL_BACKOFF_CAP == 3
