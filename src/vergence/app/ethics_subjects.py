"""What pages for an ethics board call what is recorded and learned, task by task."""

from __future__ import annotations

from dataclasses import dataclass

from vergence.core.naming import called
from vergence.core.task import Task


@dataclass(frozen=True)
class Subject:
    """Words for one kind of task.

    Attributes:
        sample: a recording that training takes as one.
        rebuilt: what an update may be turned back into.
        labels: what is known of it, and stays with it.
        raw: what `explain` says nobody else has.
        model: completes "a long list of numbers with which a computer".
        trait: what a model may tell of people though no recording can be had from it.
        use: what whoever runs the model learns.
        purpose: what the model is meant for.
    """

    sample: str
    rebuilt: str
    labels: str
    raw: tuple[str, ...]
    model: str
    trait: str
    use: str
    purpose: str

    @property
    def glossary(self) -> tuple[tuple[str, str], ...]:
        """Words, and what they mean."""
        return (
            ("device", "the computer or glasses that record a person and keep the recordings"),
            ("server", "the computer that puts together what the devices learned"),
            ("model", f"a long list of numbers with which a computer {self.model}"),
            ("update", "by how much training on one person's recordings changed these numbers"),
            ("epsilon", f"how much the published models can tell about one person or {self.sample}"
             ": 0 is nothing, up to 1 strong, above 10 no promise worth the name"),
            ("delta", "a small chance with which the promise of epsilon may fail"),
            ("chance", "what an attacker gets who never saw anything of the person"),
        )  # fmt: skip


GAZE = Subject(
    "picture", "pictures", "where the person looked", ("raw frames", "eye images", "gaze"),
    "estimates where somebody looks", "A way of looking, or the shape of eyes,",
    "where its user looks", "estimating where people look who agreed to it",
)  # fmt: skip
OTHERS = {
    "summary": Subject(
        "video", "features of frames", "what people found important in them",
        ("videos", "features of frames", "what people found important"),
        "tells which parts of a video people find important",
        "What somebody films, or finds worth keeping,", "what is in its user's videos",
        "shortening videos of people who agreed to it",
    ),
    "images": Subject(
        "picture", "pictures", "what they show", ("pictures", "classes"),
        "tells what a picture shows", "What somebody has pictures of",
        "what is in its user's pictures", "sorting pictures of people who agreed to it",
    ),
    "zero_shot": Subject(
        "sample", "samples", "of which class they are", ("samples", "classes"),
        "tells of which class a sample is", "What somebody has samples of",
        "of which classes its user's samples are", "telling classes apart that nobody recorded",
    ),
}  # fmt: skip
"""Task -> its words; all others are about gaze."""


def subject(task: Task) -> Subject:
    """Return the words for a task."""
    return OTHERS.get(called(task), GAZE)
