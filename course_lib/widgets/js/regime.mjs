// Launch, traffic and arithmetic of an fp32 kernel against its size.
import { axes, explorer, legend, quantity, series, twoTo } from "./drawing.mjs";

const NAMES = ["overhead", "bandwidth", "compute"];

function terms(elements, flops, launchUs, roof) {
  return { overhead: launchUs * 1e-6, bandwidth: (8 * elements) / roof.bytes_per_s, compute: (flops * elements) / roof.flops_per_s };
}

export function numbers({ size, flops, launch_us }, { roof }) {
  const now = terms(2 ** size, flops, launch_us, roof);
  const floor = Math.max(...Object.values(now));
  const limit = floor === 0 ? "overhead" : [...NAMES].reverse().find((name) => now[name] === floor);
  const each = NAMES.map((name) => `${name} ${quantity(now[name], "s")}`).join(", ");
  return {
    ...now, limit,
    title: `At ${twoTo(size)} elements ${limit} sets the time: ${quantity(now[limit], "s")}`,
    words: `${each}: ${limit} is the limit.`,
  };
}

function draw(figure, seen, { size, flops, launch_us }, { roof }) {
  const x = { from: 2 ** 8, to: 2 ** 30, log: 2, label: "elements", says: (v) => twoTo(Math.round(Math.log2(v))) };
  const plot = axes(figure, { x, y: { from: 1e-7, to: 1e-1, log: 10, says: (v) => quantity(v, "s") } });
  const kind = (i) => (NAMES[i] === seen.limit ? { ...series(i), class: `line s${i} thick` } : series(i));
  NAMES.forEach((name, i) => {
    const points = [8, 30].map((power) => [2 ** power, Math.max(1e-12, terms(2 ** power, flops, launch_us, roof)[name])]);
    plot.line(points, kind(i)); // straight on these axes
  });
  plot.point(2 ** size, Math.max(1e-7, seen[seen.limit]));
  legend(figure, 358, NAMES.map((name, i) => [kind(i), name]));
}

export const { render, mount } = explorer(numbers, draw);
export default { render };
