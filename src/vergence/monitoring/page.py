"""Status page of a run, read-only: a file, or served to this machine alone.

Used by `cli.runs`.
"""

from __future__ import annotations

import html
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich.console import Console

from vergence.core.files import write_text
from vergence.errors import StateError, VergenceError
from vergence.monitoring import terminal as text
from vergence.monitoring.method_progress import Curve, MethodProgress
from vergence.monitoring.metrics import as_metrics, health
from vergence.monitoring.status import SHOWN, Status, reasons, silent_first, status
from vergence.results.figure_style import COLOURS, MUTED, SPARE, canvas, inline, styled
from vergence.results.layout import METHOD_NAMES, metric_name

HOST = "127.0.0.1"
# A served page reloads after 10 seconds, or after 20 times the time it took to make: looking at a
# crowd must not cost the run more than a twentieth of a core.
EVERY, SPARING = 10, 20
# The page holds names that clients chose. Without scripts, forms and foreign content nothing that
# slips into it can act, and no other site can frame it or read it.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def write(folder: Path, path: Path) -> Path:
    """Write the page into a file and return its path.

    Raises:
        StateError: the folder holds no run.
        PartialRun: the page cannot be written.
    """
    write_text(path, page(status(folder)))
    return path


def page(status: Status, every: int = 0) -> str:
    """Return the page, which reloads itself after `every` seconds; 0: never."""
    environment = Environment(
        loader=PackageLoader("vergence.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    tint = colours(status.runs)
    run = status.now
    order = [run, *(r for r in status.runs if r is not run and r.people)]
    return environment.get_template("status.html").render(
        found=status,
        run=run,
        every=every,
        tint=tint,
        name=name_of,
        shown=SHOWN,
        facts=_facts(status),
        connected=text.connected(status),
        headline=text.headline,
        amount=text.amount,
        duration=text.duration,
        figures=list(_figures(status, tint)),
        people={r.label: silent_first(r) for r in order},
        reasons={r.label: reasons(r) for r in order},
        order=order,
    )


def name_of(run: MethodProgress) -> str:
    """Return a run's name as printed."""
    return METHOD_NAMES.get(run.label, run.label.replace("_", " "))


def colours(runs: Sequence[MethodProgress]) -> dict[str, str]:
    """Return label -> colour, a method's own where it has one."""
    spare = iter(SPARE)
    return {r.label: COLOURS.get(r.label) or next(spare, MUTED) for r in runs}


def _facts(status: Status) -> list[tuple[str, str]]:
    run, several = status.now, len(status.runs) > 1
    done, total = sum(r.done for r in status.runs), sum(r.total for r in status.runs)
    moved = sum(r.bytes_up for r in status.runs), sum(r.bytes_down for r in status.runs)
    best, left, which = run.headline, status.seconds_left, f", {name_of(run)}" * several
    return [
        (f"{done} of {total}", "rounds, all seeds and methods" if several else "rounds"),
        *(
            (f"{last.counted} of {last.asked}", "replies counted in the last round")
            for last in run.traffic[-1:]
        ),
        *([(f"{best.value:.3f}", metric_name(best.metric) + which)] if best is not None else []),
        (" / ".join(map(text.amount, moved)), "up / down so far"),
        *([(f"{run.pace:.3g} s", "a round")] if run.pace is not None else []),
        *([(text.duration(left), "left, without evaluations")] if left is not None else []),
    ]


def _figures(status: Status, tint: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    for heading, caption, figure in (
        (
            "Rounds",
            "The metric (mean over people) and the training loss (mean over clients) after "
            "so many rounds; a line per method and seed.",
            _curves(status, tint),
        ),
        (
            "Bytes and replies",
            f"{name_of(status.now)}, seed {status.now.seed}: bytes over all "
            "clients, and replies asked for and counted, round by round.",
            _traffic(status.now),
        ),
    ):
        if figure is not None:
            svg = inline(figure, html.escape(f"{heading}. {caption}"))
            yield {"heading": heading, "caption": caption, "svg": Markup(svg)}


@styled
def _curves(status: Status, tint: Mapping[str, str]) -> Figure | None:
    measured = [run.headline for run in status.runs if run.headline is not None]
    names = [f"{measured[0].point}/{measured[0].metric}"] if measured else []
    names.append("train/loss")
    names = [n for n in names if any(run.curves.get(n) for run in status.runs)]
    if not names:
        return None
    figure = canvas(9.2, 2.9)
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        for run in status.runs:
            for i, line in enumerate(_by_seed(run.curves.get(name, ()))):
                axes.plot(
                    *line,
                    color=tint[run.label],
                    linewidth=1.4,
                    alpha=0.9,
                    marker="o" if len(line[0]) < 30 else None,
                    markersize=2.5,
                    label=None if i else name_of(run),
                )
        point, _, metric = name.partition("/")
        title = "training loss" if point == "train" else metric_name(metric)
        _dress(axes, title if point in ("train", "P0") else f"{title} at {point}")
    # Beyond a dozen entries the legend is higher than the figure.
    if 1 < len(status.runs) < 13:
        lines, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(lines, labels, loc="outside right center", fontsize=8)
    return figure


def _by_seed(curve: Curve | tuple[()]) -> Iterator[tuple[list[int], list[float]]]:
    for seed in sorted({s for s, _, _ in curve}):
        points = sorted((n, v) for s, n, v in curve if s == seed)
        yield [n for n, _ in points], [v for _, v in points]


@styled
def _traffic(run: MethodProgress) -> Figure | None:
    here = sorted(t for t in run.traffic if t.seed == run.seed and 0 < t.round <= run.rounds)
    if not here:
        return None
    figure = canvas(9.2, 2.5)
    left, right = figure.subplots(1, 2)
    rounds = [t.round for t in here]
    unit, name_of_unit = text.unit_of(max(max(t.up, t.down) for t in here))
    for values, name, colour in (
        ([t.up for t in here], "up", "#0072b2"),
        ([t.down for t in here], "down", "#e69f00"),
    ):
        left.step(rounds, [v / unit for v in values], where="mid", color=colour, label=name)
    _dress(left, f"{name_of_unit} a round")
    left.legend(fontsize=8)
    asked, counted = [t.asked for t in here], [t.counted for t in here]
    right.step(rounds, asked, where="mid", color=MUTED, label="asked")
    right.step(rounds, counted, where="mid", color="#009e73", label="counted")
    _dress(right, "replies a round")
    right.yaxis.set_major_locator(MaxNLocator(integer=True))
    for axes in (left, right):
        axes.set_ylim(bottom=0)
    right.legend(fontsize=8)
    return figure


def _dress(axes: Axes, title: str) -> None:
    axes.set(title=title, xlabel="round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.margins(x=0.02)


class PageServer(ThreadingHTTPServer):
    """A server of a folder's page for this machine alone, which reads and never writes."""

    daemon_threads = True

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.lock = folder, threading.Lock()
        self.made: tuple[object, str] = (None, "")
        self.took = 0.0
        try:
            super().__init__((HOST, port), _Handler)
        except (OSError, OverflowError) as error:
            raise StateError(
                f"cannot listen on {HOST}:{port} ({error}); choose another --serve PORT, 0 for any"
            ) from None

    def page(self) -> str:
        """Return the page, which is drawn again only if something was written since."""
        # The lock makes a second reader wait for the page, rather than draw it at the same time.
        with self.lock:
            began = time.perf_counter()
            now = status(self.folder)
            key = [(r.state, r.written, r.done) for r in now.runs], now.running, now.events
            if key != self.made[0]:
                self.made = key, page(now, max(EVERY, round(SPARING * self.took)))
                self.took = time.perf_counter() - began
            return self.made[1]


class _Handler(BaseHTTPRequestHandler):
    # A client that connects and sends nothing would hold a thread for ever.
    timeout = 5.0

    def version_string(self) -> str:
        # The library's answer names the version of Python, which helps nobody but an attacker.
        return "vergence"

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: a look at the page is no event of the run."""

    def do_GET(self) -> None:
        home = cast(PageServer, self.server)
        makers: dict[str, tuple[str, Callable[[], str]]] = {
            "/": ("text/html", home.page),
            "/status.json": ("application/json", lambda: text.as_json(status(home.folder))),
            "/metrics": ("text/plain; version=0.0.4", lambda: as_metrics(status(home.folder))),
            "/health": ("text/plain", lambda: health(status(home.folder))),
        }
        # DNS rebinding: a foreign site can make its own name lead to this address, and a browser
        # would let it read the answer. The Host header still holds the foreign name.
        if self.headers.get("Host", "").partition(":")[0] not in (HOST, "localhost"):
            self.answer(403, "text/plain", "only for this machine: use http://127.0.0.1\n")
        elif self.path not in makers:
            self.answer(404, "text/plain", f"there are {', '.join(makers)}\n")
        else:
            kind, make = makers[self.path]
            try:
                self.answer(200, kind, make())
            except VergenceError as error:
                self.answer(503 if self.path == "/health" else 500, "text/plain", f"{error}\n")
            # A file caught in the middle of a change: the next look may be good, and the server
            # must live to give it.
            except Exception as error:
                reason = f"{home.folder} cannot be shown ({type(error).__name__}: {error})"
                self.answer(500, "text/plain", f"{reason}\n")

    do_HEAD = do_GET  # noqa: N815

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        # The library answers every other verb with 501.
        unknown = code == 501
        reason = "only GET and HEAD" if unknown else message or "not understood"
        self.answer(405 if unknown else code, "text/plain", f"{reason}\n")

    def answer(self, code: int, kind: str, body: str) -> None:
        """Send an answer."""
        data = body.encode()
        self.send_response(code)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        if code == 405:
            self.send_header("Allow", "GET, HEAD")
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def serve(folder: Path, port: int, out: Console) -> None:
    """Serve the page on 127.0.0.1 until Ctrl-C.

    Raises:
        StateError: the folder holds no run, or the port is taken.
    """
    # A wrong folder is an error now, and not a page that says so to somebody later.
    status(folder)
    with PageServer(folder, port) as server:
        out.print(f"http://{HOST}:{server.server_port}/ until Ctrl-C", highlight=False)
        server.serve_forever()
