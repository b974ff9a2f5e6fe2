// Bars and lines as PNG, with nothing but Node: a small canvas, drawn at twice the size and averaged so that edges are smooth.
import { deflateSync } from 'node:zlib';

const COLOURS = [[47, 111, 178], [221, 107, 32], [56, 142, 60], [183, 28, 28], [106, 63, 160], [97, 97, 97]];
const INK = [51, 51, 51];
const FAINT = [224, 224, 224];
const FINE = 2; // Drawn pixels to a pixel of the picture, each way.

// Letters of 5 × 7 points: seven rows from the top, each five bits as a digit in base 32.
const LETTERS = Object.fromEntries(
  (' 0000000 .00000cc ,0000c48 -000v000 +044v440 :0cc0cc0 /01248g0 (2488842 )8422248 %op248j3 °ciic000 _000000v =00v0v00 ' +
    "#aavavaa '4480000 <248g842 >8421248 *04lel40 ?eh12404 !4444404 " +
    '0ehjlphe 14c4444e 2eh1248v 3v2421he 426aiv22 5vgu11he 668guhhe 7v124888 8ehhehhe 9ehhf12c ' +
    'Aehhvhhh Buhhuhhu Cehggghe Dsihhhis Evgguggv Fvgguggg Gehgnhhf Hhhhvhhh Ie44444e J72222ic Khikokih Lggggggv Mhrllhhh ' +
    'Nhhpljhh Oehhhhhe Puhhuggg Qehhhlid Ruhhukih Sfgge11u Tv444444 Uhhhhhhe Vhhhhha4 Whhhllla Xhha4ahh Yhhha444 Zv1248gv ' +
    'a00e1fhf bggmphhu c00egghe d11djhhf e00ehvge f698s888 g0fhhf1e hggmphhh i40c444e j20622ic kggikoki lc44444e m00qllhh ' +
    'n00mphhh o00ehhhe p00uhhug q00fhhf1 r00mpggg s00ege1u t88s8896 u00hhhjd v00hhha4 w00hhlla x00ha4ah y00hhf1e z00v248v')
    .match(/.[0-9a-v]{7}(?= |$)/gu)
    .map((entry) => [entry[0], [...entry.slice(1)].map((digit) => Number.parseInt(digit, 32))]),
);

/** A picture to draw on; places are in pixels and may be fractions. */
class Canvas {
  constructor(width, height) {
    [this.width, this.height] = [width, height];
    this.points = new Uint8Array(width * height * FINE * FINE * 3).fill(255);
  }

  rectangle(left, top, width, height, colour) {
    const edge = (value, most) => Math.max(0, Math.min(most * FINE, Math.round(value * FINE)));
    const [x0, x1] = [edge(left, this.width), edge(left + width, this.width)];
    const [y0, y1] = [edge(top, this.height), edge(top + height, this.height)];
    for (let y = y0; y < y1; y++) {
      for (let x = x0; x < x1; x++) this.points.set(colour, (y * this.width * FINE + x) * 3);
    }
  }

  line(x0, y0, x1, y1, thick, colour) {
    const steps = Math.max(1, Math.ceil(Math.hypot(x1 - x0, y1 - y0) * FINE));
    for (let step = 0; step <= steps; step++) {
      const [x, y] = [x0 + ((x1 - x0) * step) / steps, y0 + ((y1 - y0) * step) / steps];
      this.rectangle(x - thick / 2, y - thick / 2, thick, thick, colour);
    }
  }

  /** Writes a text from its left end, its middle or its right end (`align` 0, 0.5, 1), centred on `y`. */
  text(x, y, text, { align = 0, size = 2, colour = INK } = {}) {
    let left = Math.round(x - textWidth(text, size) * align);
    const top = Math.round(y - 3.5 * size);
    for (const letter of text.replaceAll('–', '-')) {
      (LETTERS[letter] ?? LETTERS['?']).forEach((bits, row) => {
        for (let column = 0; column < 5; column++) {
          if (bits & (16 >> column)) this.rectangle(left + column * size, top + row * size, size, size, colour);
        }
      });
      left += 6 * size;
    }
  }

  /** The picture as the bytes of a PNG. */
  png() {
    const rows = Buffer.alloc(this.height * (this.width * 3 + 1));
    const wide = this.width * FINE * 3;
    for (let y = 0, at = 0; y < this.height; y++) {
      rows[at++] = 0; // No filter.
      for (let x = 0; x < this.width; x++) {
        for (let part = 0; part < 3; part++) {
          let sum = 0;
          for (let dy = 0; dy < FINE; dy++) {
            for (let dx = 0; dx < FINE; dx++) sum += this.points[(y * FINE + dy) * wide + (x * FINE + dx) * 3 + part];
          }
          rows[at++] = Math.round(sum / (FINE * FINE));
        }
      }
    }
    const header = Buffer.alloc(13);
    header.writeUInt32BE(this.width, 0);
    header.writeUInt32BE(this.height, 4);
    header.set([8, 2, 0, 0, 0], 8); // Eight bits of red, green and blue.
    const signature = Buffer.from([0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a]);
    return Buffer.concat([signature, piece('IHDR', header), piece('IDAT', deflateSync(rows)), piece('IEND', Buffer.alloc(0))]);
  }
}

/** A piece of a PNG: length, name, data, checksum. */
function piece(name, data) {
  const body = Buffer.concat([Buffer.from(name), data]);
  const framed = Buffer.alloc(body.length + 8);
  framed.writeUInt32BE(data.length, 0);
  body.copy(framed, 4);
  framed.writeUInt32BE(checksum(body), body.length + 4);
  return framed;
}

function checksum(bytes) {
  let value = ~0;
  for (const byte of bytes) {
    value ^= byte;
    for (let bit = 0; bit < 8; bit++) value = (value >>> 1) ^ (value & 1 ? 0xedb88320 : 0);
  }
  return ~value >>> 0;
}

const textWidth = (text, size) => [...text].length * 6 * size - size;

/** A scale from a round number below the values to one above, in at most seven round steps; bars begin at 0. */
function scale(series) {
  const values = series.flatMap((one) => one.values).filter(Number.isFinite);
  let [low, high] = [Math.min(...values), Math.max(...values)];
  if (series.some((one) => one.kind === 'bar') || low > 0) low = Math.min(0, low);
  if (high <= low) high = low + 1;
  const rough = (high - low) / 6;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= rough * 0.999);
  low = Math.floor(low / step) * step;
  high = Math.ceil(high / step) * step;
  const digits = Math.max(0, -Math.floor(Math.log10(step)) + (step / power === 2.5 ? 1 : 0));
  const marks = Array.from({ length: Math.round((high - low) / step) + 1 }, (_, at) => low + at * step);
  return { low, high, marks: marks.map((value) => ({ value, text: value.toFixed(digits) })) };
}

/** Refuses what cannot be drawn, in words. */
function check({ labels, series }) {
  if (!Array.isArray(labels) || labels.length === 0) throw new TypeError('chart: `labels` must be a list with at least one label');
  if (!Array.isArray(series) || series.length === 0) throw new TypeError('chart: `series` must be a list with at least one series');
  if (series.length > COLOURS.length) throw new RangeError(`chart: at most ${COLOURS.length} series, not ${series.length}`);
  for (const { name, kind, values, axis } of series) {
    if (kind !== 'bar' && kind !== 'line') throw new TypeError(`chart: the kind of ${name} must be 'bar' or 'line', not ${kind}`);
    if (axis !== undefined && axis !== 'left' && axis !== 'right') throw new TypeError(`chart: the axis of ${name} must be 'left' or 'right'`);
    if (values?.length !== labels.length) throw new RangeError(`chart: ${name} has ${values?.length} values for ${labels.length} labels`);
    if (!values.some(Number.isFinite)) throw new RangeError(`chart: ${name} has no number to draw`);
  }
}

/** Draws a chart and answers with the bytes of a PNG. */
export function chart({ title = '', labels, series, width = 1000, height = 560 }) {
  check({ labels, series });
  const canvas = new Canvas(width, height);
  const sides = [series.filter((one) => one.axis !== 'right'), series.filter((one) => one.axis === 'right')];
  const scales = sides.map((side) => (side.length ? scale(side) : undefined));
  const room = scales.map((one) => (one ? Math.max(...one.marks.map((mark) => textWidth(mark.text, 2))) + 24 : 24));
  const [left, right, top, bottom] = [room[0], width - room[1], 92, height - 44];
  const across = (right - left) / labels.length;
  const middle = (index) => left + across * (index + 0.5);
  const up = (value, { low, high }) => bottom - ((value - low) / (high - low)) * (bottom - top);

  canvas.text(width / 2, 26, title, { align: 0.5, size: 3 });
  const main = scales[0] ?? scales[1];
  for (const { value } of main.marks) canvas.rectangle(left, up(value, main), right - left, 1, FAINT);
  scales.forEach((one, side) => {
    for (const { value, text } of one?.marks ?? []) {
      canvas.text(side ? right + 10 : left - 10, up(value, one), text, { align: side ? 0 : 1 });
    }
  });
  const every = Math.ceil((Math.max(...labels.map((label) => textWidth(String(label), 2))) + 10) / across);
  labels.forEach((label, index) => {
    if (index % every === 0) canvas.text(middle(index), bottom + 20, String(label), { align: 0.5 });
  });

  const bars = series.filter((one) => one.kind === 'bar');
  const barWidth = (across * 0.7) / Math.max(1, bars.length);
  const painted = series.map((one, index) => ({ ...one, colour: COLOURS[index], scale: scales[one.axis === 'right' ? 1 : 0] }));
  for (const { kind, name, values, colour, scale: own } of painted) {
    const place = bars.findIndex((one) => one.name === name && one.values === values);
    values.forEach((value, index) => {
      if (!Number.isFinite(value)) return;
      const [x, y, zero] = [middle(index), up(value, own), up(Math.max(own.low, Math.min(own.high, 0)), own)];
      if (kind === 'bar') {
        canvas.rectangle(x - across * 0.35 + place * barWidth, Math.min(y, zero), barWidth * 0.94, Math.max(1, Math.abs(zero - y)), colour);
        return;
      }
      if (Number.isFinite(values[index - 1])) canvas.line(middle(index - 1), up(values[index - 1], own), x, y, 3, colour);
      if (across > 12) canvas.rectangle(x - 4, y - 4, 8, 8, colour);
    });
  }
  canvas.rectangle(left, up(Math.max(main.low, Math.min(main.high, 0)), main), right - left, 1.5, INK);

  const names = painted.map(({ name, axis }) => `${name}${axis === 'right' ? ' (right)' : ''}`);
  let x = (width - names.reduce((sum, name) => sum + textWidth(name, 2) + 46, -24)) / 2;
  painted.forEach(({ colour }, index) => {
    canvas.rectangle(x, 56, 14, 14, colour);
    canvas.text(x + 22, 63, names[index]);
    x += textWidth(names[index], 2) + 46;
  });
  return canvas.png();
}
