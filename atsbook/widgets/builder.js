// The policy builder; `figures.js`, which it shares helpers with, stands before it.

const PLACES = [0, 1, 2]; // of a policy's operations

class Builder {
  constructor(el, data) {
    Object.assign(this, { data, id: `ats-${++made}`, originals: unpacked(data), image: 0, signs: [1, 1, 1] });
    this.range = extent(data.scored.map(({ curve }) => curve));
    const { group, mark } = thumbnails(this.originals.map(seen), data.images, (image) => { this.image = image; this.draw(); });
    this.markThumb = mark;
    const parts = [this.buildPresets(), group, this.buildSteps(), this.buildCurve()];
    this.take(data.start);
    begin(el, "builder", "Policy builder", () => this.draw(), ...parts);
  }

  buildPresets() {
    const options = Object.entries(this.data.presets).map(([id, title]) => h("option", { value: id, textContent: id === "none" ? title : `${title}: ${id}` }));
    this.own = h("option", { value: "", textContent: "Your own" });
    this.preset = h("select", { id: `${this.id}-preset`, onchange: () => { this.take(this.preset.value); this.draw(); } }, ...options, this.own);
    return h("div", { className: "ats-preset" }, h("label", { for: this.preset.id, textContent: "Policy" }), this.preset);
  }

  buildSteps() {
    const { operations, size } = this.data, named = operations.map((op, i) => ({ value: i, textContent: `${i}: ${op.words}` }));
    this.frames = [framed(size), ...PLACES.map(() => framed(size))];
    this.selects = PLACES.map((i) => h("select", { id: `${this.id}-${i}`, onchange: () => this.draw() }, h("option", { value: "", textContent: "none" }), ...named.map((option) => h("option", option))));
    this.toggles = PLACES.map((i) => h("button", { type: "button", className: "ats-sign", title: "The other sign", onclick: () => { this.signs[i] *= -1; this.draw(); } }));
    const start = h("div", { className: "ats-stage" }, h("span", { className: "ats-label", textContent: "Test image" }), h("span"), this.frames[0].node);
    const stages = PLACES.map((i) => h("div", { className: "ats-stage" },
      h("div", { className: "ats-head" }, h("label", { for: this.selects[i].id, textContent: `Operation ${i + 1}` }), this.toggles[i]), this.selects[i], this.frames[i + 1].node));
    return h("div", { className: "ats-stages" }, start, ...stages);
  }

  buildCurve() {
    this.svg = drawing("svg", { role: "img" });
    this.keys = h("span");
    this.score = h("b", { className: "ats-psnr" });
    this.note = h("span", { className: "ats-note" });
    this.call = h("code");
    const caption = h("figcaption", {}, h("b", { textContent: "Similarity of gradients" }), " against the image's share of its mixture with noise, %", this.keys);
    this.verdict = h("div", { className: "ats-words", role: "status" }, h("p", { className: "ats-readout" }, this.score, this.note), h("p", {}, this.call));
    return h("div", { className: "ats-beside ats-charts" }, h("figure", {}, caption, this.svg), this.verdict);
  }

  /** Set the drop-downs to a policy such as "3-1-7"; "none" is no policy. */
  take(policy) {
    const ids = policy === "none" ? [] : policy.split("-");
    this.selects.forEach((select, i) => { select.value = ids[i] ?? ""; });
    this.signs = [1, 1, 1];
  }

  get ids() {
    return this.selects.map((select) => select.value).filter((value) => value !== "");
  }

  /** The scored policy that is the same function, itself if it can be. */
  find(ids) {
    const { scored, canonical } = this.data, reduced = (list) => list.map((id) => canonical[id]).filter((id) => id !== null).join("-");
    const split = (id) => (id ? id.split("-") : []);
    return scored.find(({ id }) => id === ids.join("-")) ?? scored.find(({ id }) => reduced(split(id)) === reduced(ids));
  }

  draw() {
    const { data, ids } = this, id = ids.join("-") || "none";
    this.markThumb(this.image);
    this.own.hidden = this.own.disabled = id in data.presets;
    this.preset.value = id in data.presets ? id : "";
    this.drawSteps();
    this.drawCurve(ids, id);
  }

  drawSteps() {
    const { operations, images } = this.data;
    let picture = this.originals[this.image];
    this.frames[0].show(seen(picture), `Original image: ${images[this.image]}`, images[this.image]);
    for (const i of PLACES) {
      const value = this.selects[i].value, op = operations[value], sign = this.signs[i];
      if (op) picture = applied(op, picture, sign);
      const words = op ? op.drawn[sign > 0 ? 0 : 1] : "unchanged";
      this.frames[i + 1].show(seen(picture), `After operation ${i + 1}: ${words}`, words);
      this.toggles[i].textContent = sign > 0 ? "+" : "−";
      this.toggles[i].setAttribute("aria-label", `Sign of operation ${i + 1}: ${sign > 0 ? "plus" : "minus"}`);
      this.toggles[i].hidden = !op?.signed;
    }
  }

  drawCurve(ids, id) {
    const { n, call } = this.data, found = this.find(ids), none = this.find([]);
    const line = ({ curve }, slot, filled = false) => ({ slot, filled, points: curve.map((value, i) => [(100 * i) / (curve.length - 1), value]) });
    const parts = found ? [] : [...new Set(ids)].map((one) => this.find([one]));
    const lines = [...(found && found !== none ? [line(found, "a", true)] : []), ...parts.map((part) => line(part, "c")), line(none, "b")];
    chart(this.svg, lines, [Math.min(0, this.range[0]), 1], 100, false);
    this.svg.setAttribute("aria-label", found ? `Curve of policy ${id}, score ${found.s_pri.toFixed(3)}` : "Curves of the single operations");
    const key = (slot, text) => [h("span", { className: `ats-key ats-${slot}` }), text];
    this.keys.replaceChildren(h("br"), ...(found === none ? [] : found ? key("a", `${id} `) : key("c", "its operations alone ")), ...key("b", "no policy"));
    this.score.textContent = found ? `Privacy score ${found.s_pri.toFixed(3)}` : "";
    const same = found && found.id !== ids.join("-") ? ` Scored as ${found.id || "no policy"}, the same function.` : "";
    const against = found === none ? "" : ` No policy: ${none.s_pri.toFixed(3)}.`;
    this.note.textContent = found
      ? `The area under the curve, mean of ${n} images with their own signs; lower is more private.${against}${same}`
      : `Policy ${id} was not scored for this page. What its operations score alone says little about it. To score it:`;
    this.call.textContent = found ? "" : call.replace("{}", id);
    this.call.parentNode.hidden = Boolean(found);
  }
}

/** Three drop-downs, the image after each, and the curve behind the policy's score. */
export function builder(el, data) {
  return new Builder(el, data);
}
