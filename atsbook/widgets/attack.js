// A real attack in the reader's browser: `attack` draws it into `el` from its payload. `common.js`, `operations.js` and
// `figures.js` stand before this; the workers' text is in the payload. No dependency, no request.

const LIMITS = { bytes: 10_000_000, pixels: 50_000_000 };
const PARTS = [0, 1, 2]; // of a policy
const SIDES = [["a", "Without a policy"], ["b", "With the policy"]];

/** A file as a picture of the payload's size, its middle square, and a sentence on what was done; throws a sentence. */
async function taken(file, [channels, height, width]) {
  if (file.size > LIMITS.bytes) throw new Error(`${file.name} has ${(file.size / 1e6).toFixed(1)} MB; at most 10 MB are taken.`);
  let image;
  try {
    image = await createImageBitmap(file);
  } catch {
    throw new Error(`${file.name} is no image that this browser can read; take a PNG, JPEG, WebP or GIF.`);
  }
  const { width: wide, height: high } = image, side = Math.min(wide, high);
  if (wide * high > LIMITS.pixels) throw new Error(`${file.name} has ${wide} × ${high} pixels; at most 50 million are taken.`);
  const canvas = h("canvas", { width, height }), context = canvas.getContext("2d", { willReadFrequently: true });
  context.imageSmoothingQuality = "high";
  const draw = () => context.drawImage(image, (wide - side) / 2, (high - side) / 2, side, side, 0, 0, width, height);
  draw();
  const clear = context.getImageData(0, 0, width, height).data.some((value, i) => i % 4 === 3 && value < 255);
  context.fillStyle = "white";
  context.fillRect(0, 0, width, height);
  draw();
  const { data } = context.getImageData(0, 0, width, height), bytes = new Uint8Array(channels * height * width);
  for (let i = 0; i < bytes.length; i++) bytes[i] = data[4 * (i % (height * width)) + Math.floor(i / (height * width))];
  const notes = [side < width && `its ${wide} × ${high} pixels are enlarged`, clear && "what is transparent is taken as white", file.type === "image/gif" && "of an animation the first picture is taken"];
  return { picture: { bytes, size: [channels, height, width] }, note: `${file.name} stays in this page${notes.filter(Boolean).map((n) => `; ${n}`).join("")}.` };
}

const floats = ({ bytes }) => Float64Array.from(bytes, (value) => value / 255);
const normal = () => Math.sqrt(-2 * Math.log(1 - Math.random())) * Math.cos(2 * Math.PI * Math.random());
const coin = () => (Math.random() < 0.5 ? -1 : 1);

class Attack {
  /** The `small` form has one picture, a few policies and a button. */
  constructor(el, data, small) {
    Object.assign(this, { data, small, id: `ats-${++made}`, originals: unpacked(data), image: 0, own: null, runs: {}, count: 0, workers: {} });
    this.slots = Object.fromEntries(SIDES.map(([slot, title]) => [slot, this.buildSlot(slot, title)]));
    this.what = h("p", { className: "ats-what", "aria-live": "polite" });
    const { group, mark } = thumbnails(this.originals.map(seen), data.images, (image) => this.choose(image));
    this.markThumb = mark;
    this.svg = drawing("svg", { role: "img", "aria-label": "Gradient distance against the attack's step" });
    const caption = h("figcaption", {}, h("b", { textContent: "Gradient distance" }), " what the attack lowers; ", h("span", { className: "ats-key ats-a" }), "without, ", h("span", { className: "ats-key ats-b" }), "with the policy");
    const charts = h("div", { className: "ats-charts", hidden: small }, h("figure", {}, caption, this.svg));
    group.hidden = small;
    begin(el, small ? "attack ats-trial" : "attack", small ? "Try the attack in this browser" : "Attack in this browser", () => this.drawChart(), this.what, group, this.buildForm(),
      h("div", { className: "ats-slots" }, this.slots.a.node, this.slots.b.node), charts);
    this.known = [];
    this.ready = data.own && cut(data.own, data.size).then((rows) => {
      this.known = rows.flat().map(({ data: rgba }) => ({ size: data.size, bytes: Uint8Array.from({ length: this.originals[0].bytes.length }, (_, i) => rgba[4 * (i % (rgba.length / 4)) + Math.floor(i / (rgba.length / 4))]) }));
    });
    new IntersectionObserver((entries, observer) => { // so that the first frame need not wait for the workers
      if (!entries.some((entry) => entry.isIntersecting)) return;
      observer.disconnect();
      this.seen = true;
      for (const [slot] of SIDES) this.worker(slot);
    }).observe(el);
    this.take(data.start);
    this.meet(0);
    this.preset(0);
  }

  // --- controls -------------------------------------------------------------------------------------------

  buildForm() {
    const { operations, policies, presets, networks } = this.data, field = (label, control, extra = "") => h("label", {}, h("span", {}, label, extra), control);
    const named = operations.map((op, i) => ({ value: i, textContent: `${i}: ${op.words}` }));
    this.policy = h("select", { onchange: () => { this.take(this.policy.value); this.choose(this.image); } }, ...Object.entries(policies).map(([id, title]) => h("option", { value: id, textContent: `${title}: ${id}` })), ...(this.small ? [] : [h("option", { value: "", textContent: "Your own" })]));
    this.selects = PARTS.map(() => h("select", { onchange: () => this.compose() }, h("option", { value: "", textContent: "none" }), h("option", { value: "drawn", textContent: "by its member", hidden: true }), ...named.map((option) => h("option", option))));
    this.hybrid = h("p", { className: "ats-note", hidden: false });
    this.network = h("select", { onchange: () => { this.meet(Number(this.network.value)); this.choose(this.image); } }, ...networks.map(({ title }, i) => h("option", { value: i, textContent: title })));
    this.radios = presets.map((preset, i) => h("input", { type: "radio", name: `${this.id}-preset`, onchange: () => this.preset(i) }));
    const labels = this.radios.map((radio, i) => h("label", {}, radio, h("span", {}, h("b", { textContent: presets[i].title }), h("small", { textContent: presets[i].detail }))));
    this.tv = h("input", { type: "range", min: -4, max: 0, step: 0.05, oninput: () => this.say() });
    this.steps = h("input", { type: "range", min: 50, max: 2000, step: 50, oninput: () => this.say() });
    this.numbers = [h("b"), h("b")];
    this.file = h("input", { type: "file", accept: "image/*", onchange: () => this.file.files[0] && this.drop(this.file.files[0]) });
    this.start = h("button", { type: "button", className: "ats-play", textContent: "Attack", onclick: () => this.run() });
    this.halt = h("button", { type: "button", className: "ats-stop", textContent: "Stop", disabled: true, onclick: () => this.stop() });
    this.status = h("p", { className: "ats-status", role: "status" });
    const network = this.small ? [] : [field("Network", this.network)], more = [this.hybrid, ...this.selects.map((select, i) => field(`Operation ${i + 1}`, select)), field("Total variation ", this.tv, this.numbers[0]),
      field("Steps ", this.steps, this.numbers[1]), field("Your image, or drop one here: it never leaves this page", this.file)];
    for (const node of more) node.hidden = this.small;
    const own = h("fieldset", { className: "ats-own" }, h("legend", { textContent: this.small ? "Try it" : "The attack" }), ...network, field("Policy", this.policy), ...more, h("div", { className: "ats-run" }, this.start, this.halt, this.status));
    if (this.small) return own;
    own.addEventListener("dragover", (event) => event.preventDefault());
    own.addEventListener("drop", (event) => { event.preventDefault(); if (event.dataTransfer.files[0]) this.drop(event.dataTransfer.files[0]); });
    return h("div", { className: "ats-form" }, h("fieldset", { className: "ats-attacks" }, h("legend", { textContent: "The server" }), h("div", {}, ...labels)), own);
  }

  buildSlot(slot, title) {
    const { size } = this.data, pane = { used: framed(size), found: framed(size, "ats-found"), undone: framed(size), match: framed(size) };
    pane.operations = h("p", { className: "ats-operations" });
    pane.psnr = h("b", { className: "ats-psnr" });
    pane.note = h("span", { className: "ats-note" });
    pane.guess = h("p", { className: "ats-operations", hidden: this.small });
    pane.match.node.hidden = this.small;
    pane.node = h("div", { className: `ats-slot ats-slot-${slot}`, role: "group", "aria-label": title }, h("b", { textContent: title }), pane.operations,
      h("div", { className: "ats-pictures" }, pane.used.node, pane.found.node, pane.undone.node, pane.match.node), h("p", { className: "ats-readout" }, pane.psnr, pane.note), pane.guess);
    return pane;
  }

  /** Attack another of the payload's networks from now on; workers of the one before end. */
  meet(i) {
    if (this.start.disabled) this.stop();
    for (const worker of Object.values(this.workers)) worker.terminate();
    Object.assign(this, { graph: this.data.networks[i].graph, workers: {} });
    this.what.textContent = this.data.networks[i].line;
    if (this.seen) for (const [slot] of SIDES) this.worker(slot);
  }

  preset(i) {
    this.chosen = this.data.presets[i];
    this.radios.forEach((radio, j) => { radio.checked = i === j; });
    this.tv.value = Math.log10(this.chosen.tv);
    this.steps.value = this.chosen.steps;
    this.say();
    this.choose(this.image);
  }

  say() {
    this.numbers[0].textContent = brief(10 ** Number(this.tv.value));
    this.numbers[1].textContent = this.steps.value;
  }

  tell(text, fault = false) {
    this.status.textContent = text;
    this.status.classList.toggle("ats-fault", fault);
  }

  take(policy) {
    this.policy.value = policy;
    const members = policy.split("+"), ids = members.length > 1 ? PARTS.map(() => "drawn") : policy.split("-");
    this.selects.forEach((select, i) => { select.value = ids[i] ?? ""; });
    this.hybrid.textContent = members.length > 1 ? `For each image one of its members is drawn: ${members.join(" or ")}.` : "";
  }

  compose() {
    for (const select of this.selects) if (select.value === "drawn") select.value = "";
    this.policy.value = "";
    this.hybrid.textContent = "";
    this.choose(this.image);
  }

  /** The policy's members as lists of ids. */
  get members() {
    if (this.policy.value) return this.policy.value.split("+").map((member) => member.split("-").map(Number));
    return [this.selects.map((select) => select.value).filter(Boolean).map(Number)];
  }

  async drop(file) {
    try {
      const { picture, note } = await taken(file, this.data.size);
      this.own = picture;
      this.choose(this.image);
      this.tell(note);
    } catch (error) {
      this.tell(error.message, true);
    }
    this.file.value = "";
  }

  /** Stop, and show an image and what the policy makes of it now. */
  choose(image) {
    if (image !== this.image) this.own = null;
    if (this.start.disabled) this.stop();
    else this.tell(""); // what is said there is of another attack
    this.image = image;
    this.markThumb(image);
    const members = this.members;
    this.drawn = members[Math.floor(Math.random() * members.length)].map((id) => [id, coin()]);
    this.runs = {};
    for (const [slot] of SIDES) this.drawSlot(slot);
    this.drawChart();
  }

  // --- the attack -----------------------------------------------------------------------------------------

  through(picture, drawn) {
    return drawn.reduce((now, [id, sign]) => applied(this.data.operations[id], now, sign), picture);
  }

  /** All that the policy can draw, lists of [id, sign], and the chance of each. */
  get forms() {
    const turned = (ids) => ids.reduce((list, id) => list.flatMap((form) => (this.data.operations[id].signed ? [1, -1] : [1]).map((sign) => [...form, [id, sign]])), [[]]);
    const members = this.members.map(turned);
    return { forms: members.flat(), chances: members.flatMap((each) => each.map(() => 1 / members.length / each.length)) };
  }

  /** What the worker is told of a side's policy; `mean` is that of many pictures, of the policies the page names. */
  policyOf(slot) {
    const id = slot === "a" ? "" : this.policy.value || null, { forms, chances } = slot === "a" ? { forms: [[]], chances: [1] } : this.forms;
    const mean = this.data.means[id ?? "own"], own = this.known.map(({ bytes }) => bytes);
    const whole = mean && Float64Array.from(atob(mean), (value) => value.charCodeAt(0) / 255);
    return { forms: forms.map((form) => form.map(([op, sign]) => [this.data.operations[op], sign])), chances, own, mean: whole };
  }

  get original() {
    return this.own ?? this.originals[this.image];
  }

  used(slot) {
    return slot === "a" ? this.original : this.through(this.original, this.drawn);
  }

  worker(slot) {
    if (this.workers[slot]) return this.workers[slot];
    const address = URL.createObjectURL(new Blob([this.data.worker], { type: "text/javascript" }));
    const worker = new Worker(address);
    worker.onmessage = ({ data }) => this.heard(slot, data);
    worker.onerror = (event) => { event.preventDefault(); this.stop(); this.tell(`The attack failed: ${event.message}`, true); };
    worker.postMessage({ graph: this.graph });
    this.workers[slot] = worker;
    return worker;
  }

  async run() {
    await this.ready;
    const start = Float64Array.from({ length: this.originals[0].bytes.length }, normal), id = ++this.count, { lr, schedule, knows } = this.chosen;
    const every = matchMedia("(prefers-reduced-motion: reduce)").matches ? 700 : 60; // ms between frames
    const pool = this.originals.map((picture, i) => (i === this.image ? this.original : picture));
    this.start.disabled = true;
    this.halt.disabled = false;
    this.halt.focus();
    this.tell("Attacking …");
    for (const [slot] of SIDES) {
      const target = floats(this.used(slot)), label = this.own ? null : this.data.labels[this.image];
      this.runs[slot] = { id, trace: [], last: Number(this.steps.value), knows: knows && slot === "b", forms: slot === "b" ? this.forms.forms : [[]] };
      this.worker(slot).postMessage({ run: { id, target, original: floats(this.original), label, start, tv: 10 ** Number(this.tv.value), steps: Number(this.steps.value), lr, schedule, candidates: pool.map(floats), policy: this.policyOf(slot), knows: this.runs[slot].knows, every } });
    }
  }

  stop() {
    for (const worker of Object.values(this.workers)) worker.postMessage({ stop: true });
    this.count += 1; // what still arrives is of no run
    const at = Math.max(0, ...Object.values(this.runs).map((run) => run.step ?? 0));
    this.finish(`Stopped after step ${at}.`);
  }

  finish(text) {
    const focus = document.activeElement === this.halt;
    this.start.disabled = false;
    this.halt.disabled = true;
    if (focus) this.start.focus();
    this.tell(text);
  }

  heard(slot, { kind, id, bytes, ...facts }) {
    const run = this.runs[slot];
    if (kind === "ready") return;
    if (run?.id === id && id === this.count) {
      Object.assign(run, facts, { picture: { bytes: bytes.slice(), size: this.data.size }, ended: kind === "ended" });
      if (facts.cost !== null) run.trace.push([facts.step, facts.cost]);
      this.drawSlot(slot);
      this.drawChart();
      if (SIDES.every(([each]) => this.runs[each].ended)) this.finish(this.summary());
    }
    this.workers[slot]?.postMessage({ back: bytes.buffer }, [bytes.buffer]);
  }

  summary() {
    const { a, b } = this.runs;
    return `Finished: ${a.last} steps in ${fixed(Math.max(a.seconds, b.seconds))} seconds on this device. Without the policy ${fixed(a.psnr)} dB, with it ${fixed(b.psnr)} dB.`;
  }

  // --- drawing --------------------------------------------------------------------------------------------

  words(form) {
    return form.map(([id, sign]) => this.data.operations[id].drawn[sign > 0 ? 0 : 1]).join(" → ") || "no operation";
  }

  drawSlot(slot) {
    const pane = this.slots[slot], run = this.runs[slot], used = this.used(slot), name = (i) => (this.own && i === this.image ? "your image" : this.data.images[i]);
    const words = this.words(slot === "b" ? this.drawn : []);
    pane.operations.textContent = words;
    pane.used.show(seen(used), `What the client used: ${words}`, "Client used");
    const blank = { bytes: new Uint8Array(used.bytes.length).fill(128), size: used.size }, known = run?.picture;
    pane.found.show(seen(known ?? blank), known ? `Recovered after step ${run.step}, ${fixed(run.psnr)} dB` : "Nothing is recovered yet", "Recovered");
    const match = known ? run.match ?? null : null, right = match === this.image;
    pane.match.show(seen(match === null ? blank : match === this.image ? this.original : this.originals[match]), match === null ? "No guess yet" : `The server's guess: ${name(match)}`, "Server's guess");
    pane.psnr.textContent = known ? `${fixed(run.psnr)} dB` : "–";
    const gain = known && run.floor !== undefined ? run.psnr - run.floor : null, knows = slot === "b" && this.chosen.knows;
    pane.undone.node.hidden = !knows;
    pane.undone.show(seen(run?.undone ? { bytes: run.undone, size: used.size } : blank), run?.undone ? `The policy undone, ${fixed(run.undonePsnr)} dB of the original` : "Nothing is undone yet", "Policy undone");
    pane.note.textContent = gain === null ? "" : `gain ${gain < 0 ? "−" : "+"}${fixed(Math.abs(gain))} dB over the policy's mean image, step ${run.step} of ${run.last}`;
    pane.guess.textContent = match === null ? "Among the pictures above the server has made no guess yet." : `Of the ${this.originals.length} pictures the server would guess: ${name(match)}, ${right ? "which is right" : "which is wrong"}.`;
    if (run?.undone) pane.guess.textContent = `The server takes the policy to have drawn ${this.words(run.forms[run.form])}, which is ${this.words(run.forms[run.form]) === words ? "right" : "wrong"}. Undone, its picture has ${fixed(run.undonePsnr)} dB of the original. ${pane.guess.textContent}`;
  }

  drawChart() {
    const runs = SIDES.map(([slot]) => [slot, this.runs[slot]]).filter(([, run]) => run?.trace.length);
    const [low, high] = runs.length ? extent(runs.map(([, run]) => run.trace.map(([, cost]) => cost))) : [0.01, 1];
    const last = runs[0]?.[1].last ?? Number(this.steps.value);
    chart(this.svg, runs.map(([slot, run]) => ({ slot, points: run.trace })), [0.9 * Math.max(low, 1e-8), 1.1 * Math.max(high, 1e-7)], last, true);
  }
}

/** An attack that the reader starts, without and with a policy from the same start. */
export function attack(el, data) {
  return new Attack(el, data, false);
}

/** The same of one picture, with a policy of a few. */
export function trial(el, data) {
  return new Attack(el, data, true);
}
