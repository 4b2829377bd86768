// One MXINT8 number as bits, the same number as bf16, and what packing makes of it.
import { bitBoxes, explorer, general, short, text, twoTo, wrapped } from "./drawing.mjs";

const view = new DataView(new ArrayBuffer(4));
const written = (bits, width) => (bits & (2 ** width - 1)).toString(2).padStart(width, "0");

function bf16Value(bits) {
  view.setUint32(0, (bits & 0xffff) * 65536);
  return view.getFloat32(0);
}

// The bf16 number next to x, ties to even. NaN is 0x7fc0.
function bf16Bits(x) {
  if (Number.isNaN(x)) return 0x7fc0;
  view.setFloat32(0, x);
  const all = view.getUint32(0);
  return Math.floor((all + 0x7fff + ((all >>> 16) & 1)) / 65536);
}

// Decoding as the studied kernel does, with |m| in 8 bits: there |-128| is -128.
function pack(m, e) {
  const size = Math.abs(m) & 0xff, sign = m < 0 ? 0x8000 : 0;
  const number = sign | (e << 7) | ((size & 0x3f) << 1), one = sign | (e << 7);
  const correction = size & 0x40 ? null : one;
  return { number, correction, value: correction === null ? bf16Value(number) : bf16Value(number) - bf16Value(one) };
}

const LETTERS = { mantissa: "m".repeat(8), exponent: "e".repeat(8), bf16: "s" + "e".repeat(8) + "f".repeat(7) };

export function numbers({ m, e }) {
  const value = e === 255 ? NaN : m * 2 ** (e - 133), packed = pack(m, e), bits = bf16Bits(value);
  const held = bf16Value(bits), came = packed.value;
  const right = Number.isNaN(value) ? Number.isNaN(came) : held === came;
  const both = Number.isNaN(held) && Number.isNaN(came);
  const differing = [...Array(16).keys()].filter((i) => !both && written(bits, 16)[i] !== written(bf16Bits(came), 16)[i]);
  const took = packed.correction === null ? "nothing is taken away: bit 6 of |m| is set" : `minus ${short(bf16Value(packed.correction))}: bit 6 of |m| is clear`;
  const rows = [
    ["mantissa m", written(m, 8), "mantissa", `${m}, which is ${general(m / 64)} with 6 fraction bits`],
    ["exponent e", written(e, 8), "exponent", e === 255 ? "255: not a number" : `${e}, which is ${twoTo(e - 127)}`],
    ["value, as bf16", written(bits, 16), "bf16", short(held)],
    ["packed", written(packed.number, 16), "bf16", `${short(bf16Value(packed.number))}; ${took}`],
    ["result", written(bf16Bits(came), 16), "bf16", short(came) + (right ? "" : ": wrong")],
  ];
  const ends = right ? "packing ends with the right number" : `packing ends with ${short(came)}, and should not`;
  return {
    rows, right, differing,
    title: `m = ${m}, e = ${e}: ${ends}`,
    words: `${m} * 2^(${e} - 133) = ${general(value)}; bf16 holds ${general(held)}; packing ends with ${general(came)}: ${right ? "right" : "wrong"}.`,
  };
}

function draw(figure, seen) {
  const left = 104, size = Math.min(18, (figure.width - left - 4) / 16);
  let y = 6;
  seen.rows.forEach(([name, bits, kind, says], i) => {
    figure.add(text(left - 8, y + size / 2 + 6, name, { "text-anchor": "end" }));
    bitBoxes(figure, left, y, size, bits, LETTERS[kind], i === 4 ? seen.differing : []);
    y += size + 16 + 16 * wrapped(figure, left, y + size + 19, says);
    figure.height(y - 6);
  });
}

export const { render, mount } = explorer(numbers, draw);
export default { render };
