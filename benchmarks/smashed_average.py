"""What averaging of smashed data hides: pictures that come back from averages over k people.

python -m benchmarks.smashed_average --json smashed.json: in `smashed_average` the server gets the
mean of k people's smashed data, sample by sample, from frozen layers that everybody knows. An
inverse network, trained on such means of shadow people's pictures, looks for one picture in each.
The victims are five people of the MPIIGaze 9x15 crops, the others in a mean and the shadow people
six more; without the files the generator's. Where the k - 1 others collude, they subtract what
they sent: that is the row of one person.
"""

import time
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.common.options import options
from benchmarks.common.report import report
from benchmarks.reconstruction import Row, Scene, network, parts, scene
from vergence.attacks import score
from vergence.attacks.inverse_network import InverseNetworkAttack, outputs_without_graph

PEOPLE = (1, 2, 4, 8)
CUTS = ("conv1", "conv3")


def averaged(smashed: Tensor, others: Tensor, people: int, draw: torch.Generator) -> Tensor:
    """Return each row's mean with rows of people - 1 others `[n, ...]`, drawn at random."""
    total = smashed.clone()
    for _ in range(people - 1):
        total += others[torch.randint(len(others), (len(smashed),), generator=draw)]
    return total / people


def found(stage: Scene, cut: str, people: int, epochs: int) -> Tensor:
    """Return the picture that the attacker makes of each mean in which a victim's picture is."""
    front, _ = parts(network(Row("frozen", cut), stage.size), cut)
    shadow = outputs_without_graph(front, stage.shadow.images)
    attack = InverseNetworkAttack(epochs)
    inverse = attack.train(
        shadow, stage.shadow.images, lambda given, noise: averaged(given, shadow, people, noise)
    )
    seen = outputs_without_graph(front, stage.victim.images)
    return inverse.reconstruct(averaged(seen, shadow, people, torch.Generator().manual_seed(1)))


def main() -> None:
    """Measure, print the table, write the numbers."""
    given = options(
        "Pictures from averages of smashed data.",
        data={"choices": ["crops", "synthetic"], "default": "crops"},
        quick={"action": "store_true", "help": "fewer pictures and epochs"},
        json=Path("smashed_average.json"),
    )
    torch.set_num_threads(1)
    cpu, stage = time.process_time(), scene(given.data, given.quick)
    victim = stage.victim
    knows = score.Classifier(stage.known.images, stage.known.people)
    asked = {
        ("mean picture of the others", 0): score.mean_image(
            stage.shadow.images, len(victim.images)
        ),
        ("another picture", 0): score.other_images(victim.images),
    }
    for cut in CUTS if stage.size != (36, 60) else ("pool1",):
        for people in PEOPLE:
            asked[cut, people] = found(stage, cut, people, 4 if given.quick else 12)
    lines = ["| cut after | people in a mean | MSE | SSIM | re-identified |"]
    lines.append("|---|--:|--:|--:|--:|")
    rows = []
    for (cut, people), images in asked.items():
        rank = knows.rank_1(images, victim.people)
        row = {
            "cut": cut,
            "people": people,
            "mse": float(score.mse(victim.images, images).mean()),
            "ssim": float(score.ssim(victim.images, images).mean()),
            "rank_1": [rank.value, rank.low, rank.high],
        }
        rows.append(row)
        told = f"{rank.value:.0%} ({rank.low:.0%} to {rank.high:.0%})"
        lines.append(f"| {cut} | {people or ''} | {row['mse']:.4f} | {row['ssim']:.3f} | {told} |")
    numbers = {"data": stage.data, "quick": given.quick, "rows": rows}
    closing = (
        f"{len(stage.shadow.images)} shadow pictures, {len(victim.images)} attacked, chance of a "
        f"name {1 / len(knows.known):.0%}; {time.process_time() - cpu:.0f} s of CPU"
    )
    report(given.json, numbers, "\n".join(lines), closing)


if __name__ == "__main__":
    main()
