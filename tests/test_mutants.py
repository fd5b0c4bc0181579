"""`make mutants` tells a hole that was noticed from one that was not, and from one that is none."""

import json

import pytest

from tests.mutants import HOLES, ROOT, Mutant, main, read

QUICK = ("tests/privacy/secure_aggregation/test_shamir.py::test_what_cannot_be_shared",)
CAUGHT = {
    "name": "any number of shares may be asked for",
    "file": "privacy/secure_aggregation/shamir.py",
    "old": "not 1 <= threshold <= people",
    "new": "False",
    "tests": QUICK,
}


def listed(tmp_path, *holes):
    """Write a list of holes; JSON's strings and lists are TOML's too."""
    lines = [
        f"{key} = {json.dumps(value)}" if key != "mutant" else "[[mutant]]"
        for hole in holes
        for key, value in {"mutant": None, **hole}.items()
    ]
    path = tmp_path / "holes.toml"
    path.write_text("\n".join(lines))
    return ["--holes", str(path), "--jobs", "1"]


def test_every_hole_is_where_it_should_be():
    """250 holes with names of their own; each text is there once, and leaves a program."""
    holes = read(HOLES)
    assert len(holes) == 250
    for hole in holes:
        hole.opened(ROOT)
        assert all((ROOT / test.partition("::")[0]).is_file() for test in hole.tests), hole.name


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("no such text", "", "found 0 times"),
        ("secret", "", r"found \d\d times"),
        ("def split(", "def 1split(", "invalid"),
    ],
)
def test_a_hole_that_is_none_is_an_error(old, new, said):
    with pytest.raises((ValueError, SyntaxError), match=said):
        Mutant("", "privacy/secure_aggregation/shamir.py", old, new, QUICK).opened(ROOT)


def test_holes_are_described_whole_and_called_differently(tmp_path):
    with pytest.raises(ValueError, match=r"two holes are called \['any number"):
        main(listed(tmp_path, CAUGHT, CAUGHT))
    with pytest.raises(ValueError, match="not described whole"):
        main(listed(tmp_path, {**CAUGHT, "why": ""}))


def test_a_list_is_printed_and_nothing_is_run(capsys):
    assert main(["--list", "--only", "flushed"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "core/files.py: the book of releases is not flushed",
    ]


@pytest.mark.slow
def test_a_hole_that_tests_notice_ends_with_0(tmp_path, capsys):
    before = (ROOT / "src/vergence/privacy/secure_aggregation/shamir.py").read_bytes()
    assert main(listed(tmp_path, CAUGHT)) == 0
    said = capsys.readouterr().out
    assert f"| privacy/secure_aggregation/shamir.py: {CAUGHT['name']} | {QUICK[0]}[" in said
    assert said.endswith("\n1 of 1 caught\n")
    assert (ROOT / "src/vergence/privacy/secure_aggregation/shamir.py").read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"new": "not 1 <= threshold <= people or False"}, "SURVIVED"),
        ({"old": "no such text"}, "ERROR: its text is found 0 times"),
        ({"new": "None.nothing"}, None),
        ({"old": "import secrets", "new": "import no_such_module"}, "ERROR: "),
    ],
)
def test_a_hole_that_is_not_noticed_or_is_none_ends_with_1(change, said, tmp_path, capsys):
    """Of two holes one is caught; code that cannot be imported is not caught, as nothing ran."""
    given = {**CAUGHT, "name": "other", **change}
    code, out = main(listed(tmp_path, CAUGHT, given)), capsys.readouterr().out
    assert code == (1 if said else 0)
    assert f"| privacy/secure_aggregation/shamir.py: other | {said or QUICK[0]}" in out
    assert out.endswith(f"\n{1 if said else 2} of 2 caught\n")


@pytest.mark.slow
def test_tests_that_fail_by_themselves_catch_nothing(tmp_path):
    missing = "tests/privacy/secure_aggregation/test_shamir.py::no_such_test"
    with pytest.raises(ValueError, match="tests must pass without a hole"):
        main(listed(tmp_path, {**CAUGHT, "tests": [missing]}))


def test_no_hole_at_all_ends_with_1(tmp_path, capsys):
    assert main([*listed(tmp_path, CAUGHT), "--only", "no such hole"]) == 1
    assert capsys.readouterr().out.endswith("\n0 of 0 caught\n")
