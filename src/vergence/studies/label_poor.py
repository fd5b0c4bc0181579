"""Label-poor people of a federation, compared with the others as a group of their own.

`few_data.label_poor` names the people with few labelled samples. Docs: docs/reference/runs.md.

Used by `studies.compare`.
"""

from __future__ import annotations

import tomllib

from vergence.results.layout import digits, metric_name, number, spread
from vergence.results.read import Run, StudyResults
from vergence.results.text_tables import TextTable


def label_poor(run: Run) -> frozenset[str]:
    """Return the label-poor people whom a run measured."""
    named = {*tomllib.loads(run.config).get("few_data", {}).get("label_poor", ())}
    # People of several seeds of a generator are p01@0, p01@1, ...
    return frozenset(who for who in run.people if who in named or who.partition("@")[0] in named)


def label_poor_block(study: StudyResults, metric: str) -> TextTable | None:
    """Return a table of label-poor people and the others; None if a run has only one kind."""
    groups = {run.label: label_poor(run) for run in study.runs}
    if not all(0 < len(poor) < len(study.run(name).people) for name, poor in groups.items()):
        return None
    places = digits(v for run in study.runs for v in run.scores(metric).values())
    lines, records = [], []
    for run in study.runs:
        scores, poor = run.scores(metric), groups[run.label]
        few = [value for who, value in scores.items() if who in poor]
        rest = [value for who, value in scores.items() if who not in poor]
        means = {"label_poor": sum(few) / len(few), "others": sum(rest) / len(rest)}
        worst = max(few) if metric in study.lower_is_better else min(few)
        ends = run.bounds(metric)
        cells = (spread(few, places, ends), number(worst, places), spread(rest, places, ends))
        lines.append([run.title, *cells])
        records.append({"row": run.label, "metric": metric, **means, "worst_label_poor": worst})
    count = len(groups[study.runs[0].label])
    return TextTable(
        f"{metric_name(metric)} of {count} label-poor people and of the others",
        ["method", "label-poor", "worst of them", "the others"],
        lines,
        notes=["Means and 95 % intervals over the people of each group."],
        records=records,
    )
