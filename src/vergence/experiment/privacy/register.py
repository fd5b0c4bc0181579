"""Register of the privacy budgets that runs on this machine spent on the same people.

Every run with a budget, also a trial of a sweep, a fold or a retraining without somebody, has its
own secret, its own noise and its own release logs. Whoever sees several of their models knows more
than each run's epsilon says. The register lies outside of all run folders, next to the marks of
clients' folders, and knows people by keyed digests of their samples: names and places of folders
do not matter. The key lies in a file of its own, so that a copy of the register alone does not
tell whether somebody's sample is in it.

A run counts as a whole before its first release, and with what its logs say once it ends. So a run
that was killed counts as planned, also when it was resumed.

Used by `experiment.run`, `experiment.validation`, `reports.ethics.facts`, `reports.explain`,
`studies.sweep_budget` and `unlearning.forget`.
"""

from __future__ import annotations

import json
import math
import sqlite3
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
import torch

from vergence.core.data import Splits
from vergence.core.federation import Federation
from vergence.core.files import make_durable_folder, open_for_append, parse_json, write_whole
from vergence.core.naming import by_key, plural
from vergence.core.serialization import quick_digest
from vergence.engine.participation import pooled_method
from vergence.engine.plan import Plan
from vergence.engine.protections.built_in import BudgetedProtection, Spending
from vergence.engine.protections.setup import protections
from vergence.errors import StateError
from vergence.privacy.dp.accounting import MOST, is_bounded, ledger_of, quick_epsilon
from vergence.privacy.folder_marks import VARIABLE, state_folder
from vergence.privacy.hooks import ProtectedRun
from vergence.privacy.release_log import FOLDER, secret_in
from vergence.privacy.release_log import NAME as SECRET
from vergence.privacy.secure_aggregation.masking import new_seed
from vergence.system.file_locks import lock

NAME, KEY = "register.sqlite", "register.key"
LONG, LONG_FLOATS = 16, 4
"""Smallest number of values in a column's row that identify a person without the other columns: of
whole numbers, and of floating-point numbers, each of which says more."""
MOST_ALIKE = 2
"""A value whose number changes so often or less along its row, such as a black picture or a class
as ones and zeros, identifies nobody."""
SETTING = 64
"""Smaller values that stand in several samples of a person are settings, such as a camera's matrix,
which other people may have, too."""
GAUSSIAN = ("person", "lab", "sample")
"""Units whose charges are Gaussian noise; of other units, epsilons and deltas are added up."""
TABLES = """
create table if not exists about (name text primary key, value text);
create table if not exists samples (
    digest blob, people blob, primary key (digest, people)) without rowid;
create table if not exists spent (
    run blob, seed integer, place blob, people blob, unit text, planned integer,
    delta real, amount real, charges text,
    primary key (run, seed, place, people, unit, planned));
create table if not exists runs (run blob primary key);
"""
"""`people` is a digest of one person's samples, `run` of a run's secret, `place` of its folder. A
row that is `planned` stands while a run goes on, and stays for ever if it is killed."""
# A folder that was put back from a copy has logs that forgot what was spent: the larger one counts.
WRITE = """
insert into spent values (?, ?, ?, ?, ?, ?, ?, ?, ?)
on conflict (run, seed, place, people, unit, planned) do update
set amount = excluded.amount, charges = excluded.charges where excluded.amount > amount"""
PLANNED = "from spent where planned and run = ? and seed = ? and place = ?"
# Of copies of one run, which have the same noise, the one that spent most counts. (SQLite takes
# the other columns from the row with the maximum.)
FIND = """
select unit, who, delta, max(amount), charges
from (select distinct who, people from mine join samples using (digest)) join spent using (people)
where amount > 0
group by unit, who, run, seed, people"""


def budgets_of(plan: Plan) -> dict[str, BudgetedProtection]:
    """Return the protections of a plan that spend a budget, by unit."""
    budgeted = (p for p in protections(plan) if isinstance(p, BudgetedProtection))
    return {each.unit: each for each in budgeted}


def sample_digests(people: Federation, key: bytes) -> dict[str, set[bytes]]:
    """Return, for each person, keyed digests by which the person's samples are recognised.

    They are of each sample's whole row, and of every long value alone (such as a picture or one
    frame), so that other labels or further columns change no person. What several people have, such
    as a picture that all of them saw, identifies nobody. Nor does a value that is nearly one number
    everywhere, such as a black picture, or one of few numbers that stands in several samples.
    """
    known: dict[tuple[int, int], tuple[torch.Tensor, bytes, bool]] = {}

    def sha(data: bytes) -> bytes:
        # The first hash is fast, and the second one has a key.
        return keyed(key, quick_digest(data).encode())[:8]

    def shas(rows: torch.Tensor) -> list[tuple[bytes, bool]]:
        # Also whether a value may identify somebody. As bits, as NaN equals nothing.
        bits = rows.float().unsqueeze(-1).flatten(1).contiguous().numpy().view(np.int32)
        changes = (bits[:, 1:] != bits[:, :-1]).sum(1)
        return [(sha(row.tobytes()), n > MOST_ALIKE) for row, n in zip(bits, changes, strict=True)]

    def of_bank(rows: torch.Tensor, at: int) -> tuple[bytes, bool]:
        # People share banks, whose rows are read once; the tensor stays, and so its address.
        place = rows.data_ptr(), at
        if place not in known:
            known[place] = rows, *shas(rows[at : at + 1])[0]
        return known[place][1:]

    def digests(splits: Splits) -> set[bytes]:
        found: set[bytes] = set()
        short: dict[bytes, set[bytes]] = defaultdict(set)
        for part in (part for part in vars(splits).values() if part.columns):
            values: list[list[bytes]] = [[] for _ in range(len(part))]
            few: list[tuple[int, bytes]] = []
            # Numbers of rows in banks say nothing by themselves.
            for name in part.columns.keys() - {bank.by for bank in part.banks.values()}:
                column = part.columns[name]
                each, size = shas(column), column[:1].numel()
                if size >= (LONG_FLOATS if column.is_floating_point() else LONG):
                    own = [(at, one) for at, (one, varied) in enumerate(each) if varied]
                    few += own if size < SETTING else ()
                    found |= {one for _, one in own if size >= SETTING}
                for value, (one, _) in zip(values, each, strict=True):
                    value.append(one)
            for bank in part.banks.values():
                rows = part.columns[bank.by].unsqueeze(-1).flatten(1).tolist()
                for value, places in zip(values, rows, strict=True):
                    each = [of_bank(bank.rows, at) for at in places]
                    found |= {one for one, varied in each if varied}
                    value += [one for one, _ in each]
            # Sorted, as names of columns may change.
            found.update(whole := [sha(b"".join(sorted(value))) for value in values])
            for at, one in few:
                short[one].add(whole[at])
        return found | {one for one, samples in short.items() if len(samples) == 1}

    every = {who: digests(splits) for who, splits in people.people.items()}
    owners = Counter(each for mine in every.values() for each in mine)
    return {
        who: {each for each in mine if owners[each] == 1} or mine for who, mine in every.items()
    }


@contextmanager
def opened() -> Iterator[tuple[sqlite3.Connection, bytes]]:
    """Open the register and its key in the `with` block; a new one is made if there is none.

    Raises:
        StateError: the register cannot be read or written, or its key is missing.
    """
    home = state_folder() / "spent"
    path, key = home / NAME, home / KEY
    try:
        make_durable_folder(home, 0o700)
        # Two runs that begin at once would make two keys.
        with open_for_append(home / "register.lock") as file:
            lock(file)
            if path.exists() and not key.exists():
                raise StateError(
                    f"{key} is missing, without which {path} does not tell who it is about: put it "
                    "back, or move the register away; then a new one does not know what was spent"
                )
            had = key.exists()
            if not had:
                write_whole(key, new_seed(), lasting=True, secret=True)
            with closing(sqlite3.connect(path)) as base:
                path.chmod(0o600)
                base.executescript(TABLES)
                # Not whether the file is there: a crash leaves an empty one.
                if not base.execute("select 1 from about where name = 'since'").fetchone():
                    begun = time.strftime("%Y-%m-%d", time.gmtime())
                    lost = {"unknown": f"a register before {begun} was deleted"} if had else {}
                    remember(base, since=begun, **lost)
                yield base, key.read_bytes()
    except (OSError, sqlite3.Error) as error:
        raise StateError(
            f"{path} cannot be used ({error}), and without it nobody knows what was spent on these "
            f"people before: mend it, or let {VARIABLE} name a folder that stays"
        ) from None


def remember(base: sqlite3.Connection, **facts: str) -> None:
    """Write facts about the register, all or none, except those whose names it has."""
    with base:
        base.executemany("insert or ignore into about values (?, ?)", facts.items())


class RegisteredRun:
    """Entries of one method's seeds in the register; a run without a budget has none.

    Args:
        plan: the plan.
        people: everybody's data, as the data set gives them.
        here: whether these data are on this machine.
    """

    def __init__(self, plan: Plan, people: Federation, here: bool = True) -> None:
        # Who is generated when used is nobody.
        self.people, self.budgets = people, budgets_of(plan) if here and not people.recipe else {}
        self._digests: dict[str, set[bytes]] = {}
        self._killed: set[tuple[bytes, int, bytes]] = set()

    @contextmanager
    def counting(self, run: ProtectedRun) -> Iterator[None]:
        """Count one seed's run, which is what the `with` block does.

        Args:
            run: the run of the seed, with the data as its clients have them.

        Raises:
            StateError: the register cannot be read or written.
        """
        if self.budgets and run.method.pooled:
            method = pooled_method(run.method, run.federation)
            run = replace(run, method=method, federation=run.federation.pooled())
        # Before anything is released: who is killed has spent what was planned.
        if planned := [row for each in self.budgets.values() for row in each.planned(run)]:
            self._write(run, planned, True)
        try:
            yield
        finally:
            if planned:
                seed, folder = run.task.seed, run.state / FOLDER
                budgets = self.budgets.values()
                spent = [row for each in budgets for row in each.spendings(folder, seed)]
                self._write(run, spent, False)

    def _write(self, run: ProtectedRun, spendings: Sequence[Spending], planned: bool) -> None:
        folder = run.state / FOLDER
        begun = (folder / SECRET).exists()
        secret_in(folder)
        with opened() as (base, key):
            self._digests = self._digests or sample_digests(self.people, key)
            sets = {who: keyed(key, *sorted(each)) for who, each in self._digests.items()}
            # The secret and not the folder: a copy of a folder has the same noise, and another run
            # of the same experiment and seed has noise of its own.
            number = keyed(key, (folder / SECRET).read_bytes())
            at = number, run.task.seed, keyed(key, str(folder.resolve()).encode())
            if begun and not base.execute("select 1 from runs where run = ?", (number,)).fetchone():
                remember(base, unknown="a run had begun of which it knew nothing")
            if planned and base.execute(f"select 1 {PLANNED}", at).fetchone():
                self._killed.add(at)
            with base:
                base.execute("insert or ignore into runs values (?)", (number,))
                for who, each in self._digests.items():
                    rows = ((one, sets[who]) for one in each)
                    base.executemany("insert or ignore into samples values (?, ?)", rows)
                for unit, who, charges in spendings:
                    budget = self.budgets[unit]
                    # Of Gaussian noise not epsilon, which takes seconds, but what it grows with.
                    size = sum(steps * (rate / noise) ** 2 for noise, rate, steps in charges)
                    size = size if unit in GAUSSIAN else budget.epsilon(charges)
                    amounts = budget.delta, size, json.dumps(charges)
                    for people in [sets[who]] if who in sets else sets.values():
                        base.execute(WRITE, (*at, people, unit, planned, *amounts))
                # Who was killed before may have lost lines of the log: what was planned stays.
                if not planned and at not in self._killed:
                    base.execute(f"delete {PLANNED}", at)


def keyed(key: bytes, *parts: bytes) -> bytes:
    """Return a digest of these parts that only who has the key can compute."""
    return blake2b(b"".join(parts), digest_size=16, key=key).digest()


def sentences(plan: Plan, people: Callable[[], Federation]) -> list[str]:
    """Return sentences on what runs on this machine spent on the people of a plan with a budget.

    Raises:
        StateError: the register cannot be read.
    """
    home = state_folder() / "spent"
    if not budgets_of(plan) or (whole := people()).recipe:
        return []
    if not (home / NAME).exists():
        return [f"spent on these people before: not known, as there is no register in {home}"]
    with opened() as (base, key):
        about = dict(base.execute("select name, value from about"))
        mine = [(who, one) for who, each in sample_digests(whole, key).items() for one in each]
        base.execute("create temp table mine (who text, digest blob)")
        base.executemany("insert into mine values (?, ?)", mine)
        rows = base.execute(FIND).fetchall()
    where = f"by this machine's register since {about['since']}"
    if "unknown" in about:
        where += f", which does not know all ({about['unknown']})"
    by_unit = by_key((unit, (who, Row(*row))) for unit, who, *row in rows)
    return [
        f"spent on these people so far, {where}: {largest(unit, [*by_key(each).values()])} "
        "(each seed is one); models without a budget, and other machines, are not in it"
        for unit, each in by_unit.items()
    ] or [f"spent on these people so far, {where}: nothing"]


class Row(NamedTuple):
    """What one seed of a run spent on a person.

    Attributes:
        delta: the delta of its budget.
        amount: epsilon; of Gaussian noise, a number that is larger where more was spent.
        charges: charges of the release log, as JSON.
    """

    delta: float
    amount: float
    charges: str


def largest(unit: str, people: Sequence[Sequence[Row]]) -> str:
    """Return, in words, what was spent on the person on whom most was spent."""
    totals: dict[tuple[Row, ...], tuple[float, float, bool]] = {}
    # Most people have the same rows, and the accountant takes a second.
    for rows in {tuple(sorted(each)) for each in people}:
        if unit in GAUSSIAN:
            ledger = ledger_of(one for row in rows for one in parse_json(row.charges))
            delta = min(row.delta for row in rows)
            totals[rows] = quick_epsilon(ledger.charges, delta), delta, is_bounded(ledger.charges)
        else:
            totals[rows] = sum(row.amount for row in rows), sum(row.delta for row in rows), False
    rows = max(totals, key=lambda each: totals[each][0])
    amount, delta, bounded = totals[rows]
    much = f"{'at most ' * bounded}{amount:.3g}" if math.isfinite(amount) else f"over {MOST:g}"
    return f"epsilon {much} at delta {delta:g} per {unit}, in {plural(len(rows), 'run')}"
