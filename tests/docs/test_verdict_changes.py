"""What became of verdicts since a former state."""

import doctest
import subprocess

from tools import verdict_changes

LINE = "| {text} | {whose} | {word} | +1.00 | [0.50, 1.50] | 3 of 3 |  |  |\n"
HEAD = (
    "# p/table1\n\n- data: d (real)\n- seeds: 1, rounds: 2\n\n## Verdicts\n\n"
    "| claim | whose | verdict | better by | 95 % interval | people | printed | reason |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- |\n"
)


def test_the_example_comes_out_as_printed():
    assert doctest.testmod(verdict_changes) == (0, 2)


def test_a_claim_is_followed_from_a_revision(tmp_path):
    """One page of three claims: one that was open holds, one stays, one is new."""
    results = tmp_path / "papers" / "p" / "results"
    results.mkdir(parents=True)
    page = results / "table1_d.md"
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    stays = LINE.format(text="it stays", whose="ours", word="holds")
    was = LINE.format(text="it is better", whose="paper", word="open (not recorded)")
    page.write_text(HEAD + was + stays)
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "before"]):
        subprocess.run(git + command, check=True)
    new = LINE.format(text="it is new", whose="paper", word="not shown")
    page.write_text(HEAD + was.replace("open (not recorded)", "holds") + stays + new)
    before = verdict_changes.formerly("HEAD", tmp_path)
    told = verdict_changes.page(before, verdict_changes.verdicts(tmp_path / "papers"))
    assert "| open | hold | 1 | 0 |" in told
    assert "| hold | hold | 0 | 1 |" in told
    assert "| p/table1_d | it is better | paper | open | hold |" in told
    assert "| p/table1_d | it is new | paper | no page | not shown |" in told
    assert "it stays" not in told
