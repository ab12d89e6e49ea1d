// One attack in a worker of its own; `runner.js`, `operations.js` and `undo.js` stand before this. Steps run in short
// slices, so that Stop is heard.
// In: { graph }, { run: … }, { stop }, { back: buffer }. Out: { kind: "ready" | "frame" | "ended", … }.

const SLICE_MS = 12, WARM = 12, SHIFT = 4;
let prepared = null, running = 0, free = [], known = { key: null };

const inSteps = (step, steps) => 0.1 ** [2.667, 1.6, 1.142].filter((by) => step >= Math.floor(steps / by)).length;
const annealed = (step, steps) => (1 + Math.cos((Math.PI * step) / steps)) / 2;

/** Adam with torch's constants, in a box; `z` moves. */
function adam(z, low, high, { lr, steps, schedule }) {
  const mean = new Float64Array(z.length), square = new Float64Array(z.length), factor = schedule === "steps" ? inSteps : annealed;
  return (slope, step) => {
    const rate = (lr * factor(step, steps)) / (1 - 0.9 ** (step + 1)), whole = 1 - 0.999 ** (step + 1);
    for (let i = 0; i < z.length; i++) {
      mean[i] += 0.1 * (slope[i] - mean[i]);
      square[i] = 0.999 * square[i] + 0.001 * slope[i] * slope[i];
      z[i] = Math.min(high[i], Math.max(low[i], z[i] - (rate * mean[i]) / (Math.sqrt(square[i] / whole) + 1e-8)));
    }
  };
}

/** `atslib.measures.identification.similarity` of one picture to one other, by colours (C, H, W). */
function similarity(ours, theirs, [channels, height, width]) {
  let best = -1;
  for (const mirrored of [false, true]) for (let dy = -SHIFT; dy <= SHIFT; dy++) for (let dx = -SHIFT; dx <= SHIFT; dx++) {
    let n = 0, a = 0, b = 0, aa = 0, bb = 0, ab = 0;
    for (let c = 0; c < channels; c++) for (let y = Math.max(dy, 0); y < height + Math.min(dy, 0); y++) {
      const row = (c * height + y) * width, other = (c * height + y - dy) * width;
      for (let x = Math.max(dx, 0); x < width + Math.min(dx, 0); x++) {
        const u = ours[row + (mirrored ? width - 1 - x : x)], v = theirs[other + x - dx];
        n++; a += u; b += v; aa += u * u; bb += v * v; ab += u * v;
      }
    }
    const spread = Math.sqrt(Math.max(0, (aa - (a * a) / n) * (bb - (b * b) / n)));
    best = Math.max(best, spread > 1e-9 ? ((ab - (a * b) / n) / spread) * (n / ours.length) : -1);
  }
  return best;
}

/** Which of the candidates is most like the picture. */
function guess(picture, candidates, shape) {
  const scores = candidates.map((one) => similarity(picture, one, shape));
  return scores.indexOf(Math.max(...scores));
}

/** What a server knows of a policy from pictures of its own: their mean after it, over all draws, and how to undo it. */
function knowledge({ forms, chances, own, mean }, knows, size) {
  const key = JSON.stringify([forms, knows]);
  if (known.key !== key) {
    known = { key, mean: mean ?? new Float64Array(own[0].length), undo: knows ? undoing(forms, own, size) : null };
    if (!mean) forms.forEach((form, f) => own.forEach((bytes) => through(bytes, form, size).forEach((value, i) => { known.mean[i] += (chances[f] * value) / 255 / own.length; })));
  }
  return known;
}

const decibels = (a, b) => -10 * Math.log10(a.reduce((sum, value, i) => sum + (value - b[i]) ** 2, 0) / a.length);

function prepare({ graph }) {
  const weights = weightsOf(graph.weights), area = graph.shape[1] * graph.shape[2];
  const each = (values) => Float64Array.from({ length: graph.shape[0] * area }, (_, i) => values[Math.floor(i / area)]);
  prepared = { graph, victim: runner(graph.victim, weights), step: runner(graph.step, weights), mean: each(graph.mean), std: each(graph.std) };
  for (let i = 0; i < WARM; i++) for (const one of [prepared.victim, prepared.step]) one.run(); // the loops are compiled
  postMessage({ kind: "ready" });
}

/** What the client shares, then the attack on it: `target` is the picture in [0, 1] that the network got. */
function attack({ id, target, original, label, start, tv, candidates, policy, knows, every, ...how }) {
  const { graph, victim, step, mean, std } = prepared, labels = new Float64Array(graph.classes), count = target.length;
  victim.put("images", target);
  if (label === null) { // of a picture without a class the one that the network sees in it
    victim.put("labels", labels);
    victim.run();
    label = victim.get("scores").indexOf(Math.max(...victim.get("scores")));
  }
  labels[label] = 1;
  for (const one of [victim, step]) one.put("labels", labels);
  victim.run();
  step.put("gradient", victim.get("gradient"));
  step.put("tv", [tv]);
  const z = Float64Array.from(start), move = adam(z, mean.map((m, i) => -m / std[i]), mean.map((m, i) => (1 - m) / std[i]), how);
  const begun = performance.now(), picture = new Float64Array(count);
  let done = 0, sent = -Infinity, look = performance.now() + 900, found = {}, cost = null;
  free = [new ArrayBuffer(count), new ArrayBuffer(count)];
  const show = (kind) => {
    for (let i = 0; i < count; i++) picture[i] = Math.min(1, Math.max(0, z[i] * std[i] + mean[i]));
    const now = performance.now();
    if (kind === "ended" || now > look) { // seldom: this takes long
      const { mean: plain, undo } = knowledge(policy, knows, graph.shape), form = undo?.likeliest(picture), undone = undo?.undone(picture, form);
      found = { form, floor: decibels(plain, target), match: guess(undone ?? picture, candidates, graph.shape) };
      if (undone) Object.assign(found, { undone: Uint8Array.from(undone, (value) => Math.round(255 * value)), undonePsnr: decibels(undone, original) });
      look = performance.now() + Math.max(900, 8 * (performance.now() - now));
    }
    const buffer = free.pop() ?? new ArrayBuffer(count), bytes = new Uint8Array(buffer);
    for (let i = 0; i < count; i++) bytes[i] = Math.round(255 * picture[i]);
    postMessage({ kind, id, step: done, psnr: decibels(picture, target), cost, ...found, seconds: (performance.now() - begun) / 1000, bytes }, [buffer]);
    sent = performance.now();
  };
  const go = () => {
    if (running !== id) return;
    const until = performance.now() + SLICE_MS;
    while (done < how.steps && performance.now() < until) {
      step.put("z", z);
      step.run();
      cost = step.get("distance")[0];
      move(step.get("slope"), done);
      done += 1;
    }
    if (done >= how.steps) return show("ended");
    if (performance.now() - sent >= every && free.length) show("frame");
    next.port2.postMessage(null);
  };
  const next = new MessageChannel();
  next.port1.onmessage = go;
  running = id;
  show("frame");
  go();
}

onmessage = ({ data }) => {
  if (data.graph) prepare(data);
  else if (data.run) attack(data.run);
  else if (data.stop) running = 0;
  else if (data.back) free.push(data.back);
};
