// The map of all policies, drawn into `el` from its payload; `common.js` and `figures.js` stand before this. Points are
// on a canvas, because there are twenty thousand; what is chosen, searched and brushed lies above it.

/** Numbers that a payload holds as 16 bits each, spread over [low, high]. */
function numbersOf({ low, high, bits }) {
  const bytes = Uint8Array.from(atob(bits), (c) => c.charCodeAt(0)), whole = new Uint16Array(bytes.buffer);
  return Float32Array.from(whole, (value) => low + ((high - low) * value) / 65535);
}

/** Places in `ids` of the operations of policy number `n`: first all of one operation, then of two, then of three. */
function digits(n, base) {
  let length = 1;
  for (let count = base; n >= count; count *= base) [n, length] = [n - count, length + 1];
  const found = [];
  for (; length; length--, n = Math.floor(n / base)) found.unshift(n % base);
  return found;
}

/** A labelled select. */
function choice(label, names, onchange) {
  const id = `ats-${++made}`, options = names.map((name, i) => h("option", { value: String(i), textContent: name }));
  const node = h("select", { id, onchange: () => onchange(+node.value) }, ...options);
  return { node: h("div", { className: "ats-choice" }, h("label", { for: id, textContent: label }), node), select: node };
}

/** All policies by a score and by what an attack finds: to search, to brush, to colour by an operation. */
export function atlas(el, data) {
  const { ids, words, published } = data, base = ids.length;
  const all = data.numbers.map((n) => digits(n, base)), names = all.map((own) => own.map((i) => ids[i]).join("-"));
  const index = new Map(names.map((name, i) => [name, i]));
  const axesOf = { x: data.x.map(numbersOf), y: data.y.map(numbersOf) };
  const canvas = h("canvas", { className: "ats-cloud", "aria-hidden": "true" });
  const svg = drawing("svg", { class: "ats-plot", tabindex: "0", role: "img" }), ground = drawing("g", {}), above = drawing("g", {});
  svg.append(ground, above);
  const card = h("div", { className: "ats-words", role: "status" });
  const search = h("input", { type: "search", id: `ats-${++made}`, placeholder: "3-1-7", autocomplete: "off", spellcheck: false });
  let [axis, up, operation, chosen, brush] = [0, 0, -1, index.get(data.start) ?? 0, null], scales = null, order = [];
  let beside = [], typedAs = ""; // further members of a hybrid, and another spelling of what is chosen

  const say = (...lines) => card.replaceChildren(...lines.map(([className, text]) => h("p", { className, textContent: text })));
  const share = (values, value) => (100 * values.reduce((sum, v) => sum + (v < value), 0)) / values.length;

  /** One policy in words and numbers. */
  function describe(i) {
    const gain = axesOf.y[up][i], score = axesOf.x[axis][i], paper = published.find((p) => p.id === names[i]);
    say(["ats-name", names[i]], ["ats-operations", all[i].map((d) => words[d]).join(" → ")],
      ["", `An attack finds ${fixed(gain)} dB over the floor (${data.y[up].name}); of ${fixed(share(axesOf.y[up], gain))} % of all policies it finds less.`],
      ["", `${data.x[axis].name}: ${brief(score)}; ${fixed(share(axesOf.x[axis], score))} % of all have a lower one.`],
      ["", paper ? `Published as ${paper.name}.` : ""],
      ["", typedAs ? `${typedAs} is the same function.` : ""]);
  }

  /** The members of a hybrid, of which a client draws one for each image. */
  function members(typed, found) {
    say(["ats-name", typed], ["", "A hybrid: a client draws one of its members for each image. It lies on no map of single policies; its members do."],
      ...found.map((i) => ["", `${names[i]}: ${fixed(axesOf.y[up][i])} dB over the floor, ${data.x[axis].name.toLowerCase()} ${brief(axesOf.x[axis][i])}.`]));
  }

  /** What the policies within the rectangle have in common. */
  function summary(inside) {
    if (!inside.length) return say(["ats-name", "No policy lies there"]);
    const [here, anywhere] = [new Float64Array(base), new Float64Array(base)];
    all.forEach((own) => new Set(own).forEach((d) => { anywhere[d] += 1 / all.length; }));
    inside.forEach((i) => new Set(all[i]).forEach((d) => { here[d] += 1 / inside.length; }));
    const often = [...here.keys()].sort((a, b) => here[b] / anywhere[b] - here[a] / anywhere[a]).slice(0, 3);
    const mean = inside.reduce((sum, i) => sum + axesOf.y[up][i], 0) / inside.length;
    say(["ats-name", `${inside.length} policies`], ["", `Mean ${fixed(mean)} dB over the floor (${data.y[up].name}).`],
      ["", `More frequent than elsewhere: ${often.map((d) => `${words[d]} (in ${fixed(100 * here[d], 0)} %, elsewhere ${fixed(100 * anywhere[d], 0)} %)`).join(", ")}.`],
      ["ats-operations", `Least gain: ${inside.sort((a, b) => axesOf.y[up][a] - axesOf.y[up][b]).slice(0, 6).map((i) => names[i]).join(", ")}`]);
  }

  /** Names beside their rings, each where it covers least of the other names and rings, and of what lies outside. */
  function label(places) {
    const taken = places.map(({ cx, cy }) => ({ left: cx - 7, right: cx + 7, top: cy - 7, bottom: cy + 7 }));
    const shared = (a, b) => Math.max(0, Math.min(a.right, b.right) - Math.max(a.left, b.left)) * Math.max(0, Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top));
    for (const { name, cx, cy } of places) {
      const text = drawing("text", { style: "paint-order: stroke; stroke: var(--ats-surface); stroke-width: 3px; fill: var(--ats-ink)" }, name);
      above.append(text);
      const { width, height } = text.getBBox();
      const spots = [4, -12, 20, -26, 34].flatMap((down) => [9, -9 - width, -width / 2].map((right) => ({ x: cx + right, y: cy + down })));
      const boxes = spots.map(({ x, y }) => ({ left: x - 2, right: x + width + 2, top: y - 0.8 * height, bottom: y + 0.2 * height }));
      const covered = boxes.map((box) => taken.reduce((sum, other) => sum + shared(box, other), 0)
        + 1000 * (box.left < 0 || box.right > svg.clientWidth || box.top < 0 || box.bottom > svg.clientHeight));
      const best = covered.indexOf(Math.min(...covered));
      for (const [name, value] of Object.entries(spots[best])) text.setAttribute(name, value);
      taken.push(boxes[best]);
    }
  }

  /** Rings, names and the rectangle above the points. */
  function overlay() {
    const { x, y } = scales, at = (i) => [x(axesOf.x[axis][i]), y(axesOf.y[up][i])];
    above.replaceChildren();
    const places = published.map(({ id, name }) => { const [cx, cy] = at(index.get(id)); return { name, cx, cy }; });
    above.append(...places.map(({ cx, cy }) => drawing("circle", { class: "ats-published", cx, cy, r: 5 })));
    label(places);
    if (!brush) [chosen, ...beside].forEach((i) => { const [cx, cy] = at(i); above.append(drawing("circle", { class: "ats-ring", cx, cy, r: 6 })); });
    else above.append(drawing("rect", { class: "ats-brush", x: Math.min(brush[0], brush[2]), y: Math.min(brush[1], brush[3]), width: Math.abs(brush[2] - brush[0]), height: Math.abs(brush[3] - brush[1]) }));
    svg.setAttribute("aria-label", `${names.length} policies: ${data.x[axis].name} to the right, gain in dB upward. Chosen: ${names[chosen]}`);
  }

  function redraw() {
    const [xs, ys] = [axesOf.x[axis], axesOf.y[up]], dots = window.devicePixelRatio || 1;
    const ends = (values) => values.reduce(([a, b], v) => [Math.min(a, v), Math.max(b, v)], [Infinity, -Infinity]);
    const [left, right] = ends(xs), [low, high] = ends(ys), room = 0.03 * (right - left || 1), middle = (left + right) / 2;
    const across = [...new Set([[left, middle], [middle, right]].flatMap((half) => ticks(half, false)))];
    scales = axes(svg, ground, { x: [left - room, right + room], y: [low, high], across });
    [canvas.width, canvas.height] = [svg.clientWidth * dots, svg.clientHeight * dots];
    const pen = canvas.getContext("2d", { willReadFrequently: true }), [plain, marked] = [canvas, svg].map((node) => getComputedStyle(node).color);
    pen.scale(dots, dots);
    const dot = (i, size) => pen.fillRect(scales.x(xs[i]) - size / 2, scales.y(ys[i]) - size / 2, size, size);
    [pen.fillStyle, pen.globalAlpha] = [plain, operation < 0 ? 0.4 : 0.15];
    names.forEach((_, i) => dot(i, 1.6));
    [pen.fillStyle, pen.globalAlpha] = [marked, 0.75];
    if (operation >= 0) all.forEach((own, i) => own.includes(operation) && dot(i, 2));
    order = [...names.keys()].sort((a, b) => xs[a] - xs[b]);
    overlay();
    if (!brush && beside.length) members([chosen, ...beside].map((i) => names[i]).join("+"), [chosen, ...beside]);
    else if (!brush) describe(chosen);
  }

  const choose = (i, spelled = "") => { [chosen, brush, beside, typedAs] = [i, null, [], spelled]; overlay(); describe(i); };
  /** The number of a policy in any spelling; undefined if it is none, or does nothing. */
  const numberOf = (text) => {
    const own = text.split("-").map((part) => data.canonical[part.trim()]).filter((part) => part !== null);
    return own.includes(undefined) ? undefined : index.get(own.map((d) => ids[d]).join("-"));
  };
  const place = (event) => { const box = svg.getBoundingClientRect(); return [event.clientX - box.x, event.clientY - box.y]; };
  const pixels = (i) => [scales.x(axesOf.x[axis][i]), scales.y(axesOf.y[up][i])];
  svg.addEventListener("pointerdown", (event) => { svg.setPointerCapture(event.pointerId); brush = [...place(event), ...place(event)]; });
  svg.addEventListener("pointermove", (event) => { if (svg.hasPointerCapture(event.pointerId)) { brush = [brush[0], brush[1], ...place(event)]; overlay(); } });
  svg.addEventListener("pointercancel", () => choose(chosen)); // a finger that scrolls the page
  svg.addEventListener("pointerup", () => {
    const [a, b, c, d] = brush;
    if (Math.hypot(c - a, d - b) > 5) {
      const within = (v, p, q) => v >= Math.min(p, q) && v <= Math.max(p, q);
      return summary([...names.keys()].filter((i) => { const [x, y] = pixels(i); return within(x, a, c) && within(y, b, d); }));
    }
    let [best, away] = [0, Infinity];
    names.forEach((_, i) => { const [x, y] = pixels(i), far = Math.hypot(x - a, y - b); if (far < away) [best, away] = [i, far]; });
    return choose(best);
  });
  svg.addEventListener("keydown", (event) => {
    const to = stepped(order.indexOf(chosen), event.key, names.length);
    if (to === null) return;
    event.preventDefault();
    choose(order[to]);
  });
  search.addEventListener("input", () => {
    const typed = search.value.trim();
    if (!typed) return;
    const found = typed.split("+").map(numberOf);
    if (found.includes(undefined)) say(["ats-name", typed], ["", "is no policy of one to three operations, 0 to 49 joined by -, or does nothing; members of a hybrid are joined by +."]);
    else if (found.length > 1) {
      [chosen, ...beside] = found;
      [brush, typedAs] = [null, ""];
      overlay();
      members(typed, found);
    } else choose(found[0], typed === names[found[0]] ? "" : typed);
  });

  const right = choice("To the right", data.x.map(({ name }) => name), (i) => { axis = i; redraw(); });
  const upward = choice("Upward, gain in dB", data.y.map(({ name }) => name), (i) => { up = i; redraw(); });
  const colour = choice("Colour", ["no operation", ...words], (i) => { operation = i - 1; redraw(); });
  const find = h("div", { className: "ats-choice" }, h("label", { for: search.id, textContent: "Find a policy" }), search);
  const caption = h("figcaption", {}, h("b", { textContent: "Gain, dB" }), ` of ${names.length.toLocaleString("en")} policies; rings are published. Click a policy, or draw a rectangle.`);
  const stage = h("div", { className: "ats-layers" }, canvas, svg);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw); // a canvas keeps its colours
  new MutationObserver(redraw).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  begin(el, "atlas", "Map of all policies", redraw, h("div", { className: "ats-choices" }, right.node, upward.node, colour.node, find), h("figure", {}, caption, stage), card);
}
