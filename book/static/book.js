"use strict";

// One button for all folds of a page; on paper they are open.
const folds = [...document.querySelectorAll("article details")];
if (folds.length > 1) {
  const button = document.createElement("button");
  button.className = "open-all";
  const say = () => (button.textContent = folds.every((fold) => fold.open) ? "Close all folds" : "Open all folds");
  button.addEventListener("click", () => {
    const open = !folds.every((fold) => fold.open);
    folds.forEach((fold) => (fold.open = open));
  });
  folds.forEach((fold) => fold.addEventListener("toggle", say));
  say();
  (document.querySelector("article .where + .around") ?? document.querySelector("article h1")).after(button);
}
let shut = [];
addEventListener("beforeprint", () => {
  shut = folds.filter((fold) => !fold.open);
  shut.forEach((fold) => (fold.open = true));
});
addEventListener("afterprint", () => shut.forEach((fold) => (fold.open = false)));

// A link to something inside a fold opens the fold.
const reveal = () => {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let fold = target && target.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
  if (target && target.closest("details")) target.scrollIntoView();
};
addEventListener("hashchange", reveal);
reveal();

// Code can be copied; outputs need not be.
document.querySelectorAll("article div.highlight").forEach((block) => {
  if (block.closest(".output, .said")) return;
  const button = document.createElement("button");
  button.className = "copy";
  button.textContent = "copy";
  button.setAttribute("aria-label", "Copy this code");
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(block.querySelector("pre").textContent);
    button.textContent = "copied";
    setTimeout(() => (button.textContent = "copy"), 1500);
  });
  block.append(button);
});

// What scrolls sideways can be reached by keyboard, and says so; its edge fades while more lies to the right.
const frames = document.querySelectorAll("article :is(pre, .plot, .math, .wide, .table-wrapper)");
const fade = (frame) => frame.classList.toggle("more", frame.scrollWidth - frame.clientWidth - frame.scrollLeft > 2);
const reach = () =>
  frames.forEach((frame) => {
    fade(frame);
    if (frame.scrollWidth <= frame.clientWidth) return;
    frame.tabIndex = 0;
    frame.setAttribute("role", "region");
    frame.setAttribute("aria-label", "scrolls sideways");
  });
folds.forEach((fold) => fold.addEventListener("toggle", reach));
frames.forEach((frame) => frame.addEventListener("scroll", () => fade(frame), { passive: true }));
addEventListener("resize", reach);
addEventListener("load", reach); // pictures have their size now
reach();

// A click on the head of a column sorts a measured table; a second one turns it round.
document.querySelectorAll("table.sortable thead th").forEach((head) => {
  const button = document.createElement("button");
  button.append(...head.childNodes);
  head.append(button);
  button.addEventListener("click", () => {
    const up = head.getAttribute("aria-sort") !== "ascending";
    head.parentElement.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const body = head.closest("table").tBodies[0];
    const text = (row) => row.cells[head.cellIndex].textContent;
    const number = (row) => (text(row) === "" ? Infinity : parseFloat(text(row)));
    const order = (a, b) => number(a) - number(b) || text(a).localeCompare(text(b), "en", { numeric: true });
    [...body.rows].sort((a, b) => (up ? order(a, b) : order(b, a))).forEach((row) => body.append(row));
  });
});

// A section can be ticked when it was read; the browser keeps the ticks, and every link to it shows them.
const place = (path) => path.split("/").slice(-2).join("/");
const kept = () => new Set(JSON.parse(localStorage.getItem("read") || "[]"));
const show = () => {
  const read = kept();
  document.querySelectorAll(".sidebar-tree a.internal, .map a.internal").forEach((link) => {
    if (!link.hash) link.classList.toggle("read", read.has(place(link.pathname)));
  });
};
if (/\/(section-\d+|index)\.html$/.test(location.pathname) && /^\d\d_/.test(place(location.pathname))) {
  const here = place(location.pathname);
  const label = document.createElement("label");
  const box = document.createElement("input");
  label.className = "tick";
  box.type = "checkbox";
  box.checked = kept().has(here);
  box.addEventListener("change", () => {
    const read = kept();
    box.checked ? read.add(here) : read.delete(here);
    localStorage.setItem("read", JSON.stringify([...read]));
    show();
  });
  label.append(box, " I have read this page");
  document.querySelector("article").append(label);
}
show();
