"use strict";
// The page's hands. All numbers come from the JSON beside this script; every text enters the page as a text node,
// never as markup. Colours are CSS variables, so that a change of theme repaints nothing but canvases.
const D = JSON.parse(document.getElementById("data").textContent);
const root = document.documentElement, $ = id => document.getElementById(id);
root.classList.remove("nojs");

const ORDER = [...document.querySelectorAll(".cell")], HOME = new Map(ORDER.map(c => [c, c.parentElement]));
const CELLS = []; for (const cell of ORDER) CELLS[cell.dataset.i] = cell;
const HEADS = CELLS.map((_, h) => h), COUNT = HEADS.length, QUIET = new Set(D.quiet), TWIN = new Set(D.families.flat());
const LINES = [...document.querySelectorAll(".layer")].map(l => [...l.querySelectorAll(".cell")]);
const S = {stat: "", sink: "in", cell: "map", order: "layers", filter: null, brush: null, head: D.first, ex: null, word: null};

// words --------------------------------------------------------------------
function t(key, filled = {}) {
  let text = D.words[key];
  for (const [k, v] of Object.entries(filled)) text = text.replaceAll(`{${k}}`, () => String(v));
  return text;
}
const roleWord = key => t(`role.${key}`);
const listing = parts => parts.length < 2 ? parts.join("") : parts.slice(0, -1).join(t("comma")) + t("and") + parts.at(-1);

// numbers ------------------------------------------------------------------
const clamp = (x, a = 0, b = 1) => Math.min(b, Math.max(a, x));
function bytes(text) {
  const raw = atob(text), out = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) out[i] = raw.charCodeAt(i);
  return out;
}
const floats = text => Array.from(new Float32Array(bytes(text).buffer), x => isFinite(x) ? Number(x.toPrecision(5)) : x);
const integers = text => Array.from(new Int32Array(bytes(text).buffer));
function ends(packed) {                        // [low, high] of every head; NaN where nothing is known
  if (!packed) return null;
  const q = new Uint16Array(bytes(packed.data).buffer);
  const at = i => q[i] === 65535 ? NaN : packed.low + (packed.high - packed.low) * q[i] / 65534;
  return HEADS.map(h => [at(2 * h), at(2 * h + 1)]);
}
const NAMED = new Map();                      // what the parts share: the first of a name brings titles and scale
for (const s of D.stats) {
  [s.part, s.name] = [s.id.slice(0, s.id.indexOf("/")), s.id.slice(s.id.indexOf("/") + 1)];
  if (NAMED.has(s.name)) { const {ends: _, sampled: __, first: ___, lines: ____, ...shared} = NAMED.get(s.name); Object.assign(s, {...shared, ...s}); }
  else NAMED.set(s.name, {...s});
  s.values = floats(s.values); s.ends = ends(s.ends); s.sampled = ends(s.sampled); s.lines ??= [];
}
for (const r of D.rules) if (r.values) { r.values = floats(r.values); r.ends = ends(r.ends); r.even &&= floats(r.even); }
const STATS = new Map(D.stats.map(s => [s.id, s]));
const TWIN_OF = new Map(D.stats.filter(s => s.of).map(s => [`${s.part}/${s.of}`, s]));
const byName = name => STATS.get(`texts/${name}`);
const aside = () => S.sink === "out";
const version = s => aside() ? TWIN_OF.get(s.id) ?? s : s;      // the same number with the sink set aside
const chosen = () => S.stat ? version(STATS.get(S.stat)) : null;
const rounded = (x, digits) => (Math.floor(x * 10 ** digits + .5) / 10 ** digits).toFixed(digits);

function show(v, unit) {                       // as number.py prints it: the table and the card must agree
  if (v === null || v === undefined || isNaN(v)) return "–";
  if (!isFinite(v)) return v > 0 ? "∞" : "−∞";
  const size = Math.abs(v), share = unit === "share";
  const text = share ? (Math.floor(size * 1000 + .5) / 10).toFixed(1) + "%" : threeDigits(size);
  return v < 0 && /[1-9]/.test(text) ? "−" + text : text;
}
function threeDigits(size) {
  if (size >= 1e7 || (size > 0 && size < .00995)) {
    const power = Math.floor(Math.log10(size));
    return rounded(size / 10 ** power, 1) + "e" + power;
  }
  if (size >= 999.5) return String(Math.floor(size + .5)).replace(/\B(?=(\d{3})+$)/g, ",");
  return rounded(size, size > 0 && size < .0995 ? 3 : size < 9.995 ? 2 : size < 99.95 ? 1 : 0);
}
const short = (v, unit) => show(v, unit).replace(/(\.\d*?)0+(?=%|$)/, "$1").replace(/\.(?=%|$)/, "");
const withUnit = (v, s) => show(v, s.unit) + (isNaN(v) || D.bare.includes(s.unit) ? "" : " " + s.word);
const breadth = text => [...text].reduce((sum, c) => sum + (c > "\u2e7f" ? 11.6 : 6.3), 0);   // about so many pixels
const percent = x => `${Math.round(100 * x)}%`;
const compare = (a, b) => isNaN(a) || isNaN(b) ? isNaN(b) - isNaN(a) : a < b ? -1 : a > b ? 1 : 0;   // a missing one first

function place(s, v) {                         // 0..1 along the scale of a statistic, null without a value
  if (isNaN(v)) return null;
  const x = s.kind === "log" ? Math.log(v / s.low) / Math.log(s.high / s.low) : (v - s.low) / (s.high - s.low);
  return s.kind === "root" ? Math.sqrt(clamp(x)) : clamp(x);
}
function valueAt(s, x) {                       // the other way round
  const y = s.kind === "root" ? x * x : x;
  return s.kind === "log" ? s.low * (s.high / s.low) ** y : s.low + (s.high - s.low) * y;
}
const hue = s => s.kind === "log" ? "d" : "q";
function ground(s, v) {
  const at = place(s, v); if (at === null) return null;
  const i = Math.min(3, Math.floor(at * 4));
  return `color-mix(in srgb, var(--${hue(s)}${i + 1}) ${Math.round((at * 4 - i) * 100)}%, var(--${hue(s)}${i}))`;
}

// arrays: one head's numbers out of the packed bytes -------------------------
function unpack(a, h, size) {
  a.bytes ??= bytes(a.data);
  const out = new Array(size), from = h * size;
  for (let i = 0; i < size; i++) {
    const step = a.bytes[from + i];
    out[i] = step === 255 ? NaN : a.low + (a.high - a.low) * (step / 254) ** a.power;
  }
  return out;
}
const array = (a, h) => unpack(a, h, a.size);
const zeros = v => v.map(x => isNaN(x) ? 0 : x);
function mean(a, h) {                          // of all heads of the same stack, for the reference line
  const stack = D.heads[h][0]; a.means ??= [];
  if (a.means[stack]) return a.means[stack];
  const total = new Array(a.size).fill(0), known = new Array(a.size).fill(0);
  for (const g of HEADS) if (D.heads[g][0] === stack) array(a, g).forEach((x, i) => { if (!isNaN(x)) { total[i] += x; known[i]++; } });
  return a.means[stack] = total.map((x, i) => x / known[i]);
}
const A = D.arrays, twinArray = name => A[`${name}_content`];

// likeness: for each head the few of its layer that are most like it -----------
const LIKE = D.alike;
if (LIKE) { LIKE.near = integers(LIKE.near); for (const k of ["pattern", "aside", "output"]) if (LIKE[k]) LIKE[k] = floats(LIKE[k]); }
function likest(h) {                           // [head, where its numbers stand], the most alike first
  const by = (aside() ? LIKE.aside : LIKE.pattern) ?? LIKE.pattern ?? LIKE.aside;
  const at = [...Array(LIKE.size).keys()].map(k => h * LIKE.size + k).filter(k => LIKE.near[k] >= 0 && !isNaN(by[k]));
  return at.sort((a, b) => by[b] - by[a] || LIKE.near[a] - LIKE.near[b]).slice(0, 3).map(k => [LIKE.near[k], k]);
}

// maps: what is off the sink, and on it --------------------------------------
const M = D.map;
if (M) {
  const [rows, columns] = M.shape, all = [...Array(rows * columns).keys()];
  M.kept = M.lower ? all.filter(i => (i % columns) / columns < (Math.floor(i / columns) + 1) / rows - 1e-12) : all;
}
function spreadOut(packed, h) {
  const out = new Array(M.shape[0] * M.shape[1]).fill(NaN), values = unpack(packed, h, M.kept.length);
  M.kept.forEach((place, i) => { out[place] = values[i]; });
  return out;
}
function mapOf(h, out = aside()) {             // what cannot be seen is NaN
  const [rows, columns] = M.shape;
  if (!M.content) return spreadOut(M.plain, h);
  if (out) return spreadOut(M.content, h);
  if (M.plain) return spreadOut(M.plain, h);
  const m = spreadOut(M.content, h), sink = zeros(unpack(M.sink, h, rows)), n = M.columns.length;
  const extra = n ? zeros(unpack(M.extra, h, rows * n)) : [];
  for (let i = 0; i < m.length; i++) if (!isNaN(m[i])) m[i] *= 1 - sink[Math.floor(i / columns)];
  extra.forEach((x, k) => { const i = Math.floor(k / n) * columns + M.columns[k % n]; if (!isNaN(m[i])) m[i] += x; });
  return m;
}
const sinkOf = h => byName("sink")?.values[h] ?? NaN;
const faded = h => aside() && 1 - sinkOf(h) < .1 ? clamp((1 - sinkOf(h)) / .1) : 1;   // under a tenth left: noise
