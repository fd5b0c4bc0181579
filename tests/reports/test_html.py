"""The page and its figures over a study whose every number is known."""

import hashlib
import re
import shutil

import numpy as np
import pytest
from PIL import Image

from tests.made_up_runs import N, write_study
from vergence.errors import ConfigError, DataError
from vergence.reports import html as reporting
from vergence.reports.html import FIGURES, figure, report
from vergence.reports.plots import gaze_maps
from vergence.reports.plots.masks import chance
from vergence.results.figure_style import COLOURS, colours, save
from vergence.results.read import read
from vergence.video.overlay import write_overlay


@pytest.fixture(scope="module")
def page(out) -> str:
    return report(out).read_text(encoding="utf-8")


@pytest.fixture
def plain(monkeypatch):
    """A page of words and tables: drawing takes most of its time."""
    monkeypatch.setattr(reporting, "SECTIONS", ())


def test_page_carries_the_numbers(page):
    """Mean 2.75 [2.45, 3.05], worst 2.60; against FedAvg +0.400 [0.109, 0.691], 4 of 4."""
    for told in ("2.75", "[2.45, 3.05]", "2.60", "+0.400", "[0.109, 0.691]", "4 of 4", "0.0054"):
        assert told in page
    assert "Best mean of the trained methods: FedCPF, NSS 2.75" in page


@pytest.mark.usefixtures("plain")
def test_page_says_which_pairs_are_different(tmp_path, page):
    """Four people's Wilcoxon p is 2 / 2^4 at least; of eight 2 / 2^8, three times that by Holm."""
    assert page.count('<td class="left">no difference shown</td>') == 4
    assert page.count('<tr class="dim">') == 4
    assert "better for 4 of 4 people; no difference shown (Holm&#39;s p 0.375" in page
    eight = report(write_study(tmp_path / "OUT", people=8)).read_text(encoding="utf-8")
    assert eight.count('<td class="left">different</td>') == 4
    assert "better for 8 of 8 people; different (Holm&#39;s p 0.023)" in eight


@pytest.mark.usefixtures("plain")
def test_page_says_what_its_runs_differ_in_above_the_tables(out, tmp_path, page):
    assert 'class="warn"' not in page
    copy = shutil.copytree(out, tmp_path / "OUT")
    told = copy / "fedcpf" / "results.json"
    told.write_text(told.read_text().replace('"rounds": 6', '"rounds": 9'))
    changed = report(copy).read_text(encoding="utf-8")
    note = "Note: rounds differs: local_only has 6; fedcpf has 9"
    assert 0 < changed.index(note) < changed.index("<table>")


def test_page_marks_priors_and_the_worst_person(page):
    assert page.count('<span class="tag">prior</span>') == 2
    assert page.count('other people<span class="tag">reference</span>') == 1
    block = page[page.index('id="people"') : page.index("<details>")]
    worst = re.findall(r'<tr><th scope="row">(p\d)</th>(.*?)</tr>', block, flags=re.DOTALL)
    marked = {person for person, cells in worst if 'class="worst' in cells}
    assert marked == {"p1", "p2"}, "p1 for local-only and FedAvg, p2 for FedCPF"


def test_page_is_one_file_without_the_network(page):
    assert not re.search(r"""(src|href|url|action)\s*[=(]\s*["']?\s*(https?:)?//""", page)
    assert "http" not in page
    assert page.count("<script>") == page.count("<script") == 1
    assert "<link" not in page


def test_tables_have_captions_and_scopes(page):
    assert page.count("<table>") == page.count("<caption>") > 5
    assert not re.findall(r"<th(?! scope=)[ >]", page)
    assert page.index("<main>") < page.index("<table>") < page.index("</main>")


def test_without_its_script_the_page_says_all_and_offers_no_dead_buttons(page):
    """Titles are the browser's own hover texts; the switches appear with the script alone."""
    assert page.count('<p class="keys" hidden>') == 2, "of the two figures with curves"
    assert re.search(r'<g class="point"><title>FedCPF, round 5: \d', page)
    assert re.search(r'<g class="point"><title>p1: 2\.\d\d</title>', page), "a dot is a person"
    assert "hover:" not in page


def test_every_curve_can_be_switched_off_and_told_apart(page):
    figure = page[page.index('<h2 id="convergence">') : page.index('<h2 id="bytes">')]
    offered = re.findall(r'<button type="button" aria-pressed="true" data-curve="(\d)">', figure)
    assert offered == ["0", "1", "2"]
    dashes = []
    for number in offered:
        parts = re.findall(rf'<g data-curve="{number}">(.*?)</g>', figure, re.DOTALL)
        assert len(parts) == 4, "band, line, name and points"
        dashes.append(tuple(re.findall(r"stroke-dasharray: ([\d., ]+)", "".join(parts[:2]))))
    assert len(set(dashes)) == 3
    assert 'id="curve-' not in page


def test_a_figure_saved_as_svg_has_titles_and_no_links(out, tmp_path):
    svg = figure(out, "convergence", tmp_path / "c.svg").read_text(encoding="utf-8")
    assert "<title>FedAvg, round 5: " in svg
    assert 'href="hover' not in svg


def test_page_has_every_section_and_repeats_the_run(page):
    for name in ("persons", "slope", "convergence", "masks", "layers", "overlap", "bytes", "strip"):
        assert f'<h2 id="{name}">' in page
    assert page.count("<svg") == page.count("</svg>") == 9
    assert "vergence run experiments/osie.toml --out OUT" in page
    assert "Xu et al. 2014" in page
    assert "method = { name = &#34;fedcpf&#34; }" in page
    assert hashlib.sha256(b"fedcpf0").hexdigest() in page


def test_figures_follow_the_page_colours(page):
    assert "var(--ink)" in page
    assert "#1b1f24" not in page[page.index("<figure>") :]


def test_lost_turns_are_reported(page):
    assert re.search(r'<th scope="row">FedCPF</th><td class="left">lost</td><td>1</td>', page)


def test_single_run_has_its_own_page(out, tmp_path):
    copy = shutil.copytree(out, tmp_path / "OUT")
    path = report(copy / "fedcpf")
    assert path == copy / "fedcpf" / "report.html"
    text = path.read_text(encoding="utf-8")
    assert "2.75" in text
    assert "centre" in text, "priors come from the index above"
    assert 'id="slope"' not in text


@pytest.mark.usefixtures("plain")
def test_text_from_files_is_escaped(out, tmp_path):
    copy = shutil.copytree(out, tmp_path / "OUT")
    turns = copy / "fedavg" / "turns.csv"
    turns.write_text(turns.read_text().replace(",lost", ",quarantined: <b>nan</b>"))
    assert "quarantined: &lt;b&gt;nan&lt;/b&gt;" in report(copy).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "name", [n for n in FIGURES if n not in {"tokens", "classes", "per_class", "groups"}]
)
def test_each_figure_alone_is_a_picture(out, tmp_path, name):
    path = figure(out, name, tmp_path / f"{name}.png")
    pixels = np.asarray(Image.open(path).convert("RGB")).astype(float)
    assert pixels.shape[0] > 300
    assert pixels.std() > 8
    ink = (pixels.min(axis=2) < 200).mean()
    assert 0.005 < ink < 0.95


def test_method_colours_appear_in_the_convergence_figure(out, tmp_path):
    path = figure(out, "convergence", tmp_path / "c.png")
    pixels = np.asarray(Image.open(path).convert("RGB")).reshape(-1, 3)
    for method in ("fedcpf", "fedavg", "local_only"):
        rgb = [int(COLOURS[method][i : i + 2], 16) for i in (1, 3, 5)]
        assert (pixels == rgb).all(axis=1).sum() > 200, method


def test_a_method_keeps_its_colour_in_any_company(out):
    both, alone = read(out), read(out / "fedcpf")
    assert colours(both.runs)["fedcpf"] == colours(alone.runs)["fedcpf"] == COLOURS["fedcpf"]
    assert len(set(colours(both.runs).values())) == 3


def test_token_picture_of_a_clip(tmp_path):
    """A clip of six flat frames, decoded again, drawn as four frames and 128 local tokens."""
    frames = [np.full((64, 80, 3), 60 + 20 * i, np.uint8) for i in range(6)]
    heats = [np.ones((4, 4), np.float32)] * 6
    clip = tmp_path / "clip.mp4"
    write_overlay(clip, frames, [i / 10 for i in range(6)], heats, [(0.5, 0.5)] * 6)
    shown = gaze_maps.read_clip(clip)
    assert len(shown) == 4
    path = save(gaze_maps.tokens(shown), tmp_path / "tokens.png")
    assert np.asarray(Image.open(path)).std() > 20


def test_token_picture_needs_a_real_video(tmp_path):
    broken = tmp_path / "broken.mp4"
    broken.write_bytes(b"not a video")
    with pytest.raises(DataError, match=r"cannot read .*broken\.mp4"):
        gaze_maps.read_clip(broken)


@pytest.mark.parametrize(
    ("name", "path", "told"),
    [
        ("slopes", "a.png", "no figure 'slopes'.*did you mean 'slope'"),
        ("slope", "a.gif", "'gif' is no format"),
    ],
)
def test_unknown_names_suggest_the_nearest(out, tmp_path, name, path, told):
    with pytest.raises(ConfigError, match=told):
        figure(out, name, tmp_path / path)
    assert not list(tmp_path.iterdir())


def test_a_figure_says_what_it_needs(out, tmp_path):
    with pytest.raises(ConfigError, match="'layers' needs a method with personal masks"):
        figure(out / "fedavg", "layers", tmp_path / "a.png")
    with pytest.raises(ConfigError, match="'slope' needs a local-only run"):
        figure(out / "fedcpf", "slope", tmp_path / "a.png")


def test_masks_by_hand(out):
    """N = 1744 entries, 872 personal: the first 436 for all, 436 of the last 1308 at random.

    The embedding holds 432 + 16 = 448 entries, so its share is at least 436 / 448 = 0.9732.
    Two masks share 436 + about 436^2 / 1308 = 145 of 872 + 872 - 581 = 1163: Jaccard near 0.50.
    """
    masks = read(out).run("fedcpf").masks
    assert masks is not None
    assert masks.n == N == 1744
    assert masks.people == ["p1", "p2", "p3", "p4"]
    assert set(masks.totals().values()) == {0.5}
    groups = masks.layers()
    assert list(groups) == ["embed", "block.0.qkv", "block.0.mlp", "head"]
    shares = masks.shares(groups)
    assert shares.shape == (4, 4)
    assert (shares[0] >= 436 / 448).all()
    sizes = np.array([448, 768, 512, 16])
    np.testing.assert_allclose(sizes @ shares, 872)
    overlap = masks.overlap()
    np.testing.assert_array_equal(np.diag(overlap), 1)
    np.testing.assert_array_equal(overlap, overlap.T)
    assert 0.47 < overlap[0, 1] < 0.53
    assert chance(masks) == pytest.approx(1 / 3)


def test_layers_are_grouped_until_they_fit(out):
    masks = read(out).run("fedcpf").masks
    assert masks is not None
    assert list(masks.layers(most=3)) == ["embed", "block.0", "head"]


def test_traffic_adds_up(out):
    """FedCPF sends 5,400 bytes per client and round for 6 rounds: 32,400 at the end."""
    rounds, total = read(out).run("fedcpf").traffic()
    assert rounds.tolist() == [0, 1, 2, 3, 4, 5]
    np.testing.assert_allclose(total[0], 5400 * np.arange(1, 7))
    assert total[1, -1] == 60_000


def test_mask_growth_of_each_person(out):
    """The made-up share grows by 0.1 per round up to 0.5, alike for all four people."""
    grown = read(out).run("fedcpf").growth_of_people()
    assert list(grown) == ["p1", "p2", "p3", "p4"]
    rounds, share = grown["p3"]
    assert rounds.tolist() == [0, 1, 2, 3, 4, 5]
    np.testing.assert_allclose(share, [[0, 0.1, 0.2, 0.3, 0.4, 0.5]] * 2)
    assert read(out).run("fedavg").growth_of_people() == {}
