// What the explorer and the small figures share; Python writes it before either, into one module.

/** An element; properties with a dash, `role` and `for` become attributes. */
const h = (tag, props = {}, ...children) => {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name.includes("-") || name === "role" || name === "for") node.setAttribute(name, value);
    else node[name] = value;
  }
  node.append(...children);
  return node;
};

const drawing = (tag, attributes, text = "") => {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.textContent = text;
  return node;
};

const fixed = (value, digits = 1) => (value === null || !Number.isFinite(value) ? "–" : value.toFixed(digits));
const brief = (value) => {
  if (value === null || !Number.isFinite(value)) return "–";
  return value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e4) ? value.toExponential(1) : String(+value.toPrecision(3));
};

/** Put a picture on a canvas; `willReadFrequently` keeps so small a canvas off the graphics card. */
const paint = (canvas, picture) => canvas.getContext("2d", { willReadFrequently: true }).putImageData(picture, 0, 0);

/** A sheet's pictures as [row][column] of ImageData; its channels lie below each other as grey planes. */
async function cut(uri, [channels, height, width]) {
  const image = new Image();
  image.src = uri;
  await image.decode();
  const canvas = h("canvas", { width: image.naturalWidth, height: image.naturalHeight });
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(image, 0, 0);
  const grey = context.getImageData(0, 0, canvas.width, canvas.height).data;
  const rows = canvas.height / height / channels, columns = canvas.width / width;
  const picture = (row, column) => {
    const found = new ImageData(width, height);
    for (let at = 0; at < found.data.length; at++) {
      const channel = at % 4, pixel = at >> 2, y = Math.floor(pixel / width), x = pixel % width;
      const plane = ((Math.min(channel, channels - 1) * rows + row) * height + y) * canvas.width;
      found.data[at] = channel === 3 ? 255 : grey[4 * (plane + column * width + x)];
    }
    return found;
  };
  return Array.from({ length: rows }, (_, r) => Array.from({ length: columns }, (_, c) => picture(r, c)));
}

/** Bytes (C, H, W) of one picture as ImageData. */
function pictureOf(bytes, [channels, height, width]) {
  const found = new ImageData(width, height), area = height * width;
  for (let pixel = 0; pixel < area; pixel++) {
    for (let c = 0; c < 3; c++) found.data[4 * pixel + c] = bytes[Math.min(c, channels - 1) * area + pixel];
    found.data[4 * pixel + 3] = 255;
  }
  return found;
}

const extent = (values) => {
  const finite = values.flat(Infinity).filter((value) => value !== null && Number.isFinite(value));
  return finite.length ? [Math.min(...finite), Math.max(...finite)] : [0, 1];
};

/** Round numbers between two values: steps of 1, 2 or 5. */
function ticks([low, high]) {
  const raw = (high - low) / 4, ten = 10 ** Math.floor(Math.log10(raw || 1));
  const step = ten * [1, 2, 5, 10].find((factor) => factor * ten >= raw);
  const first = Math.ceil(low / step - 1e-9);
  return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, i) => +((first + i) * step).toPrecision(6));
}

const BOX = { height: 156, left: 42, right: 8, top: 8, bottom: 24 }; // of a chart, in pixels; its size is the page's

/**
 * Draw grid and numbers into `ground`, a part of `svg`, which it empties; returns the scales in pixels.
 * `x` and `y` are the ends of the axes, `across` the numbers below.
 */
function axes(svg, ground, { x: [left, right], y: [low, high], across }) {
  const height = svg.clientHeight || BOX.height, width = svg.clientWidth || 300;
  const x = (v) => BOX.left + ((width - BOX.left - BOX.right) * (v - left)) / (right - left || 1);
  const y = (v) => height - BOX.bottom - ((height - BOX.top - BOX.bottom) * (v - low)) / (high - low || 1);
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  ground.replaceChildren();
  for (const value of ticks([low, high])) {
    ground.append(drawing("path", { class: "ats-grid", d: `M${BOX.left} ${y(value)}H${width - BOX.right}` }));
    ground.append(drawing("text", { x: BOX.left - 6, y: y(value) + 4, "text-anchor": "end" }, brief(value)));
  }
  for (const value of across) {
    const anchor = value === left ? "start" : value === right ? "end" : "middle";
    ground.append(drawing("text", { x: x(value), y: height - 6, "text-anchor": anchor }, String(value)));
  }
  const path = (points) => points.filter((p) => p[1] !== null && Number.isFinite(p[1])).map(([a, b], i) => `${i ? "L" : "M"}${x(a).toFixed(1)} ${y(b).toFixed(1)}`).join("");
  return { x, y, path, bottom: height - BOX.bottom };
}

/** A row of test images, one of them chosen: the group and what marks the chosen one. `choose(i)` is told of a new one. */
function thumbnails(pictures, names, choose) {
  const marks = pictures.map((picture, i) => {
    const canvas = h("canvas", { width: picture.width, height: picture.height });
    paint(canvas, picture);
    return h("button", { type: "button", role: "radio", "aria-label": `Image ${i + 1}: ${names[i]}`, title: names[i], onclick: () => choose(i) }, canvas);
  });
  const group = h("div", { className: "ats-thumbs", role: "radiogroup", "aria-label": "Test image" }, ...marks);
  group.style.setProperty("--ats-count", marks.length);
  const mark = roving(group, marks, (from, key) => stepped(from, key, marks.length), choose);
  return { group, mark };
}

const STEPS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -Infinity, End: Infinity };

/** Where a key leads from place `from` of `count`, round the ends; null for a key that leads nowhere. */
function stepped(from, key, count) {
  if (!(key in STEPS)) return null;
  const to = from + STEPS[key];
  return Number.isFinite(to) ? (to + count) % count : to < 0 ? 0 : count - 1;
}

/** Let keys move through `items`, radios with one tab stop; returns what marks the chosen one. */
function roving(group, items, next, choose) {
  let chosen = 0;
  group.addEventListener("keydown", (event) => {
    const to = next(chosen, event.key);
    if (to === null) return;
    event.preventDefault();
    choose(to);
    items[to].focus();
  });
  return (i) => {
    chosen = i;
    items.forEach((item, j) => {
      item.setAttribute("aria-checked", String(j === i));
      item.setAttribute("tabindex", j === i ? 0 : -1);
    });
  };
}

let made = 0; // labels need ids that are unique on the page
