// The operations of `atslib.transforms`, bit for bit: which rounding happens where is argued there. A picture is
// { bytes: Uint8Array (C, H, W), size: [C, H, W] }; every kernel is (picture, magnitude, sign) → its bytes.

const byte = (value) => Math.trunc(Math.min(255, Math.max(0, value)));

/** Each byte of the result from its channel, row and column. */
function filled({ size: [channels, height, width] }, value) {
  const out = new Uint8Array(channels * height * width);
  let at = 0;
  for (let c = 0; c < channels; c++) {
    for (let y = 0; y < height; y++) for (let x = 0; x < width; x++) out[at++] = value(c, y, x);
  }
  return out;
}

const plane = ({ bytes, size: [, height, width] }, c) => bytes.subarray(c * height * width, (c + 1) * height * width);

/** Each channel through a table of 256 bytes of its own. */
function tabled(picture, table) {
  const [channels, height, width] = picture.size, area = height * width;
  const tables = Array.from({ length: channels }, (_, c) => table(plane(picture, c)));
  return picture.bytes.map((value, at) => tables[Math.floor(at / area)][value]);
}

function translate(picture, shift, axis) {
  const { bytes, size: [, height, width] } = picture, step = Math.floor(shift * (axis === "x" ? width : height) + 0.5);
  return filled(picture, (c, y, x) => {
    const row = axis === "y" ? y + step : y, column = axis === "x" ? x + step : x;
    return row >= 0 && row < height && column >= 0 && column < width ? bytes[(c * height + row) * width + column] : 0;
  });
}

function shearY(picture, slope) {
  const { size: [channels, height, width] } = picture, greys = Array.from({ length: channels }, (_, c) => plane(picture, c));
  return filled(picture, (c, y, x) => {
    const source = (x + 0.5) * slope + (y + 0.5);
    if (source < 0 || source >= height) return 0;
    const below = Math.floor(source - 0.5), d = source - 0.5 - below, grey = greys[c];
    const [v1, v2, v3, v4] = [-1, 0, 1, 2].map((k) => grey[Math.min(height - 1, Math.max(0, below + k)) * width + x]);
    return byte((((v2 - v1 + v4 - v3) * d + ((v1 - v2) * 2 + v3 - v4)) * d + (v3 - v1)) * d + v2);
  });
}

function rotate(picture, degrees) {
  const { bytes, size: [, height, width] } = picture, angle = degrees * (Math.PI / 180);
  const [cos, sin] = [Math.cos(angle), Math.sin(angle)].map((v) => Number(v.toFixed(15)));
  const x0 = cos * (-width / 2) - sin * (-height / 2) + width / 2, y0 = sin * (-width / 2) + cos * (-height / 2) + height / 2;
  const [a, b, e, s, t, f] = [cos, -sin, x0 + cos * 0.5 - sin * 0.5, sin, cos, y0 + sin * 0.5 + cos * 0.5].map((v) => Math.floor(v * 65536 + 0.5));
  return filled(picture, (c, y, x) => {
    const column = Math.floor((a * x + b * y + e) / 65536), row = Math.floor((s * x + t * y + f) / 65536);
    return row >= 0 && row < height && column >= 0 && column < width ? bytes[(c * height + row) * width + column] : 128;
  });
}

/** Between a degenerate image and the image, in float32. */
const blend = (from, value, factor) => byte(Math.fround(Math.fround((value - from) * factor) + from));
const factorOf = (size, sign) => Math.fround(1 + size * sign);

/** Pillow's L of a picture, (H, W). */
function luma(picture) {
  if (picture.size[0] === 1) return picture.bytes;
  const [red, green, blue] = [0, 1, 2].map((c) => plane(picture, c));
  return red.map((r, i) => (r * 19595 + green[i] * 38470 + blue[i] * 7471 + 0x8000) >> 16);
}

function color(picture, size, sign) {
  if (size === 0 || picture.size[0] === 1) return picture.bytes;
  const grey = luma(picture), factor = factorOf(size, sign);
  return picture.bytes.map((value, at) => blend(grey[at % grey.length], value, factor));
}

function contrast(picture, size, sign) {
  const grey = luma(picture), factor = factorOf(size, sign);
  const mean = Math.floor(grey.reduce((sum, value) => sum + value, 0) / grey.length + 0.5);
  return picture.bytes.map((value) => blend(mean, value, factor));
}

function sharpness(picture, size, sign) {
  const { size: [, height, width] } = picture, factor = factorOf(size, sign);
  if (Math.min(height, width) < 3) return picture.bytes;
  return filled(picture, (c, y, x) => {
    const grey = plane(picture, c), middle = grey[y * width + x];
    if (y === 0 || x === 0 || y === height - 1 || x === width - 1) return middle;
    let sum = 4 * middle;
    for (let row = y - 1; row <= y + 1; row++) for (let column = x - 1; column <= x + 1; column++) sum += grey[row * width + column];
    return blend(Math.floor((sum + 6.5) / 13), middle, factor);
  });
}

const autocontrast = (picture) => tabled(picture, (grey) => {
  const low = grey.reduce((a, b) => Math.min(a, b)), high = grey.reduce((a, b) => Math.max(a, b));
  const scale = 255 / Math.max(1, high - low);
  return Uint8Array.from({ length: 256 }, (_, value) => (high > low ? byte(value * scale - low * scale) : value));
});

const equalize = (picture) => tabled(picture, (grey) => {
  const counts = new Array(256).fill(0);
  for (const value of grey) counts[value] += 1;
  const step = Math.floor((grey.length - counts.findLast((count) => count > 0)) / 255);
  let darker = 0;
  return Uint8Array.from(counts, (count, value) => {
    const level = Math.floor((darker + Math.floor(step / 2)) / step);
    darker += count;
    return step > 0 ? Math.min(255, level) : value;
  });
});

const KERNELS = {
  autocontrast, color, contrast, equalize, rotate, sharpness,
  shearY: (picture, size, sign) => shearY(picture, size * sign),
  translateX: (picture, size, sign) => translate(picture, size * sign, "x"),
  translateY: (picture, size, sign) => translate(picture, size * sign, "y"),
  brightness: (picture, size, sign) => picture.bytes.map((value) => byte(Math.fround(value * factorOf(size, sign)))),
  posterize: ({ bytes }, bits) => bytes.map((value) => value & (0xff << (8 - bits))),
  solarize: ({ bytes }, threshold) => bytes.map((value) => (value >= threshold ? 255 - value : value)),
  invert: ({ bytes }) => bytes.map((value) => 255 - value),
};

/** A picture after an operation `{ name, magnitude }` of the payload. */
const applied = ({ name, magnitude }, picture, sign) => ({ bytes: KERNELS[name](picture, magnitude, sign), size: picture.size });
