"""The documentation site: build without warnings, links, and pages in a browser."""

import functools
import importlib.util
import os
import subprocess
import sys
import threading
import time
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import pytest

from tests.browser import CHROMIUM, DESKTOP, PHONE, WIDTHS, Browser

ROOT = Path(__file__).parent.parent
SITE = ROOT / "docs" / "_build" / "html"
TOOLS = ("sphinx", "sphinx_gallery", "myst_nb", "numpydoc", "pydata_sphinx_theme")
MISSING = [name for name in TOOLS if importlib.util.find_spec(name) is None]
PAGES = (
    "index.html",
    "which_method.html",
    "results.html",
    "user_guide/engines.html",
    "user_guide/cluster.html",
    "auto_examples/plot_quickstart.html",
    "auto_examples/plot_compare_methods_digits.html",
    "notebooks/quickstart.html",
    "api/generated/sklearn_sharpbalance.SharpBalanceEnsembleClassifier.html",
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(MISSING), reason=f"needs {', '.join(MISSING)}: pip install -e '.[docs]'"
    ),
]
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="needs Chromium: apt-get install chromium"
)


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


@pytest.fixture(scope="module")
def address(site):
    """Return the address of a local server of the site."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            """Print nothing."""

    handler = functools.partial(Quiet, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def visit(browser, url, screen):
    """Open a page of the server, and wait until it is loaded."""
    browser.events.clear()
    browser.ask("Emulation.setDeviceMetricsOverride", **screen)
    browser.ask("Page.navigate", url=url)
    wait_for(browser, f"document.readyState == 'complete' && location.href == '{url}'")
    wait_for(browser, "[...document.images].every(i => i.complete || !i.src)", 5)


def wait_for(browser, condition, seconds=30):
    limit = time.monotonic() + seconds
    while not browser.evaluate(condition):
        assert time.monotonic() < limit, condition
        time.sleep(0.1)


def errors(browser):
    """Return errors of the console, without log messages of the theme."""
    return [
        event
        for event in browser.complaints()
        if event["method"] != "Runtime.consoleAPICalled"
        or event["params"]["type"] in ("error", "warning", "assert")
    ]


@needs_chromium
def test_pages_in_a_real_browser(address):
    with Browser() as browser:
        for screen in (DESKTOP, PHONE):
            for page in PAGES:
                visit(browser, address + page, screen)
                assert errors(browser) == [], page
                outside = [u for u in browser.requests() if not u.startswith(address)]
                assert outside == [], page
                wide, window = browser.evaluate(WIDTHS)
                assert wide <= window, page  # nothing is wider than the screen
                lazy = "i.loading == 'lazy'"  # those below the screen are not loaded
                loaded = f"[...document.images].every(i => {lazy} || i.naturalWidth)"
                assert browser.evaluate(loaded), page


@needs_chromium
def test_search_finds_pages(address):
    with Browser() as browser:
        visit(browser, address + "search.html?q=disagreement", DESKTOP)
        wait_for(
            browser, "document.querySelectorAll('#search-results li a').length > 0"
        )
        found = browser.evaluate(
            "[...document.querySelectorAll('#search-results li a')].map(a => a.href)"
        )
        assert any("disagreement_error_ratio" in link for link in found)
        assert errors(browser) == []
        assert not [u for u in browser.requests() if not u.startswith(address)]
