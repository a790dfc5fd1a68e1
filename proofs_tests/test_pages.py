"""The examples in the README and on the documentation's pages run as they are written."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def examples(page: Path) -> doctest.DocTest:
    """Return the Python blocks of a page as one doctest whose line numbers are the page's."""
    text = page.read_text()
    kept, at = "", 0
    for block in FENCE.finditer(text):
        kept += "\n" * text.count("\n", at, block.start(1)) + block[1] + "\n"
        at = block.end() + 1
    return doctest.DocTestParser().get_doctest(kept, {}, page.name, str(page), 0)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_examples_of_a_page_run(page: Path) -> None:
    said: list[str] = []
    outcome = doctest.DocTestRunner(verbose=False).run(examples(page), out=said.append)
    assert outcome.failed == 0, "".join(said)
