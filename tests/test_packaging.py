"""Metadata, workflows, and the installed package."""

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import sklearn_sharpbalance

yaml = pytest.importorskip("yaml", reason="needs PyYAML: pip install PyYAML")

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "sklearn_sharpbalance"
GITHUB = ROOT / ".github"
CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = CONFIG["project"]


def read_yaml(path):
    return yaml.safe_load(path.read_text())


# Metadata ---------------------------------------------------------------------------


def test_all_files_have_the_same_version():
    version = sklearn_sharpbalance.__version__
    assert PROJECT["version"] == version
    assert str(read_yaml(ROOT / "CITATION.cff")["version"]) == version
    assert version in (ROOT / "CHANGELOG.md").read_text()


def relative_links(text):
    """Return relative targets of Markdown links and pictures."""
    return [
        target
        for target in re.findall(r"\]\(([^)]*)\)", text)
        if not re.match(r"https?://|#", target)
    ]


def long_description():
    """Return the README after the substitutions of pyproject.toml."""
    text = (ROOT / "README.md").read_text()
    hook = CONFIG["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    for each in hook["substitutions"]:
        replacement = each["replacement"].replace("$HFPR_VERSION", PROJECT["version"])
        text = re.sub(each["pattern"], replacement, text)
    return text


def test_links_of_the_long_description_are_absolute():
    before = relative_links((ROOT / "README.md").read_text())
    assert len(before) > 5
    text = long_description()
    assert relative_links(text) == []
    for target in before:
        assert f"/v{PROJECT['version']}/{target})" in text
    for figure in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text):
        assert figure.startswith("https://raw.githubusercontent.com/")


# Continuous integration -------------------------------------------------------------


def test_the_oldest_versions_are_the_lower_bounds():
    extras = PROJECT["optional-dependencies"]
    frames = [text for text in extras["test"] if text.startswith("polars")]
    needed = [*PROJECT["dependencies"], *extras["dask"], *extras["onnx"], *frames]
    wanted = {}
    for requirement in map(Requirement, needed):
        (bound,) = requirement.specifier
        assert bound.operator == ">="
        wanted[requirement.name] = Version(bound.version)
    lines = (GITHUB / "oldest.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if not line.startswith("#")]
    found = {pin.name: Version(str(pin.specifier).removeprefix("==")) for pin in pins}
    del found["pyparsing"]  # of matplotlib
    assert found == wanted
    assert list(found) == sorted(found, key=str.lower)


# The distributions ------------------------------------------------------------------

USE = """
import sys
from importlib.metadata import distribution
from pathlib import Path

import numpy as np
from sklearn.datasets import load_iris

import sklearn_sharpbalance
from sklearn_sharpbalance import SharpBalanceEnsembleClassifier, load

here = Path(sys.prefix).resolve()
assert Path(sklearn_sharpbalance.__file__).resolve().is_relative_to(here)
installed = distribution("sklearn-sharpbalance")
assert Path(installed.locate_file("")).resolve().is_relative_to(here)
assert installed.version == sklearn_sharpbalance.__version__

X, y = load_iris(return_X_y=True)
clf = SharpBalanceEnsembleClassifier(max_epochs=20, random_state=0).fit(X, y)
assert clf.score(X, y) > 0.9
clf.save("model.safetensors")
again = load("model.safetensors")
np.testing.assert_array_equal(again.predict_proba(X), clf.predict_proba(X))
print("used", installed.version)
"""


def run(*command, cwd):
    """Run a command outside of the repository."""
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [*map(str, command)],
        cwd=cwd,
        env=kept,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def distributions(tmp_path_factory):
    """Return the sdist, and the wheel that is built from it."""
    for name in ("build", "twine"):
        pytest.importorskip(name, reason=f"needs {name}: pip install {name}")
    folder = tmp_path_factory.mktemp("dist")
    here = all(find_spec(name) for name in ("hatchling", "hatch_fancy_pypi_readme"))
    options = ["--no-isolation"] if here else []
    build = [sys.executable, "-m", "build", *options, "--outdir", folder, ROOT]
    run(*build, cwd=folder)
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return sdist, wheel


@pytest.mark.slow
def test_twine_accepts_the_distributions(distributions, tmp_path):
    check = [sys.executable, "-m", "twine", "check", "--strict"]
    assert run(*check, *distributions, cwd=tmp_path).count("PASSED") == 2


@pytest.mark.slow
def test_the_sdist_has_the_sources_and_no_results(distributions):
    sdist, _ = distributions
    assert sdist.stat().st_size < 1_500_000
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    top = {name.partition("/")[0] for name in names}
    files = {"CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE", "README.md"}
    files |= {"PKG-INFO", "pyproject.toml", ".gitignore"}
    assert top == files | {"examples", "sklearn_sharpbalance", "tests"}
    caches = r"/\.\w+_cache|__pycache__|\.pyc|\.hypothesis|\.ipynb_checkpoints"
    unwanted = rf"benchmarks/results|{caches}"
    assert not [name for name in names if re.search(unwanted, name)]


@pytest.mark.slow
def test_the_wheel_has_the_package_and_its_metadata(distributions):
    _, wheel = distributions
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (at,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(at).decode())
    mine = {name for name in names if ".dist-info/" not in name}
    sources = {*PACKAGE.rglob("*.py"), PACKAGE / "py.typed"}
    assert mine == {path.relative_to(ROOT).as_posix() for path in sources}
    assert metadata["License-Expression"] == "MIT"
    assert metadata.get_all("License-File") == ["LICENSE"]
    assert metadata["Description-Content-Type"] == "text/markdown"
    description = metadata.get_payload()
    assert description.strip() == long_description().strip()
    assert relative_links(description) == []


@pytest.mark.slow
def test_the_installed_wheel_works(distributions, tmp_path):
    """In a new environment with the dependencies of this one."""
    _, wheel = distributions
    run(sys.executable, "-m", "venv", "--without-pip", "new", cwd=tmp_path)
    (python,) = (tmp_path / "new").glob(
        "*/python.exe" if os.name == "nt" else "bin/python"
    )
    site = run(
        python,
        "-Ic",
        "import sysconfig; print(sysconfig.get_path('purelib'))",
        cwd=tmp_path,
    )
    # As plain paths, so that files of an editable install are not read.
    borrowed = [
        p for p in sys.path if Path(p).name in ("site-packages", "dist-packages")
    ]
    Path(site.strip(), "borrowed.pth").write_text("\n".join(borrowed) + "\n")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps"]
    run(*pip, "--ignore-installed", "--no-index", wheel, cwd=tmp_path)
    used = run(python, "-Ic", USE, cwd=tmp_path)
    assert used.split() == ["used", PROJECT["version"]]
