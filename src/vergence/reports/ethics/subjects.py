"""Words for what is recorded and learned, by task, on the page for an ethics board.

Used by `reports.ethics.facts`, `reports.ethics.wording` and `reports.explain`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from vergence.core.federation import Federation
from vergence.core.naming import registry_name
from vergence.core.task import Task


@dataclass(frozen=True)
class EthicsSubject:
    """Words for one kind of task.

    Attributes:
        sample: word for one sample of training.
        rebuilt: word for what may be reconstructed from an update.
        labels: description of a sample's label.
        raw: data that `explain` lists as known to nobody else.
        model: completes "a long list of numbers with which a computer".
        trait: what a model may reveal about people although no recording can be reconstructed.
        use: what somebody who applies the model learns.
        purpose: the purpose of the model.
        reveals: what recordings of this kind may reveal about people; "" if that is not known.
    """

    sample: str
    rebuilt: str
    labels: str
    raw: tuple[str, ...]
    model: str
    trait: str
    use: str
    purpose: str
    reveals: str = ""

    @property
    def samples(self) -> str:
        """The plural of `sample`."""
        # "window of frames" becomes "windows of frames".
        kind, of, rest = self.sample.partition(" of ")
        return f"{kind}s{of}{rest}"

    @property
    def glossary(self) -> tuple[tuple[str, str], ...]:
        """Words, and what they mean."""
        return (
            ("device", "the computer or glasses that record a person and keep the recordings"),
            ("server", "the computer that puts together what the devices learned"),
            ("model", f"a long list of numbers with which a computer {self.model}"),
            ("update", "by how much training on one person's recordings changed these numbers"),
            (
                "epsilon",
                "a number for how much the published models can tell about one person or "
                f"{self.sample}; smaller is safer: at 0 they tell nothing, up to 1 the protection "
                "is strong, above 10 it is no promise worth the name",
            ),
            ("delta", "a small chance with which the promise of epsilon may fail"),
            ("chance", "what an attacker gets who never saw anything of the person"),
        )


GAZE = EthicsSubject(
    "picture",
    "pictures",
    "where the person looked",
    ("raw frames", "eye images", "gaze"),
    "estimates where somebody looks",
    "A way of looking, or the shape of eyes,",
    "where its user looks",
    "estimating where people look who agreed to it",
    # Source: Kröger, Lutz & Müller, "What Does Your Gaze Reveal About You?", IFIP 2020.
    "Pictures of eyes and records of where people look can tell who somebody is, as an iris "
    "identifies people like a fingerprint. They may also tell of age, sex, tiredness and drugs, of "
    "illnesses of brain and mind, such as Parkinson's disease, autism or ADHD, and of what "
    "somebody likes, fears or is interested in. People cannot control most of this.",
)
OTHERS = {
    "summary": EthicsSubject(
        "video",
        "features of frames",
        "what people found important in them",
        ("videos", "features of frames", "what people found important"),
        "tells which parts of a video people find important",
        "What somebody films, or finds worth keeping,",
        "what is in its user's videos",
        "shortening videos of people who agreed to it",
    ),
    "images": EthicsSubject(
        "picture",
        "pictures",
        "what they show",
        ("pictures", "classes"),
        "tells what a picture shows",
        "What somebody has pictures of",
        "what is in its user's pictures",
        "sorting pictures of people who agreed to it",
    ),
    "zero_shot": EthicsSubject(
        "sample",
        "samples",
        "of which class they are",
        ("samples", "classes"),
        "tells of which class a sample is",
        "What somebody has samples of",
        "of which classes its user's samples are",
        "telling classes apart that nobody recorded",
    ),
}
"""Task -> its words; all others are about gaze."""


SCORES = {
    "nss": (
        "NSS",
        "how far a predicted map stands out where people really looked: 0 is no better "
        "than any place, more is better",
    ),
    "angle_error_deg": (
        "angular error (°)",
        "the angle between where somebody looked and where "
        "the model says they looked, in degrees: less is better",
    ),
    "accuracy": ("accuracy", "the share of right answers: more is better"),
    "tau": ("tau", "how alike two rankings are: 1 the same, 0 no more than by chance"),
    "recon_l1": ("recon l1", "how far drawn pictures are from the real ones: less is better"),
    "H": (
        "H",
        "how well classes are told that were and were not learned, both together: more is better",
    ),
    "match": ("match", "how often the right partner is found: more is better"),
    "error": ("error", "how far predictions are from the truth: less is better"),
}
"""Headline metric -> its printed name, and what it says."""


def scored(headline: str) -> list[tuple[str, str]]:
    """Return the glossary entry of a headline metric; none for an unknown metric."""
    return [SCORES[headline]] if headline in SCORES else []


def subject(task: Task, people: Federation | None = None) -> EthicsSubject:
    """Return the words for a task; the people's data say what a sample of gaze is."""
    # The task is the same for frames and for windows of frames: the word comes from the data.
    words = OTHERS.get(registry_name(task), GAZE)
    if words is not GAZE or people is None or not people.clients:
        return words
    return replace(words, sample=people.people[people.clients[0]].train.kind)
