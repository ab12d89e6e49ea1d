// The small figures of the claim pages: `ranking` and `scatter`, each drawn into `el` from its payload. `common.js` and
// `operations.js` stand before this. No dependency, no request.

/** What a payload holds in base64 as pictures { bytes, size }. */
function unpacked({ pixels, size }) {
  const bytes = Uint8Array.from(atob(pixels), (c) => c.charCodeAt(0)), each = size.reduce((a, b) => a * b);
  return Array.from({ length: bytes.length / each }, (_, i) => ({ bytes: bytes.slice(i * each, (i + 1) * each), size }));
}

const put = (node, attributes) => Object.entries(attributes).forEach(([name, value]) => node.setAttribute(name, value));
const seen = ({ bytes, size }) => pictureOf(bytes, size);

/** Begin a figure: its section, which `redraw` fills at every width. */
function begin(el, kind, label, redraw, ...children) {
  const root = h("section", { className: `ats-explorer ats-figure ats-${kind}`, "aria-label": label }, ...children);
  el.append(root);
  el.classList.add("ats-on");
  new ResizeObserver(redraw).observe(root);
  return root;
}

/** A canvas with a caption, which `show(picture, words, caption)` fills. */
function framed(size, className = "") {
  const [, height, width] = size, canvas = h("canvas", { width, height, role: "img" });
  const caption = h("figcaption"), node = h("figure", { className }, canvas, caption);
  const show = (picture, words, text = words) => {
    paint(canvas, picture);
    canvas.setAttribute("aria-label", words);
    caption.textContent = text;
  };
  return { node, show };
}

/**
 * Points of a chart of which one is chosen: by the pointer that is nearest, by touch, by focus and by keys.
 * `places()` are their [x, y] in pixels now, `next` is that of `roving`, and `wide` weighs the distance down the page.
 */
function pointed(svg, group, dots, { places, next, choose, wide = 1 }) {
  const mark = roving(svg, dots, next, choose);
  const nearest = (event) => {
    const box = svg.getBoundingClientRect(), [x, y] = [event.clientX - box.x, event.clientY - box.y];
    if (!places().length) return; // not drawn yet
    const away = places().map(([a, b]) => Math.hypot(a - x, wide * (b - y)));
    choose(away.indexOf(Math.min(...away)));
  };
  svg.addEventListener("pointermove", nearest);
  svg.addEventListener("pointerdown", nearest);
  dots.forEach((dot, i) => dot.addEventListener("focus", () => choose(i)));
  group.append(...dots);
  return mark;
}

/** A drawing with a ground for its axes and a group for its points, read as one set of radios. */
function plot(label) {
  const svg = drawing("svg", { role: "radiogroup", "aria-label": label, class: "ats-plot" });
  const ground = drawing("g", { "aria-hidden": "true" }), group = drawing("g", {});
  svg.append(ground, group);
  return { svg, ground, group };
}

// --- ranking ------------------------------------------------------------------------------------------------

/** A row of the ranking in words, and its operation on the payload's image. */
function operationCard(data) {
  const [original] = unpacked(data), images = [0, 1, 2].map(() => framed(data.size));
  const [name, score, rank, same] = ["ats-name", "", "", ""].map((className) => h("p", { className }));
  const node = h("div", { className: "ats-detail" }, h("div", { className: "ats-pictures" }, ...images.map((image) => image.node)), h("div", { className: "ats-words" }, name, score, rank, same));
  const show = (row) => {
    const op = data.operations[row.id], twins = row["same as"], share = 100 * row["in top five"];
    name.replaceChildren(h("b", { textContent: row.id }), ` ${op.words}`);
    score.textContent = `Privacy score ${fixed(row.s_pri, 3)}, interval ${fixed(row.low, 3)} to ${fixed(row.high, 3)}, ${row.n} images`;
    rank.textContent = `Rank ${row.rank}; with other images ${row["rank low"]} to ${row["rank high"]}; in the first five in ${fixed(share)} % of draws`;
    same.textContent = twins ? `Same function as ${twins}` : "No other id is the same function";
    images[0].show(seen(original), `Original image: ${data.images[0]}`, "Original");
    [1, -1].forEach((sign, at) => images[at + 1].show(seen(applied(op, original, sign)), `After ${op.drawn[at]}`, op.drawn[at]));
    images[2].node.hidden = !op.signed;
  };
  return { node, show };
}

/** The distinct operations by score; the chosen one with its numbers and what it does to an image. */
export function ranking(el, data) {
  const { rows, operations } = data, { svg, ground, group } = plot("Transformations by privacy score");
  const dots = rows.map((row) => {
    const words = `${row.id}: ${operations[row.id].words}, privacy score ${brief(row.s_pri)}, rank ${row.rank}`;
    const dot = drawing("g", { role: "radio", "aria-label": words, class: row["same as"] ? "ats-pick ats-twin" : "ats-pick" });
    dot.append(drawing("path", {}), drawing("circle", { r: 4 }));
    return dot;
  });
  const card = operationCard(data);
  let places = [], line = null;
  const choose = (i) => {
    mark(i);
    line?.setAttribute("d", `M${places[i][0]} ${BOX.top}V${svg.clientHeight - BOX.bottom}`);
    card.show(rows[i]);
  };
  const next = (from, key) => stepped(from, key, rows.length);
  const mark = pointed(svg, group, dots, { places: () => places, next, choose, wide: 0.001 });
  const redraw = () => {
    const [low, high] = extent(rows.map((row) => [row.low, row.high])), room = 0.04 * (high - low || 1), width = svg.clientWidth;
    const { x, y, bottom } = axes(svg, ground, { x: [-1, rows.length], y: [low - room, high + room], across: [] });
    places = rows.map((row, i) => [x(i), y(row.s_pri)]);
    line = ground.appendChild(drawing("path", { class: "ats-cursor" }));
    ground.append(drawing("path", { class: "ats-floor ats-b", d: `M${BOX.left} ${y(data.reference)}H${width - BOX.right}` }));
    const apart = x(1) - x(0), every = apart < 9 ? 5 : 1, lines = apart < 17 && every === 1 ? 2 : 1; // an id is 12 pixels wide
    rows.forEach((row, i) => {
      put(dots[i].children[0], { d: `M${x(i)} ${y(row.low)}V${y(row.high)}` });
      put(dots[i].children[1], { cx: x(i), cy: y(row.s_pri) });
      if (i % every === 0) ground.append(drawing("text", { x: x(i), y: bottom + 16 + 11 * (i % lines), "text-anchor": "middle", class: "ats-id" }, String(row.id)));
    });
    choose(Math.max(0, dots.findIndex((dot) => dot.getAttribute("aria-checked") === "true")));
  };
  const caption = h("figcaption", {}, h("b", { textContent: "Privacy score" }), " lower is more private; ", h("span", { className: "ats-key" }), "one id ",
    h("span", { className: "ats-key ats-twin" }), "one function, several ids; dashed: doing nothing");
  begin(el, "ranking", "Ranking of the transformations", redraw, h("figure", {}, caption, svg), card.node);
}

// --- scatter ------------------------------------------------------------------------------------------------

/** Least squares through points [x, y]: the height at any x. */
function fitted(points) {
  const mean = (at) => points.reduce((sum, p) => sum + p[at], 0) / points.length, [mx, my] = [mean(0), mean(1)];
  const [top, below] = points.reduce(([a, b], [x, y]) => [a + (x - mx) * (y - my), b + (x - mx) ** 2], [0, 0]);
  return (x) => my + (below ? top / below : 0) * (x - mx);
}

/** A policy in words and numbers, and its attacked images, three pictures each. */
function policyCard({ points, images, size, n }, sheets) {
  const rows = images.map(() => [framed(size), framed(size), framed(size, "ats-found")]);
  const [name, words, score] = ["ats-name", "ats-operations", ""].map((className) => h("p", { className }));
  const node = h("div", { className: "ats-detail" }, h("div", { className: "ats-words" }, name, words, score),
    ...rows.map((row) => h("div", { className: "ats-pictures" }, ...row.map((image) => image.node))));
  const show = (i, network) => {
    const point = points[i];
    name.textContent = point.id;
    words.textContent = point.words;
    score.replaceChildren("Privacy score ", h("b", { textContent: fixed(point.score[network], 3) }), ", PSNR ", h("b", { textContent: `${fixed(point.psnr)} dB` }), `, means of ${n} images`);
    rows.forEach(([original, client, found], image) => {
      const decibels = `${fixed(point.each[image])} dB`;
      original.show(sheets["images.webp"][0][image], `Original image: ${images[image]}`, "Original");
      client.show(sheets["client.webp"][image][i], `What the client used: ${point.words}`, "Client used");
      found.show(sheets["found.webp"][image][i], `Recovered by the attacker, ${decibels}`, `Recovered, ${decibels}`);
    });
  };
  return { node, show };
}

/** Where a key leads among the points: left and right by score, up and down by PSNR. */
function walked(points, network, from, key) {
  const upward = { ArrowDown: "ArrowLeft", ArrowUp: "ArrowRight" }, value = (i) => (key in upward ? points[i].psnr : points[i].score[network]);
  const order = points.map((_, i) => i).sort((a, b) => value(a) - value(b));
  const to = stepped(order.indexOf(from), upward[key] ?? key, points.length);
  return to === null ? null : order[to];
}

function networkSwitch(networks, first, choose) {
  const name = `ats-${++made}`, labels = networks.map((network, i) =>
    h("label", {}, h("input", { type: "radio", name, checked: i === first, onchange: () => choose(i) }), h("span", { textContent: network.name })));
  return h("fieldset", { className: "ats-attacks" }, h("legend", { textContent: "Score from the network that is" }), h("div", {}, ...labels));
}

/** Policies by score and PSNR, the score from a network that the reader picks; the chosen one with its images. */
export async function scatter(el, data) {
  const { points, networks, size } = data, names = Object.keys(data.files);
  const cuts = await Promise.all(names.map((name) => cut(data.files[name], size)));
  const sheets = Object.fromEntries(names.map((name, i) => [name, cuts[i]]));
  const { svg, ground, group } = plot("Policies by privacy score and PSNR");
  const [dark, bright] = extent(points.map(({ noise }) => noise));
  const dots = points.map(({ noise }) => {
    const dot = drawing("circle", { role: "radio", class: "ats-pick", r: 5 });
    dot.style.setProperty("--ats-share", `${(100 * (noise - dark)) / (bright - dark || 1)}%`);
    return dot;
  });
  const ring = svg.appendChild(drawing("circle", { class: "ats-ring", r: 7 })); // above the points that lie on the chosen one
  const card = policyCard(data, sheets);
  let places = [], network = data.main, chosen = 0;
  const choose = (i) => {
    chosen = i;
    mark(i);
    put(ring, { cx: places[i][0], cy: places[i][1] });
    card.show(i, network);
  };
  const next = (from, key) => walked(points, network, from, key);
  const mark = pointed(svg, group, dots, { places: () => places, next, choose });
  const correlation = h("span"), redraw = () => {
    const at = points.map(({ score: all, psnr }) => [all[network], psnr]), spread = at.map(([value]) => value);
    const padded = ([low, high]) => [low - 0.05 * (high - low || 1), high + 0.05 * (high - low || 1)];
    const across = padded(extent(spread)), fit = fitted(at);
    const { x, y, path } = axes(svg, ground, { x: across, y: padded(extent(at.map((p) => p[1]))), across: ticks(across) });
    places = at.map(([a, b]) => [x(a), y(b)]);
    ground.append(drawing("path", { class: "ats-fit", d: path(extent(spread).map((value) => [value, fit(value)])) }));
    dots.forEach((dot, i) => {
      put(dot, { cx: places[i][0], cy: places[i][1], "aria-label": `Policy ${points[i].id}: privacy score ${brief(at[i][0])}, PSNR ${fixed(at[i][1])} dB` });
    });
    correlation.textContent = `Pearson r = ${networks[network].r} over ${points.length} policies`;
    choose(chosen);
  };
  const choice = networkSwitch(networks, network, (i) => { network = i; redraw(); });
  const caption = h("figcaption", {}, h("b", { textContent: "PSNR, dB" }), " against the privacy score; ", correlation);
  const shades = h("p", { className: "ats-shades" }, `PSNR of pure noise: ${fixed(dark)}`, h("i"), `${fixed(bright)} dB`);
  begin(el, "scatter", "Scatter of the policies", redraw, choice, h("div", { className: "ats-beside" }, h("figure", {}, caption, svg, shades), card.node));
}
