"""Who imports whom, by the contracts of pyproject.toml, and what the library does without."""

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

TOP = Path(__file__).parents[1]
PACKAGES = ("atslib", "atsaudit", "atsfed", "atsbook")  # ground floor first
LINT = "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_cache=True))"


def linted(top):
    """The end of a check of all contracts on the packages in a folder."""
    return subprocess.run([sys.executable, "-c", LINT], capture_output=True, text=True, cwd=top)


def test_imports_keep_the_contracts():
    done = linted(TOP)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_contract_is_broken_by_an_import_against_it(tmp_path):
    shutil.copy(TOP / "pyproject.toml", tmp_path)
    for package in PACKAGES:
        shutil.copytree(TOP / package, tmp_path / package, ignore=lambda folder, _: {"__pycache__"})
    wrong = {
        "atsfed/rounds.py": "import atsbook.store",  # a package from one above it
        "atslib/data/shapes.py": "def late():\n    from atslib.attacks import attack",
        "atsbook/findings/compare.py": "from atsbook.runs.study import Study",
        "atslib/attacks/attack.py": "if TYPE_CHECKING:\n    from atslib.attacks.run import run",
        "atsfed/peers.py": "from atsaudit.config import Case",
        "atslib/rng.py": "def late():\n    import pandas",
    }
    for file, line in wrong.items():
        (tmp_path / file).write_text(f"{(tmp_path / file).read_text()}\n{line}\n")
    done = linted(tmp_path)
    contracts = tomllib.loads((TOP / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
    kept = [c["name"] for c in contracts if f"{c['name']} BROKEN" not in done.stdout]
    assert (done.returncode, kept) == (1, []), done.stdout + done.stderr


@pytest.mark.process
def test_the_library_runs_without_pandas_matplotlib_and_the_other_packages():
    files = [path.relative_to(TOP).with_suffix("") for path in (TOP / "atslib").rglob("*.py")]
    names = [".".join(file.parts).removesuffix(".__init__") for file in files]
    without = ["pandas", "matplotlib", *PACKAGES[1:]]
    code = (
        "import importlib, sys\n"
        f"for name in {without}: sys.modules[name] = None\n"
        f"for name in {names}: importlib.import_module(name)\n"
        "print('all')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=TOP)
    assert done.stdout.strip() == "all", done.stderr


def test_importing_the_library_does_not_import_torch():
    code = "import sys, atslib; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=TOP
    )
    assert done.stdout.strip() == "False"


def test_a_wheel_has_every_file_of_its_packages():
    build = tomllib.loads((TOP / "pyproject.toml").read_text())["tool"]["setuptools"]
    held = [name for name in PACKAGES if f"{name}*" in build["packages"]["find"]["include"]]
    assert held == ["atslib", "atsaudit", "atsfed"]
    for package in held:
        patterns = build["package-data"].get(package, [])
        others = {path.relative_to(TOP / package) for path in (TOP / package).rglob("*.*")}
        others = {p for p in others if p.suffix not in (".py", ".pyc")}
        assert [str(p) for p in others if not any(map(p.match, patterns))] == []


def test_no_release_with_a_known_hole_is_allowed():
    fixed = {
        "jinja2": "3.1.6",
        "pillow": "12.2",
        "distributed": "2026.1",
        "tornado": "6.5.5",
    }
    project = tomllib.loads(Path(__file__).parents[1].joinpath("pyproject.toml").read_text())
    project = project["project"]
    extras = project["optional-dependencies"].values()
    asked = [*project["dependencies"], *(line for lines in extras for line in lines)]
    found = {}
    for line in asked:
        name, _, bound = line.partition(";")[0].partition(">=")
        found.setdefault(name.strip(), []).append(bound.partition(",")[0].strip())

    def numbers(version):
        return [int(part) for part in version.split(".")]

    for name, first in fixed.items():
        assert found[name], name
        assert all(numbers(bound) >= numbers(first) for bound in found[name]), name
