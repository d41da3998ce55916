"use strict";
// The hands of the comparison: point at a head to see it in both grids, show the changed ones alone, sort, theme.
const D = JSON.parse(document.getElementById("data").textContent);
const root = document.documentElement, $ = id => document.getElementById(id);
root.classList.remove("nojs");
const SIDES = ["a-", "b-"].map(p => [...document.querySelectorAll(`#${CSS.escape(p + "heads")} .cell`)]);
const ALL = SIDES.flat(), PLACE = new Map(D.names.map((n, i) => [n, i])), FLIPS = new Set(D.flips);
const named = cell => cell.id.slice(2);
const LINES = [...document.querySelectorAll(".layer")].map(l => [...l.querySelectorAll(".cell")]);
let chosen = null;

function told(name) {
  const i = PLACE.get(name), [a, b] = [D.before[i], D.after[i]];
  return a === b ? `${name}: ${a}` : `${name}: ${a} → ${b}`;
}
function choose(name) {
  for (const cell of ALL) {
    const on = named(cell) === name;
    cell.classList.toggle("pair", on);
    cell.setAttribute("aria-selected", on);
  }
  for (const side of SIDES) for (const cell of side) cell.tabIndex = named(cell) === name ? 0 : -1;
  chosen = name; $("live").textContent = told(name);
}
function tip(target) {
  const at = target?.closest?.(".cell"), box = $("tip"); box.hidden = !at; if (!at) return;
  box.textContent = told(named(at));
  const r = at.getBoundingClientRect(), middle = r.left + r.width / 2 - box.offsetWidth / 2;
  box.style.left = `${scrollX + Math.min(Math.max(8, middle), Math.max(8, root.clientWidth - box.offsetWidth - 8))}px`;
  box.style.top = `${scrollY + r.top - box.offsetHeight - 6}px`;
}
function step(cell, key) {
  const deep = Boolean(cell.closest(".deep")), side = SIDES.find(s => s.includes(cell)), lines = LINES.filter(l => side.includes(l[0]));
  const l = lines.findIndex(cells => cells.includes(cell)), k = lines[l].indexOf(cell), at = (cells, i) => cells[Math.min(cells.length - 1, Math.max(0, i))];
  if (key === "Home" || key === "End") return lines.flat().at(key === "Home" ? 0 : -1);
  const by = key === "ArrowLeft" || key === "ArrowUp" ? -1 : 1, sideways = key === "ArrowLeft" || key === "ArrowRight";
  return sideways === deep ? at(at(lines, l + by), k) : at(lines[l], k + by);
}
function filter(button, on) {
  button.setAttribute("aria-pressed", on);
  for (const cell of ALL) cell.classList.toggle("dim", on && !FLIPS.has(named(cell)));
}
function sort(button) {
  const th = button.parentElement, body = th.closest("table").tBodies[0], at = Number(button.dataset.sort), down = th.getAttribute("aria-sort") === "ascending";
  for (const other of th.parentElement.children) other.removeAttribute("aria-sort");
  th.setAttribute("aria-sort", down ? "descending" : "ascending");
  const key = row => at ? row.cells[at].textContent : String(PLACE.get(row.cells[0].textContent)).padStart(9, "0");
  body.append(...[...body.rows].sort((a, b) => (down ? -1 : 1) * (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0)));
}
document.addEventListener("click", e => {
  const at = e.target.closest(".cell,[data-filter],[data-sort],a[href^='#a-'],.skip"); if (!at) return;
  if (at.matches(".skip")) { e.preventDefault(); SIDES[0].find(c => c.tabIndex === 0).focus(); }
  else if (at.dataset.filter) filter(at, at.getAttribute("aria-pressed") !== "true");
  else if (at.dataset.sort) sort(at);
  else { const name = at.matches(".cell") ? named(at) : at.hash.slice(3); if (PLACE.has(name)) choose(name); }
});
document.addEventListener("keydown", e => {
  if (e.altKey || e.metaKey) return;
  if (e.key === "Escape") { tip(null); for (const b of document.querySelectorAll("[data-filter]")) filter(b, false); }
  if (!e.target.matches?.(".cell") || !/^(Arrow(Left|Right|Up|Down)|Home|End)$/.test(e.key)) return;
  e.preventDefault(); const to = step(e.target, e.key); choose(named(to)); to.focus({preventScroll: true}); to.scrollIntoView({block: "nearest"});
});
document.addEventListener("pointerover", e => tip(e.target));
document.addEventListener("focusin", e => tip(e.target));
$("theme").addEventListener("click", () => {
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  root.dataset.theme = (root.dataset.theme ?? system) === "dark" ? "light" : "dark";
});
choose(D.flips.length ? D.names.find(n => FLIPS.has(n)) : D.names[0]);
