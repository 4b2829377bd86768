// A chain of multiply-adds as a point under the roofs.
import { axes, explorer, general, legend, quantity, series, twoTo } from "./drawing.mjs";

const BYTES = { fp32: 4, bf16: 2 };

export function numbers({ size, dtype, ops, fused }, { roofs, own }) {
  const roof = roofs[own], elements = 2 ** size, kernels = fused ? 1 : ops;
  const flops = 2 * (fused ? ops : 1) * elements, bytes = 2 * BYTES[dtype] * elements;
  const terms = { compute: flops / roof.flops_per_s, bandwidth: bytes / roof.bytes_per_s, overhead: roof.launch_s };
  const floor = Math.max(...Object.values(terms)), seconds = kernels * floor;
  const limit = floor === 0 ? "overhead" : Object.keys(terms).find((name) => terms[name] === floor);
  const intensity = flops / bytes;
  const first = `${general(intensity, 3)} FLOP/byte, ${kernels} kernel${kernels > 1 ? "s" : ""}`;
  return {
    intensity, seconds, limit,
    rate: (kernels * flops) / seconds,
    title: `${ops} multiply-adds on ${twoTo(size)} ${dtype} numbers, ${fused ? "fused" : "not fused"}`,
    words: `${first}, floor ${quantity(seconds, "s")}: ${limit} is the limit.`,
  };
}

function draw(figure, seen, state, { roofs }) {
  const ridges = roofs.map((roof) => roof.flops_per_s / roof.bytes_per_s);
  const top = Math.max(...roofs.map((roof) => roof.flops_per_s));
  const x = { from: 0.1, to: 12 * Math.max(...ridges), log: 10, label: "arithmetic intensity (FLOP/byte)", says: (v) => general(v) };
  const y = { from: 1e8, to: 3 * top, log: 10, says: (v) => quantity(v, "FLOP/s") };
  const plot = axes(figure, { x, y, left: 88 });
  roofs.forEach((roof, i) => {
    const over = roofs.filter((other) => other.bytes_per_s === roof.bytes_per_s).map((other) => other.flops_per_s);
    const start = roof.flops_per_s === Math.max(...over) ? [[x.from, x.from * roof.bytes_per_s]] : []; // roofs over one memory share a slope
    plot.line([...start, [ridges[i], roof.flops_per_s], [x.to, roof.flops_per_s]], series(i));
  });
  plot.point(seen.intensity, seen.rate);
  const said = (roof, i) => `${roof.name}: ${quantity(roof.flops_per_s, "FLOP/s")}, ridge at ${general(ridges[i], 3)} FLOP/byte`;
  legend(figure, 358, roofs.map((roof, i) => [series(i), said(roof, i)]));
}

export const { render, mount } = explorer(numbers, draw);
export default { render };
