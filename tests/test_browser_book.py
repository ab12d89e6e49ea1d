"""The book to the eye, in a real browser: light and dark, on a desk and on a phone, and by
keyboard.

The committed pages are built as they are; none is executed.
"""

import re
import shutil
import subprocess
import sys
from html import unescape

import pytest
import torch
import yaml
from browser import needs_chromium

from atslib.files import project_root

BOOK = project_root() / "book"
PAGES = [
    "intro",
    "deviations",
    "audit",
    "results/regimes",
    "results/claim1_privacy",
    "results/claim6_transformations",
]
EXPLORER = "results/explorer"
PHONE = 390
pytestmark = needs_chromium


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder of a copy of the book, built."""
    copy = tmp_path_factory.mktemp("copy") / "book"
    shutil.copytree(BOOK, copy, ignore=shutil.ignore_patterns("_build", "*.failed.ipynb"))
    start = "from jupyter_book.cli.main import main; main()"
    command = [sys.executable, "-c", start, "build", str(copy), "-W", "--keep-going", "--quiet"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return copy / "_build" / "html"


@pytest.fixture
def page(browser, built):
    """Opens a page of the book at a width, in light or dark colors."""

    def opened(name, width=1280, color="light"):
        browser.size(width, 900, mobile=width < 500)
        browser.media(prefers_color_scheme=color)
        browser.open(
            (built / f"{name}.html").as_uri(),
            ready=f"document.documentElement.dataset.theme === {color!r}",
        )
        # Colors that fade in are neither one nor the other
        still = "<style>* { transition: none !important }</style>"
        browser.js(f"document.head.insertAdjacentHTML('beforeend', {still!r})")
        return browser

    return opened


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize(("color", "lightest"), [("light", 1.0), ("dark", 0.3)])
def test_every_text_can_be_read_and_none_stands_on_a_light_box_in_the_dark(
    page, name, color, lightest
):
    found = page(name, color=color).contrast("main *, .bd-sidebar *")
    assert len(found) > 40
    assert found[0][0] >= 4.5, found[:5]
    assert max(ground for _, _, ground in found) <= lightest


@pytest.mark.parametrize("name", PAGES)
def test_on_a_phone_nothing_is_cut_and_what_scrolls_says_so(page, name):
    phone = page(name, PHONE)
    assert phone.js("document.documentElement.scrollWidth") <= PHONE
    # What is folded away is as wide as it will be, and is not shown: it says so when it is opened.
    phone.js("document.querySelectorAll('main details').forEach(part => { part.open = true })")
    phone.until(
        """[...document.querySelectorAll("main :is(.wide, .pst-scrollable-table-container, .cell_output)")]
        .filter(box => box.scrollWidth > box.clientWidth + 1)
        .every(box => box.tabIndex === 0 && getComputedStyle(box, "::before").content.includes("scrolls sideways"))"""
    )
    tables = "main table.dataframe, main .pst-scrollable-table-container > table"
    inside = f"""[...document.querySelectorAll("{tables}")].every(table =>
        table.clientWidth <= table.parentElement.scrollWidth && table.parentElement.clientWidth <= innerWidth)"""
    assert phone.js(inside)


@pytest.mark.parametrize("table", ["answers", "claims"])
def test_on_a_phone_every_answer_names_its_column(page, table):
    phone = page("intro", PHONE)
    rows = (
        f"""(rows, of) => [...document.querySelectorAll(`.{table} ${{rows}}`)].slice(1).map(of)"""
    )
    heads = phone.js(f"({rows})('thead th', (head) => head.textContent.trim())")
    names = phone.js(
        f"({rows})('tbody tr:first-child td', (cell) => getComputedStyle(cell, '::before').content)"
    )
    assert len(heads) == 3
    assert [name.strip('"') for name in names] == heads


def test_a_phone_shows_figures_whole_and_enlarges_them_to_a_size_that_can_be_read(page):
    phone = page("results/regimes", PHONE)
    wide = "[...document.querySelectorAll('main .picture.small-print')]"
    assert phone.js(f"{wide}.length") >= 3
    assert phone.js(f"{wide}.every(box => box.scrollWidth <= box.clientWidth + 1)")
    phone.js(f"{wide}.forEach(box => box.querySelector('button').click())")
    shares = "image => image.getBoundingClientRect().width / image.naturalWidth"
    assert (
        phone.js(f"Math.min(...{wide}.map(box => box.querySelector('img')).map({shares}))") > 0.75
    )
    assert phone.js("document.documentElement.scrollWidth") <= PHONE
    caption = phone.js("document.querySelector('figcaption').getBoundingClientRect().right")
    assert caption <= PHONE  # it does not scroll with its picture
    phone.js(f"{wide}.forEach(box => box.querySelector('button').click())")
    assert phone.js(f"{wide}.every(box => box.scrollWidth <= box.clientWidth + 1)")
    assert phone.js(
        "[...document.querySelectorAll('.picture > button')].every(b => b.offsetHeight > 24 || !b.offsetHeight)"
    )


def test_the_deviations_on_a_phone_are_cards_with_the_words_beside_their_names(page):
    phone = page("deviations", PHONE)
    beside = """[...document.querySelectorAll(".deviations tbody td:not(:first-child)")].map(cell =>
        [getComputedStyle(cell).display, getComputedStyle(cell).gridTemplateColumns.split(" ").length])"""
    found = phone.js(beside)
    assert len(found) > 100
    assert {tuple(cell) for cell in found} == {("grid", 2)}


def test_the_parameters_that_papermill_put_in_are_not_seen(page):
    browser = page("results/regimes")
    cells = """[...document.querySelectorAll(".tag_injected-parameters")].map(cell => cell.checkVisibility())"""
    assert browser.js(cells) == [False]


@pytest.mark.parametrize("width", [360, 1280])
def test_the_explorer_fits_works_and_asks_no_other_host(page, built, width):
    browser = page(EXPLORER, width)
    assert browser.js("document.documentElement.scrollWidth") <= width
    for part in (".ats-photo", ".ats-trio .ats-used"):
        before = browser.picture(f"{part} canvas")
        browser.click(".ats-thumbs button:nth-child(2)")
        assert not torch.equal(browser.picture(f"{part} canvas"), before)
        browser.click(".ats-thumbs button:nth-child(1)")
    # On file:// the theme's own fonts are refused, which is none of the explorer's doing.
    assert [fault for fault in browser.faults() if "font" not in str(fault).lower()] == []
    assert (built / f"{EXPLORER}.html").stat().st_size < 2_400_000


def test_the_explorer_is_few_tab_stops_behind_the_link_that_skips_the_contents(page):
    browser = page(EXPLORER)
    browser.key("Tab")
    assert browser.js("document.activeElement.textContent") == "Skip to main content"
    browser.until("document.activeElement.getBoundingClientRect().top >= 0")
    browser.js("document.activeElement.click()")
    inside = []
    for _ in range(8):
        browser.key("Tab")
        inside.append(browser.js("Boolean(document.activeElement.closest('.ats-explorer'))"))
    assert any(inside)


def test_only_pages_with_mathematics_load_its_script(built):
    texts = {path.stem: path.read_text() for path in built.rglob("*.html")}
    loads = {name for name, text in texts.items() if "mathjax/tex-chtml.js" in text}
    assert loads == {name for name, text in texts.items() if re.search(r'class="math ', text)}
    assert "method" in loads


# Every explanation of the glossary, as the page shows it
MEANINGS = {
    " ".join(each["meaning"].split()): each["word"]
    for each in yaml.safe_load((project_root() / "book" / "glossary.yml").read_text())
}
MEANING = """[...document.querySelectorAll(".explained > .meaning")].filter(each => each.checkVisibility())
    .map(each => each.textContent)"""


@pytest.mark.parametrize(("width", "color"), [(1280, "light"), (PHONE, "dark")])
def test_a_words_meaning_is_shown_to_who_points_taps_or_tabs_and_on_the_page(page, width, color):
    browser = page("results/claim1_privacy", width, color)
    assert browser.js(MEANING) == []
    box = "document.querySelector('.explained > dfn').getClientRects()[0]"
    at = browser.js(f"(box => ({{x: box.x + 3, y: box.y + box.height / 2}}))({box})")
    browser.tap(**at) if width == PHONE else browser.hover(**at)
    browser.until(f"{MEANING}.length === 1")
    (shown,) = browser.js(MEANING)
    assert shown in MEANINGS
    edges = "(box => [box.left, box.right])(document.querySelector('.explained > .meaning').getBoundingClientRect())"
    left, right = browser.js(edges)
    assert 0 <= left < right <= width
    assert browser.contrast(".explained > .meaning")[0][0] >= 4.5


def test_words_are_reached_by_keyboard_and_escape_takes_their_meaning_away(page):
    browser = page("results/claim1_privacy")
    browser.js("document.querySelector('.explained > dfn').focus()")
    assert len(browser.js(MEANING)) == 1
    browser.key("ArrowRight")
    (second,) = browser.js(MEANING)
    assert second in MEANINGS
    label = 'document.activeElement.getAttribute("aria-describedby")'
    assert browser.js(f"document.getElementById({label}).textContent") == second
    browser.key("Escape")
    assert browser.js(MEANING) == []


def test_a_link_to_another_page_shows_how_it_begins_and_one_in_the_contents_does_not(built):
    text = (built / "should_i.html").read_text()
    (link,) = re.findall(
        r'<a class="reference internal" href="results/claim7_correlation.html" title="(.*?)">', text
    )
    begins = (built / "results" / "claim7_correlation.html").read_text().split("<article")[1]
    begins = re.sub(r'<span class="meaning".*?</span>|<[^>]+>', "", begins.partition("</h1>")[2])
    begins = " ".join(unescape(begins).split())
    assert begins.startswith(unescape(link).removesuffix(" …"))
    assert 'href="results/claim7_correlation.html">' in text.split("<article")[0]


def test_no_table_is_cut_on_a_desk(page, built):
    for path in sorted((built / "results").glob("*.html")):
        browser = page(f"results/{path.stem}", 1400)
        # What is folded away has no width, and is marked once it is open and was laid out.
        browser.js(
            "document.querySelectorAll('main details').forEach(part => { part.open = true })"
        )
        browser.js("new Promise(done => requestAnimationFrame(() => setTimeout(done, 50)))")
        tables = "[...document.querySelectorAll('main .wide')]"
        assert browser.js(f"{tables}.every(box => box.clientWidth > 0)"), path.stem
        assert browser.js(f"{tables}.filter(box => box.matches('.scrolls')).length") == 0, path.stem
        assert (
            browser.js(f"{tables}.filter(box => box.scrollWidth > box.clientWidth + 1).length") == 0
        )


def test_no_line_of_code_that_the_formatter_allows_is_cut_on_a_desk(page):
    codes = """[...document.querySelectorAll("main .cell_input pre")].filter(code => code.clientWidth).map(code =>
        [Math.max(...code.textContent.split("\\n").map(line => line.length)), code.scrollWidth - code.clientWidth])"""
    seen = [code for name in PAGES if "/" in name for code in page(name, 1400).js(codes)]
    allowed = [code for code in seen if code[0] <= 100]
    assert max(length for length, _ in allowed) >= 98
    assert [length for length, hidden in allowed if hidden > 1] == []


def test_on_paper_code_stands_at_the_end_and_afterwards_where_it_was(page):
    browser = page("results/claim4_efficiency")
    article = "document.querySelector('article').innerHTML"
    before = browser.js(article)
    codes = """[...document.querySelectorAll("article pre")].filter(code => code.checkVisibility())
        .map(code => code.textContent)"""
    shown = browser.js(codes)
    for _ in range(2):  # some browsers ask twice
        browser.js("dispatchEvent(new Event('beforeprint'))")
    marks = "[...document.querySelectorAll('article p.listing')].map(mark => mark.textContent)"
    count = browser.js(
        "document.querySelectorAll('article > section:last-child .cell_input').length"
    )
    assert count > 3
    places = [f"Listing {i + 1}, at the end of the page." for i in range(count)]
    assert browser.js(marks) == [*places, *(f"Listing {i + 1}" for i in range(count))]
    ends = "document.querySelectorAll('article > section:first-of-type .cell_input')"
    assert browser.js(f"[...{ends}].every(code => !code.checkVisibility())")
    assert sorted(browser.js(codes)) == sorted(shown)
    browser.js("dispatchEvent(new Event('afterprint'))")
    assert browser.js(article) == before


def test_what_is_folded_says_what_it_holds(built):
    text = (built / "results" / "claim1_privacy.html").read_text()
    names = [
        unescape(name)
        for name in re.findall(r'<p class="collapsed admonition-title">(.*?)</p>', text)
    ]
    assert len(names) > 5
    assert "How the attacks were chosen" in names
    assert not [name for name in names if "cell" in name]
