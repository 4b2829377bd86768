// A query and a key that are turned by their positions, pair by pair.
import { explorer, fixed, general, grouped, legend, svg, text } from "./drawing.mjs";

const rounded = (x) => Number(fixed(x, 0)); // ties to even

export function numbers({ query, key, base }, { turns }) {
  const distance = query - key, each = turns[base];
  const score = each.reduce((sum, turn) => sum + Math.cos(distance * turn), 0);
  const half = each.filter((turn) => Math.abs(turn * distance) > Math.PI / 2).length;
  return {
    angles: each.map((turn) => [query * turn, key * turn]), score, half,
    title: `Query at ${query}, key at ${key}, base ${grouped(base)}`,
    words: `Distance ${distance}: two equal vectors score ${fixed(score, 2)} of ${each.length}. More than a quarter turn apart: ${half} of ${each.length} pairs.`,
  };
}

const once = (turn) => (turn < 0.1 ? grouped(rounded((2 * Math.PI) / turn)) : general((2 * Math.PI) / turn, 3));

function draw(figure, seen, { base }, { turns }) {
  const across = figure.width < 520 ? 4 : turns[base].length, step = figure.width / across, radius = Math.min(38, step / 2 - 6);
  turns[base].forEach((turn, i) => {
    const x = (i % across + 0.5) * step, y = 44 + radius + Math.floor(i / across) * (2 * radius + 60);
    const [query, key] = seen.angles[i];
    const at = (angle, length) => [x + length * Math.sin(angle), y - length * Math.cos(angle)];
    figure.add(text(x, y - radius - 24, `pair ${i}`, { "text-anchor": "middle" }));
    figure.add(text(x, y - radius - 9, once(turn), { "text-anchor": "middle", class: "faint" }));
    figure.add(svg("circle", { class: "dial", cx: x, cy: y, r: radius }));
    const between = query - key - 2 * Math.PI * Math.round((query - key) / (2 * Math.PI)); // the short way round
    const [from, to] = [at(key, 0.62 * radius), at(key + between, 0.62 * radius)];
    figure.add(svg("path", { class: "area s4", "fill-opacity": 0.45, d: `M${x},${y}L${from}A${0.62 * radius},${0.62 * radius} 0 0 ${between > 0 ? 1 : 0} ${to}Z` }));
    [[query, 0.94, 0, ""], [key, 0.8, 1, "4 3"]].forEach(([angle, length, s, dash]) => {
      const [tx, ty] = at(angle, length * radius);
      figure.add(svg("path", { class: `line s${s}`, "stroke-dasharray": dash, d: `M${x},${y}L${tx},${ty}` }));
      figure.add(s ? svg("rect", { class: "dot s1", x: tx - 3, y: ty - 3, width: 6, height: 6 }) : svg("circle", { class: "dot s0", cx: tx, cy: ty, r: 3.5 }));
    });
    figure.height(y + radius + 8);
  });
  const rows = Math.ceil(turns[base].length / across);
  const below = 44 + 2 * radius + (rows - 1) * (2 * radius + 60) + 30;
  legend(figure, below, [[{ class: "line s0" }, "query"], [{ class: "line s1", "stroke-dasharray": "4 3" }, "key"]]);
  figure.add(text(12, below + 22, "below a pair's number: positions for a whole turn", { class: "faint" }));
  figure.height(below + 34);
}

export const { render, mount } = explorer(numbers, draw);
export default { render };
