// Runs a graph of `widgets/browser_graph`: loops over flat buffers of doubles. Nothing here knows of networks or pages.

const ELEMENT = {
  copy: "x", second: "y", add: "x+y", sub: "x-y", mul: "x*y", div: "x/y", neg: "-x", exp: "Math.exp(x)", log: "Math.log(x)",
  sqrt: "Math.sqrt(x)", rsqrt: "1/Math.sqrt(x)", abs: "Math.abs(x)", sign: "Math.sign(x)", relu: "x>0?x:0", tanh: "Math.tanh(x)",
  sigmoid: "1/(1+Math.exp(-x))", where: "x?y:z", ge: "x>=y?1:0", le: "x<=y?1:0", gt: "x>y?1:0", maximum: "x>y?x:y",
  clamp: "x<y?y:x>z?z:x", pow: "x**y",
};
/** An expression as text; `value(k)` is that of operand k. */
const textOf = (expression, value) => (typeof expression === "number" ? value(expression)
  : `(${ELEMENT[expression[0]].replace(/\b[xyz]\b/g, (v) => textOf(expression["xyz".indexOf(v) + 1], value))})`);
const BLOCK = [4, 2];
const most = (size, limit) => { let n = limit; while (size % n) n--; return n; };

/**
 * The text of a loop: operands are arrays A0 (written), A1 …; their places are kept in p0, p1 … by level. A sum is made
 * for several places at once, a block of the last two dimensions that stay, so that what is read serves more than one
 * of them; a short last dimension that goes is written out.
 */
function loopText([expression, reduce, stays, goes, operands]) {
  const depth = stays.length, lines = [], read = operands.slice(1), block = stays.map(() => 1);
  if (reduce && depth) block[depth - 1] = most(stays[depth - 1], BLOCK[0]);
  if (reduce && depth > 1) block[depth - 2] = most(stays[depth - 2], BLOCK[1]);
  const place = (k, level) => `p${k}_${level}`;
  lines.push(`let ${operands.map(([, offset], k) => `${place(k, 0)}=${offset}`).join()};`);
  const open = (size, level, step = 1) => lines.push(`for(let i${level}=0;i${level}<${size};i${level}+=${step}){const ` +
    operands.map(([, , s], k) => `${place(k, level + 1)}=${place(k, level)}+i${level}*${s[level]}`).join() + ";");
  stays.forEach((size, level) => open(size, level, block[level]));
  const at = (k, level, extra) => `A${k}[${place(k, level)}${extra ? `+${extra}` : ""}]`;
  if (!reduce) {
    lines.push(`const ${read.map((_, k) => `x${k + 1}=${at(k + 1, depth, 0)}`).join()};`);
    lines.push(`${at(0, depth, 0)}=${textOf(expression, (k) => `x${k}`)};`);
  } else {
    const final = goes.at(-1) ?? 1, short = final <= 8 ? final : depth ? 1 : most(final, 8), level = depth + goes.length;
    const lanes = [];
    for (let v = 0; v < (block[depth - 2] ?? 1); v++) for (let u = 0; u < (block[depth - 1] ?? 1); u++) lanes.push([u, v]);
    const own = (k, [u, v]) => (depth ? u * operands[k][2][depth - 1] : 0) + (v ? v * operands[k][2][depth - 2] : 0);
    const sums = depth || final <= 8 ? lanes.length : short; // of one single sum several parts, or each waits for the last
    lines.push(`let ${[...Array(sums).keys()].map((u) => `s${u}=${reduce === "max" ? "-Infinity" : 0}`).join()};`);
    goes.forEach((size, i) => open(size, depth + i, i === goes.length - 1 ? short : 1));
    const seen = new Set();
    for (let r = 0; r < short; r++) lanes.forEach((lane, i) => {
      const each = textOf(expression, (k) => {
        const extra = own(k, lane) + (r ? r * operands[k][2].at(-1) : 0), id = `v${k}_${extra < 0 ? `m${-extra}` : extra}_`;
        if (!seen.has(id)) lines.push(`const ${id}=${at(k, level, extra)};`);
        seen.add(id);
        return id;
      });
      const sum = `s${sums > lanes.length ? r : i}`;
      lines.push(reduce === "max" ? `${sum}=Math.max(${sum},${each});` : `${sum}+=${each};`);
    });
    lines.push("}".repeat(goes.length));
    const all = [...Array(sums).keys()].map((u) => `s${u}`);
    if (sums > lanes.length) lines.push(`s0=${reduce === "max" ? `Math.max(${all.join()})` : all.join("+")};`);
    lines.push(lanes.map((lane, i) => `${at(0, depth, own(0, lane))}=s${i};`).join(""));
  }
  return lines.join("") + "}".repeat(depth);
}

/** A graph that is ready to run: `put(name, values)`, `run()`, `get(name)`, which is the buffer itself. */
function runner(graph, weights) {
  const buffers = graph.buffers.map((size) => new Float64Array(size));
  for (const [buffer, values] of graph.constants) buffers[buffer].set(values);
  buffers[graph.inputs.weights].set(weights);
  const steps = graph.steps.map((step) => {
    const names = step[4].map((_, k) => `A${k}`), loop = new Function(...names, `"use strict";${loopText(step)}`), given = step[4].map(([b]) => buffers[b]);
    return () => loop(...given);
  });
  return {
    put: (name, values) => buffers[graph.inputs[name]].set(values),
    run: () => { for (const step of steps) step(); },
    get: (name) => buffers[graph.outputs[name]],
  };
}

/** The weights of a graph as numbers; halves of 16 bits are read bit by bit, for want of an array of them everywhere. */
function weightsOf({ kind, data }) {
  const bytes = Uint8Array.from(atob(data), (c) => c.charCodeAt(0));
  if (kind === "f32") return new Float32Array(bytes.buffer);
  return Float64Array.from(new Uint16Array(bytes.buffer), (half) => {
    const power = (half >> 10) & 31, part = half & 1023;
    return (half >> 15 ? -1 : 1) * (power ? 2 ** (power - 15) * (1 + part / 1024) : 2 ** -14 * (part / 1024));
  });
}
