"""What reports say of labs: who is alone in one, and how many a sum has at least."""

from types import SimpleNamespace

import pytest

from vergence.engine.protections.labs import LabsProtection

LABS = {"x": ("a",), "y": ("b", "c"), "z": ("d",)}


def said(labs, least=None, bounded=False):
    plan = SimpleNamespace(
        silos=SimpleNamespace(labs=labs), privacy=SimpleNamespace(least=least, bounded=bounded)
    )
    return [made.text for made in LabsProtection(plan).statements(None)]


def test_the_only_person_of_a_lab_is_named_unless_sums_hide_labs():
    alone = "The only person of a lab (x, z): the lab's sum is theirs."
    assert said(LABS)[-1] == alone
    assert alone not in said(LABS, least=3)
    assert not any("only person" in text for text in said({"y": ("b", "c"), "w": ("e", "f")}))


@pytest.mark.parametrize(
    ("labs", "least", "text"),
    [
        (LABS, None, "each lab's sum over its people, 1 or more; of tests"),
        ({"y": ("b", "c"), "w": ("e", "f", "g")}, None, "over its people, 2 or more; of tests"),
        (LABS, 3, "of no lab alone (each has 1 person or more); of tests"),
        ({"y": ("b", "c")}, 3, "of no lab alone (each has 2 people or more)"),
    ],
)
def test_the_smallest_lab_is_named(labs, least, text):
    assert text in said(labs, least)[1]


def test_a_lab_that_lies_is_named_unless_updates_are_bounded():
    assert sum("A lab that lies" in text for text in said(LABS)) == 1
    assert not any("A lab that lies" in text for text in said(LABS, bounded=True))
