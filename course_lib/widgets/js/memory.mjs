// A stack of MLPs: who owns the memory, operator by operator, by what is kept.
import { axes, explorer, general, legend } from "./drawing.mjs";

// course_lib.table.bytes_text: 12 B, 4 KiB, 2.21 MiB.
function bytesText(count) {
  for (const [unit, power] of [["TiB", 40], ["GiB", 30], ["MiB", 20], ["KiB", 10]]) {
    if (Math.abs(count) >= 2 ** power) return `${general(count / 2 ** power, 4)} ${unit}`;
  }
  return `${count} B`;
}

export function numbers({ keep, layers }, { accounts, owners, operators }) {
  const account = accounts[keep][layers - 1], moments = account.moments.length;
  const stacks = owners.map(() => Array(moments).fill(0));
  for (const [owner, bytes, born, freed] of account.blocks) {
    for (let at = born; at < (freed ?? moments); at++) stacks[owner][at] += bytes;
  }
  const total = stacks[0].map((_, at) => stacks.reduce((sum, sizes) => sum + sizes[at], 0));
  const peak = Math.max(...total), at = total.indexOf(peak), held = total[account.forward - 1];
  return {
    stacks, held, peak, peak_at: at, operator: operators[account.moments[at]], forward: account.forward,
    title: `${layers} layers, ${keep} kept`,
    words: `Held between forward and backward: ${bytesText(held)}, the result among it. At the peak: ${bytesText(peak)}.`,
  };
}

function draw(figure, seen, state, { owners }) {
  const count = seen.stacks[0].length, [scale, unit] = seen.peak >= 2 ** 31 ? [2 ** 30, "GiB"] : [2 ** 20, "MiB"];
  const x = { from: 0, to: count, label: "operators, in order", says: (v) => general(v) };
  const plot = axes(figure, { x, y: { from: 0, to: (seen.peak / scale) * 1.12, says: (v) => `${general(v)} ${unit}` } });
  const stairs = (sizes) => sizes.flatMap((size, at) => [[at, size / scale], [at + 1, size / scale]]);
  let below = Array(count).fill(0);
  const shown = owners.map((name, i) => [name, i]).filter(([, i]) => seen.stacks[i].some((size) => size > 0));
  for (const [, i] of shown) {
    const above = below.map((size, at) => size + seen.stacks[i][at]);
    plot.line([...stairs(above), ...stairs(below).reverse()], { class: `area s${i}` });
    below = above;
  }
  plot.line([[seen.forward, 0], [seen.forward, (seen.peak / scale) * 1.12]], { class: "line plain" });
  plot.point(seen.peak_at + 0.5, seen.peak / scale);
  legend(figure, 358, [...shown.map(([name, i]) => [{ class: `area s${i}` }, name]), [{ class: "line plain" }, "end of forward"]]);
}

export const { render, mount } = explorer(numbers, draw);
export default { render };
