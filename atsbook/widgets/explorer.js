// One view, two lives: `mount` draws a published page from its payload, with no kernel; `render` is anywidget's
// entry, where a kernel adds attacks of the reader's own. No dependency, no request. `common.js` stands before it.

const LIVE = -1; // the policy index of the reader's own run
const PLAY_MS = 3600; // from the first frame to the last

class Explorer {
  constructor(el, data, live) {
    Object.assign(this, { data, live, id: `ats-${++made}`, timer: 0 });
    const policies = data.policies.length;
    this.state = { image: 0, a: 0, b: policies - 1, compare: policies > 1, attack: 0, frame: data.attacks[0].frames.length - 1 };
    this.root = h("section", { className: "ats-explorer", "aria-label": "Reconstruction explorer" });
    this.el = el;
  }

  async start() {
    const files = Object.entries(this.data.files);
    const sheets = await Promise.all(files.map(([, uri]) => cut(uri, this.data.size)));
    this.sheets = Object.fromEntries(files.map(([name], i) => [name, sheets[i]]));
    this.build();
    this.el.append(this.root);
    this.el.classList.add("ats-on");
    if (!this.live) this.restore();
    this.draw();
    new ResizeObserver(() => this.drawCharts(this.runs)).observe(this.root);
  }

  // --- what is shown --------------------------------------------------------------------------------------

  /** All that a slot shows: pictures, and curves against the step. */
  run(policy) {
    if (policy === LIVE) return this.live.run;
    const { data, sheets, state: { image, attack } } = this, { frames, trace, steps } = data.attacks[attack];
    return {
      name: data.images[image],
      operations: data.draws[policy][image],
      original: sheets["images.webp"][0][image],
      target: sheets["images.webp"][1 + policy][image],
      frames: sheets[`${attack}-${policy}.webp`][image],
      steps: frames,
      last: steps,
      psnr: data.psnr[attack][policy][image],
      trace: data.cost[attack][policy][image].map((cost, i) => [trace[i], cost]),
      floor: data.floor[attack][policy][image],
      before: data.attacks[attack].before,
      psnrRange: extent([data.psnr[attack], data.floor[attack]]),
      costRange: extent(data.cost[attack]),
    };
  }

  get slots() {
    return this.state.compare ? ["a", "b"] : ["a"];
  }

  get runs() {
    return Object.fromEntries(this.slots.map((slot) => [slot, this.run(this.state[slot])]));
  }

  /** The frame of a run nearest to the first run's in its share of the steps: runs may differ in both numbers. */
  frameOf(run) {
    const first = this.run(this.state.a), share = first.steps[this.state.frame] / first.last;
    const away = run.steps.map((step) => Math.abs(step / run.last - share));
    return away.indexOf(Math.min(...away));
  }

  set(change) {
    Object.assign(this.state, change);
    const last = this.run(this.state.a).frames.length - 1;
    this.state.frame = Math.min(Math.max(0, this.state.frame), Math.max(0, last));
    this.draw();
  }

  // --- the address ----------------------------------------------------------------------------------------

  get hash() {
    const { state: s, data } = this, id = (policy) => data.policies[policy]?.id ?? "";
    return "#" + new URLSearchParams({
      image: s.image, attack: data.attacks[s.attack].id, policy: id(s.a), versus: s.compare ? id(s.b) : "", frame: s.frame,
    });
  }

  restore() {
    const given = new URLSearchParams(location.hash.slice(1)), { data } = this, change = {};
    if (!given.has("policy")) return;
    const place = (key, list) => {
      const found = list.findIndex((entry) => entry.id === given.get(key));
      return found < 0 ? {} : { [key]: found };
    };
    const { attack } = place("attack", data.attacks), { policy } = place("policy", data.policies), { versus } = place("versus", data.policies);
    if (attack !== undefined) change.attack = attack;
    if (policy !== undefined) change.a = policy;
    if (versus !== undefined) change.b = versus;
    change.compare = versus !== undefined;
    for (const [key, count] of [["image", data.images.length], ["frame", data.attacks[attack ?? 0].frames.length]]) {
      const value = Number(given.get(key) ?? NaN);
      if (Number.isInteger(value) && value >= 0 && value < count) change[key] = value;
    }
    this.set(change);
  }

  remember() {
    if (this.live || this.timer) return;
    this.link.href = this.hash;
    if (location.hash === this.hash) return;
    try {
      history.replaceState(history.state, "", this.hash);
    } catch { /* a frame without an address of its own */ }
  }

  // --- controls -------------------------------------------------------------------------------------------

  build() {
    const { root } = this;
    root.append(...(this.live ? [this.live.build(this)] : []), this.buildChoices(), this.buildThumbs());
    this.panes = { a: this.buildSlot("a", "Policy A"), b: this.buildSlot("b", "Policy B") };
    root.append(h("div", { className: "ats-slots" }, this.panes.a.node, this.panes.b.node), this.buildTransport(), this.buildCharts());
    root.addEventListener("keydown", (event) => {
      const own = "select, textarea, a, summary, input:not([type=range]), button:not([role=radio])";
      if (event.key !== " " || event.target.closest(own)) return;
      event.preventDefault();
      this.toggle();
    });
    if (!this.live) addEventListener("hashchange", () => this.restore());
  }

  buildChoices() {
    this.radios = this.data.attacks.map((attack, i) =>
      h("input", { type: "radio", name: `${this.id}-attack`, value: attack.id, onchange: () => this.set({ attack: i }) }));
    const labels = this.radios.map((radio, i) => {
      const { title, detail } = this.data.attacks[i];
      return h("label", {}, radio, h("span", {}, h("b", { textContent: title }), h("small", { textContent: detail })));
    });
    this.compare = h("input", { type: "checkbox", onchange: () => this.set({ compare: this.compare.checked }) });
    const attacks = h("fieldset", { className: "ats-attacks" }, h("legend", { textContent: "Attack" }), h("div", {}, ...labels));
    return h("div", { className: "ats-choices" }, attacks, h("label", { className: "ats-compare" }, this.compare, "Compare two policies"));
  }

  buildThumbs() {
    const { group, mark } = thumbnails(this.sheets["images.webp"][0], this.data.images, (image) => this.set({ image }));
    this.markThumb = mark;
    return group;
  }

  buildSlot(slot, title) {
    const [, height, width] = this.data.size, id = `${this.id}-${slot}`, pane = { canvases: {}, captions: {} };
    const options = this.data.policies.map((policy, i) =>
      h("option", { value: i, textContent: policy.id === "none" ? policy.title : `${policy.title}: ${policy.id}` }));
    if (this.live && slot === "a") options.push(h("option", { value: LIVE, textContent: "Your own run", disabled: true }));
    pane.select = h("select", { id, onchange: () => this.set({ [slot]: Number(pane.select.value) }) }, ...options);
    pane.operations = h("p", { className: "ats-operations" });
    const figures = [["original", "Original"], ["target", "Client used"], ["found", "Recovered"]].map(([name, caption]) => {
      pane.canvases[name] = h("canvas", { width, height, role: "img" });
      pane.captions[name] = h("figcaption", { textContent: caption });
      return h("figure", { className: `ats-${name}` }, pane.canvases[name], pane.captions[name]);
    });
    pane.psnr = h("b", { className: "ats-psnr" });
    pane.note = h("span", { className: "ats-note" });
    pane.node = h("div", { className: `ats-slot ats-slot-${slot}`, role: "group", "aria-label": title },
      h("label", { for: id, textContent: title }), pane.select, pane.operations,
      h("div", { className: "ats-pictures" }, ...figures), h("p", { className: "ats-readout" }, pane.psnr, pane.note));
    return pane;
  }

  buildTransport() {
    this.button = h("button", { type: "button", className: "ats-play", onclick: () => this.toggle() });
    this.slider = h("input", { type: "range", min: 0, step: 1, "aria-label": "Attack step", oninput: () => {
      const frame = Number(this.slider.value); // before `pause`, which draws the frame it had
      this.pause();
      this.set({ frame });
    } });
    this.output = h("output", { className: "ats-step" });
    this.link = h("a", { className: "ats-link", textContent: "Link to this view", hidden: Boolean(this.live) });
    return h("div", { className: "ats-transport" }, this.button, this.slider, this.output, this.link);
  }

  buildCharts() {
    const one = (name, caption, label) => {
      this[name] = drawing("svg", { role: "img", "aria-label": label });
      return h("figure", {}, h("figcaption", {}, h("b", { textContent: caption[0] }), ` ${caption[1]}`), this[name]);
    };
    return h("div", { className: "ats-charts" },
      one("psnrChart", ["PSNR, dB", "dashed: a blind guess"], "PSNR against the attack's step"),
      one("costChart", ["Gradient distance", "what the attack lowers"], "Distance between gradients against the attack's step"));
  }

  // --- drawing --------------------------------------------------------------------------------------------

  draw() {
    const { state, runs } = this;
    this.radios.forEach((radio, i) => { radio.checked = i === state.attack; });
    this.compare.checked = state.compare;
    this.markThumb(state.image);
    this.root.classList.toggle("ats-single", !state.compare);
    this.panes.b.node.hidden = !state.compare;
    for (const [slot, run] of Object.entries(runs)) this.drawSlot(slot, run);
    this.drawTransport(runs.a);
    this.drawCharts(runs);
    this.remember();
  }

  drawSlot(slot, run) {
    const pane = this.panes[slot], frame = this.frameOf(run), step = run.steps[frame];
    const decibels = fixed(run.psnr[frame]);
    pane.select.value = String(this.state[slot]);
    pane.operations.textContent = run.operations;
    pane.captions.found.textContent = run.before ? "Recovered, before the policy" : "Recovered";
    const pictures = { original: run.original, target: run.target, found: run.frames[frame] };
    const words = {
      original: `Original image: ${run.name}`,
      target: `What the client used: ${run.operations}`,
      found: `Recovered by the attacker after step ${step}, ${run.before ? "as before the policy, " : ""}${decibels} dB`,
    };
    for (const [key, picture] of Object.entries(pictures)) {
      if (picture) paint(pane.canvases[key], picture);
      pane.canvases[key].setAttribute("aria-label", words[key]);
    }
    const lead = run.psnr[frame] - run.floor;
    const side = Number.isFinite(lead) ? `${fixed(Math.abs(lead))} dB ${lead < 0 ? "below" : "above"} a blind guess` : "";
    pane.psnr.textContent = `${decibels} dB`;
    pane.note.textContent = side;
  }

  drawTransport(run) {
    const { frame } = this.state, last = run.frames.length - 1;
    this.slider.max = String(Math.max(last, 0));
    this.slider.value = String(frame);
    this.slider.style.setProperty("--ats-done", `${last > 0 ? (100 * frame) / last : 100}%`);
    this.slider.setAttribute("aria-valuetext", `step ${run.steps[frame]} of ${run.last}, ${fixed(run.psnr[frame])} dB`);
    this.output.textContent = `${run.steps[frame]} / ${run.last}`;
    this.button.textContent = this.timer ? "Pause" : "Play";
    this.button.classList.toggle("ats-playing", Boolean(this.timer));
  }

  drawCharts(runs) {
    const entries = Object.entries(runs), last = Math.max(...entries.map(([, run]) => run.last));
    const cost = (run, step) => run.trace.findLast(([at]) => at <= step)?.[1] ?? null;
    const lines = (points, at, floor) => entries.map(([slot, run]) => {
      const frame = this.frameOf(run), step = run.steps[frame];
      return { slot, points: points(run), at: [step, at(run, frame, step)], floor: floor(run) };
    });
    const range = (key) => extent(entries.map(([, run]) => run[key]));
    const [low, high] = range("psnrRange"), [near, far] = range("costRange");
    chart(this.psnrChart, lines((r) => r.psnr.map((v, i) => [r.steps[i], v]), (r, i) => r.psnr[i], (r) => r.floor), [Math.floor(low - 0.5), Math.ceil(high + 0.5)], last, false);
    chart(this.costChart, lines((r) => r.trace, (r, _, step) => cost(r, step), () => null), [0.9 * Math.max(near, 1e-5 * far, 1e-9), 1.1 * Math.max(far, 1e-8)], last, true);
  }

  // --- playing --------------------------------------------------------------------------------------------

  toggle() {
    if (this.timer) return this.pause();
    const last = this.run(this.state.a).frames.length - 1;
    if (this.state.frame >= last) this.state.frame = 0;
    this.timer = setInterval(() => {
      const end = this.run(this.state.a).frames.length - 1;
      if (this.state.frame < end) this.state.frame += 1;
      if (this.state.frame >= end) this.pause();
      else this.draw();
    }, Math.max(40, PLAY_MS / Math.max(1, last)));
    this.draw();
  }

  pause() {
    clearInterval(this.timer);
    this.timer = 0;
    this.draw();
  }
}

/** Attacks of the reader's own: a form, and what the kernel sends back while one runs. */
class Live {
  constructor(model) {
    this.model = model;
    this.options = model.get("options");
    this.upload = null;
    this.run = null;
  }

  build(explorer) {
    this.explorer = explorer;
    const { operations, networks, attacks, steps, limit } = this.options;
    const field = (label, control) => h("label", {}, h("span", { textContent: label }), control);
    const choice = (entries, value) => h("select", {}, ...entries.map(([v, text]) => h("option", { value: v, textContent: text, selected: v === value })));
    const named = [["", "–"], ...operations.map((name, i) => [String(i), `${i}: ${name}`])];
    this.chosen = [1, 2, 3].map(() => choice(named, ""));
    this.network = choice(Object.keys(networks).map((name) => [name, name]));
    this.stage = h("select");
    this.network.onchange = () => this.stages();
    this.stages();
    this.attack = choice(attacks.map((name) => [name, name]), "adam-cosine-tv");
    this.steps = h("input", { type: "number", min: 2, max: limit, value: steps });
    this.file = h("input", { type: "file", accept: "image/*", onchange: () => this.take(this.file.files[0]) });
    this.start = h("button", { type: "button", className: "ats-play", textContent: "Run", onclick: () => this.request() });
    this.stop = h("button", { type: "button", className: "ats-stop", textContent: "Stop", disabled: true, onclick: () => this.model.send({ kind: "stop" }) });
    this.status = h("p", { className: "ats-status", role: "status" });
    const forget = () => { if (!this.start.disabled) this.say(""); }; // what is said there is of another attack
    for (const control of [...this.chosen, this.network, this.stage, this.attack, this.steps]) control.addEventListener("change", forget);
    return h("fieldset", { className: "ats-own" }, h("legend", { textContent: "Your own attack" }),
      ...this.chosen.map((select, i) => field(`Operation ${i + 1}`, select)),
      field("Network", this.network), field("Training", this.stage), field("Attack", this.attack), field("Steps", this.steps),
      field("Your image (else the one marked below)", this.file), h("div", { className: "ats-run" }, this.start, this.stop, this.status));
  }

  stages() {
    this.stage.replaceChildren(...this.options.networks[this.network.value].map((name) => h("option", { value: name, textContent: name })));
  }

  async take(file) {
    this.upload = null;
    if (!file) return;
    if (file.size > this.options.bytes) {
      this.file.value = "";
      return this.say(`${file.name} has ${(file.size / 1e6).toFixed(1)} MB; at most ${(this.options.bytes / 1e6).toFixed(0)} MB are taken`, true);
    }
    this.upload = { name: file.name, bytes: await file.arrayBuffer() };
  }

  say(text, fault = false) {
    this.status.textContent = text;
    this.status.classList.toggle("ats-fault", fault);
  }

  request() {
    const content = {
      kind: "run", image: this.explorer.state.image,
      policy: this.chosen.map((select) => select.value).filter(Boolean).join("-"),
      network: this.network.value, stage: this.stage.value, attack: this.attack.value, steps: Number(this.steps.value),
    };
    this.name = this.upload?.name ?? this.explorer.data.images[content.image];
    this.say("Starting …");
    this.model.send(content, undefined, this.upload ? [this.upload.bytes] : []);
  }

  /** One message of the kernel: started, frame, ended or fault. */
  heard(content, buffers) {
    const picture = (i) => pictureOf(new Uint8Array(buffers[i].buffer ?? buffers[i], buffers[i].byteOffset ?? 0, buffers[i].byteLength), this.explorer.data.size);
    if (content.kind === "started") {
      this.run = { ...content, name: this.name, original: picture(0), target: picture(1), frames: [], steps: [], psnr: [], trace: [] };
      this.say(content.message);
      this.running(true);
    } else if (content.kind === "frame") this.frame(content, picture(0));
    else if (content.kind === "training") {
      this.say(content.message);
      this.running(true); // so that Stop can be pressed
    }
    else {
      this.say(content.message, content.kind === "fault");
      if (!content.busy) this.running(false);
    }
  }

  running(on) {
    this.start.disabled = on;
    this.stop.disabled = !on;
  }

  frame({ step, psnr, cost }, picture) {
    const { run, explorer } = this, { state } = explorer;
    const follows = run.frames.length === 0 || (state.a === LIVE && state.frame === run.frames.length - 1);
    run.frames.push(picture);
    run.steps.push(step);
    run.psnr.push(psnr);
    run.trace.push([step, cost]);
    run.psnrRange = extent([run.psnr, run.floor]);
    run.costRange = extent(run.trace.map(([, value]) => value));
    if (run.frames.length === 1) explorer.panes.a.select.lastChild.disabled = false;
    if (follows) explorer.set({ a: LIVE, frame: run.frames.length - 1 });
    else explorer.draw();
  }
}

export default {
  async render({ model, el }) {
    const explorer = new Explorer(el, model.get("payload"), new Live(model));
    await explorer.start();
    const heard = (content, buffers) => explorer.live.heard(content, buffers);
    model.on("msg:custom", heard);
    return () => {
      explorer.pause();
      if (explorer.live.start.disabled) model.send({ kind: "stop" }); // nobody would see the rest of the attack
      model.off("msg:custom", heard);
    };
  },
};

/** Draw the explorer of a published page into `el`. */
export async function mount(el, payload) {
  const explorer = new Explorer(el, payload, null);
  await explorer.start();
  return explorer;
}
