"""What the book makes of executed pages, so that none is run again for the sake of its looks.

Tables of numbers get one line of column names, in words, and numbers to the right; what several figures of a page
share is there once; mathematics is loaded only where there is some.
"""

import re
import xml.etree.ElementTree as Tree
from itertools import zip_longest

from docutils import nodes

FRAME = re.compile(r'<table\b[^>]*class="dataframe".*?</table>', re.DOTALL)
BLOCK = re.compile(r'<(style|script type="module")>.*?</(style|script)>', re.DOTALL)
NUMBER = re.compile(r"([\d\s.,+\-−–±×%\[\]]|to|nan|inf)*", re.IGNORECASE)
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
    """Whether a cell holds a number, with its spread or interval, or none; a list of ids is text."""
    return bool(NUMBER.fullmatch(text)) and text.count(",") < 3


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


def readable(html: str) -> str:
    """A table as pandas writes it → as this book shows it."""
    table = Tree.fromstring(html)
    head = table.find("thead")
    for line in head:
        line.attrib.clear()  # pandas aligns all names to the right
    join_names(head)
    drop_count(table)
    mark_numbers(table)
    for cell in head.iter("th"):
        cell.text = WORDS.get(words(cell), cell.text)
    table.attrib = {"class": "dataframe"}
    return f'<div class="wide">{Tree.tostring(table, encoding="unicode", method="html")}</div>'


def read_tables(app: object, document: nodes.document) -> None:
    """Replace the tables in the outputs of a page."""
    for node in document.findall(nodes.raw):
        if "html" in node.get("format", "") and FRAME.search(node.astext()):
            frames = [readable(frame) for frame in FRAME.findall(node.astext())]
            node.children = [nodes.Text("\n".join(frames))]


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


def own_equations(app: object) -> None:
    """The first page of a book counts as one with mathematics when any page has some: it is not."""
    domain = app.env.get_domain("math")
    domain.has_equations = lambda page=None: domain.data["has_equations"].get(page, False)


def setup(app: object) -> dict[str, object]:
    """Sphinx calls this."""
    app.connect("doctree-read", read_tables)
    app.connect("doctree-read", once)
    app.connect("builder-inited", own_equations)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
