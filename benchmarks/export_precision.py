"""Size, time and error of exported files in float32, eight bits and half precision.

    python -m benchmarks.export_precision --runs runs/lenet runs/small_eye runs/causal

Each run is exported as a newcomer's model in every precision, as `vergence export` does it: errors
are those of test samples of the run's people, milliseconds the processor time of a call with one
sample on one thread. The table is printed as CSV, and written where `--out` says.
"""

from __future__ import annotations

import csv
import io
import tempfile
from pathlib import Path

from rich.console import Console

from benchmarks.common.options import options
from vergence.experiment.trained_run import one_run
from vergence.model_tools.onnx_export import export
from vergence.model_tools.reduced_precision import precision_of
from vergence.results.layout import metric_name
from vergence.results.read import read

PRECISIONS = (
    precision_of(None, True),
    precision_of("static", False),
    precision_of("dynamic", False),
)
COLUMNS = ("model", "numbers", "kB", "ms", "error", "lost", "largest difference")


def rows_of(folder: Path, out: Path) -> list[list[str]]:
    """Return a row for float32 and for each other precision of one run's model."""
    run = read(folder).runs[0]
    model, rows = f"`{one_run(folder).table['model']['name']}`", []
    for precision in PRECISIONS:
        made = export(folder, out, Console(quiet=True), precision=precision)
        reduction = made.reduction
        assert reduction is not None
        both = zip(reduction.sizes, reduction.ms, reduction.errors, strict=True)
        first, second = (
            [f"{size / 1000:.0f}", f"{ms:.3f}", f"{error:.3f} {metric_name(run.headline)}"]
            for size, ms, error in both
        )
        full, smaller = reduction.errors
        lost = smaller - full if run.headline in run.lower_is_better else full - smaller
        rows += [] if rows else [[model, "float32", *first, "", ""]]
        rows.append(
            [model, precision, *second, f"{round(lost, 3) + 0.0:+.3f}", f"{made.difference:.1e}"]
        )
    return rows


def main() -> None:
    """Export every run in every precision, and print the table."""
    asked = options(__doc__, runs={"nargs": "+"}, out="runs/export_precision.csv")
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(COLUMNS)
    with tempfile.TemporaryDirectory() as scratch:
        for folder in asked.runs:
            table.writerows(rows_of(Path(folder), Path(scratch) / "model.onnx"))
    Path(asked.out).parent.mkdir(parents=True, exist_ok=True)
    Path(asked.out).write_text(text.getvalue(), encoding="utf-8")
    print(text.getvalue(), end="")


if __name__ == "__main__":
    main()
