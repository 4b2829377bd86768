// One number in several formats, bit by bit.
import { bitBoxes, explorer, exponentOf, general, short, text } from "./drawing.mjs";

function toEven(x) {
  const low = Math.floor(x), rest = x - low;
  return rest > 0.5 || (rest === 0.5 && low % 2 !== 0) ? low + 1 : low;
}

// The nearest number of a format, ties to even; what is too large is infinity, or NaN where there is none.
function roundTo(x, of) {
  if (!Number.isFinite(x)) return Number.isNaN(x) || of.infinity ? x : NaN;
  if (x === 0) return x;
  const step = 2 ** (Math.max(exponentOf(x), of.min_exponent) - of.fraction_bits);
  const made = toEven(Math.abs(x) / step) * step;
  const over = of.infinity ? Infinity : NaN;
  return (x < 0 ? -1 : 1) * (made > of.largest ? over : made);
}

const field = (value, width) => (width ? value.toString(2).padStart(width, "0") : "");

function bits(x, of) {
  const sign = x < 0 || Object.is(x, -0) ? "1" : "0", ones = "1".repeat(of.exponent_bits);
  if (Number.isNaN(x)) return "0" + ones + (of.infinity ? "1".padEnd(of.fraction_bits, "0") : "1".repeat(of.fraction_bits));
  if (Math.abs(x) === Infinity) return sign + ones + "0".repeat(of.fraction_bits);
  const exponent = x === 0 ? of.min_exponent : Math.max(exponentOf(x), of.min_exponent);
  const units = Math.abs(x) / 2 ** (exponent - of.fraction_bits), one = 2 ** of.fraction_bits;
  const normal = units >= one;
  return sign + field(normal ? exponent - of.min_exponent + 1 : 0, of.exponent_bits) + field(normal ? units - one : units, of.fraction_bits);
}

function said(x, kept) {
  if (!Number.isFinite(kept)) return `${short(kept)}: too large`;
  if (kept === x) return `${general(kept, 8)}, exact`;
  if (kept === 0) return "0: too small";
  return `${general(kept, 8)}, off by ${general(Math.abs(kept - x) / Math.abs(x), 1)}`;
}

export function numbers({ number, power }, { formats }) {
  const x = number * 2 ** power;
  const rows = formats.map((of) => {
    const kept = roundTo(x, of);
    return { name: of.name, kept: general(kept, 17), bits: bits(kept, of), said: said(x, kept) };
  });
  const name = Number(general(x, 4)) === x ? general(x, 4) : short(x);
  return {
    rows,
    title: `${name} in ${formats.length} formats: sign, exponent, fraction`,
    words: rows.map((row) => `${row.name} ${row.said}`).join("; "),
  };
}

function draw(figure, seen, state, { formats }) {
  const left = 46, size = Math.min(17, (figure.width - left - 4) / 32);
  seen.rows.forEach((row, i) => {
    const y = 6 + i * (size + 34), of = formats[i];
    figure.add(text(left - 8, y + size / 2 + 6, row.name, { "text-anchor": "end" }));
    bitBoxes(figure, left, y, size, row.bits, "s" + "e".repeat(of.exponent_bits) + "f".repeat(of.fraction_bits));
    figure.add(text(left, y + size + 20, row.said));
    figure.height(y + size + 28);
  });
}

export const { render, mount } = explorer(numbers, draw);
export default { render };
