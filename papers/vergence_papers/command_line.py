"""The command `vergence reproduce`, as typed; vergence finds it by its entry point."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from vergence.cli.app import OutFolder
from vergence.console import out
from vergence.experiment.trust import allow_own_code


@allow_own_code
def reproduce(
    *tables: str,
    list_: Annotated[bool, Parameter(name="--list", negative="")] = False,
    check_paper: Annotated[bool, Parameter(negative="")] = False,
    on: str | None = None,
    root: str | None = None,
    seeds: int | None = None,
    rounds: int | None = None,
    out_: OutFolder | None = None,
    set_: Annotated[list[str], Parameter(name="--set")] = [],  # noqa: B006
) -> None:
    """Run a paper's tables again, beside its numbers, with a verdict on every claim.

    Args:
        tables: such as fedcpf/table1; fedcpf, adaptive, splitfed or apfl for all of one.
        list_: print every table id and its state.
        check_paper: compute the printed numbers again instead of running anything.
        on: data set; default ego_synthetic (fedcpf), eye_synthetic (adaptive, splitfed),
            fashion_mnist (apfl).
        root: its folder.
        seeds: how many, 5 by default; of data with several splits (choices of unseen classes;
            folds) how many of these, all by default. Fewer are stamped fast, and the same command
            with more goes on.
        rounds: instead of the data set's own number.
        out_: default runs/reproduce/DATASET; the same command goes on.
        set_: `a.b=c` overrides a value of every experiment.
    """
    from vergence_papers import command as papers
    from vergence_papers.running import Wish

    given = {
        "--on": on,
        "--root": root,
        "--seeds": seeds,
        "--rounds": rounds,
        "--set": set_ or None,
    }
    if list_:
        also = {"a table": tables or None, "--check-paper": check_paper or None}
        papers.unread("--list", {**also, **given})
        papers.listing(out, out_)
    elif check_paper:
        papers.unread("--check-paper", {**given, "--out": out_})
        papers.check_paper(tables, out)
    else:
        wish = Wish(root, seeds, rounds, tuple(set_))
        papers.reproduce(tables, out, on=on, wish=wish, out=out_)
