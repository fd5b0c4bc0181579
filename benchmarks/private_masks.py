"""Masks chosen under a budget: how far from those that data would choose, and what it costs.

    python -m benchmarks.private_masks [ROW ...] [--rounds 8]

The packaged experiment `quickstart` (15 real viewers) with FedCPF alone, one seed, one process.
In every choice the groups drawn are compared with those of the highest mean change:
`met` is the share of them that was drawn, `chance` what a blind choice of as many meets. One
Markdown line per row.
"""

import argparse
import tempfile
from pathlib import Path
from unittest.mock import patch

import torch

from vergence.experiment.run import start
from vergence.experiment.schema import load
from vergence.privacy.dp.mask_budget import Groups
from vergence.results.read import read

EXPERIMENT = Path(__file__).parent.parent / "src" / "vergence" / "experiments" / "quickstart.toml"
PLAIN = ['methods=[{ name = "fedcpf", rate = 0.1 }]', "run.workers=1", "run.evaluate_every=0"]
BLIND = ['methods=[{ name = "fedcpf", rate = 0.1, select = "random" }]', *PLAIN[1:]]
ROWS = {"no budget": PLAIN, "by lot": BLIND, "no masks": ['methods=["fedavg"]', *PLAIN[1:]]} | {
    f"{of}, epsilon {epsilon:g}": [*PLAIN, f'privacy.mask={{ epsilon = {epsilon}, of = "{of}" }}']
    for of, some in {"filter": (1, 8, 100), "tensor": (8, 100), "entry": (8,)}.items()
    for epsilon in some
}


def measure(name: str, rounds: int) -> str:
    """Return the row of a run: score, share of the true choice that was drawn, and by chance."""
    met, plain = [], Groups.draw_entries

    def drawn(self, best, k, open, each, draws):
        found = plain(self, best, k, open, each, draws)
        chosen = torch.bincount(self.of[found], minlength=len(self.sizes)) > 0
        both = int((chosen & best.bits).sum())
        if each > 1e-6:  # not the dry run
            met.append((both / max(int(chosen.sum()), 1), best.count / open.count))
        return found

    with tempfile.TemporaryDirectory() as folder, patch.object(Groups, "draw_entries", drawn):
        start(load(EXPERIMENT, [*ROWS[name], f"run.rounds={rounds}"]), Path(folder) / "run")
        run = read(Path(folder) / "run").runs[0]
    told = run.estimates[run.headline]
    shares = [f"{sum(each) / len(met):.1%}" for each in zip(*met, strict=True)] or ["", ""]
    return f"| {name} | {shares[0]} | {shares[1]} | {told.mean:.4f} | {told.worst:.4f} |"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("rows", nargs="*", help=", ".join(ROWS))
    parser.add_argument("--rounds", type=int, default=8)
    given = parser.parse_args()
    torch.set_num_threads(1)
    for name in given.rows or ROWS:
        print(measure(name, given.rounds), flush=True)


if __name__ == "__main__":
    main()
