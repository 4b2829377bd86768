// What all explorers share: numbers as Python writes them, axes in SVG, controls, and one `render` for both homes.
// anywidget calls `render` in a notebook; a page of the site calls `mount`. Nothing is fetched from anywhere.

// ---- Numbers as text. Python breaks exact ties to even, and JavaScript does not.

function halfEven(kept, rest) {
  const half = "5".padEnd(rest.length, "0");
  const up = rest > half || (rest === half && (kept.charCodeAt(kept.length - 1) & 1) === 1);
  return up && rest ? String(BigInt(kept) + 1n).padStart(kept.length, "0") : kept;
}

const unusual = (x) => (x !== x ? "nan" : x > 0 ? "inf" : "-inf");
const signed = (x, text) => (x < 0 || Object.is(x, -0) ? `-${text}` : text);

// Python's f"{x:.{digits}g}".
export function general(x, digits = 6) {
  if (!Number.isFinite(x)) return unusual(x);
  if (x === 0) return signed(x, "0");
  const [mantissa, power] = Math.abs(x).toExponential(100).split("e");
  const all = mantissa.replace(".", "");
  let kept = halfEven(all.slice(0, digits), all.slice(digits)), exponent = Number(power);
  if (kept.length > digits) [kept, exponent] = [kept.slice(0, digits), exponent + 1];
  const trimmed = (text) => (text.includes(".") ? text.replace(/\.?0*$/, "") : text);
  if (exponent < -4 || exponent >= digits) {
    const sign = exponent < 0 ? "-" : "+";
    return signed(x, `${trimmed(`${kept[0]}.${kept.slice(1)}`)}e${sign}${String(Math.abs(exponent)).padStart(2, "0")}`);
  }
  if (exponent < 0) return signed(x, trimmed(`0.${"0".repeat(-exponent - 1)}${kept}`));
  return signed(x, trimmed(`${kept.slice(0, exponent + 1)}.${kept.slice(exponent + 1)}`));
}

// Python's f"{x:.{places}f}".
export function fixed(x, places) {
  if (!Number.isFinite(x)) return unusual(x);
  const [whole, part] = Math.abs(x).toFixed(100).split(".");
  const kept = halfEven(whole + part.slice(0, places), part.slice(places));
  const at = kept.length - places;
  return signed(x, places ? `${kept.slice(0, at)}.${kept.slice(at)}` : kept);
}

// Python's f"{n:,}" of a whole number.
export const grouped = (n) => String(n).replace(/\B(?=(\d{3})+$)/g, ",");

const PREFIXES = [[1e18, "E"], [1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""], [1e-3, "m"], [1e-6, "µ"], [1e-9, "n"], [1e-12, "p"]];

// course_lib.plots.house.quantity: three digits with a prefix.
export function quantity(value, unit = "") {
  if (value === 0 || !Number.isFinite(value)) return `${general(value)} ${unit}`.trimEnd();
  const rounded = Number(general(value, 3));
  const [size, prefix] = PREFIXES.find(([size]) => Math.abs(rounded) >= size) ?? PREFIXES.at(-1);
  return `${general(Number(general(rounded / size, 3)))} ${prefix}${unit}`.trimEnd();
}

export const percent = (share) => `${fixed(100 * share, 0)}%`;

export function twoTo(power) {
  return `2${String(power).replace(/[-\d]/g, (mark) => (mark === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[mark]))}`;
}

// floor(log2 |x|) of a finite number that is not 0, exact.
export function exponentOf(x) {
  const view = new DataView(new ArrayBuffer(8)), lifted = Math.abs(x) < 2 ** -1022 ? 64 : 0; // a subnormal number has no exponent
  view.setFloat64(0, Math.abs(x) * 2 ** lifted);
  return (view.getUint16(0) >> 4) - 1023 - lifted;
}

// course_lib.plots.bits._number: -2, 1.5, 1.25 · 2⁻¹³¹.
export function short(x) {
  if (Number.isNaN(x)) return "NaN";
  const size = Math.abs(x);
  if (size === 0 || size === Infinity || (1e-3 <= size && size < 1e4)) return general(x);
  const exponent = exponentOf(x), value = x / 2 ** exponent, power = twoTo(exponent);
  return Math.abs(value) !== 1 ? `${general(value)} · ${power}` : `${x < 0 ? "-" : ""}${power}`;
}

// ---- SVG

export function svg(name, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

const DASHES = ["", "7 4", "7 3 2 3", "2 3"];
export const series = (i) => ({ class: `line s${i}`, "stroke-dasharray": DASHES[i % 4] });
export const text = (x, y, words, attributes = {}) => svg("text", { x, y, ...attributes }, words);
const LETTER = 6.4, WIDE = 7.4; // pixels of a mean letter at the size of the labels; of one of a wide font

// "steps" between powers of ten or two, or round numbers: what an axis names.
function ticks({ log, from, to }, room) {
  const found = [];
  if (log) {
    const low = Math.ceil(Math.log(from) / Math.log(log) - 1e-9), high = Math.floor(Math.log(to) / Math.log(log) + 1e-9);
    const every = Math.max(1, Math.ceil((high - low + 1) / room));
    for (let power = low; power <= high; power += every) found.push(log ** power);
    return found;
  }
  const rough = (to - from) / Math.max(1, room), ten = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((k) => k * ten).find((size) => size >= rough);
  for (let k = Math.ceil(from / step); k * step <= to * (1 + 1e-12); k++) found.push(k * step);
  return found;
}

// An axis is { from, to, label, says, log } with log 10, 2 or nothing. Returns places and what draws at them.
export function axes(figure, { x, y, height = 340, left = 76, right = 14, top = 10, below = 46, names = true }) {
  const box = { left, right: figure.width - right, top, bottom: height - below };
  const along = (axis, low, high) => {
    const share = axis.log
      ? (value) => Math.log(value / axis.from) / Math.log(axis.to / axis.from)
      : (value) => (value - axis.from) / (axis.to - axis.from);
    return (value) => low + (high - low) * share(value);
  };
  const px = along(x, box.left, box.right), py = along(y, box.bottom, box.top);
  figure.height(height);
  const clip = figure.name("clip");
  figure.add(svg("clipPath", { id: clip }, svg("rect", { x: box.left, y: box.top, width: Math.max(0, box.right - box.left), height: box.bottom - box.top })));
  const inside = svg("g", { "clip-path": `url(#${clip})` });
  const wide = Math.max(...ticks(x, 4).map((value) => x.says(value).length)) * LETTER + 22;
  for (const value of ticks(x, (box.right - box.left) / wide)) {
    figure.add(svg("line", { class: "grid", x1: px(value), x2: px(value), y1: box.top, y2: box.bottom }));
    figure.add(text(px(value), box.bottom + 17, x.says(value), { "text-anchor": "middle" }));
  }
  if (names) {
    for (const value of ticks(y, 7)) {
      figure.add(svg("line", { class: "grid", x1: box.left, x2: box.right, y1: py(value), y2: py(value) }));
      figure.add(text(box.left - 8, py(value) + 4, y.says(value), { "text-anchor": "end" }));
    }
  }
  figure.add(text((box.left + box.right) / 2, box.bottom + 36, x.label, { "text-anchor": "middle", class: "name" }));
  figure.add(svg("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }));
  figure.add(inside);
  return {
    ...box, x: px, y: py,
    line(points, attributes) {
      const path = points.map(([a, b], i) => `${i ? "L" : "M"}${px(a).toFixed(2)},${py(b).toFixed(2)}`).join("");
      inside.append(svg("path", { d: path, ...attributes }));
    },
    point(a, b) {
      figure.add(svg("circle", { class: "point", cx: px(a), cy: py(b), r: 7 }));
    },
  };
}

// Words in lines of at most `room` letters.
function lines(words, room) {
  const found = [""];
  for (const word of words.split(" ")) {
    const longer = `${found.at(-1)} ${word}`.trimStart();
    longer.length > room && found.at(-1) ? found.push(word) : (found[found.length - 1] = longer);
  }
  return found;
}

// Words that go on in the next line where the room (pixels) ends. Returns the number of lines.
export function wrapped(figure, x, y, words, room = figure.width - x) {
  const parts = lines(words, Math.floor(room / WIDE));
  parts.forEach((part, i) => figure.add(text(x, y + 16 * i, part)));
  return parts.length;
}

// Names of lines or areas, below the axes, in as many rows as the width needs; a name too long for a row takes two.
export function legend(figure, from, entries) {
  let x = 12, y = from;
  for (const [attributes, words] of entries) {
    const needs = 38 + words.length * LETTER + 16;
    if (x > 12 && x + needs > figure.width) [x, y] = [12, y + 20];
    const area = attributes.class.startsWith("area");
    figure.add(area ? svg("rect", { x, y: y - 10, width: 28, height: 12, ...attributes }) : svg("path", { d: `M${x},${y - 4}h28`, ...attributes }));
    y += 16 * (wrapped(figure, x + 36, y, words, figure.width - 48) - 1);
    x += needs;
  }
  figure.height(y + 12);
}

// One box a bit; kinds are letters: sign, exponent, fraction, mantissa.
export function bitBoxes(figure, x, y, size, bits, kinds, wrong = []) {
  [...bits].forEach((bit, i) => {
    const kind = wrong.includes(i) ? "wrong" : kinds[i];
    figure.add(svg("rect", { class: `bit ${kind}`, x: x + i * size, y, width: size, height: size + 4 }));
    const middle = { "text-anchor": "middle", class: wrong.includes(i) ? "digit strong" : "digit" };
    figure.add(text(x + (i + 0.5) * size, y + size / 2 + 6, bit, { ...middle, style: `font-size:${Math.min(12, size - 1)}px` }));
  });
}

// ---- Controls

let made = 0;

function control(given, value, moved) {
  const id = `explorer-${++made}`;
  const make = (tag, properties) => Object.assign(document.createElement(tag), properties);
  const label = make("label", { htmlFor: id, textContent: given.label });
  const output = make("output", { htmlFor: id });
  let input, read, write;
  if (given.kind === "choice") {
    input = make("select", { id });
    input.append(...given.options.map((option) => new Option(option, option)));
    [read, write] = [() => input.value, (now) => (input.value = now)];
  } else if (given.kind === "tick") {
    input = make("input", { id, type: "checkbox" });
    [read, write] = [() => input.checked, (now) => (input.checked = now)];
  } else if (given.kind === "number") {
    input = make("input", { id, type: "number", step: "any" });
    [read, write] = [() => (Number.isNaN(input.valueAsNumber) ? 0 : input.valueAsNumber), (now) => (input.value = now)];
  } else {
    const steps = given.kind === "steps" ? given.options : null;
    input = make("input", { id, type: "range", min: steps ? 0 : given.low, max: steps ? steps.length - 1 : given.high, step: 1 });
    read = () => (steps ? steps[Number(input.value)] : Number(input.value));
    write = (now) => {
      input.value = steps ? steps.indexOf(now) : now;
      output.value = grouped(now);
      input.setAttribute("aria-valuetext", output.value);
    };
  }
  write(value);
  input.setAttribute("data-lm-suppress-shortcuts", "true"); // or JupyterLab takes the arrow keys of a slider
  input.addEventListener("input", () => (given.kind === "number" || write(read()), moved(given.name, read(), false)));
  input.addEventListener("change", () => moved(given.name, read(), true));
  const row = make("div", { className: "control" });
  row.append(label, input, output);
  return { row, write };
}

// ---- An explorer

const STYLE = `
.explorer { --ink: #222222; --faint: #595f66; --grid: #dde1e5; --ground: #ffffff; --tint-s: #f6e0ec; --tint-e: #d6e6f2; --tint-f: #fbefd0; --tint-m: #d4eee4; --bad: #a33c00;
  --s0: #0072b2; --s1: #d55e00; --s2: #00795a; --s3: #a8477f; --s4: #8a6100; --s5: #2b86b8; --s6: #222222;
  color: var(--ink); background: var(--ground); border: 1px solid var(--grid); border-radius: 4px; padding: .8rem 1rem; font-size: .9rem; line-height: 1.4; }
.explorer.dark { --ink: #e6e8ea; --faint: #a9b0b8; --grid: #3a3f46; --ground: #16181b; --tint-s: #4d2c40; --tint-e: #1f3f57; --tint-f: #4a3c12; --tint-m: #174436; --bad: #ffa86b;
  --s0: #5fb4ea; --s1: #ff8f43; --s2: #3fc79b; --s3: #e39cc6; --s4: #e6b34a; --s5: #9fd3f2; --s6: #e6e8ea; }
.explorer .control { display: grid; grid-template-columns: 12em minmax(0, 18em) 5em; gap: .1rem .8rem; align-items: center; min-height: 1.9rem; }
.explorer .control input[type="checkbox"] { justify-self: start; width: 1.1rem; height: 1.1rem; }
.explorer .control input[type="range"], .explorer .control select { width: 100%; accent-color: var(--s0); margin: 0; }
.explorer .control select, .explorer .control input[type="number"] { font: inherit; color: var(--ink); background: var(--ground); border: 1px solid var(--faint); border-radius: 3px; padding: .1rem .3rem; }
.explorer .control output { font-variant-numeric: tabular-nums; }
.explorer .title { font-weight: 600; margin: .6rem 0 .2rem; }
.explorer .words { margin: .3rem 0 0; min-height: 2.8em; }
.explorer svg { display: block; width: 100%; max-width: 760px; }
.explorer svg text { fill: var(--ink); font: 12px system-ui, sans-serif; }
.explorer svg text.faint { fill: var(--faint); }
.explorer svg text.strong { font-weight: 700; }
.explorer svg .grid { stroke: var(--grid); }
.explorer svg .axis { stroke: var(--faint); }
.explorer svg .line { fill: none; stroke-width: 1.8; }
.explorer svg .line.thick { stroke-width: 4; }
.explorer svg .line.plain { stroke: var(--ink); }
.explorer svg .area { stroke: var(--ground); stroke-width: .8; }
.explorer svg .point { fill: var(--s1); stroke: var(--ground); stroke-width: 1.5; }
.explorer svg .dial { fill: none; stroke: var(--faint); }
.explorer svg .bit { stroke: var(--faint); stroke-width: .6; }
.explorer svg .bit.wrong { fill: none; stroke: var(--bad); stroke-width: 2; }
${["s", "e", "f", "m"].map((kind) => `.explorer svg .bit.${kind} { fill: var(--tint-${kind}); }`).join("\n")}
${[0, 1, 2, 3, 4, 5, 6].map((i) => `.explorer svg .line.s${i} { stroke: var(--s${i}); } .explorer svg .area.s${i} { fill: var(--s${i}); } .explorer svg .dot.s${i} { fill: var(--s${i}); }`).join("\n")}
.explorer :focus-visible { outline: 2px solid var(--s0); outline-offset: 2px; }
@media (max-width: 34rem) { .explorer { padding: .7rem .6rem; } .explorer .control { grid-template-columns: minmax(0, 1fr) 5em; min-height: 0; margin-bottom: .5rem; } .explorer .control label { grid-column: 1 / 3; } .explorer .control input[type="checkbox"] { grid-row: 1; grid-column: 2; } .explorer .control:has([type="checkbox"]) label { grid-column: 1; } }
`;

// Dark where the text around it is light.
function isDark(element) {
  const [red, green, blue] = getComputedStyle(element).color.match(/[\d.]+/g).map(Number);
  return 0.299 * red + 0.587 * green + 0.114 * blue > 128;
}

// numbers(state, data) -> { title, words, ... }, all that Python says of a state; draw(figure, seen, state, data).
export function explorer(numbers, draw) {
  function render({ model, el }) {
    const { controls, data, alt } = model.get("spec");
    let state = { ...model.get("state") };
    const root = document.createElement("div"), title = document.createElement("p"), words = document.createElement("p");
    root.className = "explorer";
    root.setAttribute("role", "group");
    root.setAttribute("aria-label", alt);
    title.className = "title";
    words.className = "words";
    words.setAttribute("aria-live", "polite");
    const picture = svg("svg", { role: "img" }), style = document.createElement("style");
    style.textContent = STYLE;
    const tag = ++made;
    const show = () => {
      const seen = numbers(state, data);
      const width = Math.max(260, Math.min(760, picture.clientWidth || 690));
      let tall = 0, names = 0;
      const figure = {
        width,
        add: (...parts) => picture.append(...parts),
        name: (kind) => `${kind}-${tag}-${++names}`,
        height: (needs) => (tall = Math.max(tall, needs)),
      };
      picture.replaceChildren();
      draw(figure, seen, state, data);
      picture.setAttribute("viewBox", `0 0 ${width} ${tall}`);
      picture.setAttribute("height", tall);
      picture.setAttribute("aria-label", seen.title);
      title.textContent = seen.title;
      words.textContent = seen.words;
    };
    const moved = (name, value, done) => {
      state = { ...state, [name]: value };
      show();
      if (!done) return;
      model.set("state", state);
      model.save_changes();
    };
    const rows = controls.map((given) => [given.name, control(given, state[given.name], moved)]);
    const follow = () => {
      state = { ...model.get("state") };
      for (const [name, one] of rows) one.write(state[name]);
      show();
    };
    model.on("change:state", follow);
    root.append(style, ...rows.map(([, one]) => one.row), title, picture, words);
    el.append(root);
    const shade = () => root.classList.toggle("dark", isDark(el));
    shade();
    show();
    const resized = new ResizeObserver(show), scheme = matchMedia("(prefers-color-scheme: dark)");
    const themed = new MutationObserver(shade);
    resized.observe(el);
    themed.observe(document.body, { attributes: true });
    scheme.addEventListener("change", shade);
    return () => {
      resized.disconnect();
      themed.disconnect();
      scheme.removeEventListener("change", shade);
      model.off("change:state", follow);
    };
  }
  // Without a notebook: nobody else knows the state.
  function mount(el, given) {
    const held = { spec: given, state: given.state };
    render({ el, model: { get: (key) => held[key], set: (key, value) => (held[key] = value), save_changes() {}, on() {}, off() {} } });
  }
  return { render, mount };
}
