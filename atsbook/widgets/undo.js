// The library's `Undone`: which form of a policy a picture is in, and the likely picture whose form comes close to it.
// `operations.js` stands before this. Pictures are doubles in [0, 1], (C, H, W); a form is a list of [operation, sign].

const BLUR = 8, SMOOTH = 0.2, SEARCH = { lr: 0.1, steps: 60, schedule: "annealed" }, LUMA = [19595 / 65536, 38470 / 65536, 7471 / 65536];
const box = (value) => Math.min(1, Math.max(0, value));
const tables = new Map();
const once = (key, make) => tables.get(key) ?? tables.set(key, make()).get(key);

/** Where each pixel of a plane comes from, −1 from outside: the exact kernel on a picture that holds its own places. */
function places(name, [, height, width], magnitude, sign) {
  const area = height * width, own = (i) => [255, (i % area) >> 8, (i % area) % 256][Math.floor(i / area)];
  const out = KERNELS[name]({ bytes: Uint8Array.from({ length: 3 * area }, (_, i) => own(i)), size: [3, height, width] }, magnitude, sign);
  return Int32Array.from({ length: area }, (_, i) => (out[i] === 255 ? (out[area + i] << 8) | out[2 * area + i] : -1));
}

const moved = (name, outside) => (x, size, magnitude, sign) => {
  const from = once([name, size, magnitude, sign].join(), () => places(name, size, magnitude, sign)), area = from.length, at = (i) => i - (i % area) + from[i % area];
  return [x.map((_, i) => (from[i % area] < 0 ? outside : x[at(i)])), (slope) => {
    const back = new Float64Array(x.length);
    slope.forEach((value, i) => { if (from[i % area] >= 0) back[at(i)] += value; });
    return back;
  }];
};

function shear(x, size, magnitude, sign) {
  const [, height, width] = size, parts = x.map(() => 0), read = (i) => {
    const y = Math.floor(i / width) % height, source = ((i % width) + 0.5) * magnitude * sign + y + 0.5;
    if (source < 0 || source >= height) return [];
    const below = Math.floor(source - 0.5), d = source - 0.5 - below, weights = [-d + 2 * d ** 2 - d ** 3, 1 - 2 * d ** 2 + d ** 3, d + d ** 2 - d ** 3, d ** 3 - d ** 2];
    return weights.map((weight, k) => [i + (Math.min(height - 1, Math.max(0, below + k - 1)) - y) * width, weight]);
  };
  const table = once(["shear", size, magnitude, sign].join(), () => Array.from(x, (_, i) => read(i)));
  table.forEach((row, i) => { for (const [from, weight] of row) parts[i] += weight * x[from]; });
  return [parts.map(box), (slope) => {
    const back = new Float64Array(x.length);
    table.forEach((row, i) => { if (parts[i] >= 0 && parts[i] <= 1) for (const [from, weight] of row) back[from] += weight * slope[i]; });
    return back;
  }];
}

/** Towards or away from `base(x, size)`, whose slope `baseBack` leads back; half a grey level lower, as the library's. */
const blended = (base, baseBack) => (x, size, magnitude, sign) => {
  if (!magnitude) return [x, (slope) => slope];
  const factor = 1 + magnitude * sign, from = base(x, size), raw = x.map((value, i) => from[i] + factor * (value - from[i]) - 0.5 / 255);
  return [raw.map(box), (slope) => {
    const open = slope.map((value, i) => (raw[i] >= 0 && raw[i] <= 1 ? value : 0)), rest = baseBack(open, size);
    return open.map((value, i) => factor * value + (1 - factor) * rest[i]);
  }];
};
const share = (c, channels) => (channels === 1 ? 1 : LUMA[c]);
const totals = (x, [channels, height, width], weight) => { // over the channels, (H, W)
  const area = height * width, sum = new Float64Array(area);
  x.forEach((value, i) => { sum[i % area] += weight(Math.floor(i / area), channels) * value; });
  return sum;
};
const spreadOut = (sum, x, [channels], weight) => x.map((_, i) => weight(Math.floor(i / sum.length), channels) * sum[i % sum.length]);
const all = (sum) => sum.reduce((a, b) => a + b, 0);
const one = () => 1;

const smoothed = (x, [, height, width], back) => { // the border stays as it is
  const out = new Float64Array(x.length);
  x.forEach((value, i) => {
    const row = Math.floor(i / width) % height, column = i % width;
    if (row === 0 || column === 0 || row === height - 1 || column === width - 1) { if (!back) out[i] = value; return; }
    for (let dy = -1; dy <= 1; dy++) for (let dx = -1; dx <= 1; dx++) {
      const weight = (dy || dx ? 1 : 5) / 13, other = i + dy * width + dx;
      if (back) out[other] += weight * value; else out[i] += weight * x[other];
    }
  });
  return out;
};
const inner = blended((x, size) => smoothed(x, size, false), (slope, size) => smoothed(slope, size, true));
function sharp(x, size, magnitude, sign) {
  const [, height, width] = size, border = (i) => [0, height - 1].includes(Math.floor(i / width) % height) || [0, width - 1].includes(i % width);
  if (Math.min(height, width) < 3) return [x, (slope) => slope];
  const [out, back] = inner(x, size, magnitude, sign);
  return [out.map((value, i) => (border(i) ? x[i] : value)), (slope) => {
    const within = back(slope.map((value, i) => (border(i) ? 0 : value)));
    return within.map((value, i) => value + (border(i) ? slope[i] : 0));
  }];
}

/** Each channel by `own(its values)`, which is [what becomes of them, their slope back]. */
const byChannel = (own) => (x, [channels]) => {
  const area = x.length / channels, cut = (values, c) => values.subarray(c * area, (c + 1) * area), parts = Array.from({ length: channels }, (_, c) => own(cut(x, c)));
  const joined = (rows) => Float64Array.from(rows.flatMap((row) => [...row]));
  return [joined(parts.map(([out]) => out)), (slope) => joined(parts.map(([, back], c) => back(cut(slope, c))))];
};

const stretched = byChannel((x) => {
  const low = Math.min(...x), high = Math.max(...x), run = high - low, span = Math.max(run, 1 / 255);
  if (!run) return [x, (slope) => slope];
  const raw = x.map((value) => (value - low) / span - 0.5 / 255), lows = x.filter((value) => value === low).length, highs = x.filter((value) => value === high).length;
  return [raw.map(box), (slope) => {
    let down = 0, up = 0;
    const back = slope.map((value, i) => {
      if (raw[i] < 0 || raw[i] > 1) return 0;
      const tilt = run >= 1 / 255 ? ((x[i] - low) / span ** 2) * value : 0;
      down += tilt - value / span;
      up -= tilt;
      return value / span;
    });
    return back.map((value, i) => value + (x[i] === low ? down / lows : 0) + (x[i] === high ? up / highs : 0));
  }];
});

const equal = byChannel((x) => {
  const levels = Uint8Array.from(x, (value) => Math.round(box(value) * 255)), made = KERNELS.equalize({ bytes: levels, size: [1, 1, x.length] });
  const known = new Map(), counts = new Map();
  levels.forEach((level, i) => { known.set(level, made[i]); counts.set(level, (counts.get(level) ?? 0) + 1); });
  const sorted = [...known.keys()].sort((a, b) => a - b);
  const slopes = x.map((value) => { // between the present levels below and above
    let right = sorted.findIndex((level) => level / 255 >= value);
    if (right < 0) right = sorted.length - 1;
    if (right === 0 && counts.get(sorted[0]) === 1) right = 1;
    return right > 0 && right < sorted.length ? (known.get(sorted[right]) - known.get(sorted[right - 1])) / (sorted[right] - sorted[right - 1]) : 1;
  });
  const raw = x.map((value, i) => made[i] / 255 + slopes[i] * (value - levels[i] / 255));
  return [raw.map(box), (slope) => slope.map((value, i) => (raw[i] >= 0 && raw[i] <= 1 ? slopes[i] * value : 0))];
});

/** The library's twins: (x, size, magnitude, sign) → [what becomes of x, the slope of that → the slope of x]. */
const TWINS = {
  shearY: shear, translateX: moved("translateX", 0), translateY: moved("translateY", 0), rotate: moved("rotate", 128 / 255), sharpness: sharp, autocontrast: stretched, equalize: equal,
  color: (x, size, ...how) => (size[0] === 1 ? [x, (slope) => slope] : blended((now) => spreadOut(totals(now, size, share), now, size, one), (slope) => spreadOut(totals(slope, size, one), slope, size, share))(x, size, ...how)),
  contrast: blended((x, size) => { const grey = totals(x, size, share); return x.map(((mean) => () => mean)(all(grey) / grey.length)); },
    (slope, size) => { const sum = all(slope) / (size[1] * size[2]); return spreadOut(new Float64Array(size[1] * size[2]).fill(sum), slope, size, share); }),
  brightness: blended((x) => x.map(() => 0), (slope) => slope.map(() => 0)),
  posterize: (x, _, bits) => { const step = 2 ** (8 - bits); return [x.map((value) => (Math.floor(Math.round(value * 255) / step) * step) / 255), (slope) => slope]; },
  solarize: (x, _, threshold) => { const turned = (i) => Math.round(x[i] * 255) >= threshold; return [x.map((value, i) => (turned(i) ? 1 - value : value)), (slope) => slope.map((value, i) => (turned(i) ? -value : value))]; },
  invert: (x) => [x.map((value) => 1 - value), (slope) => slope.map((value) => -value)],
};

/** Bytes after a form of the policy, exactly. */
const through = (bytes, form, size) => form.reduce((now, [operation, sign]) => applied(operation, now, sign), { bytes, size }).bytes;

function cellsOf([channels, height, width]) {
  const cut = (n) => Array.from({ length: BLUR }, (_, i) => [Math.floor((i * n) / BLUR), Math.ceil(((i + 1) * n) / BLUR)]), cells = [];
  for (let c = 0; c < channels; c++) for (const [top, bottom] of cut(height)) for (const [left, right] of cut(width)) {
    const cell = [];
    for (let y = top; y < bottom; y++) for (let x = left; x < right; x++) cell.push((c * height + y) * width + x);
    cells.push(cell);
  }
  return cells;
}
const blurred = (x, cells) => Float64Array.from(cells, (cell) => cell.reduce((sum, i) => sum + x[i], 0) / cell.length);

/** A normal distribution fitted to rows of cells, with independent noise on top: its density, and the slope of −log. */
function fitted(rows, noise) {
  const k = rows[0].length, mean = new Float64Array(k), low = new Float64Array(k * k); // the Cholesky factor
  for (const row of rows) for (let i = 0; i < k; i++) mean[i] += row[i] / rows.length;
  for (const row of rows) for (let i = 0; i < k; i++) for (let j = 0; j <= i; j++) low[i * k + j] += ((row[i] - mean[i]) * (row[j] - mean[j])) / (rows.length - 1);
  let volume = k * Math.log(2 * Math.PI);
  for (let i = 0; i < k; i++) {
    low[i * k + i] += noise ** 2;
    for (let j = 0; j <= i; j++) {
      let sum = low[i * k + j];
      for (let m = 0; m < j; m++) sum -= low[i * k + m] * low[j * k + m];
      low[i * k + j] = i === j ? Math.sqrt(sum) : sum / low[j * k + j];
    }
    volume += 2 * Math.log(low[i * k + i]);
  }
  const half = (cells) => {
    const out = cells.map((value, i) => value - mean[i]);
    for (let i = 0; i < k; i++) {
      for (let m = 0; m < i; m++) out[i] -= low[i * k + m] * out[m];
      out[i] /= low[i * k + i];
    }
    return out;
  };
  return {
    density: (cells) => -0.5 * (volume + all(half(cells).map((value) => value ** 2))),
    slope: (cells) => {
      const out = half(cells);
      for (let i = k - 1; i >= 0; i--) {
        for (let m = i + 1; m < k; m++) out[i] -= low[m * k + i] * out[m];
        out[i] /= low[i * k + i];
      }
      return out;
    },
  };
}

/** The mean total variation of pictures, and the slope of one's. */
function variation(x, [channels, height, width], back = null) {
  let total = 0;
  const across = channels * height * (width - 1), down = channels * (height - 1) * width;
  for (let i = 0; i < x.length; i++) for (const [other, count, there] of [[i + 1, across, (i + 1) % width], [i + width, down, Math.floor(i / width) % height < height - 1]]) {
    if (!there) continue;
    total += Math.abs(x[other] - x[i]) / count;
    if (back) { const sign = Math.sign(x[other] - x[i]) / count; back[other] += sign; back[i] -= sign; }
  }
  return total;
}

/**
 * What knows a policy by its forms and pictures of its own, bytes: `likeliest(picture)` is the place of a form,
 * `undone(rounds)` the picture before it, of one or more rounds { picture, form }, `form` being such a place.
 */
function undoing(forms, own, size, noise = 0.2, search = SEARCH) {
  const cells = cellsOf(size), scaled = (bytes) => Float64Array.from(bytes, (value) => value / 255), plain = own.map(scaled);
  const likely = forms.map((form) => fitted(own.map((bytes) => blurred(scaled(through(bytes, form, size)), cells)), noise));
  const prior = fitted(plain.map((x) => blurred(x, cells)), 0.01), smooth = plain.reduce((sum, x) => sum + variation(x, size), 0) / plain.length;
  return {
    likeliest(picture) {
      const seen = blurred(picture, cells), found = likely.map((each) => each.density(seen));
      return found.indexOf(Math.max(...found));
    },
    undone(rounds) {
      const x = rounds[0].picture.map((_, i) => plain.reduce((sum, each) => sum + each[i], 0) / plain.length);
      const move = adam(x, x.map(() => 0), x.map(() => 1), search), weight = (SMOOTH * x.length) / smooth;
      for (let step = 0; step < search.steps; step++) {
        const rough = new Float64Array(x.length), off = new Float64Array(x.length);
        for (const { picture, form } of rounds) {
          let now = x;
          const backs = forms[form].map(([{ name, magnitude }, sign]) => { const [next, back] = TWINS[name](now, size, magnitude, sign); now = next; return back; });
          backs.reduceRight((slope, back) => back(slope), now.map((value, i) => (value - picture[i]) / noise ** 2)).forEach((slope, i) => { off[i] += slope; });
        }
        variation(x, size, rough);
        const pull = prior.slope(blurred(x, cells)), slope = off.map((value, i) => value + weight * rough[i]);
        cells.forEach((cell, c) => { for (const i of cell) slope[i] += pull[c] / cell.length; });
        move(slope, step);
      }
      return x;
    },
  };
}
