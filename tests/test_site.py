"""The documentation site: build without warnings, links, and pages in a browser."""

import importlib.util
import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import pytest

ROOT = Path(__file__).parent.parent
SITE = ROOT / "docs" / "_build" / "html"
TOOLS = ("sphinx", "sphinx_gallery", "myst_nb", "numpydoc", "pydata_sphinx_theme")
MISSING = [name for name in TOOLS if importlib.util.find_spec(name) is None]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(MISSING), reason=f"needs {', '.join(MISSING)}: pip install -e '.[docs]'"
    ),
]


@pytest.fixture(scope="module")
def site():
    """Return the site after its build."""
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-b", "html"]
    run = subprocess.run(
        [*command, "docs", "docs/_build/html"],
        cwd=ROOT,
        env=os.environ | {"MPLBACKEND": "Agg"},
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    return SITE


class Links(HTMLParser):
    """Collect the ids and links of a page."""

    def __init__(self, path):
        super().__init__()
        self.ids, self.targets, self.text = set(), [], []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.ids |= {attrs[key] for key in ("id", "name") if attrs.get(key)}
        if tag in ("a", "link", "img", "script", "source"):
            self.targets += [attrs[k] for k in ("href", "src") if attrs.get(k)]

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def crawled(site):
    pages = (path for path in site.rglob("*.html") if "_static" not in path.parts)
    return {path: Links(path) for path in pages}


def test_no_internal_link_is_broken(crawled):
    assert len(crawled) > 200
    broken = []
    for path, page in crawled.items():
        for target in page.targets:
            parts = urlsplit(urljoin(path.as_uri(), target))
            if parts.scheme != "file":
                continue
            there = Path(unquote(parts.path))
            known = crawled.get(there)
            fragment = unquote(parts.fragment)
            if not there.exists() or (known and fragment and fragment not in known.ids):
                broken.append((path.name, target))
    assert not broken


def test_pages_load_nothing_from_outside(crawled):
    for path in crawled:
        text = path.read_text(encoding="utf-8")
        for start in ('src="http', 'src="//', '@import "http', "url(http"):
            assert start not in text, (path.name, start)


def test_no_template_is_left_unfilled(crawled):
    for path, page in crawled.items():
        if "user_guide" in path.parts or path.parent == SITE:
            assert "{{" not in "".join(page.text), path.name
