"""Who imports whom, file by file: no circles, arrows down, and what the library does without."""

import ast
import graphlib
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

TOP = Path(__file__).parents[1]
PACKAGES = ("atslib", "atsaudit", "atsfed", "atsbook")  # ground floor first

# The library's rooms, ground floor first: each imports only from those before it.
ROOMS = (
    "_torchvision",
    "_version",
    "errors",
    "rng",
    "files",
    "copying",
    "named",
    "checkpoints",
    "weights",
    "data",
    "policies",
    "measures",
    "models",
    "gradients",
    "clients",
    "attacks",
    "scores",
)
# Above all rooms. What it hands on to the audit, above the library, it takes by its name.
SHELL = (
    "atslib.__main__",
    "atslib.audit",
    "atslib.commands",
    "atslib.shell",
)


def files_of(top):
    """The source of every module of the packages, by its dotted name."""
    found = {}
    for package in PACKAGES:
        for path in sorted((top / package).rglob("*.py")):
            parts = path.relative_to(top).with_suffix("").parts
            is_package = parts[-1] == "__init__"
            found[".".join(parts[:-1] if is_package else parts)] = path.read_text()
    return found


def imports(source):
    """All that is imported anywhere in a file, also inside functions and for types alone.

    Of `from a import b` both "a" and "a.b", since b may be a module.
    """
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide where they point"
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def graph_of(files):
    """Module → those of `files` that it imports.

    `from package import module` is an arrow to the module. That Python runs a package's `__init__`
    before any module in it makes no arrow.
    """
    graph = {}
    for name, source in files.items():
        found = imports(source) & files.keys()
        packages = {other for other in found if any(o.startswith(f"{other}.") for o in found)}
        graph[name] = found - {
            package for package in packages if not _takes(source, package, files)
        }
    return graph


def _takes(source, package, files):
    """Whether a file takes a name from a package itself, and not only modules in it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module == package:
            taken = any(f"{package}.{alias.name}" not in files for alias in node.names)
        elif isinstance(node, ast.Import):
            taken = package in {alias.name for alias in node.names}
        else:
            continue
        if taken:
            return True
    return False


def circle_in(graph):
    """The modules of one circle, if there is any."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return None


FILES = files_of(TOP)
GRAPH = graph_of(FILES)
LIBRARY = [name for name in FILES if name.startswith("atslib") and name not in SHELL]
AUDIT = [name for name in FILES if name.startswith("atsaudit")]


def test_no_file_imports_itself_by_way_of_others():
    assert circle_in(GRAPH) is None


def taken(names, without):
    """Which of these modules imports something of the packages that it does without."""
    tops = {name: {module.split(".")[0] for module in imports(FILES[name])} for name in names}
    return {name: found & without for name, found in tops.items() if found & without}


def test_packages_import_from_those_below_them_alone():
    for floor, package in enumerate(PACKAGES):
        above = set(PACKAGES[floor + 1 :])
        assert taken([name for name in FILES if name.split(".")[0] == package], above) == {}


def test_library_and_audit_need_no_tables_and_no_plots():
    below = [*LIBRARY, *SHELL, *AUDIT]
    assert taken(below, {"pandas", "matplotlib"}) == {}


def test_of_a_federation_the_gate_alone_is_an_audit():
    own = [name for name in FILES if name.startswith("atsfed")]
    assert set(taken(own, {"atsaudit"})) == {"atsfed.gate"}


def upwards(names, floors, own):
    """Which of these modules imports one from a higher floor, and which, of those that begin so."""

    def floor(name):
        _, _, rest = name.partition(".")
        return floors.index(rest.split(".")[0]) if rest else len(floors)

    found = {
        name: {o for o in GRAPH[name] if o.startswith(own) and floor(o) > floor(name)}
        for name in names
    }
    return {name: others for name, others in found.items() if others}


def test_in_the_library_imports_point_down():
    assert upwards([name for name in LIBRARY if name != "atslib"], ROOMS, "atslib") == {}


# The book's rooms, ground floor first. What is next to another stands on its own floor too.
BOOK = (
    "integrity",
    "store",
    "kept",
    "networks",
    "functions",
    "attackers",
    "experiment",
    "findings",
    "figures",
    "runs",
    "page",
    "bench",
    "widgets",
    "texts",
    "report",
    "commands",
    "__main__",
)


def test_in_the_book_imports_point_down():
    assert upwards([name for name in FILES if name.startswith("atsbook.")], BOOK, "atsbook.") == {}


@pytest.mark.process
def test_the_library_runs_without_pandas_matplotlib_and_the_other_packages():
    without = ["pandas", "matplotlib", *PACKAGES[1:]]
    code = (
        "import importlib, sys\n"
        f"for name in {without}: sys.modules[name] = None\n"
        f"for name in {[*LIBRARY, *SHELL]}: importlib.import_module(name)\n"
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


# --- that the tests see what they are to see ----------------------------------------------------------------


@pytest.mark.parametrize(
    "back",
    [
        "import atslib.b",
        "from atslib import b",
        "from atslib.b import x",
        "def f():\n    from atslib.b import x",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from atslib.b import x",
    ],
)
def test_every_kind_of_circle_is_seen(back):
    files = {"atslib": "", "atslib.a": back, "atslib.b": "from atslib.a import y"}
    assert set(circle_in(graph_of(files))) == {"atslib.a", "atslib.b"}


def test_a_package_that_imports_its_modules_is_no_circle():
    files = {
        "atslib.p": "from atslib.p.a import x\nfrom atslib.p import b",
        "atslib.p.a": "from atslib.p import b",
        "atslib.p.b": "",
    }
    assert circle_in(graph_of(files)) is None
    files["atslib.p.b"] = "from atslib.p import x"  # a name of the package itself
    assert circle_in(graph_of(files)) is not None


@pytest.mark.parametrize("package", PACKAGES)
def test_all_packages_are_looked_at(package):
    assert sum(name.startswith(package) for name in FILES) > 5
    assert sum(len(GRAPH[name]) for name in FILES if name.startswith(package)) > 5


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
