"""Capability tables 3.1 and 5.1 of the SplitFed thesis, read off the methods.

What leaves a client is what a method declares (`Method.exposure`), which the conformance tests hold
against transcripts, and, of its labels, the columns that the server's layers and their loss take.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from rich.console import Console

from vergence.core.method import Method
from vergence.core.stages import reads_side_inputs
from vergence.core.task import Task
from vergence.methods.fedavg import FedAvg
from vergence.methods.split.base import BatchwiseSplit
from vergence.methods.split.splitfed import SplitFed
from vergence.methods.split.splitfed_u import SplitFedU
from vergence.models.cross_encoder import CrossEncoder as CrossNetwork
from vergence.models.lenet import LeNet
from vergence.results.text_tables import TextTable
from vergence.studies.few_shot import FewShotOptions
from vergence.tasks.cross_encoder import CrossEncoderTask
from vergence.tasks.gaze_angle import GazeAngle
from vergence_papers.data_sets import Ground
from vergence_papers.outcome import write_untrained
from vergence_papers.running import UntrainedTable, Wish

GAZE, POSE = "gaze", "pose"
"""The columns that tell where somebody looks, and how the head is held."""
YES, NO = "yes", "no"
WIDE = (20, 80)
"""Filters of Model 2."""
INSIDE = ("conv1", "code")
"""With this U-shape the server has the middle of the Cross-Encoder's encoder, the client the rest:
the swap, which must know whose eyes they are, and the decoder."""


@dataclass(frozen=True)
class Setting:
    """A method on a task."""

    method: Method
    task: Task

    def shared(self) -> frozenset[str]:
        """Return the columns of a client's data that leave it in training, as they are."""
        self.method.check(self.task)
        trees = {tree for told in self.method.exposure.values() for tree in told.trees}
        if "labels" not in trees:
            return frozenset()
        assert isinstance(self.method, BatchwiseSplit)
        back = self.method.back(self.task)
        return frozenset(
            self.task.labels + (self.task.side_inputs if reads_side_inputs(back) else ())
        )

    def needed(self) -> str:
        """Return for which samples gaze must be known."""
        shots = FewShotOptions().shots
        return "for all samples" if GAZE in self.task.labels else f"a few (\u2248 {shots})"

    def tells(self, column: str) -> str:
        """`YES` if a column leaves the client, else `NO`."""
        return YES if column in self.shared() else NO

    def protects(self, column: str) -> str:
        """`YES` if a column stays with the client, else `NO`."""
        return NO if column in self.shared() else YES


@dataclass(frozen=True)
class Capability(UntrainedTable):
    """A table of what methods need and share.

    Attributes:
        rows: a question -> how a setting answers it.
        printed: a column's head -> what the thesis prints, row by row.
        settings: a column's head -> where the answers are found; a column without is not built.
        notes: what stands below.
    """

    uses_data: ClassVar[bool] = False

    rows: Mapping[str, Callable[[Setting], str]]
    printed: Mapping[str, tuple[str, ...]]
    settings: Mapping[str, Setting]
    notes: tuple[str, ...]

    def write(self, where: Ground | None, wish: Wish, folder: Path, console: Console) -> None:
        """Print the table, and write verdicts.json and report.md."""
        records = cell_records(self)
        head = {
            "id": self.id,
            "title": self.title,
            "on": "the methods' declarations",
            "stamps": [],
            "seeds": 0,
        }
        write_untrained(block(self, records), head, records, folder, console)


WITH_POSE, WITHOUT_POSE = (GazeAngle(LeNet(WIDE, pose)) for pose in (True, False))
SWAPPING = CrossEncoderTask(CrossNetwork())
FL, SFL = Setting(FedAvg(), WITH_POSE), Setting(SplitFed(), WITH_POSE)
CROSS_FL, CROSS_SFL = (
    Setting(FedAvg(), SWAPPING),
    Setting(SplitFedU(cut=INSIDE[0], last=INSIDE[1]), SWAPPING),
)
U_SHAPE, NO_POSE = Setting(SplitFedU(), WITH_POSE), Setting(SplitFed(), WITHOUT_POSE)


ALL, FEW = "for all samples", "a few (\u2248 100)"
TABLES = (
    Capability(
        "splitfed/table3.1",
        "what training needs and tells of the gaze labels",
        {
            "labels required?": Setting.needed,
            "labels shared with the server?": lambda setting: setting.tells(GAZE),
        },
        {
            "FL": (ALL, NO),
            "SFL": (ALL, YES),
            "unsupervised FL": (FEW, NO),
            "unsupervised SFL": (FEW, NO),
        },
        {"FL": FL, "SFL": SFL, "unsupervised FL": CROSS_FL, "unsupervised SFL": CROSS_SFL},
        (
            "fedavg and splitfed on Model 2; task cross_encoder with fedavg, and with "
            "splitfed_u whose server has the encoder between " + " and ".join(INSIDE),
            "the few labels are those of `vergence study unlabelled`, used by one client alone",
        ),
    ),
    Capability(
        "splitfed/table5.1",
        "what protects head pose and gaze labels in SplitFed",
        {
            "head poses?": lambda setting: setting.protects(POSE),
            "gaze labels?": lambda setting: setting.protects(GAZE),
        },
        {
            "unsupervised learning": (YES, YES),
            "add one split": (YES, YES),
            "training with MPC": (YES, YES),
            "skip pose processing": (YES, NO),
            "label obfuscation": (NO, YES),
        },
        {
            "unsupervised learning": CROSS_SFL,
            "add one split": U_SHAPE,
            "skip pose processing": NO_POSE,
        },
        (
            "on Model 2: splitfed_u, and splitfed without head pose; plain splitfed shares "
            + " and ".join(sorted(SFL.task.labels + SFL.task.side_inputs)),
            "a column that stays may still be guessed from gradients: docs/results/attacks.md "
            "has what label inference finds",
        ),
    ),
)


def cell_records(table: Capability) -> list[dict[str, str]]:
    """Return one record per cell: printed, found, and the verdict."""
    found = []
    for head, printed in table.printed.items():
        setting = table.settings.get(head)
        for (row, ask), theirs in zip(table.rows.items(), printed, strict=True):
            ours = "" if setting is None else ask(setting)
            verdict = "holds" if ours == theirs else "contradicted"
            found.append(
                {
                    "text": f"{head}: {row} {theirs}",
                    "method": head,
                    "row": row,
                    "printed": theirs,
                    "ours": ours,
                    "verdict": "not testable here" if setting is None else verdict,
                    "reason": "not built" if setting is None else "",
                }
            )
    return found


def block(table: Capability, records: Sequence[dict[str, str]]) -> TextTable:
    """Return the table, ours beside the printed where they differ."""
    at = {(r["method"], r["row"]): r for r in records}

    def shown(record: dict[str, str]) -> str:
        if record["reason"]:
            return f"{record['reason']} (printed: {record['printed']})"
        same = record["ours"] == record["printed"]
        return record["ours"] if same else f"{record['ours']} (printed: {record['printed']})"

    lines = [[row, *(shown(at[head, row]) for head in table.printed)] for row in table.rows]
    heads = ["", *table.printed]
    return TextTable(f"{table.id}: {table.title}", heads, lines, notes=list(table.notes))
