"""The house: imports point down, every package says what is in it and how to add to it, and nothing
grows too large.
"""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import atslib
from atsbook.pages import PAGES

ROOT = Path(atslib.__file__).parent
FILES = sorted(path for path in ROOT.rglob("*.py") if "__pycache__" not in path.parts)
PACKAGES = sorted(path.parent for path in FILES if path.name == "__init__.py")
# From the ground up: a room imports from those before it only.
ROOMS = (
    *(
        "errors",
        "rng",
        "files",
        "remote",
        "store",
        "transport",
        "_torchvision",
        "data",
        "policies",
        "measures",
        "models",
        "gradients",
    ),
    *("clients", "attacks", "scores", "report", "commands", "__main__"),
)
REPORT = (
    "bench",
    "estimate",
    "reported",
    "result",
    "verdicts",
    "compare",
    "plots",
    "sheets",
    "space",
    "units",
    "lines",
    "pages",
    "book",
    "widgets",
    "run",
)


def name(path):
    return path.relative_to(ROOT).as_posix()


def imports(source):
    """The modules of this package that a source imports, wherever in it, as dotted names without
    `atslib`.
    """
    modules = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide where they point"
            modules |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
    return {
        module.removeprefix("atslib.") for module in modules if module.split(".")[0] == "atslib"
    }


def upward(rooms, here, source, within=""):
    """What a file in room `here` of `rooms` imports from a room after it."""
    targets = [
        m.removeprefix(within).split(".")[0] for m in imports(source) if m.startswith(within)
    ]
    return {room for room in targets if room in rooms and rooms.index(room) > rooms.index(here)}


def test_every_file_is_in_a_room_of_the_list():
    assert {name(path).split("/")[0].removesuffix(".py") for path in FILES} == {*ROOMS, "__init__"}
    inside = {
        name(path).split("/")[1].removesuffix(".py")
        for path in FILES
        if name(path).startswith("report/")
    }
    assert inside == {*REPORT, "__init__"}


@pytest.mark.parametrize(
    "path", [path for path in FILES if path.parent != ROOT or path.stem in ROOMS], ids=name
)
def test_imports_point_down(path):
    parts = name(path).removesuffix(".py").split("/")
    assert not upward(ROOMS, parts[0], path.read_text())
    if parts[0] == "report" and parts[1] in REPORT:
        assert not upward(REPORT, parts[1], path.read_text(), "report.")


def test_the_library_itself_imports_neither_the_report_nor_the_shell():
    code = (
        "import sys, atslib; [getattr(atslib, name) for name in atslib.__all__]; "
        "above = [m for m in sys.modules if m.startswith(('atsbook', 'atslib.commands'))]; "
        "print(above, 'atslib.scores' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] True"


@pytest.mark.parametrize(
    ("room", "source", "above"),
    [
        ("data", "from atslib.clients.prepare import prepare", {"clients"}),
        ("scores", "def run():\n    import atsbook.runs", {"report"}),
        ("attacks", "from atslib import scores, errors", {"scores"}),
        ("attacks", "from atslib.gradients.problems import DISTANCES", set()),
    ],
)
def test_an_arrow_upward_is_seen(room, source, above):
    assert upward(ROOMS, room, source) == above


@pytest.mark.parametrize("package", PACKAGES[1:], ids=name)
def test_a_package_names_its_modules_and_says_how_to_add_one(package):
    words = ast.get_docstring(ast.parse((package / "__init__.py").read_text()))
    assert "To add " in words
    modules = {path.stem for path in package.glob("*.py")} | {
        path.name for path in PACKAGES if path.parent == package
    }
    listed = set(PAGES) if package.name == "pages" else set()  # those are found by their file name
    assert not modules - listed - {"__init__"} - set(re.findall(r"`(\w+)", words))


# They have functions with all the arguments of torch's.
LARGE = ("gradients/per_example", "models")


@pytest.mark.parametrize(
    "path", [path for path in FILES if name(path).removesuffix(".py") not in LARGE], ids=name
)
def test_a_module_and_its_functions_are_of_a_size_to_read(path):
    source = path.read_text()
    assert len(source.splitlines()) <= 300
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno - node.lineno < 40, f"{node.name} has more than 40 lines"
            assert len(node.args.posonlyargs) + len(node.args.args) <= 6, (
                f"{node.name} takes too much by position"
            )
