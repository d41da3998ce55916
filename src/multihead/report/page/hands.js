// hands --------------------------------------------------------------------
function choose(h, focus = false) {
  for (const [i, on] of [[S.head, false], [h, true]]) {
    CELLS[i].setAttribute("aria-selected", on); CELLS[i].tabIndex = on ? 0 : -1;
    row_(i)?.classList.toggle("on", on);
    for (const e of $("legend").querySelectorAll(`[data-i="${i}"]`)) e.classList.toggle("on", on);
  }
  if (h !== S.head) S.word = null;
  S.head = h; mark(); later(card); $("live").textContent = told(h);
  if (focus) { CELLS[h].focus({preventScroll: true}); CELLS[h].scrollIntoView({block: "nearest"}); }
}
let waiting = null;
function later(work) {                         // once a frame, however fast the keys repeat
  if (waiting) return;
  work(); waiting = requestAnimationFrame(() => { waiting = null; if (drawnFor !== S.head) work(); });
  drawnFor = S.head;
}
let drawnFor = -1;
function byHand(h, focus) { choose(h, focus); remember(); }     // a choice made on the page, not by its address

// the address remembers what is shown: #L18.H6&stat=texts/entropy&sink=out&filter=induction&order=rank&cell=dist ----
const KEPT = {stat: "", sink: "in", filter: null, order: "layers", cell: "map", ex: null};
function remember() {
  const parts = Object.entries(KEPT).filter(([k, v]) => S[k] !== v).map(([k]) => `${k}=${encodeURIComponent(S[k]).replaceAll("%2F", "/")}`);
  try { history.replaceState(null, "", "#" + [D.names[S.head], ...parts].join("&")); } catch { /* an embedded page has no address of its own */ }
}
function decoded(text) { try { return decodeURIComponent(text); } catch { return text; } }
function fromAddress() {
  let head = -1;
  for (const part of location.hash.slice(1).split("&")) {
    const [k, v] = part.split("=").map(decoded), name = /^\d+\.\d+$/.test(k) ? `L${k.replace(".", ".H")}` : k;
    if (v === undefined) { if (D.names.includes(name)) head = D.names.indexOf(name); continue; }
    if (k === "stat") S.stat = STATS.has(v) ? v : STATS.has(`texts/${v}`) ? `texts/${v}` : S.stat;
    else if (k === "filter") S.filter = Object.hasOwn(KINDS, v) || D.rules.some(r => r.key === v) ? v : S.filter;
    else if (k === "ex") S.ex = D.examples[Number(v)] ? Number(v) : S.ex;
    else if (["sink", "cell", "order"].includes(k) && [...document.getElementsByName(k)].some(i => i.value === v)) S[k] = v;
  }
  return head;
}
function show_() {                             // the controls say what is shown
  for (const k of ["stat", "sink", "cell", "order"]) for (const i of document.getElementsByName(k)) i.checked = i.value === S[k];
  const other = $("other"); if (other) other.value = [...other.options].some(o => o.value === S.stat) ? S.stat : "";
  for (const e of document.querySelectorAll("[data-cell]")) e.hidden = e.dataset.cell !== S.cell;
}
function set(k, v) {
  S[k] = v; if (k === "stat") S.brush = null;
  show_(); if (k === "sink" || k === "cell") thumbnails();
  if (k === "sink") { S.brush = null; card(); }
  arrange(); paint(); remember();
}

// the grid's keys ------------------------------------------------------------
const inLine = (cells, k) => cells[clamp(k, 0, cells.length - 1)];
function step(cell, key, far) {                // the cell a key leads to
  const back = key === "ArrowLeft" || key === "ArrowUp", sideways = key === "ArrowLeft" || key === "ArrowRight";
  if (S.order === "rank") {
    const all = [...document.querySelectorAll(".ranks .cell")], mine = [...cell.parentElement.children];
    if (key === "Home" || key === "End") return all.at(key === "Home" ? 0 : -1);
    const across = sideways ? 1 : mine.filter(c => c.offsetTop === mine[0].offsetTop).length;
    return inLine(all, all.indexOf(cell) + (back ? -across : across));
  }
  const l = LINES.findIndex(cells => cells.includes(cell)), k = LINES[l].indexOf(cell), stack = cell.closest(".stack");
  if (key === "Home" || key === "End") {
    const across = LINES.filter(cells => stack.contains(cells[0])).map(cells => inLine(cells, k));
    return (far ? LINES.flat() : D.deep ? across : LINES[l]).at(key === "Home" ? 0 : -1);
  }
  const by = back ? -1 : 1;
  return sideways === D.deep ? inLine(inLine(LINES, l + by), k) : inLine(LINES[l], k + by);
}
function nextOfKind() {
  for (let i = 1; i <= COUNT; i++) { const h = (S.head + i) % COUNT; if (D.heads[h][4] === D.heads[S.head][4]) return h; }
  return S.head;
}
function inGrid(e) {
  if (/^(Arrow(Left|Right|Up|Down)|Home|End)$/.test(e.key)) byHand(Number(step(e.target, e.key, e.ctrlKey).dataset.i), true);
  else if (e.key === "n" && !e.ctrlKey) byHand(nextOfKind(), true);
  else if (e.key === "s" && !e.ctrlKey && document.getElementsByName("sink").length) set("sink", aside() ? "in" : "out");
  else return;
  e.preventDefault();
}
function onWords(e) {
  if (!/^(Arrow(Left|Right|Up|Down)|Home|End)$/.test(e.key)) return;
  const x = D.examples[exampleNow(S.head)], n = x.words.length, across = patched(x) ? x.grid[1] : 1, by = {ArrowLeft: -1, ArrowRight: 1, ArrowUp: -across, ArrowDown: across};
  S.word = e.key === "Home" ? 0 : e.key === "End" ? n - 1 : clamp(S.word === null ? 0 : S.word + by[e.key], 0, n - 1);
  e.preventDefault(); example();
}
function clear() {
  tip(null); S.brush = null; S.word = null;
  if (S.filter !== null) filter(S.filter); else { paint(); example(); }
}

function tip(target) {
  const at = target?.closest?.("[data-i]:not(tr):not(button)"), box_ = $("tip"); box_.hidden = !at; if (!at) return;
  box_.textContent = told(Number(at.dataset.i));
  const r = at.getBoundingClientRect(), middle = r.left + r.width / 2 - box_.offsetWidth / 2;
  box_.style.left = `${scrollX + clamp(middle, 8, Math.max(8, root.clientWidth - box_.offsetWidth - 8))}px`;
  box_.style.top = `${scrollY + r.top - box_.offsetHeight - 6}px`;
}

// the table ------------------------------------------------------------------
const ROWS = new Map([...document.querySelectorAll("tbody tr")].map(r => [Number(r.dataset.i), r]));
const row_ = h => ROWS.get(h);
function sort(by) {
  const th = by.parentElement, id = by.dataset.sort, now = th.getAttribute("aria-sort"), s = STATS.get(id);
  const up = now ? now === "descending" : !s, key = i => s ? s.values[i] : id === "role" ? D.heads[i][4] : i;
  const rank = (a, b) => isNaN(key(a)) - isNaN(key(b)) || (up ? 1 : -1) * compare(key(a), key(b)) || a - b;
  for (const other of th.parentElement.children) other.removeAttribute("aria-sort");
  th.setAttribute("aria-sort", up ? "ascending" : "descending");
  document.querySelector("tbody").append(...[...HEADS].sort(rank).map(row_));
}
function everything(on) {                      // all other numbers as further columns
  const top = document.querySelector("thead tr"), have = 2 + D.stats.filter(s => s.first).length;
  for (const tr of [top, ...ROWS.values()]) while (tr.children.length > have) tr.lastChild.remove();
  for (const s of on ? D.stats.filter(s => !s.first) : []) {
    const head = make("button", {type: "button", "data-sort": s.id, title: s.title}, make("bdi", {}, s.short), s.part === "repeats" ? make("small", {}, " " + t("s.random")) : null);
    top.append(make("th", {scope: "col"}, head));
    for (const [h, tr] of ROWS) tr.append(make("td", {}, show(s.values[h], s.unit)));
  }
}

function filter(key) { S.filter = S.filter === key ? null : key; paint(); mark(); remember(); }
function theme() {
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  root.dataset.theme = (root.dataset.theme ?? system) === "dark" ? "light" : "dark";
  drawMap();
}

document.addEventListener("change", e => {
  const {name, value, form, id} = e.target;
  if (name === "ex") { S.ex = Number(value); S.word = null; remember(); example(); }
  else if (id === "everything") everything(e.target.checked);
  else if (id === "other") set("stat", value);
  else if (form?.id === "controls") set(name, value);
});
document.addEventListener("input", e => { if (e.target.dataset?.edge) slide(e.target); });
document.addEventListener("submit", e => e.preventDefault());
document.addEventListener("click", e => {
  const at = e.target.closest("[data-i]:not(tr),[data-filter],[data-sort],.skip"); if (!at) return;
  if (at.matches(".skip")) { e.preventDefault(); CELLS[S.head].focus(); }
  else if (at.dataset.i) byHand(Number(at.dataset.i), at.matches(".cell"));
  else if (at.dataset.filter) filter(at.dataset.filter);
  else if (at.dataset.sort) sort(at);
});
document.addEventListener("keydown", e => {
  if (e.altKey || e.metaKey) return;
  if (e.key === "Escape") clear();
  else if (e.target.matches?.(".cell")) inGrid(e);
  else if (e.target.id === "arcs") onWords(e);
});
document.addEventListener("pointerdown", e => {
  if (e.target.closest?.("#dots") && !e.target.closest("[data-i]")) { drawn = along(e); e.preventDefault(); }
});
document.addEventListener("pointermove", e => { if (drawn !== null && $("dots")) { const to = along(e); if (Math.abs(to - drawn) > .004) setBrush(drawn, to); } });
document.addEventListener("pointerup", e => {
  if (drawn !== null && $("dots") && Math.abs(along(e) - drawn) <= .004 && S.brush) { S.brush = null; paint(); }
  drawn = null;
});
document.addEventListener("pointerover", e => {
  tip(e.target);
  const at = e.target.closest?.("[data-w]"), i = at ? Number(at.dataset.w) : null;
  if ((at || (S.word !== null && !e.target.closest?.("#arcs"))) && i !== S.word && document.activeElement?.id !== "arcs") { S.word = i; example(); }
});
document.addEventListener("focusin", e => tip(e.target));
addEventListener("hashchange", () => { const h = fromAddress(); show_(); thumbnails(); arrange(); paint(); if (h >= 0) choose(h); });
$("theme").addEventListener("click", theme);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawMap);
matchMedia("print").addEventListener("change", drawMap);
let before; addEventListener("beforeprint", () => { before = root.dataset.theme; root.dataset.theme = "light"; drawMap(); });
addEventListener("afterprint", () => { if (before) root.dataset.theme = before; else delete root.dataset.theme; drawMap(); });
let wide = innerWidth; addEventListener("resize", () => { if (innerWidth !== wide) { wide = innerWidth; staples(); legend(); card(); } });
$("how").open = $("table").open = false;
CELLS.forEach((cell, h) => { cell.tabIndex = -1; cell.setAttribute("aria-selected", "false"); cell.dataset.n = `L${D.heads[h][1]}.H${D.heads[h][2]}`; });
for (const group of document.querySelectorAll("#other optgroup")) {
  const mine = D.stats.filter(s => s.part === group.dataset.part && !s.first && !s.of && s.values.some(v => !isNaN(v)));
  group.append(...mine.map(s => make("option", {value: s.id}, s.title)));
}
const asked = fromAddress();
show_(); if (own()) thumbnails();
arrange(); paint(); choose(asked >= 0 ? asked : S.head);
