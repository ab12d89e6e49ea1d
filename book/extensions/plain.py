"""What stands in a notebook as plain Markdown, made into the book's directives when it is built.

A notebook is also read in JupyterLab, which shows directives as they are written. So a notebook has, and the book
makes of it:

- `<!-- glue:any numbers -->`, a comment: what its code has glued under this name;
- `<!-- glue:figure picture`, lines of options and a caption, `-->`: a figure;
- `<details><summary>…</summary>`, text, `</details>`: a part that opens on a click;
- `[Gao et al. (2021)](../book/references.bib#gao2021ats)`, in brackets `([Gao et al., 2021](…))`: a citation;
- `[The words](../book/glossary.md)`: a link to another page of the book. Links to notebooks stay as they are.
"""

import json
import re

GLUE = re.compile(r"^<!-- glue:(\w+) (\w+)\n?(.*?) ?-->$", re.MULTILINE | re.DOTALL)
FOLDED = re.compile(
    r"^<details><summary>(.*?)</summary>\n(.*?)^</details>$", re.MULTILINE | re.DOTALL
)
IN_BRACKETS = re.compile(r"\(\[[^]]*\]\(\.\./book/references\.bib#([\w,]+)\)\)")
NAMED = re.compile(r"\[[^]]*\]\(\.\./book/references\.bib#([\w,]+)\)")
PAGE = re.compile(r"\]\(\.\./book/(\w+\.md)\)")


def _glued(match: re.Match) -> str:
    kind, name, options = match.groups()
    if kind == "md":
        options = ":format: myst\n"
    return f"```{{glue:{kind}}} {name}\n{options}```"


def directives(text: str) -> str:
    """A notebook's Markdown as MyST."""
    text = GLUE.sub(_glued, text)
    text = FOLDED.sub(r":::{dropdown} \1\n\2:::", text)
    text = IN_BRACKETS.sub(r"{cite:p}`\1`", text)
    text = NAMED.sub(r"{cite:t}`\1`", text)
    return PAGE.sub(r"](../\1)", text)


def read(app: object, name: str, source: list[str]) -> None:
    """Sphinx has read a page."""
    if not app.env.doc2path(name).endswith(".ipynb"):
        return
    notebook = json.loads(source[0])
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            cell["source"] = directives("".join(cell["source"]))
    source[0] = json.dumps(notebook)


def setup(app: object) -> dict[str, object]:
    """Sphinx calls this."""
    app.connect("source-read", read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
