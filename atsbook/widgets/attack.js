// A real attack in the reader's browser: `attack` draws it into `el` from its payload. `common.js`, `operations.js` and
// `figures.js` stand before this; the workers' text is in the payload. No dependency, no request.

const LIMITS = { bytes: 10_000_000, pixels: 50_000_000 };
const PARTS = [0, 1, 2]; // operations of a policy, at most
const SHOWN = 12; // of the line-up
const OWN = "own";

/** A file as a picture of the payload's size, its middle square, and a sentence on what was done; throws a sentence. */
async function taken(file, [channels, height, width]) {
  if (file.size > LIMITS.bytes)
    throw new Error(`${file.name} has ${(file.size / 1e6).toFixed(1)} MB; at most 10 MB are taken.`);
  let image;
  try {
    image = await createImageBitmap(file);
  } catch {
    throw new Error(`${file.name} is no image that this browser can read; take a PNG, JPEG, WebP or GIF.`);
  }
  const { width: wide, height: high } = image,
    side = Math.min(wide, high);
  if (wide * high > LIMITS.pixels)
    throw new Error(`${file.name} has ${wide} × ${high} pixels; at most 50 million are taken.`);
  const canvas = h("canvas", { width, height }),
    context = canvas.getContext("2d", { willReadFrequently: true });
  context.imageSmoothingQuality = "high";
  const draw = () => context.drawImage(image, (wide - side) / 2, (high - side) / 2, side, side, 0, 0, width, height);
  draw();
  const clear = context.getImageData(0, 0, width, height).data.some((value, i) => i % 4 === 3 && value < 255);
  context.fillStyle = "white";
  context.fillRect(0, 0, width, height);
  draw();
  const { data } = context.getImageData(0, 0, width, height),
    bytes = new Uint8Array(channels * height * width);
  for (let i = 0; i < bytes.length; i++) bytes[i] = data[4 * (i % (height * width)) + Math.floor(i / (height * width))];
  const notes = [
    side < width && `its ${wide} × ${high} pixels are enlarged`,
    clear && "what is transparent is taken as white",
    file.type === "image/gif" && "of an animation the first picture is taken",
  ];
  return {
    picture: { bytes, size: [channels, height, width] },
    note: `${file.name} stays in this page${notes
      .filter(Boolean)
      .map((n) => `; ${n}`)
      .join("")}.`,
  };
}

const floats = ({ bytes }) => Float64Array.from(bytes, (value) => value / 255);
const normal = () => Math.sqrt(-2 * Math.log(1 - Math.random())) * Math.cos(2 * Math.PI * Math.random());
const coin = () => (Math.random() < 0.5 ? -1 : 1);
const below = (count) => Math.floor(Math.random() * count);
const shuffled = (list) => {
  const out = [...list];
  for (let i = out.length - 1; i > 0; i--) {
    const j = below(i + 1);
    [out[i], out[j]] = [out[j], out[i]];
  }
  return out;
};
const ordinal = (n) => `${n}${(n % 100 > 10 && n % 100 < 14 ? "" : ["", "st", "nd", "rd"][n % 10]) || "th"}`;
const article = (word) => (/^[aeiou]/.test(word) ? `an ${word}` : `a ${word}`);
const bytesOf = ({ data: rgba }, [channels]) => {
  const area = rgba.length / 4;
  return Uint8Array.from({ length: channels * area }, (_, i) => rgba[4 * (i % area) + Math.floor(i / area)]);
};
/** The rank of one of the candidates by their similarities; equal ones stand before it. */
const rankOf = (scores, place) => scores.filter((score) => score >= scores[place] - 1e-5).length;

/** Lengths of bars: by the likelihood that such correlations stand for, from the middle of all to the most. */
function bars(scores) {
  const alike = scores.map((score) => -0.5 * Math.log(1 - Math.min(0.9999, Math.max(0, score) ** 2)));
  const low = [...alike].sort((a, b) => a - b)[Math.floor(alike.length / 2)],
    span = Math.max(0.1, Math.max(...alike) - low);
  return alike.map((value) => Math.max(0, value - low) / span);
}

/** A policy that the reader composes, what it drew, what the client used, and what the server makes of that. */
class Lane {
  constructor(lab, slot, title, start) {
    const { data, small } = lab;
    Object.assign(this, { lab, slot, title, run: null, compared: null, rounds: [], total: null, worker: null });
    this.used = framed(data.size, "ats-used");
    this.found = framed(data.size, "ats-found");
    this.undone = framed(data.size, "ats-undone");
    this.policyNode = this.buildPolicy(small);
    this.verdict = h("p", { className: "ats-verdict" });
    this.decibels = h("small");
    this.other = h("p", { className: "ats-other" });
    this.take(start);
  }

  buildPolicy(small) {
    const { data, kinds } = this.lab;
    const named = Object.entries(data.policies).map(([id, title]) => h("option", { value: id, textContent: title }));
    const own = h("option", { value: OWN, textContent: "Your own" });
    this.select = h(
      "select",
      {
        "aria-label": this.title,
        onchange: () => (this.select.value === OWN ? this.compose() : this.change(this.select.value)),
      },
      ...named,
      ...(small ? [] : [own]),
    );
    this.rows = PARTS.map((part) => {
      const kind = h(
        "select",
        { "aria-label": `Operation ${part + 1}` },
        h("option", { value: "", textContent: "nothing" }),
      );
      kind.append(...[...kinds].map(([name, { words }]) => h("option", { value: name, textContent: words })));
      const level = h("input", { type: "range", min: 0, step: 1, "aria-label": `Strength of operation ${part + 1}` });
      const number = h("output");
      kind.onchange = () => {
        this.place(part, kinds.get(kind.value)?.ids.at(-1) ?? null);
        this.compose();
      };
      level.oninput = () => {
        this.place(part, kinds.get(kind.value).ids[Number(level.value)]);
        this.compose();
      };
      return { kind, level, number, id: null };
    });
    this.drew = h("p", { className: "ats-operations" });
    this.again = h("button", { type: "button", textContent: "Draw again", onclick: () => this.redraw() });
    this.keep = h("input", { type: "checkbox" });
    const rows = this.rows.map(({ kind, level, number }) => h("div", { className: "ats-row" }, kind, level, number));
    const drawing = h("div", { className: "ats-draw" }, this.again, h("label", {}, this.keep, "Keep this draw"));
    return h("div", { className: "ats-policy" }, this.select, this.drew, ...(small ? [] : [drawing, ...rows]));
  }

  // --- the policy -----------------------------------------------------------------------------------------

  /** Put an operation, or none, into a row. */
  place(part, id) {
    const row = this.rows[part],
      name = id === null ? "" : this.lab.data.operations[id].name;
    const ids = this.lab.kinds.get(name)?.ids ?? [];
    const at = ids.indexOf(id === null ? null : this.lab.data.canonical[id]);
    row.id = id === null ? null : ids[at];
    row.kind.value = name;
    row.level.max = Math.max(0, ids.length - 1);
    row.level.value = Math.max(0, at);
    row.level.disabled = ids.length < 2;
    row.number.textContent = ids.length < 2 ? "" : this.lab.levelOf(row.id);
    row.level.setAttribute("aria-valuetext", row.number.textContent || "fixed");
  }

  /** One of the named policies. */
  take(policy) {
    this.select.value = policy;
    this.members = policy.split("+").map((member) => member.split("-").filter(Boolean).map(Number));
    this.draw();
  }

  change(policy) {
    this.lab.halt();
    this.take(policy);
    this.lab.changed();
  }

  /** What the rows say. */
  compose() {
    this.lab.halt();
    this.select.value = OWN;
    this.members = [this.rows.map(({ id }) => id).filter((id) => id !== null)];
    this.draw();
    this.lab.changed();
  }

  /** Draw a member and signs; another draw than before, where the policy has more than one. */
  draw() {
    for (let tries = 0; tries < 50; tries++) {
      this.drawn = this.members[below(this.members.length)].map((id) => [id, coin()]);
      if (this.forms.length < 2 || this.words(this.drawn) !== this.said) break;
    }
    this.said = this.words(this.drawn);
    if (this.select.value !== OWN) PARTS.forEach((part) => this.place(part, this.drawn[part]?.[0] ?? null));
  }

  redraw() {
    this.lab.halt();
    this.draw();
    this.lab.changed();
  }

  /** All that the policy can draw, lists of [id, sign]. */
  get forms() {
    const { operations } = this.lab.data,
      signs = (id) => (operations[id].signed ? [1, -1] : [1]);
    const turned = (ids) =>
      ids.reduce((list, id) => list.flatMap((form) => signs(id).map((sign) => [...form, [id, sign]])), [[]]);
    return this.members.flatMap(turned);
  }

  words(form) {
    return form.map(([id, sign]) => this.lab.data.operations[id].drawn[sign > 0 ? 0 : 1]).join(" → ") || "no operation";
  }

  /** Forms as the workers know them. */
  get operations() {
    return this.forms.map((form) => form.map(([id, sign]) => [this.lab.data.operations[id], sign]));
  }

  get picture() {
    return this.drawn.reduce(
      (now, [id, sign]) => applied(this.lab.data.operations[id], now, sign),
      this.lab.photo.picture,
    );
  }

  // --- the attack -----------------------------------------------------------------------------------------

  forget() {
    Object.assign(this, { run: null, compared: null, rounds: [], total: null });
  }

  /** What the last run gave stays for the next round. */
  remember() {
    const { picture, form, sum } = this.run;
    this.rounds.push({ picture: floats(picture), form: form ?? 0 });
    this.total = sum;
  }

  begin(id, start, set, { lr, schedule, tv, steps, every }) {
    const { lab } = this,
      target = floats(this.picture),
      { candidates, label, place } = lab.photo,
      forms = this.operations;
    const lineUp = { target, label, candidates: candidates(), forms };
    this.run = {
      id,
      last: steps,
      place,
      picture: {
        bytes: Uint8Array.from(start, (v) => 255 * Math.min(1, Math.max(0, 0.5 + 0.25 * v))),
        size: lab.data.size,
      },
    };
    this.compared = { id };
    lab.worker(this).postMessage({
      run: {
        id,
        ...lineUp,
        start,
        set,
        earlier: { scores: this.total, rounds: this.rounds },
        own: lab.known.length ? lab.known : null,
        tv,
        steps,
        lr,
        schedule,
        every,
      },
    });
    lab.comparer(this).postMessage({ compare: { id, ...lineUp } });
  }

  heard({ kind, id, bytes, ...facts }) {
    if (this.run?.id === id && id === this.lab.count) {
      Object.assign(this.run, facts, {
        picture: { bytes: bytes.slice(), size: this.lab.data.size },
        ended: kind === "ended",
      });
      if (facts.scores) this.run.sum = facts.scores.map((score) => score * (this.rounds.length + 1));
      this.lab.moved(this);
    }
    this.worker?.postMessage({ back: bytes.buffer }, [bytes.buffer]);
  }

  // --- drawing --------------------------------------------------------------------------------------------

  /** Which of two it is, where there are two. */
  get tag() {
    return this.lab.active.length > 1 ? ` ${this.slot.toUpperCase()}` : "";
  }

  show() {
    const { lab, run } = this,
      hidden = lab.hides,
      used = this.picture,
      blank = lab.blank;
    const words = hidden ? "hidden until you have picked" : this.words(this.drawn);
    this.used.show(
      seen(hidden ? blank : used),
      `What the client used${this.tag}: ${words}`,
      `What the client used${this.tag}`,
    );
    this.drew.textContent = hidden ? "" : `This time: ${words}`;
    const step = run?.step ?? 0,
      round = this.rounds.length + 1;
    const caption = `What the server rebuilds${this.tag}${round > 1 ? `, round ${round}` : ""}`;
    this.found.show(
      seen(run?.picture ?? blank),
      run ? `Rebuilt after step ${step} of ${run.last}` : "Nothing is rebuilt yet",
      caption,
    );
    this.decibels.textContent = run
      ? `step ${step} of ${run.last}${run.psnr === undefined ? "" : `, ${fixed(run.psnr)} dB`}`
      : "";
    this.undone.node.hidden = !run?.undone;
    if (run?.undone) {
      const of = round > 1 ? `put together from ${round} rounds` : "with the policy undone";
      this.undone.show(
        seen({ bytes: run.undone, size: lab.data.size }),
        `The photo as the server thinks it was, ${of}`,
        round > 1 ? `${round} rounds put together` : "Policy undone, gaps guessed",
      );
    }
    this.say();
  }

  say() {
    const { lab, run, compared } = this;
    const which = this.tag && `${this.tag.trim()}: `,
      begun = run ? "The server begins with noise …" : "Which photo was it? Press Attack.";
    this.verdict.replaceChildren(
      lab.hides
        ? "Which photo is it? Pick it below."
        : which + (run?.scores ? lab.sentence(run.scores, run.ended) : begun),
    );
    this.verdict.classList.toggle("ats-final", Boolean(run?.ended) && !lab.hides);
    this.other.replaceChildren();
    if (!compared || lab.hides) return;
    this.other.append("A server that compares gradients and rebuilds nothing: ");
    if (!compared.away) this.other.append("looking …");
    else {
      const told = compared.away.some(Number.isFinite),
        pick = compared.away.indexOf(Math.min(...compared.away));
      const [tried, total] = [compared.tried, compared.total].map((n) => n.toLocaleString("en"));
      this.other.append(h("b", { textContent: told ? lab.picked(pick) : "learned nothing" }));
      if (told) this.other.append(h("small", { textContent: ` (${tried} of ${total} pictures tried)` }));
    }
  }
}

class Attack {
  /** The `small` form has one picture, a few policies and a button. */
  constructor(el, data, small) {
    Object.assign(this, {
      data,
      small,
      id: `ats-${++made}`,
      count: 0,
      versions: 0,
      game: null,
      score: { games: 0, you: 0, server: 0 },
      own: null,
      shown: [],
    });
    const { size, operations, canonical } = data;
    this.blank = { bytes: new Uint8Array(size[0] * size[1] * size[2]).fill(128), size };
    this.originals = unpacked(data);
    this.kinds = new Map();
    operations.forEach((op, id) => {
      if (canonical[id] !== id) return; // does nothing, or the same as another
      const kind = this.kinds.get(op.name) ?? { words: op.words.replace(/ \d+$/, ""), ids: [] };
      kind.ids.push(id);
      this.kinds.set(op.name, kind);
    });
    for (const { ids } of this.kinds.values()) ids.sort((a, b) => this.levelOf(a) - this.levelOf(b));
    this.known = [];
    this.sheets = data.classes.map(() => null);
    this.take(0);
    this.lanes = [
      new Lane(this, "a", small ? "Policy" : "The client's policy", data.start),
      ...(small ? [] : [new Lane(this, "b", "A second policy", "")]),
    ];
    this.both = false;
    this.photoFrame = framed(size, "ats-photo");
    const [kind, label] = small
      ? ["attack ats-trial", "Try the attack in this browser"]
      : ["attack", "Attack a photo in this browser"];
    this.root = begin(
      el,
      kind,
      label,
      () => {},
      this.buildBar(),
      ...this.buildColumns(),
      ...(small ? [] : [this.buildMore()]),
    );
    this.ready = Promise.all([
      ...data.classes.map(async ({ sheet }, i) => {
        this.sheets[i] = (await cut(sheet, size)).flat().map((picture) => bytesOf(picture, size));
      }),
      data.own &&
        cut(data.own, size).then((rows) => {
          this.known = rows.flat().map((picture) => bytesOf(picture, size));
        }),
    ]).then(() => this.draw());
    new IntersectionObserver((entries, observer) => {
      // so that the first frame need not wait for the workers
      if (!entries.some((entry) => entry.isIntersecting)) return;
      observer.disconnect();
      this.worker(this.lanes[0]);
      this.comparer(this.lanes[0]);
    }).observe(el);
    this.root.addEventListener("dragover", (event) => event.preventDefault());
    this.root.addEventListener("drop", (event) => {
      event.preventDefault();
      if (!small && event.dataTransfer.files[0]) this.drop(event.dataTransfer.files[0]);
    });
    if (!small) {
      this.buildThumbs();
      this.meet(0);
      this.preset(0);
    }
    this.draw();
  }

  levelOf(id) {
    return Number(this.data.operations[id].words.match(/\d+$/)?.[0] ?? 0);
  }

  // --- controls -------------------------------------------------------------------------------------------

  buildBar() {
    const button = (className, textContent, onclick) =>
      h("button", { type: "button", className, textContent, onclick });
    this.start = button("ats-play", "Attack", () => this.play());
    this.stop = button("ats-stop", "Stop", () => this.halt());
    this.stop.disabled = true;
    this.next = button("ats-next", "Next round", () => this.round());
    this.guess = button("ats-guess", "Can you tell?", () => this.tell());
    this.status = h("p", { className: "ats-status", role: "status" });
    const more = this.small ? [] : [this.next, this.guess];
    return h("div", { className: "ats-run" }, this.start, this.stop, ...more, this.status);
  }

  /** Photo, what the client used, what the server rebuilds; what a second policy makes of it; and what is chosen. */
  buildColumns() {
    const [first, second] = this.lanes,
      { small } = this;
    const verdicts = this.lanes.map(
      (lane) => (lane.box = h("div", { className: `ats-says ats-lane-${lane.slot}` }, lane.verdict, lane.other)),
    );
    const stage = h("div", { className: "ats-trio" }, this.photoFrame.node, first.used.node, first.found.node);
    this.thumbBox = h("div");
    this.file = h("input", {
      type: "file",
      accept: "image/*",
      onchange: () => this.file.files[0] && this.drop(this.file.files[0]),
    });
    this.upload = h(
      "label",
      { className: "ats-upload" },
      h("span", { textContent: "Your own image, or drop one here" }),
      this.file,
    );
    const photo = small
      ? [h("p", { className: "ats-note", textContent: "Only the client has it." })]
      : [this.thumbBox, this.upload];
    const controls = h(
      "div",
      { className: "ats-controls" },
      h("div", {}, ...photo),
      first.policyNode,
      h("div", { className: "ats-results" }, first.decibels, first.undone.node),
    );
    const lineUp = this.buildLineUp();
    if (!second) return [...verdicts, stage, lineUp, controls];
    const results = h("div", { className: "ats-results" }, second.found.node, second.decibels, second.undone.node);
    this.secondStage = h("div", { className: "ats-trio ats-second" }, second.policyNode, second.used.node, results);
    return [...verdicts, stage, this.secondStage, lineUp, controls];
  }

  buildLineUp() {
    const { size, classes } = this.data,
      count = Math.min(SHOWN, ...classes.map((each) => each.count));
    this.cells = Array.from({ length: count }, () => {
      const canvas = h("canvas", { width: size[2], height: size[1] }),
        bars = this.lanes.map(({ slot }) => h("i", { className: `ats-bar ats-${slot}` }));
      const rank = h("span", { className: "ats-rank" }),
        whose = h("span", { className: "ats-whose" });
      const button = h(
        "button",
        { type: "button", onclick: () => this.answer(button.place) },
        h("span", { className: "ats-bars" }, ...bars),
        canvas,
        rank,
        whose,
      );
      return Object.assign(button, { canvas, bars, rank, whose });
    });
    this.heading = h("p", { className: "ats-heading" });
    return h(
      "div",
      { className: "ats-lineup", role: "group", "aria-label": "The line-up" },
      this.heading,
      h("div", { className: "ats-cells" }, ...this.cells),
    );
  }

  buildMore() {
    const { networks, presets } = this.data;
    const field = (label, control, ...extra) => h("label", {}, h("span", {}, label, ...extra), control);
    this.network = h(
      "select",
      { onchange: () => this.meet(Number(this.network.value)) },
      ...networks.map(({ title }, i) => h("option", { value: i, textContent: title })),
    );
    this.how = h(
      "select",
      { onchange: () => this.preset(Number(this.how.value)) },
      ...presets.map(({ title }, i) => h("option", { value: i, textContent: title })),
    );
    this.tv = h("input", { type: "range", min: -4, max: 0, step: 0.05, oninput: () => this.name() });
    this.steps = h("input", { type: "range", min: 50, max: 2000, step: 50, oninput: () => this.name() });
    this.numbers = [h("b"), h("b")];
    this.compare = h("input", {
      type: "checkbox",
      onchange: () => {
        this.halt();
        this.both = this.compare.checked;
        this.changed();
      },
    });
    this.what = h("p", { className: "ats-what", "aria-live": "polite" });
    const own = h(
      "div",
      { className: "ats-own" },
      field("Network", this.network),
      field("Attack", this.how),
      field("Steps ", this.steps, this.numbers[1]),
      field("Smoothing (total variation) ", this.tv, this.numbers[0]),
    );
    const box = h(
      "details",
      { className: "ats-more" },
      h("summary", { textContent: "Network, steps and smoothing" }),
      own,
      this.what,
    );
    return h(
      "div",
      { className: "ats-extras" },
      h("label", { className: "ats-compare" }, this.compare, "A second policy beside it"),
      box,
    );
  }

  buildThumbs() {
    const pictures = [...this.originals, ...(this.own ? [this.own.picture] : [])],
      names = [...this.data.images, ...(this.own ? ["your own image"] : [])];
    const { group, mark } = thumbnails(pictures.map(seen), names, (image) => this.choose(image));
    this.thumbBox.replaceChildren(group);
    this.mark = mark;
  }

  /** Attack another of the payload's networks from now on; workers of the one before end. */
  meet(i) {
    this.halt();
    for (const lane of this.lanes) {
      for (const worker of [lane.worker, lane.comparing]) worker?.terminate();
      Object.assign(lane, { worker: null, comparing: null });
    }
    this.which = i;
    if (this.what) this.what.textContent = this.data.networks[i].line;
    this.changed();
  }

  preset(i) {
    this.halt();
    this.chosen = this.data.presets[i];
    this.tv.value = Math.log10(this.chosen.tv);
    this.steps.value = this.chosen.steps;
    this.name();
    this.changed();
  }

  name() {
    this.numbers[0].textContent = brief(10 ** Number(this.tv.value));
    this.numbers[1].textContent = this.steps.value;
  }

  /** Say how it stands; `aloud` is only for those who hear the page, since others see it above. */
  inform(text, fault = false, aloud = "") {
    this.status.replaceChildren(text, ...(aloud ? [h("span", { className: "ats-aloud", textContent: ` ${aloud}` })] : []));
    this.status.classList.toggle("ats-fault", fault);
  }

  async drop(file) {
    try {
      const { picture, note } = await taken(file, this.data.size);
      const kind = this.photo.kind;
      this.own = { picture, kind, place: this.photo.place };
      this.buildThumbs();
      this.choose(this.originals.length);
      this.inform(`${note} It is sent as ${article(this.data.classes[kind].name)}.`);
    } catch (error) {
      this.inform(error.message, true);
    }
    this.file.value = "";
  }

  // --- the photo ------------------------------------------------------------------------------------------

  /** One of the thumbnails: a test image, or the reader's own. */
  take(image) {
    const own = image >= this.originals.length;
    const [kind, place] = own ? [this.own.kind, this.own.place] : this.data.of[image];
    this.use({ image, own, kind, place, picture: own ? this.own.picture : this.originals[image] });
  }

  use(photo) {
    const { name, label } = this.data.classes[photo.kind];
    const candidates = () =>
      this.sheets[photo.kind].map((bytes, place) => (place === photo.place ? photo.picture.bytes : bytes));
    this.photo = { ...photo, name, label, candidates, version: ++this.versions };
    this.shown = [];
  }

  choose(image) {
    this.halt();
    this.game = null;
    this.take(image);
    for (const lane of this.lanes) if (!lane.keep.checked) lane.draw();
    this.changed();
  }

  /** Nothing has been attacked of what is chosen now. */
  changed() {
    for (const lane of this.lanes) lane.forget();
    this.inform("");
    this.draw();
  }

  get places() {
    return Array.from({ length: this.data.classes[this.photo.kind].count }, (_, i) => i);
  }

  get active() {
    return this.both && !this.game ? this.lanes : this.lanes.slice(0, 1);
  }

  get hides() {
    return Boolean(this.game) && this.game.guess === null;
  }

  // --- the attack -----------------------------------------------------------------------------------------

  made(lane, message, compares) {
    const address = URL.createObjectURL(new Blob([this.data.worker], { type: "text/javascript" })),
      worker = new Worker(address);
    worker.onmessage = ({ data }) => message(data);
    worker.onerror = (event) => {
      event.preventDefault();
      this.halt();
      this.inform(`The attack failed: ${event.message}`, true);
    };
    const { graph, features } = this.data.networks[this.which ?? 0];
    worker.postMessage({ graph, features, compares });
    return worker;
  }

  worker(lane) {
    lane.worker ??= this.made(lane, (data) => data.kind !== "ready" && lane.heard(data), false);
    return lane.worker;
  }

  comparer(lane) {
    lane.comparing ??= this.made(
      lane,
      (data) => {
        if (data.kind !== "compared" || lane.compared?.id !== data.id) return;
        Object.assign(lane.compared, data);
        lane.say();
      },
      true,
    );
    return lane.comparing;
  }

  get settings() {
    const { lr, schedule, tv, steps } = this.chosen ?? this.data.presets[0];
    const every = matchMedia("(prefers-reduced-motion: reduce)").matches ? 700 : 60; // ms between frames
    return {
      lr,
      schedule,
      every,
      tv: this.small ? tv : 10 ** Number(this.tv.value),
      steps: this.small ? steps : Number(this.steps.value),
    };
  }

  /** Attack what is chosen: a first round, of a new draw where this one has been attacked. */
  async play() {
    if (this.game && !this.hides) this.game = null;
    for (const lane of this.active) {
      if (lane.run && !lane.keep.checked && !this.game) lane.draw();
      lane.forget();
    }
    await this.attack();
  }

  /** The same photo under another draw. */
  async round() {
    for (const lane of this.active) {
      lane.remember();
      lane.draw();
    }
    await this.attack();
  }

  async attack() {
    const id = ++this.count,
      start = Float64Array.from(this.blank.bytes, normal);
    this.start.disabled = this.next.disabled = true;
    this.stop.disabled = false;
    this.stop.focus({ preventScroll: true });
    this.inform("Attacking …");
    await this.ready;
    if (id !== this.count) return; // stopped meanwhile
    for (const lane of this.active) lane.begin(id, start, this.photo.version, this.settings);
    this.draw();
  }

  /** Stop what runs, if anything does. */
  halt() {
    if (!this.start?.disabled) return;
    for (const lane of this.lanes)
      for (const worker of [lane.worker, lane.comparing]) worker?.postMessage({ stop: true });
    this.count += 1; // what still arrives is of no run
    for (const lane of this.lanes) if (!lane.compared?.away) lane.compared = null;
    const at = Math.max(0, ...this.active.map(({ run }) => run?.step ?? 0));
    this.finish(`Stopped after step ${at}.`);
  }

  finish(text, aloud = "") {
    const focus = document.activeElement === this.stop;
    this.start.disabled = false;
    this.stop.disabled = true;
    if (focus) this.start.focus({ preventScroll: true });
    this.inform(text, false, aloud);
    this.draw();
  }

  moved(lane) {
    lane.show();
    this.drawLineUp();
    if (this.active.every(({ run }) => run?.ended)) this.finish(...(this.game ? [this.settle()] : [this.summary(), this.found]));
  }

  summary() {
    const seconds = fixed(Math.max(...this.active.map(({ run }) => run.seconds)));
    return `${this.active[0].run.last} steps in ${seconds} seconds on this device.`;
  }

  /** What was found, for those who hear the page. */
  get found() {
    return this.active.map((lane) => `${lane.tag && `${lane.tag.trim()}: `}${this.sentence(lane.run.scores, true)}.`).join(" ");
  }

  /** What a server picked, in words. */
  picked(place, who = "") {
    const whose = this.game ? "the right photo" : "your photo";
    return place === this.photo.place ? `✓ ${who}picked ${whose}` : `✗ ${who}picked another ${this.photo.name}`;
  }

  sentence(scores, ended) {
    const rank = rankOf(scores, this.photo.place),
      mine = rank === 1 ? "" : this.game ? "the right one is " : "yours is ";
    return `${ended ? "" : "So far: "}${this.picked(this.first(scores), "the server ")}, ${mine}${ordinal(rank)} of ${scores.length}`;
  }

  // --- can you tell? --------------------------------------------------------------------------------------

  /** Hide a photo, attack it, and let the reader pick it out of twelve. */
  async tell() {
    this.halt();
    await this.ready;
    const kind = below(this.data.classes.length),
      place = below(this.data.classes[kind].count),
      { size } = this.data;
    this.use({ image: null, own: false, kind, place, picture: { bytes: this.sheets[kind][place], size } });
    const others = shuffled(this.places.filter((other) => other !== place)).slice(0, this.cells.length - 1);
    this.game = { guess: null };
    this.shown = shuffled([place, ...others]);
    this.lanes[0].draw();
    this.changed();
    await this.attack();
  }

  /** The reader's pick. */
  answer(place) {
    if (!this.hides) return;
    this.game.guess = place;
    const { run } = this.lanes[0],
      first = run?.scores && this.first(run.scores);
    if (first !== undefined && !this.shown.includes(first))
      this.shown[this.shown.findIndex((other) => ![place, this.photo.place].includes(other))] = first;
    if (run?.ended) this.inform(this.settle());
    this.draw();
    this.guess.focus({ preventScroll: true });
  }

  /** What reader and server picked, once both have. */
  settle() {
    if (this.hides) return "The server has made its pick. Which photo is it? Pick one below.";
    const right = {
      you: this.game.guess === this.photo.place,
      server: this.first(this.lanes[0].run.scores) === this.photo.place,
    };
    this.score.games += 1;
    for (const who of ["you", "server"]) this.score[who] += Number(right[who]);
    const { games, you, server } = this.score,
      mark = (is) => (is ? "✓ right" : "✗ wrong");
    return `You: ${mark(right.you)}, of ${this.shown.length}. The server: ${mark(right.server)}, of ${this.places.length}. Together: you ${you} of ${games}, the server ${server} of ${games}.`;
  }

  // --- drawing --------------------------------------------------------------------------------------------

  draw() {
    const { photo, hides, active, lanes } = this,
      runs = this.start.disabled,
      [lane] = lanes;
    const title = photo.own ? "your own image" : photo.name;
    this.photoFrame.show(
      seen(hides ? this.blank : photo.picture),
      hides ? "The photo, hidden" : `The photo: ${title}`,
      hides ? "A photo, hidden" : `The photo: ${title}`,
    );
    this.mark?.(photo.image ?? -1);
    if (this.mark && photo.image === null) this.thumbBox.querySelector("button").tabIndex = 0; // none is chosen
    for (const each of lanes) each.show();
    if (this.secondStage) {
      this.secondStage.hidden = lanes[1].box.hidden = active.length < 2;
      this.compare.disabled = Boolean(this.game);
    }
    for (const each of lanes) each.again.disabled = runs || hides || each.forms.length < 2;
    this.next.disabled = runs || hides || !active.every(({ run }) => run?.ended) || lane.forms.length < 2;
    this.start.textContent = lane.run && !runs ? "Attack again" : "Attack";
    this.drawLineUp();
  }

  /** The candidates that are seen: those most like what was rebuilt, and the photo. Who stays keeps the place. */
  lead() {
    const { place } = this.photo,
      count = this.cells.length,
      runs = this.active.map(({ run }) => run?.scores).filter(Boolean);
    if (!runs.length) {
      if (!this.shown.length)
        this.shown = shuffled([place, ...shuffled(this.places.filter((other) => other !== place)).slice(0, count - 1)]);
      return;
    }
    const orders = runs.map((scores) => this.places.sort((a, b) => scores[b] - scores[a]));
    const wanted = new Set([place]);
    for (let i = 0; wanted.size < count; i++) for (const order of orders) if (wanted.size < count) wanted.add(order[i]);
    const fresh = [...wanted].filter((other) => !this.shown.includes(other));
    this.shown = this.shown.map((other) => (wanted.has(other) ? other : fresh.shift()));
  }

  drawLineUp() {
    const { photo, hides, game } = this,
      sheet = this.sheets[photo.kind],
      count = this.places.length;
    if (!game) this.lead();
    const about = hides
      ? "Which of them does the rebuilt picture show?"
      : "The longer the bar, the more like what was rebuilt.";
    this.heading.replaceChildren(
      h("b", { textContent: "The line-up. " }),
      `${this.shown.length} of ${count} photos labelled “${photo.name}”. ${about}`,
    );
    const runs = this.active.map(({ run }) => (hides ? null : run?.scores)),
      ranks = runs.map((scores) => scores && this.shown.map((place) => rankOf(scores, place)));
    const firsts = runs.map((scores) => scores && this.first(scores)),
      shares = runs.map((scores) => scores && bars(scores));
    this.cells.forEach((cell, i) => {
      const place = this.shown[i],
        own = place === photo.place,
        picture = own && !hides ? photo.picture : sheet && { bytes: sheet[place], size: this.data.size };
      cell.place = place;
      cell.disabled = !hides;
      if (picture) paint(cell.canvas, seen(picture));
      cell.bars.forEach((bar, l) => {
        bar.hidden = l >= runs.length;
        bar.style.setProperty("--ats-share", (shares[l]?.[place] ?? 0).toFixed(3));
      });
      const labels = [
        own && !hides && (game ? "the photo" : "yours"),
        game && !hides && game.guess === place && "you",
      ].filter(Boolean);
      cell.rank.textContent =
        ranks
          .filter(Boolean)
          .map((each) => ordinal(each[i]))
          .join(" · ") || "–";
      cell.whose.textContent = labels.join(", ");
      cell.classList.toggle("ats-yours", own && !hides);
      cell.classList.toggle("ats-first", firsts.includes(place));
      cell.setAttribute(
        "aria-label",
        `Photo ${i + 1} of the line-up${cell.rank.textContent === "–" ? "" : `, ${cell.rank.textContent} of ${count}`}${labels.length ? `, ${labels.join(", ")}` : ""}`,
      );
    });
  }

  /** Whom a server picks by such similarities; equal ones stand before the right one. */
  first(scores) {
    const { place } = this.photo;
    return rankOf(scores, place) === 1 ? place : scores.indexOf(Math.max(...scores.filter((_, k) => k !== place)));
  }
}

/** An attack that the reader starts, on a photo and a policy of the reader's choice. */
export function attack(el, data) {
  return new Attack(el, data, false);
}

/** The same of one picture, with a policy of a few. */
export function trial(el, data) {
  return new Attack(el, data, true);
}
