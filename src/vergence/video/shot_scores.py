"""Shot scores by a trained model, for `vergence video summarise --model`.

Used by `cli.video` and `video.summarise`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from vergence.core.conversation import drive
from vergence.core.data import Splits
from vergence.core.federation import Federation
from vergence.core.randomness import RandomStream
from vergence.data.video_summaries.fragments import PARTS, RatedClip, samples_of
from vergence.engine.records import ClientState
from vergence.errors import ConfigError
from vergence.experiment.trained_run import NEWCOMER, read_run
from vergence.models import pretrained
from vergence.results.read import read
from vergence.tasks.summary import SummaryTask

Scorer = Callable[[Float[np.ndarray, "steps d"]], Float[np.ndarray, " steps"]]
"""Function from features of sampled frames to their importance, in [0, 1]."""


def load_scorer(folder: Path, person: str | None = None) -> Scorer:
    """Return the score function of a run's model, a participant's or the shared one.

    Raises:
        ConfigError: the run has another task or other features, the person is unknown, or the
            method needs rated videos of an unseen client.
    """
    trained, run = read_run(folder), read(folder).runs[0]
    if not isinstance(trained.task, SummaryTask):
        raise ConfigError(f"{folder} was trained on another task; name a run of task 'summary'")
    features = run.provenance.get("data", {}).get("features", "unknown")
    if features != pretrained.VECTOR:
        raise ConfigError(
            f"{folder} was trained on features '{features}', videos are given "
            f"'{pretrained.VECTOR}': name a run on these, such as key frames of tvsum"
        )
    # A name of nobody would be scored as a newcomer, without a word.
    trained.refuse_unknown_person(person, run.people)
    who = person or NEWCOMER
    nobody = Federation("video", unrated_clip(who, np.zeros((1, 1))))
    trained = trained.on_data(nobody, stream=RandomStream("summarise"))
    message, worker = trained.evaluation_message(who), trained.executor
    if person is None and "model" not in message.trees:
        raise ConfigError(f"{folder} has no model for a newcomer; choose --person")

    def refuse(_: Any) -> Any:
        raise ConfigError(
            f"{folder}: this method finds a person's model by rated videos of their own, which are "
            "not in a run; name a run of another method"
        )

    state = worker.state(ClientState(trained.clients.get(who)))
    asked = trained.method.model_on(state, message, worker.site(nobody, who, message))
    params = worker.model(drive(asked, refuse), message.round)

    def scores(features: Float[np.ndarray, "steps d"]) -> Float[np.ndarray, " steps"]:
        outputs = trained.outputs(params, unrated_clip(who, features)[who].test)
        return outputs[0].sigmoid().double().numpy()

    return scores


def unrated_clip(who: str, features: Float[np.ndarray, "steps d"]) -> dict[str, Splits]:
    """Return data of one person with a single clip that nobody rated."""
    steps = len(features)
    nothing, at = np.zeros((1, steps)), np.arange(steps)
    shot = np.array([[0, steps - 1]])
    clip = RatedClip(features, at, nothing[0], nothing, nothing > 0, shot)
    return samples_of({who: dict.fromkeys(PARTS, (clip,))})
