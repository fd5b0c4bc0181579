"""Tables of papers: printed numbers, claims about them, and the runs that test them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from vergence.experiment.schema import merge
from vergence_papers.data_sets import Ground

Table = dict[str, Any]
Scores = Mapping[str, Mapping[str, Mapping[str, float]]]
"""Label -> metric -> person -> value, seeds averaged within a person."""

Protocol = Literal[
    "within",
    "matrix",
    "leave_one_out",
    "next",
    "training",
    "pruned",
    "strangers",
    "few_shot",
    "attacked",
    "lied_to",
    "paced",
    "both_tests",
    "absent",
    "friends",
    "taught",
    "pictured",
    "members",
    "windows",
]
"""Own later data; everybody's model on everybody's data; trained without the person; the model of
the person before; what a model trained without the person makes of its training data; pruned, and
trained without the person; trained without a few people; gaze codes read with a few labels by
people nobody trained on; own later data, with what the run cost and an attacker's success; the
same, run once more with people who lie; own later data, with how far people are apart and how many
rounds a level took, seed by seed; own test images by person, everybody's by seed; both of who was
away, by seed; both of AP-FL's friends alone; of
one owner, by seed, students and the teacher that taught them; what its generators make; and how
often an attacker finds members of the owner's data; own later data, with the restarts of FedCPF's
windows."""

PRIOR = " (prior)"
"""Ends the label of a row that needs no training."""
LEFT_OUT = " left out"
"""Ends the label of a row whose people took no part in training."""

OWN, OTHERS = "individual own", "individual others"
"""Labels of the person matrix: the model trained on oneself, and the mean over others' models."""


@dataclass(frozen=True)
class TablePart:
    """One experiment of a table: what it varies, and under which protocol it is scored.

    Methods and settings are templates (`Ground.filled`). `above` are merged over the data set's
    experiment, in order; `suffix` ends the labels of its rows, so that one method may stand in a
    table several times. Parts of one name are run once for a paper. `rows` are those that its
    protocol gives besides, or in their place. `classes` are those that each client has; a data set
    with no more in all cannot carry it. `needs` has names of values without which a data set cannot
    carry it, and what such a data set lacks, in words. `folds` is the number of parts
    of the people of which each is left out of one training; 0: everybody alone.
    """

    name: str
    methods: Sequence[Table]
    protocol: Protocol = "within"
    above: Sequence[Table | str] = ()
    suffix: str = ""
    rows: Sequence[str] = ()
    classes: int = 0
    needs: Mapping[str, str] = field(default_factory=dict)
    folds: int = 0

    def entries(self, ground: Ground) -> list[Table]:
        """Method entries on a data set, but for those that name a value that it lacks."""
        found = []
        for entry in self.methods:
            with suppress(KeyError):
                found.append(ground.filled(entry))
        return found

    def named(self, entry: Table) -> str:
        """Return the label of a method entry's row."""
        return entry.get("label", entry["name"]) + self.suffix

    def over(self, ground: Ground) -> Table:
        """Settings merged over a data set's experiment, but for those that it has no value for."""
        found: Table = {}
        for settings in self.above:
            with suppress(KeyError):
                found = merge(found, ground.filled(settings))
        return found

    def rounds(self, ground: Ground) -> int:
        """Return the rounds of a full run: the data set's, but for a part that has its own."""
        return self.over(ground).get("run", {}).get("rounds", ground.rounds)


@dataclass(frozen=True)
class Pair:
    """The mean of rows `these`, person by person, is said to be better than row `rival`."""

    these: tuple[str, ...]
    rival: str


@dataclass(frozen=True)
class Claim:
    """A statement of a paper as differences over people, all of which must hold.

    Attributes:
        text: the statement.
        where: its place in the paper.
        pairs: what is said to be better than what.
        quantity: which score it is about: `main`, `recall`, `precision` or `map`.
        margin: share of the rival's value by which a row may be worse and the claim still holds,
            fixed before any run; 0 asks for a difference, more for "no worse than".
        within: above 0: rows are said to be alike, to within so much in the metric's units, fixed
            before any run, by two one-sided t tests.
        everybody: with `within`, that it holds for every person, without a test.
        untestable: why no run can decide it; then there are no pairs.
        whose: who states it: the paper, or we, of the paper's methods.
    """

    text: str
    where: str
    pairs: tuple[Pair, ...] = ()
    quantity: str = "main"
    margin: float = 0.0
    within: float = 0.0
    everybody: bool = False
    untestable: str = ""
    whose: Literal["paper", "ours"] = "paper"


@dataclass(frozen=True)
class TableHead:
    """Name of a table or figure of a paper.

    Attributes:
        id: such as `fedcpf/table1`.
        title: what it shows.
    """

    id: str
    title: str

    @property
    def paper(self) -> str:
        """The paper's short name."""
        return self.id.partition("/")[0]


@dataclass(frozen=True)
class PaperTable(TableHead):
    """One table or figure of a paper that rests on runs.

    Attributes:
        columns: quantities printed; besides those of a claim `best` and `worst`, a person's.
        printed: the paper's data set -> row -> values of the first columns, NaN for none.
        unit: the task whose scores may stand beside the printed ones.
        parts: the experiments behind it.
        claims: what the paper says about it.
        figure: the picture to draw: `strip`, `matrix`, `convergence`, `noise`, `bars`, `epochs`,
            `rates`, `front`, `combined`, `settings`, `rounds`, `generator`, `embedding`, `budgets`.
        rows: row label -> printed name, where a label alone says too little.
        note: what a reader must know about the comparison.
        tuned: what was chosen by looking at scores, where the data set does not say it.
        apart: fields of `vergence.studies.comparability` in which its parts differ by design.
        quoted: printed rows of other work, which are not run.
        less: columns where less is better, beside those of a unit where it is.
        front: columns by which rows are weighed at once: those that no other row matches or beats
            in all of them, and beats in one, are marked.
        spread: columns that have an interval besides the leading one.
        over: what intervals are over.
    """

    columns: tuple[str, ...]
    printed: Mapping[str, Mapping[str, tuple[float, ...]]]
    unit: str
    parts: tuple[TablePart, ...]
    claims: tuple[Claim, ...]
    figure: str | None = None
    rows: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    tuned: str = ""
    apart: tuple[str, ...] = ()
    quoted: tuple[str, ...] = ()
    less: tuple[str, ...] = ()
    front: tuple[str, ...] = ()
    spread: tuple[str, ...] = ()
    over: str = "people, seeds averaged within a person"
