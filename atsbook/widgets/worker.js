// A server in a worker of its own; `runner.js`, `operations.js` and `undo.js` stand before this. Either it rebuilds a
// picture and compares pictures ("run"), or it compares gradients of candidates ("compare"). Work runs in short slices,
// so that Stop is heard.
// In: { graph }, { run: … }, { compare: … }, { stop }, { back: buffer }.
// Out: { kind: "ready" | "frame" | "ended" | "compared", … }.

const SLICE_MS = 12,
  WARM = 12,
  SAME = 1e-3;
let prepared = null,
  running = 0,
  free = [];

const inSteps = (step, steps) => 0.1 ** [2.667, 1.6, 1.142].filter((by) => step >= Math.floor(steps / by)).length;
const annealed = (step, steps) => (1 + Math.cos((Math.PI * step) / steps)) / 2;

/** Adam with torch's constants, in a box; `z` moves. */
function adam(z, low, high, { lr, steps, schedule }) {
  const mean = new Float64Array(z.length),
    square = new Float64Array(z.length),
    factor = schedule === "steps" ? inSteps : annealed;
  return (slope, step) => {
    const rate = (lr * factor(step, steps)) / (1 - 0.9 ** (step + 1)),
      whole = 1 - 0.999 ** (step + 1);
    for (let i = 0; i < z.length; i++) {
      mean[i] += 0.1 * (slope[i] - mean[i]);
      square[i] = 0.999 * square[i] + 0.001 * slope[i] * slope[i];
      z[i] = Math.min(high[i], Math.max(low[i], z[i] - (rate * mean[i]) / (Math.sqrt(square[i] / whole) + 1e-8)));
    }
  };
}

const decibels = (a, b) => -10 * Math.log10(a.reduce((sum, value, i) => sum + (value - b[i]) ** 2, 0) / a.length);

/** Write `values` into `out` at mean 0 and length 1; a flat picture is all zeros. */
function standardized(values, out) {
  let sum = 0,
    squares = 0;
  for (let i = 0; i < values.length; i++) sum += values[i];
  const mean = sum / values.length;
  for (let i = 0; i < values.length; i++) squares += (values[i] - mean) ** 2;
  const length = Math.sqrt(squares);
  for (let i = 0; i < values.length; i++) out[i] = length > 1e-9 ? (values[i] - mean) / length : 0;
}

/**
 * How alike a picture is to each candidate in the form of the policy that suits best: Pearson's correlation of colours,
 * as `atslib.measures.found.match` without crop and flip. `more()` makes ready one form of one candidate, and says
 * whether that was the last; then `scores(picture)` may be called.
 */
function matching(candidates, forms, size) {
  const area = candidates[0].length,
    rows = candidates.length * forms.length,
    table = new Float32Array(rows * area),
    own = new Float32Array(area);
  let ready = 0;
  return {
    more() {
      if (ready < rows)
        standardized(
          through(candidates[Math.floor(ready / forms.length)], forms[ready % forms.length], size),
          table.subarray(ready * area, (ready + 1) * area),
        );
      ready = Math.min(rows, ready + 1);
      return ready === rows;
    },
    scores(picture) {
      standardized(picture, own);
      return Float64Array.from(candidates, (_, k) => {
        let best = -1;
        for (let f = 0; f < forms.length; f++) {
          let sum = 0;
          const at = (k * forms.length + f) * area;
          for (let i = 0; i < area; i++) sum += own[i] * table[at + i];
          best = Math.max(best, sum);
        }
        return best;
      });
    },
  };
}

/** What was made for the same key the last time, or made now. */
function keeping() {
  let kept = { key: null, value: null };
  return (key, make) => {
    if (kept.key !== key) kept = { key, value: make() };
    return kept.value;
  };
}
const matchers = keeping(),
  undoers = keeping();

/** A client's gradient of which only the last layer's part is computed, in a third of the time. */
function endOf({ victim, classes }, features) {
  const { gradient } = victim.outputs,
    needed = new Set([gradient]),
    from = victim.buffers[gradient] - classes * (features + 1);
  const steps = [...victim.steps].reverse();
  const kept = steps.filter(([, , , , [[out, offset], ...read]]) => {
    if (!needed.has(out) || (out === gradient && offset < from)) return false;
    for (const [buffer] of read) needed.add(buffer);
    return true;
  });
  return { ...victim, steps: kept.reverse() };
}

function prepare({ graph, features, compares }) {
  const weights = weightsOf(graph.weights),
    area = graph.shape[1] * graph.shape[2];
  const each = (values) => Float64Array.from({ length: graph.shape[0] * area }, (_, i) => values[Math.floor(i / area)]);
  prepared = {
    graph,
    features,
    victim: runner(compares ? endOf(graph, features) : graph.victim, weights),
    step: compares ? null : runner(graph.step, weights),
    mean: each(graph.mean),
    std: each(graph.std),
  };
  for (let i = 0; i < WARM; i++) for (const one of [prepared.victim, prepared.step]) one?.run(); // the loops are compiled
  postMessage({ kind: "ready" });
}

const oneHot = (label, classes) => Float64Array.from({ length: classes }, (_, i) => Number(i === label));

/** Call `slice` again and again until it returns true or something else runs. */
function sliced(id, slice) {
  const next = new MessageChannel();
  next.port1.onmessage = () => {
    if (running === id && !slice(performance.now() + SLICE_MS)) next.port2.postMessage(null);
  };
  running = id;
  next.port2.postMessage(null);
}

/**
 * What the client shares, then the attack on it: `target` is the picture in [0, 1] that the network got. `earlier` holds
 * what other rounds gave of the same photograph: { scores, rounds: [{ picture, form }] }.
 */
function attack({ id, target, label, start, tv, candidates, forms, set, earlier, own, every, ...how }) {
  const { graph, victim, step, mean, std } = prepared,
    count = target.length,
    key = JSON.stringify([set, forms]);
  victim.put("images", target);
  for (const one of [victim, step]) one.put("labels", oneHot(label, graph.classes));
  victim.run();
  step.put("gradient", victim.get("gradient"));
  step.put("tv", [tv]);
  const z = Float64Array.from(start),
    move = adam(
      z,
      mean.map((m, i) => -m / std[i]),
      mean.map((m, i) => (1 - m) / std[i]),
      how,
    );
  const begun = performance.now(),
    picture = new Float64Array(count),
    matcher = matchers(key, () => matching(candidates, forms, graph.shape));
  let done = 0,
    sent = -Infinity,
    cost = null,
    matched = false;
  free = [new ArrayBuffer(count), new ArrayBuffer(count)];
  const show = (kind) => {
    for (let i = 0; i < count; i++) picture[i] = Math.min(1, Math.max(0, z[i] * std[i] + mean[i]));
    const found = {},
      rounds = earlier.rounds;
    if (matched)
      found.scores = matcher
        .scores(picture)
        .map((score, k) => (score + (earlier.scores?.[k] ?? 0)) / (rounds.length + 1));
    if (kind === "ended" && own && forms.length > 1) {
      const server = undoers(JSON.stringify(forms), () => undoing(forms, own, graph.shape));
      found.form = server.likeliest(picture);
      found.undone = Uint8Array.from(server.undone([...rounds, { picture, form: found.form }]), (value) =>
        Math.round(255 * value),
      );
    }
    const buffer = free.pop() ?? new ArrayBuffer(count),
      bytes = new Uint8Array(buffer);
    for (let i = 0; i < count; i++) bytes[i] = Math.round(255 * picture[i]);
    postMessage(
      {
        kind,
        id,
        step: done,
        psnr: decibels(picture, target),
        cost,
        ...found,
        seconds: (performance.now() - begun) / 1000,
        bytes,
      },
      [buffer],
    );
    sent = performance.now();
  };
  show("frame");
  sliced(id, (until) => {
    while (done < how.steps && performance.now() < until) {
      step.put("z", z);
      step.run();
      cost = step.get("distance")[0];
      move(step.get("slope"), done);
      done += 1;
    }
    const last = done >= how.steps,
      enough = performance.now() + SLICE_MS;
    while (!matched && (last || performance.now() < enough)) matched = matcher.more();
    if (last) show("ended");
    else if (performance.now() - sent >= every && free.length) show("frame");
    return last;
  });
}

/** What the last layer got of a picture, read off the gradient that it gives, as `atslib.attacks.analytic.invert_linear`. */
function readOff(victim, picture, features, classes) {
  victim.put("images", picture);
  victim.run();
  const gradient = victim.get("gradient"),
    bias = gradient.length - classes,
    weight = bias - classes * features,
    found = new Float64Array(features);
  let squares = 0;
  for (let c = 0; c < classes; c++) {
    const slope = gradient[bias + c];
    squares += slope ** 2;
    for (let i = 0; i < features; i++) found[i] += slope * gradient[weight + c * features + i];
  }
  return squares ? found.map((value) => value / squares) : null;
}

/**
 * `atslib.attacks.line_up` of one photograph, without crop and flip: candidates in all forms of the policy, up to one
 * whose last layer gets the same as that of the client's picture.
 */
function compare({ id, target, label, candidates, forms, all = false }) {
  const { graph, features, victim } = prepared,
    total = candidates.length * forms.length,
    away = new Float64Array(candidates.length).fill(Infinity);
  victim.put("labels", oneHot(label, graph.classes));
  const sent = readOff(victim, target, features, graph.classes),
    length = sent && Math.sqrt(sent.reduce((sum, value) => sum + value ** 2, 0));
  let tried = 0;
  sliced(id, (until) => {
    let same = !sent; // which tells nothing
    while (tried < total && !same && performance.now() < until) {
      const k = tried % candidates.length,
        made = through(candidates[k], forms[Math.floor(tried / candidates.length)], graph.shape);
      const got = readOff(
        victim,
        Float64Array.from(made, (value) => value / 255),
        features,
        graph.classes,
      );
      if (got)
        away[k] = Math.min(
          away[k],
          Math.sqrt(got.reduce((sum, value, i) => sum + (value - sent[i]) ** 2, 0)) / Math.max(length, 1e-12),
        );
      same = !all && away[k] < SAME;
      tried += 1;
    }
    if (tried < total && !same) return false;
    postMessage({ kind: "compared", id, away, tried, total });
    return true;
  });
}

onmessage = ({ data }) => {
  if (data.graph) prepare(data);
  else if (data.run) attack(data.run);
  else if (data.compare) compare(data.compare);
  else if (data.stop) running = 0;
  else if (data.back) free.push(data.back);
};
