// Seconds saved by compiling against the number of calls.
import { axes, explorer, grouped, quantity, series } from "./drawing.mjs";

export function numbers({ eager_ms, percent, compile_s, shapes }) {
  const eager = 1e-3 * eager_ms, compiled = eager * (1 - percent / 100), once = compile_s * shapes;
  const gain = eager - compiled;
  const title = (says) => `this program: ${says}`;
  if (!(gain > 0)) {
    return { gain, once, meets: null, shown: 150, title: title("never pays"), words: "A call gains nothing: compiling never pays." };
  }
  const meets = once / gain, calls = grouped(Math.ceil(meets));
  return {
    gain, once, meets,
    shown: 1.5 * meets,
    title: title(`pays after ${calls} calls`),
    words: `A call saves ${quantity(gain, "s")}; compiling is paid back after ${calls} calls, ${quantity(meets * eager, "s")} of eager running.`,
  };
}

function draw(figure, seen) {
  const x = { from: 0, to: seen.shown, label: "calls", says: (v) => quantity(v) };
  const low = -seen.once * 1.1, high = Math.max(0, seen.shown * seen.gain - seen.once) + 0.1 * seen.once;
  const plot = axes(figure, { x, y: { from: low, to: high, says: (v) => quantity(v, "s") } });
  plot.line([[0, 0], [seen.shown, 0]], { class: "line plain" });
  plot.line([[0, -seen.once], [seen.shown, seen.shown * seen.gain - seen.once]], series(0));
  if (seen.meets !== null) plot.point(seen.meets, 0);
}

export const { render, mount } = explorer(numbers, draw);
export default { render };
