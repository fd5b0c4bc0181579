"""The daily commands: run an experiment, watch it, compare methods, use the models.

Used by `cli.commands`.
"""

from __future__ import annotations

import inspect
import sys
import tomllib
from contextlib import suppress
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.table import Table

from vergence import profiling
from vergence.cli.app import Flag, OutFile, OutFolder, OutPlace
from vergence.cli.profile import profiled
from vergence.console import note, out
from vergence.core.options import option_texts
from vergence.errors import ConfigError
from vergence.experiment.trust import allow_own_code, ask_for_exact_code, ask_for_trust


@allow_own_code
def run(
    config: Path,
    *,
    out_: OutFolder | None = None,
    set_: Annotated[list[str], Parameter(name="--set")] = [],  # noqa: B006
    profile: Flag = False,
) -> None:
    """Run an experiment into a new directory, then print the table and write the report.

    Args:
        config: the experiment: a TOML file, or the name of one in the package, as `quickstart`.
        out_: a new directory; `methods = [...]` makes one run directory each below it. Default
            runs/NAME, where NAME is the file's, without .toml.
        set_: `a.b=c` overrides a value of the file; may be given several times.
        profile: print at the end which phases took how long, and write that to profile.csv.
    """
    folder = Path("runs") / config.stem if out_ is None else out_
    with profiled(profile, folder):
        # Imported within the profile, which so counts the seconds of loading torch.
        from vergence.api.train import load_experiment, run_into

        run_into(folder, load_experiment(config, set_))
        _show_results(folder)


@ask_for_exact_code
def resume(folder: Path, *, rounds: int | None = None) -> None:
    """Go on with an interrupted run, to the same bits as if it had never stopped.

    Args:
        folder: the folder of the run.
        rounds: more rounds for a finished run; it goes on with the bits of a run that was planned
            with so many.
    """
    from vergence.api.train import load_experiment, run_into
    from vergence.errors import StateError
    from vergence.results.run_files import nearest_runs

    if (folder / "sweep.toml").is_file():
        from vergence.studies import sweep as trials

        trials.show(trials.resume(folder), out)
        return
    if not (folder / "config.toml").is_file():
        advice = nearest_runs(folder) or ": start one with `vergence run`"
        raise StateError(f"{folder} holds no run (no config.toml){advice}")
    more = [] if rounds is None else [f"run.rounds={rounds}"]
    experiment = load_experiment(folder / "config.toml", more)
    run_into(folder, experiment, resumed=True, asked=bool(more))
    _show_results(folder)


@ask_for_exact_code
def verify(folder: Path) -> None:
    """Recompute every fingerprint of a finished run; fails on one flipped byte.

    Fingerprints of a run with Python files of its own are recomputed with `--trust-code` only; its
    tables and states are compared with their digests without.

    Args:
        folder: a run directory, or what `vergence run --out` wrote.
    """
    from vergence.errors import BuiltInPython, UntrustedCode
    from vergence.experiment import checksums
    from vergence.experiment.trained_run import verify as recompute
    from vergence.experiment.trained_run import verify_digests
    from vergence.results.read import read

    checksums.check(folder)
    refused: UntrustedCode | BuiltInPython | None = None
    for saved in read(folder).runs:
        try:
            lines = [f"seed {seed}: {sha} ok" for seed, sha in recompute(saved.folder)]
        # A fingerprint needs the network, whose class is somebody else's Python: without trust the
        # digests of its files are all that can be compared. The command still fails at the end.
        except (UntrustedCode, BuiltInPython) as error:
            refused = refused or error
            lines = [
                f"seed {seed}: tables and states are those of its digests; the fingerprint "
                "was not recomputed"
                for seed in verify_digests(saved.folder)
            ]
        for line in lines:
            out.print(f"{saved.label} {line}", soft_wrap=True, highlight=False, markup=False)
    if refused is not None:
        raise type(refused)(f"not wholly verified: {refused}")


def status(
    folder: Path,
    *,
    watch: Flag = False,
    json: Flag = False,
    serve: int | None = None,
    out_: OutFile | None = None,
    lines: int = 10,
) -> None:
    """Show the state of a running, stopped or finished run; the run is left alone.

    Args:
        folder: what `vergence run --out` wrote, a run directory below, or a deployment's folder.
        watch: print the state every two seconds, until the run ends.
        json: print everything, with all people, as JSON for programs.
        serve: show a page at http://127.0.0.1:PORT to this machine alone; 0: any free port.
        out_: write the page into this file (.html).
        lines: how many people and events in the terminal.
    """
    outputs = {"--watch": watch, "--json": json, "--serve": serve is not None, "--out": out_}
    if len(options := [name for name, wanted in outputs.items() if wanted]) > 1:
        raise ConfigError(f"choose one of {' and '.join(options)}")
    from vergence.monitoring import terminal as text

    # Ctrl-C ends the watching and not the run, which another process holds: that is no error.
    with suppress(KeyboardInterrupt):
        if json:
            from vergence.monitoring.status import status as look

            sys.stdout.write(text.as_json(look(folder)) + "\n")
        elif watch:
            text.watch(folder, out, lines)
        elif serve is not None:
            from vergence.monitoring.page import serve as page

            page(folder, serve, out)
        elif out_ is not None:
            from vergence.monitoring.page import write

            out.print(f"page: {write(folder, out_)}", soft_wrap=True, highlight=False)
        else:
            text.show(folder, out, lines)


def compare(
    *folders: Path,
    metric: str | None = None,
    reference: str | None = None,
    margin: float | None = None,
    unit: Literal["person", "person-seed"] = "person",
    unseen: Flag = False,
    allow: list[str] = [],  # noqa: B006
    table: Literal["methods", "fairness", "tests", "ranks"] | None = None,
    style: Annotated[Literal["table", "csv", "markdown"], Parameter(name="--format")] = "table",
) -> None:
    """Print methods side by side, how they treat people, and which differences are real.

    Runs whose data, split, people, seeds, budget or tuning differ are refused.

    Args:
        folders: what `vergence run --out` wrote, or single run directories below.
        metric: the metric to test differences of; default the task's headline.
        reference: pair every method with this one; default with FedAvg and with local-only.
        margin: differences up to this, in the metric's units, are of no importance: adds an
            equivalence test. Choose it before looking.
        unit: what is one observation: a person, seeds averaged first, or a person in one seed.
        unseen: leave out the people on whom a sweep chose settings; the output says whom.
        allow: a field in which runs may differ nevertheless, such as rounds or local.lr; may be
            given several times. The output names it.
        table: print this table alone; CSV holds one table, by default methods.
        style: how to print.
    """
    from vergence.experiment import checksums
    from vergence.monitoring.unfinished import unfinished_lines
    from vergence.results.divergence import run_notes
    from vergence.studies import compare as tables

    study = tables.gather(folders, allow)
    for line in unfinished_lines(folders):
        note(line)
    notes = tables.check_comparable(study.runs, allow)
    if unseen:
        study, left_out = tables.without_tuning_people(study)
        notes.append(left_out)
    # Runs of several folders repeat a note: `dict.fromkeys` keeps one of each, in order.
    notes += dict.fromkeys(line for run in study.runs for line in run_notes(run))
    parts = tables.blocks(study, metric, reference, margin, unit)
    if style == "table":
        tables.print_parts(parts, out, table, notes)
    else:
        sys.stdout.write(tables.tables_as_text(study, parts, style, table, notes))
    checksums.notice([*folders, *(run.folder for run in study.runs)])


@ask_for_trust
def report(
    folder: Path,
    *,
    figure: str | None = None,
    out_: OutFile | None = None,
) -> None:
    """Write one self-contained HTML file, or one figure alone.

    Args:
        folder: what `vergence run --out` wrote, or a run directory below.
        figure: persons, classes, per_class, groups, slope, convergence, masks, layers, overlap,
            bytes, strip, tokens, overview.
        out_: where a figure goes (.png, .svg, .pdf), default FIGURE.png in the folder.
    """
    from vergence.experiment import checksums
    from vergence.monitoring.unfinished import unfinished_lines
    from vergence.reports import html as pages
    from vergence.results.read import read
    from vergence.studies import compare as tables

    if out_ is not None and figure is None:
        raise ConfigError(
            "--out is for --figure; the page goes to FOLDER/report.html: leave it out"
        )
    for line in unfinished_lines([folder]):
        note(line)
    study = read(folder)
    if figure is None:
        page = pages.report(folder, study)
        tables.print_summary(tables.with_harm_so_far(study), folder, out)
        out.print(f"report: {page}", soft_wrap=True)
    else:
        path = pages.figure(folder, figure, out_ or folder / f"{figure}.png")
        out.print(f"figure: {path}", soft_wrap=True)
    checksums.notice([folder, *(run.folder for run in study.runs)])


@ask_for_trust
def explain(
    config: Path,
    *,
    set_: Annotated[list[str], Parameter(name="--set")] = [],  # noqa: B006
) -> None:
    """Print who learns what in a round of an experiment, and draw the flow of data.

    Args:
        config: the experiment (TOML).
        set_: `a.b=c` overrides a value of the file; may be given several times.
    """
    from vergence.experiment.schema import load
    from vergence.reports.explain import explain as tell

    tell(load(config, set_), out)


@ask_for_trust
def predict(
    model: Path,
    source: Path,
    *,
    out_: OutPlace | None = None,
    person: str | None = None,
    maps: Path | None = None,
    private: Flag = False,
    profile: Flag = False,
) -> None:
    """Draw predicted gaze on a video or pictures, with a CSV; or write angles of eye images.

    Args:
        model: run directory of one method; with --private, a client's folder.
        source: for gaze maps, a video, a picture, or a folder of pictures or of videos; true gaze
            is read where the run's data set finds it, or from a gaze_2d.csv next to the video. For
            gaze angles, an npz of eye images, a picture of an eye, or a folder of them. With
            --private, an npz.
        out_: the overlay, default NAME_overlay.mp4 in the working directory, .png for a picture,
            and a folder for a folder; for angles a CSV, default NAME_gaze.csv.
        person: predict as this participant; default as a newcomer.
        maps: write the gaze maps into this npz, too; for videos of a folder, into this folder.
        private: ask the parties of `vergence privacy share`, none of whom sees an image.
        profile: print at the end which phases took how long.
    """
    if private:
        _predict_private(model, source, out_ or Path(f"{source.stem}_gaze.csv"), person)
        return
    with profiled(profile):
        from vergence.video.overlay import OverlayFiles
        from vergence.video.predict import predict as draw

        written = draw(model, source, out_, person, maps)
        if isinstance(written, OverlayFiles):
            slowed = f", slowed {written.slow_down:.0f}x" if written.slow_down > 1 else ""
            shown = f"overlay: {written.video} ({written.frames} frames{slowed})"
            out.print(shown, soft_wrap=True)
        else:
            known = (
                "" if written.error_deg is None else f", mean error {written.error_deg:.2f} degrees"
            )
            out.print(f"angles of {written.rows} images{known}", soft_wrap=True)
        out.print(f"table:   {written.table}", soft_wrap=True)
        if maps is not None:
            out.print(f"maps:    {maps}", soft_wrap=True)


def _predict_private(folder: Path, file: Path, table: Path, person: str | None) -> None:
    from vergence.deployment.private_inference.client import predict as ask

    if person is not None:
        raise ConfigError(
            "predict --private: whose model it is was chosen by `vergence privacy share --person`; "
            "leave --person out"
        )
    answer = ask(folder, file, table)
    size = f"{len(answer.values)} images, {answer.seconds:.2f} s"
    cost = f"{answer.sent / 1e3:.0f} kB sent, {answer.received / 1e3:.0f} kB received"
    out.print(f"table:   {table} ({size}, {cost})", soft_wrap=True, highlight=False)


@ask_for_trust
def adapt(
    folder: Path,
    *,
    data: Path | None = None,
    rebase: Path | None = None,
    from_: Annotated[Path | None, Parameter(name="--from")] = None,
    portable: Flag = False,
    out_: OutFolder | None = None,
    person: str | None = None,
    samples: int | None = None,
    seed: int | None = None,
) -> None:
    """Make a model for somebody who took no part, from a few labelled samples, on this machine.

    Args:
        folder: run directory of one method; or that of its leave-one-out evaluation, whose people
            then give the priors of the corrections. With --rebase, the folder that adapt made.
        data: an npz with the columns of the run's task, or the folder that the run's data set
            reads, with this person's samples.
        rebase: run directory of a new common model. The correction is fitted to it again, from the
            samples in the folder, and written only if it is better on them.
        from_: a correction file, as --portable or a page of `vergence web` writes it, to make the
            adapted run of; its samples must give its numbers.
        portable: for gaze angles: choose among the ways that a web page computes, too, and write
            the correction as correction.json into the new folder.
        out_: the new run directory, default `me`, with --rebase `me-2` after `me`; predict, export,
            verify, status and report take it.
        person: the person to adapt to, where the data hold several; for an npz, a name to give.
        samples: number of samples to learn from, evenly spread over the data; default all.
        seed: the seed of the run whose model is adapted; default its first, and with --from that of
            the file. With --rebase, of the new common model.
    """
    from vergence.adaptation import portable as portable_ways
    from vergence.adaptation import rebase as rebasing
    from vergence.adaptation.adapted_run import adapt as make
    from vergence.adaptation.adapted_run import show

    given = [f"--{n}" for n, v in (("data", data), ("rebase", rebase), ("from", from_)) if v]
    if len(given) != 1:
        raise ConfigError(
            "adapt takes a run with --data, labelled samples, or --from, a correction file; or a "
            "folder that adapt made with --rebase, a new common model; got "
            f"{' and '.join(given) or 'none of them'}"
        )
    if data is None and (samples is not None or portable):
        raise ConfigError("--samples and --portable go with --data alone: the others have samples")
    if data is not None:
        way = portable_ways.adapt_portable if portable else make
        show(way(folder, data, out_ or Path("me"), person, samples, seed), out)
    elif from_ is not None:
        show(portable_ways.adapt_from(folder, from_, out_ or Path("me"), person, seed), out)
    elif rebase is not None:
        if person is not None:
            raise ConfigError("--person does not go with --rebase, whose folder names the person")
        rebasing.show(rebasing.rebase(folder, rebase, out_, seed), out)


@ask_for_trust
def export(
    folder: Path,
    *,
    out_: OutFile,
    person: str | None = None,
    seed: int | None = None,
    frames: int | Literal["dynamic"] | None = None,
    batch: int | Literal["dynamic"] = 1,
    int8: Literal["static", "dynamic"] | None = None,
    float16: Flag = False,
) -> None:
    """Write the model a person predicts with as one ONNX file, checked against torch and timed.

    Args:
        folder: run directory of one method.
        out_: the file (.onnx).
        person: the person whose model is written; default that of a newcomer.
        seed: the seed whose model is written; default the first.
        frames: frames in a window of a video network: a number, or dynamic for any; default the
            run's.
        batch: samples in a call: a number, or dynamic for any.
        int8: write weights and activations in eight bits, by onnxruntime's tools. `static` takes
            the range of activations from training samples of the people who took part, `dynamic`
            finds it in every call. The error on test samples is printed beside that of float32.
        float16: write numbers in half precision, and print the same.
    """
    from vergence.model_tools.onnx_export import CallShape
    from vergence.model_tools.onnx_export import export as write
    from vergence.model_tools.reduced_precision import precision_of

    shape, precision = CallShape(frames, batch), precision_of(int8, float16)
    write(folder, out_, out, person, seed, shape, precision=precision)


def methods(name: str | None = None) -> None:
    """List the methods and what the server needs of each reply, or one method's options.

    Args:
        name: a method, whose description and options are printed.
    """
    from vergence.core.method import Method
    from vergence.experiment.registry import find, names

    if name is not None:
        _one_method(find("methods", name, Method), name)
        return
    # "The server needs" is what the method's mathematics asks for, from its declared exposure; the
    # note below says what an honest-but-curious server can see besides.
    table = Table("name", "what it does", "the server needs")
    for name in names("methods", Method):
        kind = find("methods", name, Method)
        seen = [
            f"{verb}: {'each reply' if e.reveal == 'each' else 'a sum'}"
            f"{' and the masks' if e.weight == 'mask' else ''}"
            if e.trees
            else f"{verb}: metrics"
            for verb, e in kind.exposure.items()
        ]
        table.add_row(
            name,
            (kind.__doc__ or "").partition("\n")[0],
            "everything" if kind.pooled else "; ".join(seen),
        )
    out.print(table)
    out.print(
        "What a method needs is not what whoever runs the server can see: it sees each reply, also "
        "where a sum would do, unless privacy.aggregation adds replies up unseen. `vergence "
        "explain FILE` says who learns what; `vergence methods NAME` shows a method's options.",
        highlight=False,
        markup=False,
    )


def _one_method(kind: type, name: str) -> None:
    """Print what a method does, and its options with their defaults."""
    # The docstring is the one place in which a method is described: help, docs and this agree.
    text, _, rest = inspect.cleandoc(kind.__doc__ or "").partition("\nArgs:\n")
    out.print(f"{name}: {text.strip()}", highlight=False, markup=False)
    texts = option_texts(kind)
    table = Table("option", "default", "what")
    for each in fields(kind):
        # `local` is a table of its own in a file, and `base` the method that this one wraps.
        if each.name not in ("local", "base"):
            default = each.default if each.default_factory is MISSING else each.default_factory()
            shown = "must be given" if default is MISSING else repr(default)
            table.add_row(each.name, shown, texts.get(each.name, ""))
    if table.rows:
        out.print(table)
    else:
        out.print("It has no options of its own.")
    if source := rest.partition("\nSource: ")[2]:
        out.print(f"Source: {source.strip()}", highlight=False, markup=False)
    python = f"vergence.methods.{kind.__name__}()"
    out.print(f'In an experiment: method = {{ name = "{name}" }}; in Python: {python}')


def _show_results(folder: Path) -> None:
    from vergence.experiment.privacy.spent import screen_lines
    from vergence.results.divergence import run_notes
    from vergence.studies import compare as tables

    with profiling.phase("statistics"):
        study = tables.gather([folder], tables.ANYTHING)
        notes = tables.check_comparable(study.runs, tables.ANYTHING)
        tables.print_summary(study, folder, out, notes)
        for each in study.runs:
            for line in run_notes(each):
                out.print(line, soft_wrap=True, highlight=False, markup=False)
            tuned = "tuning" in tomllib.loads(each.config)
            for line in screen_lines(each.label, each.results.get("privacy", {}), tuned):
                out.print(line, soft_wrap=True, highlight=False, markup=False)
    with profiling.phase("report"):
        from vergence.reports.html import report as page

        out.print(f"report: {page(folder, study)}", soft_wrap=True)
