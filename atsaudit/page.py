"""The report as one HTML file: no script, no request, printable; every text from outside is
escaped.
"""

import base64
import shlex
from collections.abc import Iterable
from html import escape

import torch
from torch import Tensor
from torch.nn import functional as F

from atsaudit.numbers import ABOVE, CANNOT_TELL, NO_LIMIT, WITHIN, Numbers, Row, png
from atslib._version import __version__

SHOWN = 10  # worst images on the first screen
DISPLAYED = 96  # pixels that a picture is wide

STYLE = """
:root { --ink: #1d232b; --quiet: #5a6572; --line: #d5dbe2; --ground: #fff;
  --bad: #9d2c1d; --good: #1c6b3c; --open: #7a5600; }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.2rem 1.4rem 4rem; max-width: 62rem; color: var(--ink); background: var(--ground);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 1.05rem; letter-spacing: .02em; color: var(--quiet); font-weight: 600; margin: 0; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .5rem; }
p { margin: .5rem 0; max-width: 46rem; }
.answer { font-size: 1.3rem; line-height: 1.4; margin: .3rem 0 .8rem; max-width: none; }
.verdict { border-left: 6px solid; padding: .5rem .9rem; margin: .6rem 0 1rem; background: #f6f8fa; }
.verdict b { font-size: 1.1rem; }
.above { border-color: var(--bad); } .above b { color: var(--bad); }
.within { border-color: var(--good); } .within b { color: var(--good); }
.open { border-color: var(--open); } .open b { color: var(--open); }
.quiet, figcaption, caption { color: var(--quiet); font-size: .88rem; }
.pairs { display: grid; grid-template-columns: repeat(10, 1fr); gap: .5rem; margin: .4rem 0; }
.pairs figure { margin: 0; break-inside: avoid; min-width: 0; }
.pairs img { display: block; width: 100%; height: auto; image-rendering: pixelated; }
.pairs img + img { margin-top: 2px; }
.pairs figcaption { font-size: .78rem; line-height: 1.25; overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding-bottom: .3rem; }
th, td { border-bottom: 1px solid var(--line); padding: .35rem .5rem; text-align: right; vertical-align: top; }
th:first-child, td:first-child { text-align: left; }
td:nth-child(2), td:nth-child(3) { white-space: nowrap; }
th { font-weight: 600; color: var(--quiet); }
tr.counts td:first-child { font-weight: 600; }
svg { display: block; max-width: 100%; height: auto; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; margin: .5rem 0; }
dt { color: var(--quiet); } dd { margin: 0; overflow-wrap: anywhere; }
pre { background: #f6f8fa; padding: .7rem .9rem; white-space: pre-wrap; overflow-wrap: anywhere; font-size: .85rem; }
li { margin: .2rem 0; max-width: 46rem; }
@media (max-width: 40rem) {
  .pairs { grid-template-columns: repeat(5, 1fr); }
  dl { grid-template-columns: 1fr; } dt { margin-top: .4rem; }
}
@media print {
  body { max-width: none; padding: 0; font-size: 11pt; }
  h2 { break-after: avoid; } tr, .verdict { break-inside: avoid; }
}
"""

RULE = (
    "Above the limit (exit status 3): in some case more is found than the limit, beyond chance (95 %, one-sided). Within "
    "it (0): in every case a share above the limit is ruled out at 95 %, and the attack works on the positive control. "
    "Otherwise the audit cannot tell (4)."
)

READING = (
    "Found is what decides. A photograph counts as found if its reconstruction is closer to it than to every other "
    "candidate, by a comparison that does not mind shifts, mirror images, brightness and contrast.",
    "Bits: log2 of the number of candidates, less the log loss of the guess that a server would make from the "
    "reconstruction. 0: it knows nothing. It is a bound from below.",
    "Gain: how many decibels the reconstruction is closer than the mean of other photographs of the class, "
    "after the same policy with the same draw. Below 0 it is no better than a guess without any gradient; a "
    "photograph may be found all the same.",
    "What several images share has no order: each reconstruction is held beside the one of its batch that it "
    "fits best, among those of its label.",
    "A number is what these attacks found in the time they had. Others may find more: a limit that is kept here is no "
    "proof of safety. Differential privacy gives bounds; an audit gives an example.",
)
ALL_CLASSES = (
    "Here some class has fewer than 20 photographs, so candidates are of all classes, and the label alone tells "
    "some of them apart. Chance takes that into account, bits do not."
)

LETTERS = (
    ("A", "eavesdropper who has the updates alone", "covered by B, who knows more"),
    ("B", "who also knows network and task", "tested"),
    ("C", "who also knows how clients train", "tested where updates are trained locally"),
    ("D", "who also has data of the same kind", "not tested"),
    ("E", "who also knows statistics of the clients' data", "not tested"),
    ("F", "who manipulates the network", "not tested"),
    ("G", "who manipulates it and has data", "not tested"),
    ("H", "who also chooses clients", "not tested"),
)


def page(report: Numbers, *, pictures: bool = True) -> str:
    """The whole report; without pictures where they shall not leave."""
    parts = [
        "<h1>How much a network gives away</h1>",
        f'<p class="answer">{escape(report.sentence)}</p>',
        _verdict(report),
        _worst(report) if pictures else '<p class="quiet">Written without pictures.</p>',
        _table(report),
        _plot(report.rows, report.config.limit),
        _control(report),
        _card(report),
        _attacks(report),
        _list("Not tested", report.untested, "A low number above says nothing about these."),
        _reading(report),
        _repeat(report),
    ]
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    head = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Audit: {escape(report.verdict)}</title>\n<style>{STYLE}</style>\n</head>\n"
    )
    return head + "<body>\n" + "\n".join(filter(None, parts)) + "\n</body>\n</html>\n"


def _verdict(report: Numbers) -> str:
    kinds = {ABOVE: "above", WITHIN: "within", CANNOT_TELL: "open", NO_LIMIT: "open"}
    limit = report.config.limit
    verdict = report.verdict
    asked = f"At most {limit:.1%} may be found. " if limit is not None else ""
    words = {
        ABOVE: "No: above the limit.",
        WITHIN: "Yes: within the limit.",
        CANNOT_TELL: "Cannot tell.",
        NO_LIMIT: "No limit was set.",
    }[verdict]
    lines = [f"<p>{escape(asked)}<b>{escape(words)}</b></p>"]
    if verdict == WITHIN:
        lines.append(
            "<p>Under the attacks that are listed below, and in the cases of the table; see what was not tested.</p>"
        )
    if limit is not None:
        lines.append(f'<p class="quiet">{escape(RULE)}</p>')
    if verdict in (ABOVE, CANNOT_TELL):
        lines += [f'<p class="quiet">{escape(doubt)}</p>' for doubt in report.doubts]
    for note in filter(None, (report.silence, *report.notes)):
        lines.append(f'<p class="quiet">{escape(note)}</p>')
    return f'<div class="verdict {kinds[verdict]}">{"".join(lines)}</div>'


def _worst(report: Numbers) -> str:
    """The images of which most is told, in the case in which most are found."""
    each = report.worst_case
    told = each.outcome
    score = (
        told.bits.nan_to_num(0) + told.gain.double().nan_to_num(-99) / 1000 + told.found.double()
    )
    figures = []
    for place in score.argsort(descending=True)[:SHOWN].tolist():
        image = int(told.images[place])
        name = report.class_names[int(report.labels[image])]
        state = (
            "found"
            if bool(told.found[place])
            else f"rank {int(told.rank[place])} of {int(told.candidates[place])}"
        )
        caption = f"{name if len(name) < 32 else name[:30] + '…'}: {state}, {float(told.gain[place]):+.1f} dB"
        shown = (report.originals[image], told.pictures[place])
        pair = "".join(
            _image(pixels, words)
            for pixels, words in zip(shown, ("original", "recovered"), strict=True)
        )
        figures.append(f"<figure>{pair}<figcaption>{escape(caption)}</figcaption></figure>")
    words = (
        f"The {len(figures)} photographs of which most is told, and below each what the attack recovered, "
        f"from {each.case.title}."
    )
    return f'<p class="quiet">{escape(words)}</p><div class="pairs">{"".join(figures)}</div>'


def _image(pixels: Tensor, words: str) -> str:
    height, width = pixels.shape[-2:]
    if max(height, width) > 2 * DISPLAYED:  # larger than it is shown, and heavy
        scale = 2 * DISPLAYED / max(height, width)
        size = (max(1, round(height * scale)), max(1, round(width * scale)))
        pixels = (
            F.interpolate(pixels[None].float(), size, mode="bilinear", antialias=True)[0]
            .round()
            .to(torch.uint8)
        )
    data = base64.b64encode(png(pixels)).decode()
    tall = DISPLAYED * height // width
    return f'<img src="data:image/png;base64,{data}" width="{DISPLAYED}" height="{tall}" alt="{words}">'


def _table(report: Numbers) -> str:
    among = "of its own class" if report.own_class else "of all classes"
    heads = ("case", "found", "95 % interval", "chance", "bits", "gain, dB", "best attack")
    lines = [f"<tr>{''.join(f'<th>{escape(head)}</th>' for head in heads)}</tr>"]
    for row in report.rows:
        mark = " (control)" if row.control else ""
        cells = (
            f"{row.title}{mark}",
            f"{row.found} of {row.images}",
            f"{row.share:.0%} [{100 * row.low:.0f}, {100 * row.high:.0f}]",
            f"{row.chance:.1%}",
            "–" if row.bits is None else f"{row.bits:.2f}",
            f"{row.gain:+.1f}",
            row.attack,
        )
        kind = ' class="counts"' if row.counts else ""
        lines.append(f"<tr{kind}>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>")
    count = report.rows[0].candidates
    caption = (
        f"Found: the reconstruction is more like the photograph than like any other of {count:.0f} {among}. "
        "Chance: somebody who knows the label alone. Bold: held against the limit."
    )
    return (
        f'<h2>Found, case by case</h2><div class="wide"><table><caption>{escape(caption)}</caption>'
        f"{''.join(lines)}</table></div>"
    )


def _plot(rows: list[Row], limit: float | None) -> str:
    """Shares with their intervals as a dot plot, inline SVG."""
    left = 390
    width = 300
    step = 30
    height = 34 + step * len(rows)
    marks = []
    for percent in (0, 25, 50, 75, 100):
        x = left + width * percent / 100
        marks.append(f'<line x1="{x}" x2="{x}" y1="8" y2="{height - 24}" stroke="#d5dbe2"/>')
        marks.append(
            f'<text x="{x}" y="{height - 8}" text-anchor="middle" fill="#5a6572">{percent} %</text>'
        )
    if limit is not None:
        x = left + width * limit
        marks.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="8" y2="{height - 24}" stroke="#9d2c1d" stroke-dasharray="4 3"/>'
        )
        marks.append(f'<text x="{x + 4:.1f}" y="14" fill="#9d2c1d">limit</text>')
    for number, row in enumerate(rows):
        y = 26 + step * number
        low, share, high, chance = (
            left + width * value for value in (row.low, row.share, row.high, row.chance)
        )
        color = "#1d4f91" if row.counts else "#5a6572"
        marks.append(
            f'<line x1="{chance:.1f}" x2="{chance:.1f}" y1="{y - 7}" y2="{y + 7}" stroke="#5a6572"/>'
        )
        marks.append(
            f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{y}" y2="{y}" stroke="{color}" stroke-width="2"/>'
        )
        marks.append(f'<circle cx="{share:.1f}" cy="{y}" r="5" fill="{color}"/>')
        lines = _wrapped(row.title + (" (control)" if row.control else ""))
        for place, words in enumerate(lines):
            at = y + 4 + 13 * (place - (len(lines) - 1) / 2)
            marks.append(
                f'<text x="{left - 14}" y="{at:.1f}" text-anchor="end" fill="#1d232b">{escape(words)}</text>'
            )
    total = left + width + 24
    words = "; ".join(f"{row.title} {row.share:.0%}" for row in rows)
    return (
        f'<figure style="margin:1rem 0"><svg viewBox="0 0 {total} {height}" width="{total}" role="img" '
        f'aria-label="{escape("Share found by case: " + words)}" font-family="inherit" font-size="12">'
        f"{''.join(marks)}</svg>"
        "<figcaption>Share found, with its 95 % interval; the small stroke is chance.</figcaption></figure>"
    )


def _wrapped(words: str, most: int = 60) -> list[str]:
    """Words in at most two lines of about so many letters."""
    if len(words) <= most:
        return [words]
    cut = words.rfind(", ", 0, most) + 1 or words.rfind(" ", 0, most) + 1 or most
    second = words[cut:].strip()
    return [words[:cut].strip(), second if len(second) <= most else second[: most - 1] + "…"]


def _control(report: Numbers) -> str:
    row = report.control
    control = _first_capital(row.title) if row else ""
    if row is None:
        words = "There was none: nothing shows that the attack works here, so low numbers cannot be relied on."
    elif row.works:
        words = (
            f"{control}: {row.found} of {row.images} are found, beyond doubt more than the {row.chance:.1%} that the "
            "label alone gives. So the attack works on this network and these photographs."
        )
    else:
        words = (
            f"{control}: only {row.found} of {row.images} are found, which the label alone may give "
            f"({row.chance:.1%}). The attack does not work here, so low numbers elsewhere mean nothing."
        )
    return f"<h2>Positive control</h2><p>{escape(words)}</p>"


def _first_capital(words: str) -> str:
    return words[:1].upper() + words[1:]


def _card(report: Numbers) -> str:
    config = report.config
    local = config.local
    trains = "one gradient"
    if local is not None:
        of = "all its images" if not local.batch else f"{local.batch} images"
        passes = "one pass" if local.epochs == 1 else f"{local.epochs} passes"
        trains = f"a change of weights: {passes} in steps of {of}, {config.optimizer}, step size {local.lr:g}"
    size = "×".join(map(str, report.originals.shape[1:]))
    entries = (
        ("network", report.network),
        (
            "photographs",
            f"{len(report.originals):,} of {size} (channels, height, width), {len(report.class_names)} classes",
        ),
        ("what a client shares", trains),
        ("images behind it", ", ".join(map(str, config.batch))),
        (
            "who sees it",
            f"the sum over {config.clients} clients"
            if config.clients > 1
            else "the server, of each client",
        ),
        ("rounds on the same images", str(config.rounds)),
        (
            "labels",
            "known to the server" if config.labels == "known" else "restored from what is shared",
        ),
        ("batch normalization", f"client in {config.victim} mode, statistics {config.batch_norm}"),
        ("policy", config.policy or "none"),
        ("other defense", config.defense or "none"),
        ("the server", "honest but curious: sends the right network, reads what it gets"),
    )
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in entries)
    c = "tested" if local is not None else "not tested: no local training was given"
    letters = [(letter, who, c if letter == "C" else state) for letter, who, state in LETTERS]
    lines = "".join(
        f"<tr><td>{letter}</td><td style='text-align:left'>{escape(who)}</td><td>{escape(state)}</td></tr>"
        for letter, who, state in letters
    )
    return (
        f"<h2>Threat card</h2><dl>{rows}</dl>"
        '<p class="quiet">The threat models of Carletti et al., SoK: Gradient Inversion Attacks in Federated Learning '
        f"(USENIX Security 2025):</p><div class='wide'><table>{lines}</table></div>"
    )


def _attacks(report: Numbers) -> str:
    names = list(dict.fromkeys(name for each in report.results for name in each.tried))
    lines = []
    groups = {}
    for each in report.results:
        groups.setdefault(each.case.group, each)
    heads = "".join(f"<th>{escape(name)}</th>" for name in names)
    for each in groups.values():
        cells = "".join(
            f"<td>{each.tried[name]:.2f}</td>" if name in each.tried else "<td>–</td>"
            for name in names
        )
        weights, shared, batch, clients, _ = each.case.group
        what = f"{shared} of {batch}" + (f" × {clients}" if clients > 1 else "") + f", {weights}"
        lines.append(f"<tr><td>{escape(what)}</td>{cells}</tr>")
    plan = report.plan
    if not names:
        words = (
            f"There was no time to compare attacks: {report.rows[0].attack} is the one for networks of this kind. "
            f"It had {plan.steps} steps. A larger budget compares them."
        )
        return f"<h2>Attacks that were tried</h2><p>{escape(words)}</p>"
    words = (
        f"Bits on {plan.tuned_on} held-out photographs after {plan.tuning_steps} steps. The best one attacked the "
        f"others with {plan.steps} steps."
    )
    return (
        f'<h2>Attacks that were tried</h2><div class="wide"><table><caption>{escape(words)}</caption>'
        f"<tr><th>case</th>{heads}</tr>{''.join(lines)}</table></div>"
    )


def _list(title: str, items: Iterable[str], words: str) -> str:
    entries = "".join(f"<li>{escape(item)}</li>" for item in items)
    return f"<h2>{escape(title)}</h2><p>{escape(words)}</p><ul>{entries}</ul>"


def _reading(report: Numbers) -> str:
    words = list(READING)
    if not report.own_class:
        words.insert(1, ALL_CLASSES)
    return "<h2>How to read it</h2>" + "".join(f"<p>{escape(each)}</p>" for each in words)


def _repeat(report: Numbers) -> str:
    plan = report.plan
    seed = report.config.seed
    words = (
        f"atslib {__version__}, torch {torch.__version__}, seed {seed}, {plan.images} photographs, {plan.steps} steps. "
        "With the same images and steps (--images, --steps) the numbers are the same on each machine that has time for "
        "them and for the comparison of attacks."
    )
    return f'<h2>How to repeat it</h2><pre>{escape(report.repeat)}</pre><p class="quiet">{escape(words)}</p>'


def command_line(arguments: Iterable[str]) -> str:
    """The command as one could type it again."""
    return "python -m atsaudit " + " ".join(map(shlex.quote, arguments))
