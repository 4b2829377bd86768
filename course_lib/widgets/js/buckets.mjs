// A training step on paper: buckets of gradients under the backward pass.
import { axes, explorer, legend, percent, quantity, svg } from "./drawing.mjs";

const MIB = 2 ** 20;

// Neighbours together while they fit; one that is larger alone.
function filled(gradients, most) {
  const buckets = [];
  for (const bytes of gradients) {
    if (buckets.length && buckets.at(-1) + bytes <= most) buckets[buckets.length - 1] += bytes;
    else buckets.push(bytes);
  }
  return buckets;
}

// When and how far the backward pass has come; something travels until `busyUntil`.
function computed(now, progress, needed, busyUntil, slowed) {
  if (needed <= progress) return [now, progress];
  const whileBusy = Math.max(0, busyUntil - now);
  if (needed - progress <= whileBusy * (1 - slowed)) return [now + (needed - progress) / (1 - slowed), needed];
  return [now + whileBusy + (needed - progress - whileBusy * (1 - slowed)), needed];
}

export function numbers({ bucket_mib, bandwidth, alpha_us, compute_ms, slowed }, { gradients }) {
  const compute = 1e-3 * compute_ms, forward = compute / 3, backward = (2 * compute) / 3, lost = slowed / 100;
  const alpha = 1e-6 * alpha_us, beta = 1e-9 / bandwidth;
  const buckets = filled(gradients, bucket_mib * MIB), total = buckets.reduce((sum, bytes) => sum + bytes, 0);
  const sends = [];
  let now = forward, busyUntil = forward, progress = 0, before = 0;
  for (const bytes of buckets) {
    before += bytes;
    [now, progress] = computed(now, progress, (backward * before) / total, busyUntil, lost);
    const start = Math.max(now, busyUntil);
    busyUntil = start + (alpha + bytes * beta);
    sends.push([start, busyUntil]);
  }
  [now] = computed(now, progress, backward, busyUntil, lost);
  const seconds = Math.max(now, busyUntil), exposed = seconds - (forward + backward);
  const title = `${buckets.length} buckets, ${quantity(exposed, "s")} not hidden`;
  const share = (buckets.at(-1) * 1e-9 / bandwidth + 1e-6 * alpha_us) / Math.max(exposed, 1e-12);
  return {
    buckets: buckets.length, exposed, seconds, forward, backward_ends: now, sends, title,
    words: `${title}. The last bucket alone is ${percent(Math.min(share, 1))} of that.`,
  };
}

function draw(figure, seen) {
  const x = { from: 0, to: 1.01 * seen.seconds, label: "time", says: (v) => quantity(v, "s") };
  const plot = axes(figure, { x, y: { from: 0, to: 1, says: String }, left: 14, height: 170, names: false });
  const bar = ([start, end], y, i) => figure.add(svg("rect", { class: `area s${i}`, x: plot.x(start), y, width: Math.max(0.5, plot.x(end) - plot.x(start)), height: 46 }));
  bar([0, seen.forward], 18, 0);
  bar([seen.forward, seen.backward_ends], 18, 5);
  for (const send of seen.sends) bar(send, 70, 1);
  const kind = (i) => ({ class: `area s${i}` });
  legend(figure, 188, [[kind(0), "forward"], [kind(5), "backward"], [kind(1), "sending"]]);
}

export const { render, mount } = explorer(numbers, draw);
export default { render };
