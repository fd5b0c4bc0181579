"""The count of words leaves out what is generated, and results."""

from tests.conftest import ROOT
from tools import docs_word_count, reference_pages


def test_generated_pages_and_parts_and_results_are_left_out(tmp_path):
    pages = {
        "README.md": "# One\n\ntwo three\n",
        "ARCHITECTURE.md": "# One\n\n| two | |\n",
        "docs/index.md": "# One\n\ntwo\n\n<!-- Written by a command; change it. -->\n\nmore\n",
        "docs/reference/cli.md": f"# One\n\n{reference_pages.NOTICE}\n\nmore words\n",
        "docs/results/one.md": "# One\n\ntwo\n",
    }
    for name, text in pages.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    found = dict(docs_word_count.hand_written(tmp_path))
    assert found == {"README.md": 4, "ARCHITECTURE.md": 6, "docs/index.md": 3}


def test_of_the_pages_here_none_that_is_written_is_counted():
    found = dict(docs_word_count.hand_written(ROOT))
    assert not found.keys() & {f"docs/{name}" for name in reference_pages.pages()}
    assert {"README.md", "docs/how-to/python.md", "docs/reference/composition.md"} <= found.keys()
