"""What the book makes of executed pages, so that none is run again for the sake of its looks.

Tables of numbers get one line of column names, in words, and numbers to the right; what several figures of a page
share is there once; mathematics is loaded only where there is some. The first use of a word of the glossary on a page
is explained on hover, and a link to another page shows how that page begins.
"""

import posixpath
import re
import xml.etree.ElementTree as Tree
from collections.abc import Callable, Iterator
from html import escape, unescape
from itertools import zip_longest
from pathlib import Path
from typing import ClassVar

import yaml
from docutils import nodes
from docutils.parsers.rst import directives
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

FRAME = re.compile(r'<table\b[^>]*class="dataframe".*?</table>', re.DOTALL)
BLOCK = re.compile(r'<(style|script type="module")>.*?</(style|script)>', re.DOTALL)
AS_WRITTEN = (
    nodes.literal,
    nodes.literal_block,
    nodes.math,
    nodes.math_block,
    nodes.raw,
    nodes.comment,
)
NUMBER = re.compile(r"([\d\s.,+\-−–±×→%\[\]]|to|nan|inf|never)*", re.IGNORECASE)
SEVERAL = "; "  # parts numbers in one cell, which are set below each other
# What the library calls a column → what a reader calls it.
WORDS = {
    "psnr": "PSNR, dB",
    "gain": "gain, dB",
    "ssim": "SSIM",
    "mse": "MSE",
    "low": "95 % from",
    "high": "to",
    "ci_low": "95 % from",
    "ci_high": "to",
    "p_holm": "p (Holm)",
    "r2": "R²",
    "spearman": "Spearman",
    "s_pri": "privacy score",
    "s_acc": "accuracy score",
    "floor_grey": "grey image, dB",
    "floor_mean": "mean image, dB",
    "dataset": "data set",
    "op": "id",
    "train": "training images",
}


def words(cell: Tree.Element) -> str:
    """The text of a cell."""
    return "".join(cell.itertext()).strip()


def number(text: str) -> bool:
    """Whether a cell holds a number, with its spread or interval, or none, or several parted by semicolons; a list of
    ids is text.
    """
    return all(NUMBER.fullmatch(part) and part.count(",") < 3 for part in text.split(SEVERAL))


def join_names(head: Tree.Element) -> None:
    """The names of the index, for which pandas adds a line of its own, go into the line above if there is room."""
    lines = head.findall("tr")
    if len(lines) < 2:
        return
    above, last = lines[-2].findall("th"), lines[-1].findall("th")
    named = [cell for cell in last if words(cell)]
    if (
        words(last[-1])
        or len(above) < len(named)
        or any(words(cell) for cell in above[: len(named)])
    ):
        return
    for cell, name in zip(above, named, strict=False):
        cell.text = words(name)
    head.remove(lines[-1])


def drop_count(table: Tree.Element) -> None:
    """An index without a name that only counts rows says nothing."""
    head, rows = table.findall("thead/tr"), table.findall("tbody/tr")
    firsts = [row.find("th") for row in rows]
    counted = [words(cell) if cell is not None else "" for cell in firsts] == [
        str(i) for i in range(len(rows))
    ]
    if counted and not any(words(line[0]) for line in head):
        for line in [*head, *rows]:
            line.remove(line[0])


def mark_numbers(table: Tree.Element) -> None:
    """Columns of numbers, and their names, have the class `number`; merged cells of the index are counted in."""
    rows = table.findall("tbody/tr")
    width = max((len(row) for row in rows), default=0)
    from_right = [
        list(row)[::-1] for row in rows
    ]  # a merged cell of the index is missing on the left
    for column, cells in enumerate(zip_longest(*from_right)):
        there = [cell for cell in cells if cell is not None]
        if any(cell.tag == "th" or not number(words(cell)) for cell in there):
            continue
        heads = [line[-1 - column] for line in table.findall("thead/tr") if len(line) == width]
        for cell in [*there, *heads]:
            cell.set("class", "number")
            if words(cell).lower() == "nan":
                cell.text = "–"
            if cell.text and SEVERAL in cell.text and cell.tag == "td":
                below_each_other(cell, cell.text.split(SEVERAL))


def below_each_other(cell: Tree.Element, lines: list[str]) -> None:
    """Every line of a cell on one of its own."""
    cell.text, *others = lines
    for other in others:
        Tree.SubElement(cell, "br").tail = other


def rows_of_lines(table: Tree.Element) -> None:
    """Where the cells of a row have several lines, and the row's name one part more: a row with the title, and one for
    each line with its name, so that no line wraps beside another's numbers.
    """
    body = table.find("tbody")
    for place, row in reversed(list(enumerate(body))):
        name, *cells = row
        title, *names = words(name).split(SEVERAL)
        lines = [[cell.text, *(each.tail for each in cell.findall("br"))] for cell in cells]
        if name.tag != "th" or len(names) < 2 or {len(line) for line in lines} != {len(names)}:
            continue
        body.remove(row)
        whole = Tree.Element("tr", {"class": "title"})
        Tree.SubElement(whole, "th", {"colspan": str(len(row))}).text = title
        parts = [whole]
        for each, texts in zip(names, zip(*lines, strict=True), strict=True):
            parts.append(Tree.Element("tr"))
            Tree.SubElement(parts[-1], "th", {"class": "line"}).text = each
            for cell, text in zip(cells, texts, strict=True):
                Tree.SubElement(parts[-1], "td", cell.attrib).text = text
        for part in reversed(parts):
            body.insert(place, part)


def readable(html: str) -> str:
    """A table as pandas writes it → as this book shows it."""
    table = Tree.fromstring(html)
    head = table.find("thead")
    for line in head:
        line.attrib.clear()  # pandas aligns all names to the right
    join_names(head)
    drop_count(table)
    mark_numbers(table)
    rows_of_lines(table)
    for cell in table.iter():
        cell.text, cell.tail = (text and typeset(text) for text in (cell.text, cell.tail))
    for cell in head.iter("th"):
        cell.text = WORDS.get(words(cell), cell.text)
    table.attrib = {"class": "dataframe"}
    return f'<div class="wide">{Tree.tostring(table, encoding="unicode", method="html")}</div>'


MINUS = re.compile(r"(?<![\w\-−–.])-(?=\d)")
ARROW = re.compile(r"(?<=\d) → (?=[+−]?\d)")
PERCENT = re.compile(r"(?<=\d) ?%(?!\w)")


def typeset(text: str) -> str:
    """Numbers as they are printed: with a minus for a hyphen, and percent signs and arrows that stay beside them."""
    return ARROW.sub("\u00a0→\u00a0", PERCENT.sub("\u00a0%", MINUS.sub("−", text)))


def read_tables(app: object, document: nodes.document) -> None:
    """Replace the tables in the outputs of a page."""
    for node in document.findall(nodes.raw):
        if "html" in node.get("format", "") and FRAME.search(node.astext()):
            frames = [readable(frame) for frame in FRAME.findall(node.astext())]
            node.children = [nodes.Text("\n".join(frames))]


def within(
    node: nodes.Node, skipped: Callable[[nodes.Node], bool]
) -> Iterator[tuple[nodes.Node, nodes.Node]]:
    """All nodes below one in their order, each after its parent, but for those that are skipped and all in them."""
    for child in list(node.children):
        if not skipped(child):
            yield node, child
            yield from within(child, skipped)


def typeset_numbers(app: object, document: nodes.document, page: str) -> None:
    """The numbers in prose, captions and tables; code and mathematics stay as they are."""
    for parent, text in within(document, lambda node: isinstance(node, AS_WRITTEN)):
        if isinstance(text, nodes.Text) and (better := typeset(text)) != text:
            parent.replace(text, nodes.Text(better))


def once(app: object, document: nodes.document) -> None:
    """A style or script that several outputs of a page bring along stays with the first of them."""
    seen = set()

    def first(block: re.Match) -> str:
        known = block[0] in seen
        seen.add(block[0])
        return "" if known else block[0]

    for node in document.findall(nodes.raw):
        if "html" in node.get("format", "") and BLOCK.search(node.astext()):
            node.children = [nodes.Text(BLOCK.sub(first, node.astext()))]


# --- what is folded ------------------------------------------------------------------------------------------

COMMENT = re.compile(r"^(?:#[^\n]*\n)+", re.MULTILINE)
SENTENCE = re.compile(r".*?[.?!](?= [A-Z`\"]|$)")
LONGEST_LABEL = 100  # characters


def label(code: str) -> str:
    """What a folded cell shows, as its first comment of whole lines says: the first sentence of it, or where that is long
    what comes before a colon, a semicolon or a comma; empty where there is no such comment.
    """
    comment = COMMENT.search(code)
    if not comment:
        return ""
    text = " ".join(line.lstrip("# ") for line in comment[0].splitlines())
    sentence = SENTENCE.match(text)
    first = sentence[0] if sentence else text
    for mark in (":", ";", ","):
        if len(first) > LONGEST_LABEL:
            first = first[:LONGEST_LABEL].rpartition(mark)[0] or first
    return first.rstrip(".").replace("`", "")


def folded_code(code: str, classes: list[str]) -> str:
    """What folded code shows whose output stands open: its first comment, if it begins with one; empty where nothing is
    known of it.

    Args:
        classes: of its cell, among which are its tags.
    """
    if code.startswith("#"):
        return label(code)
    if "tag_remove-output" in classes:  # what it makes is pasted where the page begins
        return "Code: the answer, its picture and its table"
    return "Code: imports" if code.startswith(("import ", "from ")) else ""


def name_folds(app: object, document: nodes.document) -> None:
    """A folded cell says what it holds. MyST-NB calls them all by one name."""
    for cell in document.findall(nodes.container):
        if "hide_mode" not in cell:
            continue
        cell["prompt_show"], cell["prompt_hide"] = "Show the code", "Hide the code"
        blocks = list(cell.findall(nodes.literal_block))
        if not blocks:
            continue
        code = f"{blocks[0].astext()}\n"
        named = label(code) if cell["hide_mode"] == "all" else folded_code(code, cell["classes"])
        if named:
            cell["prompt_show"] = cell["prompt_hide"] = typeset(named)


def own_equations(app: object) -> None:
    """The first page of a book counts as one with mathematics when any page has some: it is not."""
    domain = app.env.get_domain("math")
    domain.has_equations = lambda page=None: domain.data["has_equations"].get(page, False)


# --- the glossary --------------------------------------------------------------------------------------------

GLOSSARY = Path(__file__).parent.parent / "glossary.yml"
# Where a word is not explained: it may be part of a name there, or the reader is about to leave.
NOT_PROSE = (
    nodes.literal,
    nodes.reference,
    nodes.Titular,
    nodes.table,
    nodes.citation,
    nodes.math,
    nodes.raw,
)


class Explained(nodes.inline):
    """A word in prose with what it means, `meaning`, and the id of the explanation, `label`."""


class Words:
    """The words of the glossary, and how they occur in prose.

    Attributes:
        meanings: what each word means, in the order of the glossary.
        pattern: finds the first place of any word; the group `w<i>` belongs to the i-th.
    """

    def __init__(self, entries: list[dict]):
        self.meanings = {entry["word"]: " ".join(entry["meaning"].split()) for entry in entries}
        forms = [entry.get("forms", [re.escape(entry["word"])]) for entry in entries]
        found = "|".join(f"(?P<w{i}>{'|'.join(each)})" for i, each in enumerate(forms))
        self.pattern = re.compile(rf"(?<![\w-])(?:{found})(?![\w-])", re.IGNORECASE)

    def split(self, text: str, seen: set[str]) -> list[nodes.Node]:
        """A text with the words explained that are not in `seen`, to which they are added."""
        parts, end = [], 0
        in_line = re.sub(r"\s", " ", text)
        for match in self.pattern.finditer(in_line):
            word = list(self.meanings)[int(match.lastgroup[1:])]
            if word in seen:
                continue
            seen.add(word)
            parts.append(nodes.Text(text[end : match.start()]))
            label = "word-" + re.sub(r"\W+", "-", word.lower())
            inner = nodes.Text(text[match.start() : match.end()])
            parts.append(Explained("", "", inner, meaning=self.meanings[word], label=label))
            end = match.end()
        return [*parts, nodes.Text(text[end:])]


def glossary() -> Words:
    """The book's glossary."""
    return Words(yaml.safe_load(GLOSSARY.read_text(encoding="utf-8")))


def no_prose(node: nodes.Node) -> bool:
    """Whether no word in it is explained; a card is a link as a whole."""
    card = isinstance(node, nodes.Element) and "sd-card" in node.get("classes", ())
    return card or isinstance(node, NOT_PROSE)


def explain(app: object, document: nodes.document, page: str) -> None:
    """Explain each word of the glossary where a page first uses it."""
    if app.builder.format != "html" or page == "glossary":
        return
    words, seen = glossary(), set()
    for _, paragraph in within(document, no_prose):
        if not isinstance(paragraph, nodes.paragraph):
            continue
        for parent, text in within(paragraph, no_prose):
            if not isinstance(text, nodes.Text):
                continue
            parts = words.split(text.astext(), seen)
            if len(parts) > 1:
                parent.replace(text, parts)
        if explained := list(paragraph.findall(Explained)):
            paragraph["classes"] = sorted({*paragraph["classes"], "explains"})
            explained[0]["stop"] = True


def heed_glossary(app: object, document: nodes.document) -> None:
    """A page is read anew when the glossary has changed."""
    app.env.note_dependency(str(GLOSSARY))


def visit_explained(writer: object, node: Explained) -> None:
    """The word names its explanation and takes the keyboard's focus: the first of a paragraph with Tab, as many stops
    would be in the way of who goes on to a link or a button, and the others with the arrows.
    """
    stop = 0 if node.get("stop") else -1
    writer.body.append(
        f'<span class="explained"><dfn tabindex="{stop}" aria-describedby="{node["label"]}">'
    )


def depart_explained(writer: object, node: Explained) -> None:
    """The explanation stands beside the word, hidden until it is asked for."""
    meaning = escape(node["meaning"])
    writer.body.append(
        f'</dfn><span class="meaning" role="tooltip" id="{node["label"]}">{meaning}</span></span>'
    )


class Glossary(SphinxDirective):
    """All words of the glossary with their meanings, as a list."""

    def run(self) -> list[nodes.Node]:
        meanings = sorted(glossary().meanings.items(), key=lambda entry: entry[0].lower())
        entries = [
            nodes.definition_list_item(
                "",
                nodes.term("", word[0].upper() + word[1:]),
                nodes.definition("", nodes.paragraph("", meaning)),
            )
            for word, meaning in meanings
        ]
        return [nodes.definition_list("", *entries)]


# --- a picture of another page -------------------------------------------------------------------------------


class PastedFigure(SphinxDirective):
    """A figure with its number and caption whose picture another page has glued; MyST-NB's own stays on its page."""

    required_arguments = 1
    has_content = True
    option_spec: ClassVar = {
        "doc": directives.unchanged_required,
        "name": directives.unchanged,
        "alt": directives.unchanged_required,
    }

    def run(self) -> list[nodes.Node]:
        paste = ["```{glue:any} " + self.arguments[0], f":doc: {self.options['doc']}", "```"]
        figure, text = nodes.figure(alt=self.options["alt"]), nodes.Element()
        self.state.nested_parse(StringList(paste, self.get_source_info()[0]), 0, figure)
        self.state.nested_parse(self.content, self.content_offset, text)
        figure += nodes.caption("", "", *text.children[0].children)
        self.set_source_info(figure)
        self.add_name(figure)
        return [figure]


def name_pictures(app: object, document: nodes.document, page: str) -> None:
    """The picture of a pasted figure has its text, now that it is there."""
    for figure in document.findall(nodes.figure):
        for picture in figure.findall(nodes.image) if "alt" in figure else ():
            picture["alt"] = figure["alt"]


# --- what a link leads to ------------------------------------------------------------------------------------

ARTICLE = re.compile(r"<article\b.*?</article>", re.DOTALL)
LINK = re.compile(r'<a class="reference internal" href="([^"#]+)"(?: title="[^"]*")?>')
PARAGRAPH = re.compile(r"<p\b[^>]*>(.*?)</p>", re.DOTALL)
HIDDEN = re.compile(r'<span class="meaning".*?</span>|<[^>]+>', re.DOTALL)
STATIC = re.compile(r'(<(?:a|iframe) (?:href|src)=")_static/')
LONGEST = 300  # of a preview, in characters


def shortened(text: str) -> str:
    """A text in one line, cut between two words if it is long."""
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else line[:LONGEST].rsplit(" ", 1)[0] + " …"


def beginning(html: str) -> str:
    """The first paragraph of a built page, as text."""
    article = ARTICLE.search(html)
    body = article[0].partition("</h1>")[2] if article else ""
    paragraph = PARAGRAPH.search(body)
    return shortened(unescape(HIDDEN.sub("", paragraph[1]))) if paragraph else ""


def preview(app: object, fault: Exception | None) -> None:
    """Links from one page to another show on hover how that page begins."""
    if fault or app.builder.format != "html":
        return
    # A page's address may be a folder, and a builder may write no file for each page.
    addresses = {page: app.builder.get_target_uri(page) for page in app.env.found_docs}
    files = {name: Path(app.builder.get_outfilename(page)) for page, name in addresses.items()}
    files = {name: path for name, path in files.items() if "#" not in name and path.is_file()}
    texts = {name: path.read_text(encoding="utf-8") for name, path in files.items()}
    begins = {posixpath.normpath(name): beginning(html) for name, html in texts.items()}
    for name, html in texts.items():

        def told(link: re.Match, name: str = name) -> str:
            target = posixpath.normpath(posixpath.join(posixpath.dirname(name), link[1]))
            if not begins.get(target):
                return link[0]
            return (
                f'<a class="reference internal" href="{link[1]}" title="{escape(begins[target])}">'
            )

        better = ARTICLE.sub(lambda part, told=told: LINK.sub(told, part[0]), html)
        if better != html:
            files[name].write_text(better, encoding="utf-8")


def find_static(app: object, page: str, template: str, context: dict, document: object) -> None:
    """What a page names in `_static` by hand is found from where the builder puts the page."""
    if "body" in context:
        there = context["pathto"]("_static/", 1)
        context["body"] = STATIC.sub(rf"\1{there}", context["body"])


def setup(app: object) -> dict[str, object]:
    """Sphinx calls this."""
    app.add_node(Explained, html=(visit_explained, depart_explained))
    app.add_directive("all-words", Glossary)
    app.add_directive("pasted-figure", PastedFigure)
    app.connect("doctree-read", read_tables)
    app.connect("doctree-read", once)
    app.connect("doctree-read", name_folds)
    app.connect("doctree-read", heed_glossary)
    app.connect("doctree-resolved", typeset_numbers)
    app.connect("doctree-resolved", explain)
    app.connect("doctree-resolved", name_pictures)
    app.connect("builder-inited", own_equations)
    app.connect("html-page-context", find_static)
    app.connect("build-finished", preview)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
