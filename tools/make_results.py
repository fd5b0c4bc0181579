"""Rewrite docs/results, pages of papers, and the pictures of the README, from finished runs.

python tools/make_results.py runs/demo runs/osie ...: one page per run directory, named like its
experiment. No number in these pages is typed by hand.
"""

import io
import re
import shutil
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

from PIL import Image
from rich.console import Console

from vergence.core.files import csv_of
from vergence.core.naming import plural
from vergence.experiment.packaged import packaged
from vergence.experiment.schema import load
from vergence.metrics.fairness import HARM
from vergence.metrics.intervals import interval
from vergence.reports.html import figure
from vergence.results import significance
from vergence.results.layout import metric_name
from vergence.results.read import Run, StudyResults
from vergence.results.verdict_rules import count_test_images, training_curve
from vergence.studies import compare
from vergence.studies import few_shot as codes
from vergence.studies.cross_dataset import cross
from vergence.studies.mask_anatomy import print_anatomy, shared_entries
from vergence.studies.swaps import swaps
from vergence_papers.outcome import CLAIMS, EVIDENCE

ROOT = Path(__file__).parent.parent
PAGES = ROOT / "docs" / "results"
REFERENCES = ("fedcpf", "interpolation", "earned")
"""Methods that are also tested against all others, besides FedAvg and local-only.

`earned` is the former name of `interpolation`, in runs that were trained before.
"""
PRIOR = "prior"
SWEPT = ("rivals_eye",)
CROSSED = ("anatomy_eye", "crowds_10")
"""Runs with the same network on real and on synthetic eyes."""


def table(study: StudyResults) -> str:
    """Return the comparison table in Markdown."""
    return compare.to_markdown(compare.rows(study))


def judged(study: StudyResults, reference: str = "") -> str:
    """Return fairness, paired tests and ranks; with a reference, its tests against all alone."""
    parts = compare.blocks(study, reference=reference or None)
    wanted = ("tests",) if reference else ("fairness", "tests", "ranks")
    text = "\n".join(block.markdown() for part in wanted for block in parts[part])
    if not reference:
        return text
    return text.replace("person by person", f"against {study.run(reference).title}", 1)


def page(folder: Path, name: str) -> None:
    """Write one page; of a protocol's directory, that of leaving one person out."""
    strangers = (folder / "leave-one-out").is_dir()
    study = compare.gather([folder / "leave-one-out" if strangers else folder], compare.ANYTHING)
    run = study.runs[0]
    doing = "evaluate leave-one-out" if strangers else "run"
    about, box = run.provenance["data"], run.provenance["environment"]
    seconds = sum(r.results["seconds"] for r in study.runs)
    facts = [f"{key}: {about[key]}" for key in ("citation", "licence", "split") if key in about]
    lines = [
        f"# {name}",
        "",
        f"`vergence {doing} {source(name)}{changed(name, run)} --out runs/{name}`: "
        f"{plural(len(run.people), 'person')}, "
        f"{plural(len(run.seeds), 'seed')}, {plural(run.results['rounds'], 'round')}; "
        f"{plural(round(seconds / 60), 'minute')} in rounds of training on two busy cores "
        f"({box['platform'].split('-')[0]} {box['processor']}, Python {box['python']}, "
        f"torch {box['torch']}).",
        "",
        *[f"- {fact}" for fact in facts],
        "",
        "Mean over people with 95 % interval (Student t over people, seeds averaged within a "
        "person first); worst person; people harmed (a loss above 1 % that test samples show).",
        "",
        *[f"> Note: {note}\n" for note in compare.check_comparable(study.runs, compare.ANYTHING)],
        table(study),
        *[f"{line}\n" for line in shared_entries(study)],
        judged(study),
        *[judged(study, label) for label in REFERENCES if study.find(label)],
        *([anatomy(folder)] if name.startswith("anatomy") else []),
    ]
    PAGES.mkdir(parents=True, exist_ok=True)
    (PAGES / f"{name}.md").write_text("\n".join(lines))
    numbers(study, PAGES / "data" / name)


def numbers(study: StudyResults, folder: Path) -> None:
    """Write scores.csv and claims.csv of a page: the numbers that its verdicts rest on, and pairs.

    Rows are as of `vergence reproduce`; a claim is a pair of a table of paired differences.
    """
    metric, rows = study.headline, [EVIDENCE]
    lower = int(metric in study.lower_is_better)
    for name, people in study.priors.items():
        told = [(person, found[metric]) for person, found in people.items() if metric in found]
        label = f"prior: {name.replace('_', ' ')}"
        rows += [(label, "", 0, p, "end", metric, repr(float(v)), "") for p, v in told]
    for run in study.runs:
        own, steps = run.final(metric), f"{run.steps:.6g}"
        cells = zip(own.seed, own.person, own.value, strict=True)
        rows += [
            (run.label, s, 0, p, "end", metric, repr(float(v)), steps)
            for s, p, v in cells
            if p in run.people
        ]
        if images := count_test_images(run, metric):
            rows.append(("test", "", 0, "", "end", metric, images, ""))
        curve = zip(*training_curve(run, metric), strict=True)
        rows += [(run.label, "", 0, "", int(r), "curve", repr(float(v)), steps) for r, v in curve]
    claims = [CLAIMS]
    for reference in (None, *(label for label in REFERENCES if study.find(label))):
        where = f"against {study.run(reference).title}" if reference else "person by person"
        for each in significance.judge(study, reference=reference):
            names = [study.run(label).title for label in (each.pair.a, each.pair.b)]
            claim = (
                f"Paired differences in {metric_name(metric)}, {where}: {' against '.join(names)}"
            )
            pair = (study.run(each.pair.a).label, study.run(each.pair.b).label)
            claims.append(
                (claim, "test", metric, metric, lower, lower, *pair, 0.0, 0.0, 0, each.word)
            )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "scores.csv").write_text(csv_of(rows))
    (folder / "claims.csv").write_text(csv_of(claims))


def changed(name: str, run: Run) -> str:
    """Return the option that gives the seeds, where they are not those of the experiment file."""
    seeds = tuple(run.seeds)
    same = not (ROOT / source(name)).exists() or seeds == load(ROOT / source(name), []).plan.seeds
    return "" if same else f" --set 'run.seeds={list(seeds)}'"


def printed(told: Callable[[Console], None]) -> str:
    """Return what a command prints, as a block."""
    text = io.StringIO()
    told(Console(file=text, width=200, color_system=None))
    lines = "\n".join(line.rstrip() for line in text.getvalue().splitlines())
    return f"```\n{lines}\n```\n"


def anatomy(folder: Path) -> str:
    """Return what `vergence model masks` prints."""
    table = printed(lambda console: print_anatomy(folder, console))
    return f"## What became personal\n\n`vergence model masks runs/{folder.name}`:\n\n{table}"


def crossed(folder: Path) -> None:
    """Write the page of FedAvg's models on the people of the other data set."""
    runs = [folder.with_name(name) / "fedavg" for name in CROSSED]
    table = printed(lambda console: cross(runs, folder, console))
    names = " ".join(f"runs/{name}/fedavg" for name in CROSSED)
    text = f"# {folder.name}\n\n`vergence study cross {names} --out runs/{folder.name}`:\n\n{table}"
    (PAGES / f"{folder.name}.md").write_text(text)


def source(name: str) -> str:
    """Return the experiment file of a page; where settings were swept, what the sweep wrote."""
    if name in SWEPT:
        return f"runs/{name}_sweep/best.toml"
    stem, _, count = name.rpartition("_")
    if count == "centre":
        return f"experiments/{stem}.toml --set 'methods=[\"centralised\"]'"
    if count.isdigit():
        return f"experiments/{stem}.toml --set federation.people={count}"
    return name if name in packaged() else f"experiments/{name}.toml"


def readme(folder: Path) -> None:
    """Draw the pictures of the README from the quickstart."""
    pictures = ROOT / "docs" / "pictures"
    pictures.mkdir(parents=True, exist_ok=True)
    figure(folder, "strip", pictures / "strip.png")
    shrink(pictures / "strip.png", pictures / "strip.jpg", 1200)
    (pictures / "strip.png").unlink()
    shrink(folder / "aria_adt.png", pictures / "aria.jpg", 900)


def long(folder: Path) -> Path:
    """Return where the controls of a recipe lie: as many steps, spent otherwise."""
    return folder.with_name(f"{folder.name}_long")


def recipe(folders: list[Path]) -> None:
    """Put the recommended recipe beside its rivals into its page: a column per data set.

    People that a sweep chose settings on are left out.
    """
    studies = [
        compare.gather([f for f in (folder, long(folder)) if f.exists()], compare.ANYTHING)
        for folder in folders
    ]
    heads, rows = [""], {run.label: [run.title] for run in studies[0].runs}
    # Last, by its name or its former name.
    rows[own] = rows.pop(own := next(label for label in REFERENCES[1:] if label in rows))
    rows = {PRIOR: ["*own mean or map*, nothing learned"], **rows}
    for study in studies:
        tuned = tomllib.loads(study.runs[0].config).get("tuning", {}).get("people", [])
        scores = {
            run.label: {p: v for p, v in run.scores(study.headline).items() if p not in tuned}
            for run in study.runs
        }
        scores[PRIOR] = {
            person: values[study.headline]
            for name in ("personal mean", "personal prior")
            for person, values in study.priors.get(name, {}).items()
            if person not in tuned
        }
        count, seeds = len(scores[own]), len(study.runs[0].seeds)
        named = f"{study.folder.name.removeprefix('recipe_')}: {metric_name(study.headline)}"
        heads += [f"{named}, {plural(count, 'person')}, {plural(seeds, 'seed')}", "steps"]
        heads += ["worse than alone", "alone, more steps", "FedAvg"]
        sign = -1 if study.headline in study.lower_is_better else 1
        for label in rows:
            mine = scores[label]
            low, high = interval(list(mine.values()))
            mean = sum(mine.values()) / count
            harmed = [
                sum(sign * (mine[p] - base[p]) < -HARM * abs(base[p]) for p in mine)
                for base in (scores[name] for name in ("local_only", "local_only_long", "fedavg"))
            ]
            spent = 0 if label == PRIOR else study.run(label).steps
            cells = [f"{mean:.2f} [{low:.2f}, {high:.2f}]", f"{spent:.0f}", *map(str, harmed)]
            rows[label] += cells
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows.values()]
    block = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    page = PAGES / "recipe.md"
    text = re.sub(
        r"<!-- recipe -->.*?<!-- end recipe -->",
        f"<!-- recipe -->\n{block}\n<!-- end recipe -->",
        page.read_text(),
        flags=re.S,
    )
    page.write_text(text)


def shrink(source: Path, target: Path, width: int) -> None:
    """Save a picture as a small JPEG."""
    with Image.open(source) as picture:
        height = picture.height * width // picture.width
        small = picture.convert("RGB").resize((width, height), Image.Resampling.LANCZOS)
    small.save(target, quality=85)


def reproduced(folder: Path) -> None:
    """Copy the reports of `vergence reproduce --out FOLDER`: a page per table, by its paper."""
    for report in sorted(folder.rglob("report.md")):
        paper, *parts = report.parent.relative_to(folder).parts
        name, home = "_".join((*parts, folder.name)), ROOT / "papers" / paper / "results"
        data = home / "data" / name
        text = report.read_text().replace(f"{ROOT}/", "")
        for picture in report.parent.glob("*.png"):
            if f"]({picture.name})" in text:
                (home / "pictures").mkdir(parents=True, exist_ok=True)
                curves = "_curves" if picture.stem.endswith("_curves") else ""
                shutil.copy(picture, home / "pictures" / f"{name}{curves}.png")
                text = text.replace(f"]({picture.name})", f"](pictures/{name}{curves}.png)")
        home.mkdir(parents=True, exist_ok=True)
        (home / f"{name}.md").write_text(text)
        for table in sorted(report.parent.glob("*.csv")):
            data.mkdir(parents=True, exist_ok=True)
            shutil.copy(table, data / table.name)
        print(f"papers/{paper}/results/{name}.md")


def unlabelled(folder: Path) -> None:
    """Write the page of encoders trained without labels in FOLDER/*/people/n15: table, picture."""
    runs = sorted(folder.glob("*/people/n15/seed0"))
    tables = ""
    for source in ("all", "first"):
        options = codes.FewShotOptions(source=source)
        with io.StringIO() as text:
            found = codes.unlabelled(runs, folder / f"{source}.csv", options, Console(file=text))
        tables += codes.block(found, options).markdown() + "\n"
    swapped = folder / "cross" / "people" / "n15" / "seed0" / "fedavg"
    swaps(swapped, folder / "swaps.png")
    shrink(folder / "swaps.png", PAGES / "unlabelled.jpg", 1000)
    rounds = load(swapped.parent / "config.toml", ()).plan.rounds
    text = f"""# Gaze learned without labels

`vergence study evaluate people experiments/unlabelled_cross.toml --people 15 --unseen 5`,
Cross-Encoder (`cross`), and likewise the auto-encoder (`auto_encoder`, `efc` with the
equal-feature constraint), SimCLR and BYOL, then `vergence study unlabelled`.
15 synthetic people, {rounds} rounds of 2 epochs,
1 seed, both federated (FedAvg) and in a data centre; the same encoder, people, rounds and rates
for all. No label is used but those of the shots.

{tables}
*gaze code*: the 12 values in which the Cross-Encoder and EFC put gaze; for the others they are the
last 12 of 44. *both codes*: all 44. *network* and *ridge* are what reads them, with the head pose
beside them.

![swapped codes](unlabelled.jpg)

A stranger's eyes drawn again by the federated Cross-Encoder (`vergence study swaps`): what should
change with the gaze code is where the iris is, and with the eye code everything else.
"""
    (PAGES / "unlabelled.md").write_text(text)


given_folders = [Path(name) for name in sys.argv[1:]]
recipes = [f for f in given_folders if f.name.startswith("recipe_") and long(f).exists()]
if recipes:
    recipe(recipes)
for given in given_folders:
    if given.parent.name == "reproduce":
        reproduced(given)
        continue
    if given.name == "unlabelled":
        unlabelled(given)
        continue
    if given.name == "cross_eye":
        crossed(given)
        continue
    named = "quickstart" if given.name == "demo" else given.name
    page(given, named)
    if named == "quickstart":
        readme(given)
    print(f"docs/results/{named}.md")
