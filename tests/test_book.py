"""The book's sources: nothing missing, nothing run or fetched, and the answers that the results
give.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import jinja2
import pandas as pd
import pytest
import yaml
from checks import exports, refused
from docutils import nodes
from extensions import load_extension

from atsbook.evidence.archive import Archive
from atsbook.report.making import picture_of
from atsbook.texts.answers import claims
from atsbook.texts.first_screen import numbers
from atsbook.texts.start import cells, claim, rendered, start
from atslib.files import project_root

pytestmark = pytest.mark.notebook

ROOT = project_root()
BOOK = ROOT / "book"
TOC = yaml.safe_load((BOOK / "_toc.yml").read_text())
CONFIG = yaml.safe_load((BOOK / "_config.yml").read_text())
SURPRISES = (BOOK / "what_surprised_us.md").read_text()


def listed(node):
    """Every file that the table of contents names."""
    if isinstance(node, list):
        return [file for each in node for file in listed(each)]
    if isinstance(node, dict):
        own = [value for key, value in node.items() if key in ("root", "file")]
        return own + [
            file for value in node.values() if isinstance(value, list) for file in listed(value)
        ]
    return []


@pytest.mark.parametrize("name", listed(TOC))
def test_every_page_of_the_contents_is_there(name):
    if name.startswith("results/"):
        assert (ROOT / "notebooks" / f"{name.removeprefix('results/')}.ipynb").exists()
        if not (BOOK / f"{name}.ipynb").exists():
            pytest.skip(
                f"{name} is not executed yet: python -m atsbook run {name.removeprefix('results/')}"
            )
        return
    assert [path for path in BOOK.glob(f"{name}.*") if path.suffix in (".md", ".ipynb")]


def test_every_executed_page_is_in_the_contents():
    pages = {path.stem for path in (BOOK / "results").glob("*.ipynb") if ".failed" not in path.name}
    assert {f"results/{page}" for page in pages} <= set(listed(TOC))


def test_building_the_book_runs_nothing_and_uses_the_extension():
    assert CONFIG["execute"]["execute_notebooks"] == "off"
    assert CONFIG["only_build_toc_files"] is True
    own = ("plain", "reading", "publishing")
    assert CONFIG["sphinx"]["local_extensions"] == dict.fromkeys(own, "extensions")
    assert set(own) <= set(CONFIG["sphinx"]["config"]["extensions"])


def test_no_folder_is_named_static():
    """Sphinx book theme would load every script of a `_static` folder on every page."""
    assert not [
        path for path in BOOK.rglob("_static") if "_build" not in path.relative_to(BOOK).parts
    ]


FETCHES = re.compile(
    r"""@import\b|url\(\s*["']?(https?:)?//|<(script|link|img|iframe)\b[^>]*(https?:)?//""", re.I
)


def test_the_books_own_styles_and_pictures_fetch_nothing():
    files = [
        path for path in (BOOK / "assets").rglob("*") if path.suffix in (".css", ".svg", ".html")
    ]
    assert files
    for path in files:
        assert not FETCHES.search(
            re.sub(r"data:image/\w+;base64,[\w+/=]+", "data:", path.read_text())
        ), path.name


@pytest.mark.parametrize(
    "text",
    ["@import 'a.css';", "a { src: url(//x.org/a) }", "a { b: url( 'https://x.org/a.png') }"],
)
def test_a_fetch_is_found(text):
    assert FETCHES.search(text)
    assert FETCHES.search('<script defer src="https://x.org/a.js">')


def test_scripts_and_styles_that_sphinx_adds_are_files_of_the_book():
    sphinx = CONFIG["sphinx"]["config"]
    added = [
        *sphinx.get("html_css_files", []),
        *sphinx.get("html_js_files", []),
        sphinx["mathjax_path"],
    ]
    folders = [BOOK / folder for folder in sphinx["html_static_path"]]
    for name in added:
        assert any((folder / name).is_file() for folder in folders), name


README = (ROOT / "README.md").read_text()
REPRODUCE = (BOOK / "reproduce.md").read_text()


def test_the_readmes_example_runs_as_printed_without_any_file(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ATS_DATA", str(tmp_path / "empty"))
    (code,) = re.findall(r"^```python\n(.*?)^```$", README, re.M | re.S)
    exec(code, {"__name__": "snippet"})
    said = capfd.readouterr()
    lines = [
        r"none: rebuilt 100%, by gradients 100% of 8 picked out",
        r"3-1-7\+43-18-18: rebuilt \d+%, by gradients 100% of 8 picked out",
    ]
    assert re.fullmatch("\n".join(lines) + "\n", said.out)
    assert "step/s" in said.err  # a bar


def test_commands_need_no_activated_environment_and_name_what_is_there():
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
    commands = re.findall(r"^    (make .+)$", README, re.M) + re.findall(
        r"`(\.venv/bin/.+?)`", README
    )
    assert len(commands) >= 4
    first, *_ = re.findall(r"^```bash\n(.*?)^```$", REPRODUCE, re.M | re.S)
    without = re.search(r"^Without make.*?^```bash\n(.*?)^```$", REPRODUCE, re.M | re.S)[1]
    commands += [*first.splitlines(), *without.splitlines()]
    assert len(commands) > 10
    for words in (shlex.split(command, comments=True) for command in commands):
        if words[0] == "make":
            assert words[1] in targets
        else:
            assert words[:3] == ["python", "-m", "venv"] or words[0].startswith(".venv/bin/")
        for file in (
            word for word in words if word.startswith("notebooks/") or word == "requirements.txt"
        ):
            assert (ROOT / file).exists()


SLOW_PYTHON = """#!/bin/sh
echo "$@" >> calls
mkdir -p .venv/bin
while ! test -e go; do sleep 0.05; done
for name in python jupyter-book; do
    printf '#!/bin/sh\\nexit 0\\n' > .venv/bin/$name
    chmod +x .venv/bin/$name
done
"""


MAKE = ("make", "book", "PY=./slow-python")


def test_one_make_sets_up_and_one_that_was_broken_off_is_begun_anew(tmp_path):
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("requirements.txt", "pyproject.toml"):
        (tmp_path / name).touch()
    (tmp_path / "slow-python").write_text(SLOW_PYTHON)
    (tmp_path / "slow-python").chmod(0o755)
    calls, go = tmp_path / "calls", tmp_path / "go"

    def begun(count):
        ends = time.monotonic() + 60
        while not calls.exists() or len(calls.read_text().splitlines()) < count:
            assert time.monotonic() < ends
            time.sleep(0.05)

    how = {"cwd": tmp_path, "stdout": subprocess.DEVNULL}
    with subprocess.Popen(MAKE, stderr=subprocess.DEVNULL, **how):
        begun(1)
        other = subprocess.run(MAKE, text=True, stderr=subprocess.PIPE, check=False, **how)
        os.kill(int((tmp_path / ".venv.setup").read_text()), signal.SIGKILL)
    assert other.returncode == 2
    assert other.stderr.startswith("error: process ")
    assert "another make, sets up .venv; wait for it" in other.stderr.splitlines()[0]
    with subprocess.Popen(MAKE, **how) as second:
        begun(2)
        go.touch()
        assert second.wait(timeout=60) == 0
    subprocess.run(MAKE, check=True, **how)
    assert calls.read_text().splitlines() == ["-m venv .venv", "-m venv --clear .venv"]
    assert not (tmp_path / ".venv.setup").exists()


def test_whoever_has_no_gpu_is_told_the_index_that_the_workflows_use():
    index = "https://download.pytorch.org/whl/cpu"
    workflows = sorted((ROOT / ".github/workflows").glob("*.yml"))
    installing = [text for text in map(Path.read_text, workflows) if "requirements.txt" in text]
    assert installing
    for text in installing:
        assert f"PIP_EXTRA_INDEX_URL: {index} " in text
    assert f"pip install -r requirements.txt --extra-index-url {index}`" in REPRODUCE
    assert (
        f"add --extra-index-url {index}."
        in (ROOT / "requirements.txt").read_text().split("-e .")[0]
    )


def test_the_readme_offers_two_commands_and_says_how_long_each_takes():
    offered = re.findall(r"^    make (\w+) +# .*: (?:up to|about) \d+ minutes$", README, re.M)
    assert offered == ["report", "test"]
    order = (
        "In federated learning",
        "**Not reliably.**",
        "picture.svg",
        "| Paper |",
        "make report",
    )
    places = [README.index(words) for words in order]
    assert places == sorted(places)
    assert "jupyter lab notebooks/explorer.ipynb" in README


def test_the_book_says_how_long_all_evidence_takes():
    stored = Archive(ROOT / "results").entries()
    hours = sum(line["seconds"] for line in stored.values()) / 3600
    (said,) = re.findall(r"about (\d+) core-hours from nothing", REPRODUCE)
    assert hours == pytest.approx(int(said), rel=0.1)


@pytest.mark.parametrize(
    "name", ["README.md", *(f"book/{path.name}" for path in sorted(BOOK.glob("*.md")))]
)
def test_files_of_this_project_that_a_text_names_are_there(name):
    text = (ROOT / name).read_text()
    named = re.findall(r"`((?:atslib|tests|notebooks|benchmarks|results)/[\w./]+)`", text)
    made = ("notebooks/ext11_clipping.ipynb",)  # here or later
    assert not [path for path in named if path not in made and not (ROOT / path).exists()]
    folder = (ROOT / name).parent
    linked = re.findall(r"\]\((?!https?:|#)([^)#]+)\)", text)
    assert not [path for path in linked if not (folder / path).exists()]


def test_each_surprise_is_told_on_its_page_and_in_its_folder():
    scripts = {path.name for path in (ROOT / "findings").glob("*.sh")}
    told = re.findall(
        r"^- \*\*.+?\*\* .+ Source: .+`findings/(\w+\.sh)`\.$", SURPRISES, re.MULTILINE
    )
    assert sorted(told) == sorted(scripts)
    table = (ROOT / "findings" / "README.md").read_text()
    assert sorted(re.findall(r"^\| \[\w+\]\((\w+\.sh)\)", table, re.MULTILINE)) == sorted(scripts)


def test_readme_and_first_page_have_the_numbers_that_the_results_give():
    assert start(ROOT / "results", book=False) == README, "python -m atsbook run --compute-only"
    assert start(ROOT / "results", book=True) == (BOOK / "intro.md").read_text()
    shown = picture_of(BOOK / "results" / "claim1_privacy.ipynb")
    assert (BOOK / "assets" / "picture.svg").read_text() == shown


def test_readme_and_first_page_have_one_table():
    tables = [
        [line for line in re.sub(r"\[(.+?)\]\(.+?\)", r"\1", text).splitlines() if line[:2] == "| "]
        for text in (start(ROOT / "results", book=book) for book in (False, True))
    ]
    assert tables[0] == tables[1]
    assert tables[0]


def test_a_place_in_a_text_that_has_no_value_is_an_error():
    with pytest.raises(jinja2.UndefinedError, match="answer"):
        rendered("start.md.jinja", book=False)


def test_a_sentence_that_the_results_deny_is_an_error():
    assert claim("It hides more", True) == "It hides more"
    with refused("a text says 'It hides more', and the results no longer do"):
        claim("It hides more", False)


def test_the_line_up_fills_its_row_once_it_is_measured(tmp_path):
    assert "| – | – | not measured yet |" in start(tmp_path, book=False)
    own = {"untrained LeNet": {"none": 1.0, "hybrid": 0.75, "photographs": 100}}
    exports(tmp_path, "line_up", {"found": own})
    assert cells(numbers(tmp_path))["gradients"] == "100 → 75 %"
    assert cells(numbers(tmp_path))["compared_on"] == "LeNet, untrained"
    own |= {
        f"{state} ResNet20-1": {"none": 1.0, "hybrid": 0.5, "photographs": 100}
        for state in ("untrained", "trained")
    }
    exports(tmp_path, "line_up", {"found": own})
    assert cells(numbers(tmp_path))["gradients"] == "100 → 50 %"
    assert cells(numbers(tmp_path))["compared_on"] == "LeNet and ResNet20-1, untrained and trained"
    own["untrained ConvNet-16"] = own["untrained LeNet"]
    exports(tmp_path, "line_up", {"found": own})
    assert cells(numbers(tmp_path))["compared_on"] == "on 3 networks, untrained and trained"


def test_the_best_answer_fills_its_row_once_it_is_measured(tmp_path):
    assert cells(numbers(tmp_path))["best"] == "not measured yet"
    own = {"LeNet": {"hits": {"none": 298, "hybrid": 275, "attacks": 300}}}
    exports(tmp_path, "best_answer", {"networks": own})
    assert cells(numbers(tmp_path))["best"] == "298 → 275 of 300"
    assert cells(numbers(tmp_path))["tried"] == "several"
    own["LeNet"]["tried"] = 9
    exports(tmp_path, "best_answer", {"networks": own})
    assert cells(numbers(tmp_path))["tried"] == "9"


def test_the_book_shows_what_the_claims_came_to():
    assert (BOOK / "claims.md").read_text() == claims(ROOT / "results")


# --- what the book makes of the tables in executed pages ----------------------------------------------------


def test_what_two_figures_share_is_on_the_page_once():
    shared = '<style>a</style><script type="module">b</script>'
    parts = [
        nodes.raw(text=f"<p>{i}</p>{shared}<style>{i}</style>", format="html") for i in range(2)
    ]
    document = nodes.document(None, None, "", *parts)
    load_extension().once(None, document)
    assert [part.astext() for part in parts] == [
        f"<p>0</p>{shared}<style>0</style>",
        "<p>1</p><style>1</style>",
    ]


class Cells(HTMLParser):
    """The cells of a table, row by row, each with its class."""

    def __init__(self, html):
        super().__init__()
        self.rows, self.open = [], False
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append(("", dict(attrs).get("class", "")))
            self.open = True

    def handle_endtag(self, tag):
        self.open = self.open and tag not in ("td", "th")

    def handle_data(self, data):
        if self.open:
            text, kind = self.rows[-1][-1]
            self.rows[-1][-1] = (text + data, kind)


def shown(table):
    """What the book makes of a pandas table, by way of a page's output."""
    document = nodes.document(None, None, "", nodes.raw(text=table.to_html(), format="html"))
    load_extension().read_tables(None, document)
    html = document.astext()
    assert html.startswith('<div class="wide"><table class="dataframe">')
    return Cells(html).rows


def texts(row):
    return [text for text, _ in row]


def test_a_table_has_one_line_of_names_in_words():
    columns = {"psnr": [1.5], "p_holm": [0.2], "of <mine>": ["a & b"]}
    head, row = shown(pd.DataFrame(columns, index=pd.Index(["none"], name="policy")))
    assert texts(head) == ["policy", "PSNR, dB", "p (Holm)", "of <mine>"]
    assert texts(row) == ["none", "1.5", "0.2", "a & b"]


def test_a_table_of_groups_keeps_them_above_the_names():
    columns = pd.MultiIndex.from_product([["psnr", "gain"], ["low", "high"]])
    rows = pd.MultiIndex.from_tuples(
        [("lenet", "none"), ("lenet", "3-1-7")], names=["model", "policy"]
    )
    above, head, *body = shown(
        pd.DataFrame([[1, 2, 3, 4], [5, 6, 7, 8]], index=rows, columns=columns)
    )
    assert texts(above) == ["", "", "PSNR, dB", "gain, dB"]
    assert texts(head) == ["model", "policy", "95 % from", "to", "95 % from", "to"]
    assert [texts(row) for row in body] == [
        ["lenet", "none", "1", "2", "3", "4"],
        ["3-1-7", "5", "6", "7", "8"],
    ]
    assert all(kind == "number" for row in (head[2:], body[0][2:], body[1][1:]) for _, kind in row)


def test_numbers_stand_right_with_their_names_and_text_left():
    columns = {"mean": ["-1.50 [-2.0, +0.1]", "nan"], "psnr": ["9.68 to 11.70", "10.6 ± 1.6"]}
    columns |= {"ids": ["1, 3, 15, 18", "7"], "same as": ["", "equalize 2"]}
    head, *body = shown(pd.DataFrame(columns, index=["a", "b"]))
    assert [kind for _, kind in head] == ["", "number", "number", "", ""]
    assert {tuple(kind for _, kind in row) for row in body} == {("", "number", "number", "", "")}
    assert texts(body[1])[1] == "–"


def test_numbers_parted_by_a_semicolon_stand_below_each_other_and_words_stay_in_line():
    columns = {"PSNR": ["13.9 → 7.6; 12.2 → 8.2", "1.0"], "why": ["weak; few", "1; 2"]}
    html = load_extension().readable(pd.DataFrame(columns, index=["a", "b"]).to_html())
    assert '<td class="number">13.9\u00a0→\u00a07.6<br>12.2\u00a0→\u00a08.2</td>' in html
    assert "<td>weak; few</td>" in html
    assert "<td>1; 2</td>" in html  # of a column of words
    three = "; ".join(["-0.7 [-1.1, -0.2]"] * 3)  # as many commas as a list of ids
    html = load_extension().readable(pd.DataFrame({"change": [three]}, index=["a"]).to_html())
    assert html.count("−0.7 [−1.1, −0.2]<br>") == 2


def test_each_line_of_a_row_is_a_row_of_its_own_below_a_title():
    columns = {"PSNR": ["13.9 → 7.6; 12.2 → 8.2", "1.0"], "bits": ["–; 0.5", "1.0"]}
    frame = pd.DataFrame(columns, index=["trained; paper; replication", "weak; n = 8"])
    html = load_extension().readable(frame.to_html())
    rows = ["".join(line.split()) for line in re.findall(r"<tr.*?</tr>", html, re.DOTALL)[1:]]
    number = '<tdclass="number">{}</td>'.format
    assert rows == [
        '<trclass="title"><thcolspan="3">trained</th></tr>',
        f'<tr><thclass="line">paper</th>{number("13.9→7.6")}{number("–")}</tr>',
        f'<tr><thclass="line">replication</th>{number("12.2→8.2")}{number("0.5")}</tr>',
        f"<tr><th>weak;n=8</th>{number('1.0')}{number('1.0')}</tr>",
    ]
    assert "<th>weak; n = 8</th>" in html  # its cells have one line
    uneven = frame.assign(n=["1", "2"])
    assert "<th>trained; paper; replication</th>" in load_extension().readable(uneven.to_html())


def test_an_index_that_only_counts_is_left_out_and_one_with_a_name_stays():
    assert shown(pd.DataFrame({"r2": [0.1, 0.2]})) == [
        [("R²", "number")],
        [("0.1", "number")],
        [("0.2", "number")],
    ]
    named = pd.DataFrame({"r2": [0.1, 0.2]}, index=pd.Index([0, 1], name="op"))
    assert [texts(row) for row in shown(named)] == [["id", "R²"], ["0", "0.1"], ["1", "0.2"]]


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("# Draw by draw: other weights.\n# More.\nx = 1\n", "Draw by draw: other weights"),
        ("# Why? Because\n# of `it`.\n", "Why?"),
        ("# A mean\n# of 0.5 dB. `Gain` is.\n", "A mean of 0.5 dB"),
        ("def f():\n    # within\n    return 1\n\n\n# What `f` gives.\nf()\n", "What f gives"),
        (f"# The first half: {'many ' * 20}words.\n", "The first half"),
        (f"# One, two; three, {'many ' * 20}words.\n", "One, two"),
        ("x = 1  # one\n", ""),
    ],
)
def test_a_folded_cell_is_called_by_its_comment(code, name):
    assert load_extension().label(code) == name


@pytest.mark.parametrize(
    ("code", "mode", "tags", "named"),
    [
        ("# What it is.\nx = 1", "all", (), "What it is"),
        ("# What it is.\nx = 1", "input", (), "What it is"),
        ("from a import b", "input", (), "Code: imports"),
        (
            "rule = 1",
            "input",
            ("tag_remove-output",),
            "Code: the answer, its picture and its table",
        ),
        ("x = 1\n\n# within\ny = 2", "input", (), "Show the code"),
    ],
)
def test_a_fold_says_what_it_holds_where_that_is_known(code, mode, tags, named):
    block = nodes.literal_block("", code)
    cell = nodes.container("", block, hide_mode=mode, classes=["cell", *tags])
    load_extension().name_folds(
        None, nodes.document(None, None, "", cell, nodes.container("", block))
    )
    assert cell["prompt_show"] == named


# --- the glossary, links and heads of pages -----------------------------------------------------------------


def paragraph(*parts):
    """A page of one paragraph."""
    return nodes.document(None, None, "", nodes.paragraph("", "", *parts))


HTML = SimpleNamespace(builder=SimpleNamespace(format="html"))


def test_a_word_is_explained_where_a_page_first_uses_it_in_prose():
    reading = load_extension()
    link = nodes.reference("", "", nodes.Text("policies"))
    title = nodes.title("", "Does a policy help?")
    text = nodes.Text(" It has 3 policies, each policy untrained.")
    page = paragraph(nodes.literal("", "policy"), link, nodes.strong("", "", text))
    page.insert(0, title)
    reading.explain(HTML, page, "page")
    explained = list(page.findall(reading.Explained))
    assert [node.astext() for node in explained] == ["policies", "untrained"]
    assert explained[0].parent.tagname == "strong"
    assert page.astext().count("3 policies, each policy untrained.") == 1
    assert page.children[1]["classes"] == ["explains"]
    assert [node.get("stop", False) for node in explained] == [True, False]
    assert "sequence of ordinary image operations" in explained[0]["meaning"]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("97 % of the photographs are found.", "found"),
        ("the server finds 75 % of them", "found"),
        ("AutoAugment found 25 of them; the attack finds 0.6 dB more", None),
        ("it tells 6.3 bits of it", "bits"),
        ("posterize keeps 4 bits of a byte", None),
        ("a semi-trained one", "semi-trained"),
    ],
)
def test_a_word_is_explained_in_its_own_sense_only(text, word):
    reading = load_extension()
    page = paragraph(nodes.Text(text))
    reading.explain(HTML, page, "page")
    labels = {node["label"] for node in page.findall(reading.Explained)} - {"word-photograph"}
    assert labels == ({f"word-{word}"} if word else set())


def test_numbers_have_a_minus_and_their_percent_sign_and_names_and_code_stay():
    reading = load_extension()
    text = "-0.4 [-1.0, 0.2] dB (-3) at 75% or 5 %, 3-1-7, 2026-11-25, ConvNet-16, 1e-05, a%20b, 6 → -7"
    page = paragraph(nodes.Text(text), nodes.literal("", "-1 5%"))
    reading.typeset_numbers(None, page, "page")
    assert page.astext() == (
        "−0.4 [−1.0, 0.2] dB (−3) at 75\xa0% or 5\xa0%, 3-1-7, 2026-11-25, ConvNet-16, 1e-05, a%20b, 6\xa0→\xa0−7-1 5%"
    )
    (*_, row) = shown(pd.DataFrame({"psnr": ["-1.5 [-2.0, 1.0]"]}, index=["3-1-7"]))
    assert texts(row) == ["3-1-7", "−1.5 [−2.0, 1.0]"]


def test_every_entry_of_the_glossary_finds_its_own_word():
    entries = yaml.safe_load((BOOK / "glossary.yml").read_text())
    for entry in entries:
        assert set(entry) <= {"word", "forms", "meaning"}
        assert entry["meaning"].rstrip().endswith(".")
    words = load_extension().glossary()
    assert list(words.meanings) == [entry["word"] for entry in entries]


def test_a_preview_is_the_first_paragraph_without_what_is_hidden():
    reading = load_extension()
    hidden = '<span class="meaning" role="tooltip" id="x">A sequence.</span>'
    words = "word " * 100
    html = f"<p>menu</p><article><h1>T</h1><p class='a'>Does a <b>policy</b>{hidden} &lt; {words}</p></article>"
    begins = reading.beginning(html)
    assert begins.startswith("Does a policy < word word")
    assert begins.endswith("word …")
    assert len(begins) <= 302
    assert reading.beginning("<article><h1>T</h1></article>") == ""


@pytest.mark.parametrize(
    ("builder", "addresses", "links"),
    [
        ("html", {"index": "index.html", "a/b": "a/b.html"}, ("a/b.html", "../index.html")),
        ("dirhtml", {"index": "", "a/b": "a/b/"}, ("a/b/", "../../")),
    ],
)
def test_links_show_how_a_page_begins_whatever_builder_made_them(
    builder, addresses, links, tmp_path
):
    reading = load_extension()
    forms = {"html": "{}.html", "dirhtml": "{}/index.html"}
    files = {page: tmp_path / forms[builder].format(page) for page in addresses}
    files["index"] = tmp_path / "index.html"
    for (page, path), link in zip(files.items(), links, strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            f'<article><h1>T</h1><p>Begins {page}, <a class="reference internal" href="{link}">and</a>.</p></article>'
        )
    made = SimpleNamespace(
        format="html",
        get_target_uri=addresses.get,
        get_outfilename=lambda page: str(files.get(page, tmp_path / "none.html")),
    )
    pages = SimpleNamespace(found_docs={*addresses})
    reading.preview(SimpleNamespace(builder=made, env=pages, outdir=str(tmp_path)), None)
    assert f'href="{links[0]}" title="Begins a/b, and."' in files["index"].read_text()
    assert f'href="{links[1]}" title="Begins index, and."' in files["a/b"].read_text()


def test_pages_without_files_of_their_own_are_left_as_they_are(tmp_path):
    made = SimpleNamespace(
        format="html",
        get_target_uri=lambda page: f"#document-{page}",
        get_outfilename=lambda page: str(tmp_path / f"{page}.html"),
    )
    app = SimpleNamespace(builder=made, env=SimpleNamespace(found_docs={"index"}), outdir="")
    load_extension().preview(app, None)
    assert not list(tmp_path.iterdir())


def test_a_page_finds_its_frames_from_where_it_lies():
    body = '<iframe src="_static/report.html" title="x"></iframe> <code>_static/</code>'
    context = {"body": body, "pathto": lambda name, kind: f"../{name}"}
    load_extension().find_static(None, "page", "page.html", context, None)
    assert context["body"] == body.replace('"_static', '"../_static')


@pytest.mark.parametrize(
    ("plain", "directive"),
    [
        ("<!-- glue:md answer -->", "```{glue:md} answer\n:format: myst\n```"),
        ("<!-- glue:any data -->", "```{glue:any} data\n```"),
        (
            "<!-- glue:figure picture\n:name: a-b\n\nA caption.\n-->",
            "```{glue:figure} picture\n:name: a-b\n\nA caption.\n```",
        ),
        (
            "<details><summary>Who attacks</summary>\n\nTen.\n\n</details>",
            ":::{dropdown} Who attacks\n\nTen.\n\n:::",
        ),
        ("so said [A et al. (2021)](../book/references.bib#a2021).", "so said {cite:t}`a2021`."),
        ("known ([A, 2021; B, 2022](../book/references.bib#a,b))", "known {cite:p}`a,b`"),
        ("see [Method](../book/method.md), (aside)", "see [Method](../method.md), (aside)"),
        ("[Another page?](regimes.ipynb) <!-- a note -->", None),
    ],
)
def test_plain_markdown_of_a_notebook_becomes_the_books_directives(plain, directive):
    extension = load_extension("plain")
    assert extension.directives(f"Text.\n\n{plain}\n") == f"Text.\n\n{directive or plain}\n"
