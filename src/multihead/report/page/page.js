"use strict";
// The page's hands. All numbers come from the JSON beside this script; every text enters the page as a text node,
// never as markup. Colours are CSS variables, so that a change of theme repaints nothing but the large map.
const D = JSON.parse(document.getElementById("data").textContent);
const root = document.documentElement, $ = id => document.getElementById(id);
root.classList.remove("nojs");
$("how").open = $("table").open = false;

const ORDER = [...document.querySelectorAll(".cell")], HOME = new Map(ORDER.map(c => [c, c.parentElement]));
const CELLS = []; for (const cell of ORDER) CELLS[cell.dataset.i] = cell;
const HEADS = CELLS.map((_, h) => h), COUNT = HEADS.length, QUIET = new Set(D.quiet);
const LINES = [...document.querySelectorAll(".layer")].map(l => [...l.querySelectorAll(".cell")]);
const ROWS = new Map([...document.querySelectorAll("tbody tr")].map(r => [Number(r.dataset.i), r]));
const STATS = Object.fromEntries(
  Object.entries(D.parts).map(([name, part]) => [name, new Map(part.quantities.map(q => [q.name, q]))]));
const S = {colour: "", part: "texts", order: "layers", filter: null, head: D.first};

// numbers ------------------------------------------------------------------
const clamp = (x, a = 0, b = 1) => Math.min(b, Math.max(a, x));
const value = (name, h, part = S.part) => D.parts[part].values[name]?.[h] ?? null;
const chosen = () => STATS[S.part].get(S.colour);
const rounded = (x, digits) => (Math.floor(x * 10 ** digits + .5) / 10 ** digits).toFixed(digits);

function show(v, unit) {                       // as number.py prints it: the table and the card must agree
  if (v === null) return "–";
  if (typeof v === "string") return v;         // an infinity
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
const withUnit = (v, unit) => show(v, unit) + (v === null || D.bare.includes(unit) ? "" : " " + unit);

const size = v => v === "∞" ? Infinity : v === "−∞" ? -Infinity : v ?? NaN;
function compare(a, b) {                       // numbers upwards; a missing one before all others
  const [x, y] = [size(a), size(b)];
  return isNaN(x) || isNaN(y) ? isNaN(y) - isNaN(x) : x < y ? -1 : x > y ? 1 : 0;
}
function place(q, v) {                         // 0..1 along the scale of a statistic, null without a value
  if (v === null) return null;
  const x = size(v), t = q.kind === "log" ? Math.log(x / q.low) / Math.log(q.high / q.low) : (x - q.low) / (q.high - q.low);
  return q.kind === "root" ? Math.sqrt(clamp(t)) : clamp(t);
}
const hue = q => q.kind === "log" ? "d" : "q";
function ground(q, v) {
  const t = place(q, v); if (t === null) return null;
  const i = Math.min(3, Math.floor(t * 4));
  return `color-mix(in srgb, var(--${hue(q)}${i + 1}) ${Math.round((t * 4 - i) * 100)}%, var(--${hue(q)}${i}))`;
}

function array(a, h) {                         // one head's numbers out of the packed bytes
  a.bytes ??= atob(a.data);
  a.kept ??= kept(a);
  const out = new Array(a.shape.reduce((x, y) => x * y)).fill(NaN), from = h * a.kept.length;
  a.kept.forEach((i, k) => {
    const step = a.bytes.charCodeAt(from + k);
    if (step < 255) out[i] = a.low + (a.high - a.low) * (step / 254) ** a.power;
  });
  return out;
}
function kept(a) {                             // the places that were stored: all, or those at and below the diagonal
  const [rows, columns] = [a.shape[0], a.shape[1] ?? 1], all = [...Array(rows * columns).keys()];
  return a.lower ? all.filter(i => (i % columns) / columns < (Math.floor(i / columns) + 1) / rows - 1e-12) : all;
}
function mean(a, h) {                          // of all heads of the same stack, for the reference line
  const stack = D.heads[h][0]; a.means ??= [];
  if (a.means[stack]) return a.means[stack];
  const all = HEADS.filter(g => D.heads[g][0] === stack).map(g => array(a, g));
  return a.means[stack] = all[0].map((_, i) => {
    const known = all.map(v => v[i]).filter(x => !isNaN(x));
    return known.reduce((x, y) => x + y, 0) / known.length;
  });
}
const zeros = v => v.map(x => isNaN(x) ? 0 : x);

// building -----------------------------------------------------------------
const DRAWN = new Set(["svg", "rect", "path", "text", "linearGradient", "stop"]);
function make(tag, attributes = {}, ...children) {
  const e = DRAWN.has(tag) ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [k, v] of Object.entries(attributes)) if (v !== null) e.setAttribute(k, v);
  e.append(...children.flat().filter(c => c !== null));
  return e;
}
const cut = (text, most) => [...text].length > most ? [...text].slice(0, most - 1).join("") + "…" : text;
const word = (x, y, text, anchor = "start", kind = null) => make("text", {x, y, "text-anchor": anchor, class: kind}, cut(text, 60));
const path = (d, stroke, more = {}) => make("path", {d, stroke, fill: "none", ...more});
const box = (x, y, width, height, fill, more = {}) => make("rect", {x, y, width, height, fill, ...more});
const figure = (title, note, ...inside) =>
  make("figure", {}, make("h3", {}, title, make("span", {}, note ? " " + note : "")), ...inside);
const chart = (w, h, label, ...inside) =>
  make("svg", {viewBox: `0 0 ${w} ${h}`, width: w, height: h, role: "img", "aria-label": label}, ...inside);
const link = h => make("a", {href: "#" + D.names[h]}, D.names[h]);

// the grid -----------------------------------------------------------------
const rule = h => D.rules[D.heads[h][4]];
const judged = h => rule(h).values?.[h] ?? null;
const matches = h => S.filter === null || (S.filter === "quiet" ? QUIET.has(h) : rule(h).key === S.filter);
function told(h) {
  const q = chosen();
  return `${D.names[h]}, ${q ? `${q.title} ${withUnit(value(q.name, h), q.unit)}` : rule(h).word}`;
}
function paint() {
  const q = chosen();
  CELLS.forEach((cell, h) => {
    const v = q ? value(q.name, h) : judged(h), fill = q ? ground(q, v) : "";
    cell.firstElementChild.style.background = fill ?? "";
    cell.classList.toggle("na", fill === null);
    cell.classList.toggle("dim", !matches(h));
    cell.dataset.v = q || v !== null ? show(v, q ? q.unit : "share") : "";
    cell.setAttribute("aria-label", told(h));
  });
  for (const b of document.querySelectorAll("[data-filter]")) b.setAttribute("aria-pressed", b.dataset.filter === S.filter);
  legend();
}
function arrange() {                           // in layers, or from the highest value to the lowest
  const q = chosen(), key = h => q ? value(q.name, h) : judged(h), group = h => q ? 0 : D.heads[h][4];
  const rank = (a, b) => group(a) - group(b) || compare(key(b), key(a)) || a - b;
  for (const stack of document.querySelectorAll(".stack")) {
    const mine = ORDER.filter(c => stack.contains(c)), ranked = S.order === "ranked";
    if (ranked) stack.querySelector(".ranks").append(...mine.sort((a, b) => rank(+a.dataset.i, +b.dataset.i)));
    else for (const cell of mine) HOME.get(cell).append(cell);
    stack.querySelector(".layers").hidden = ranked;
    stack.querySelector(".ranked").hidden = !ranked;
  }
}

// the legend: every square is a head ----------------------------------------
function square(h, x, y, side, fill) {
  const kind = (matches(h) ? "" : "dim") + (h === S.head ? " on" : "");
  return box(x.toFixed(1), y.toFixed(1), side, side, fill, {"data-i": h, class: kind});
}
function legend() {
  const svg = $("legend"), q = chosen(), width = svg.clientWidth || 1200;
  const [inside, height, label] = q ? dots(q, width) : blocks(width);
  svg.replaceChildren(...inside);
  for (const [k, v] of [["height", height], ["viewBox", `0 0 ${width} ${height}`], ["aria-label", label]]) svg.setAttribute(k, v);
}
function blocks(width) {
  const groups = D.rules.map((r, i) => [r, HEADS.filter(h => D.heads[h][4] === i)]).filter(([, heads]) => heads.length);
  const label = groups.map(([r, heads]) => `${heads.length} ${r.word}`), out = [], deep = 5;
  const widths = side => groups.map(([, heads], i) => Math.max(Math.ceil(heads.length / deep) * side, label[i].length * 6.4) + 18);
  let side = 6.5, x = 0, y = 0;
  while (side > 4 && widths(side).reduce((a, b) => a + b) > width) side -= .5;
  while (side > 1.5 && Math.max(...widths(side)) > width + 18) side -= .5;
  groups.forEach(([r, heads], i) => {
    if (x && x + widths(side)[i] - 18 > width) { x = 0; y += 56; }
    const fill = `color-mix(in srgb, var(--${r.key}-bg) 70%, var(--${r.key}-ink))`;
    heads.forEach((h, k) => out.push(square(h, x + Math.floor(k / deep) * side, y + (k % deep) * side, side - 1, fill)));
    out.push(word(x, y + 46, label[i], "start", "ink"));
    x += widths(side)[i];
  });
  return [out, y + 52, `Heads by fact: ${label.join(", ")}`];
}
function dots(q, width) {
  const known = HEADS.filter(h => value(q.name, h) !== null).sort((a, b) => compare(value(q.name, a), value(q.name, b)));
  const tall = 62, room = 46, X = v => place(q, v) * width, out = [word(0, 10, q.title, "start", "strong")];
  let side, piles, most;
  for (side of COUNT > 400 ? [6, 5, 4, 3] : COUNT > 150 ? [6, 5, 4] : [7, 6, 5]) {
    piles = new Map(); most = 1;
    for (const h of known) {
      const bin = Math.round(place(q, value(q.name, h)) * (width - side) / side), pile = piles.get(bin) ?? [];
      piles.set(bin, pile); most = Math.max(most, pile.push(h));
    }
    if (most * side <= room) break;
  }
  const pitch = Math.min(side, (room - side) / Math.max(1, most - 1));
  for (const [bin, pile] of piles) pile.forEach((h, k) => out.push(
    square(h, bin * side, tall - side - k * pitch, side - 1, `color-mix(in srgb, ${ground(q, value(q.name, h))} 66%, var(--ink))`)));
  const stops = [0, 1, 2, 3, 4].map(i => make("stop", {offset: i / 4, "stop-color": `var(--${hue(q)}${i})`}));
  out.push(make("linearGradient", {id: "scale"}, stops), box(0, tall + 2, width, 7, "url(#scale)"));
  for (const t of q.ticks) {
    const x = X(t);
    out.push(word(x, tall + 22, short(t, q.unit), x < 20 ? "start" : x > width - 20 ? "end" : "middle"));
  }
  for (const r of D.rules) if (r.part === S.part && r.statistics.includes(q.name)) {
    const x = X(r.threshold), n = known.filter(h => Math.floor(size(value(q.name, h)) * 1000 + .5) / 1000 >= r.threshold).length;
    out.push(path(`M${x} ${tall - room}V${tall + 9}`, "var(--ink)", {"stroke-dasharray": "2 2"}));
    out.push(word(x + 6, tall - room + 9, `${n} at ${short(r.threshold, "share")} or more`, "start", "ink"));
  }
  if (known.length < COUNT) out.push(word(width, 10, `${COUNT - known.length} without a value`, "end"));
  const at = part => show(value(q.name, known[Math.floor(part * (known.length - 1))] ?? 0), q.unit);
  return [out, tall + 28, `${known.length} heads by ${q.title}: from ${at(0)} to ${at(1)}, median ${at(.5)}`];
}

// the card -----------------------------------------------------------------
function card() {
  const h = S.head, arrays = Object.values(D.parts[S.part].arrays), drawn = (...kinds) => arrays.filter(a => kinds.includes(a.chart));
  const [map] = drawn("map"), [below] = drawn("under the map"), several = Object.keys(D.parts).length > 1;
  const all = D.stacks.length > 1 ? `all ${D.stacks[D.heads[h][0]].name} heads` : "all heads";
  const notes = {bars: `line: mean of ${all}`, line: "faint: rest of its layer", list: `tick: mean of ${all}`};
  const draw = {bars, line, list}, charts = make("div", {class: "charts"}), last = make("div", {class: "last"}), frame = $("card");
  frame.className = `r-${rule(h).key}${map ? "" : " nomap"}`;
  frame.replaceChildren(...[words(h, several), map && mapFigure(map, below, h), charts, last].filter(Boolean));
  for (const [column, kinds] of [[charts, ["bars"]], [last, ["line", "list"]]]) {
    const mine = drawn(...kinds), figures = mine.map(a => figure(a.title, notes[a.chart]));
    column.append(...figures);
    mine.forEach((a, i) => figures[i].append(draw[a.chart](a, h, figures[i].clientWidth || 320)));
  }
  const note = `${several ? `on the ${S.part}; ` : ""}${COUNT > 1 ? `ticks: all ${COUNT} heads; ` : ""}bar: lowest to highest document; dotted: threshold`;
  const strips = figure("Its numbers", note, make("div", {}, [...STATS[S.part].values()].map(q => strip(q, h))));
  strips.className = "strips"; frame.append(strips);
  drawMap();
}
function words(h, several) {
  const [stack, layer, head, kv] = D.heads[h], r = rule(h), ratio = value("output_ratio", h, "texts");
  const closeness = x => typeof x.values?.[h] === "number" ? x.values[h] / x.threshold : -1;
  const near = [...D.rules].sort((a, b) => closeness(b) - closeness(a))[0];
  let said = r.said.replace("{}", show(judged(h), "share"));
  if (!r.values && closeness(near) >= 0) said += ` Nearest: ${near.word}, ${show(near.values[h], "share")} of ${short(near.threshold, "share")}.`;
  if (ratio !== null) said += ` It writes ${show(ratio, "")} times its layer’s mean.`;
  const mates = D.stacks[stack].shared ? HEADS.filter(g => g !== h && [0, 1, 3].every(k => D.heads[g][k] === D.heads[h][k])) : [];
  const joint = i => i === 0 ? "" : i === mates.length - 1 ? " and " : ", ";
  return make("div", {},
    make("h2", {}, D.names[h], make("small", {}, `${D.stacks[stack].name} layer ${layer}, head ${head}${several ? `, on the ${S.part}` : ""}`)),
    make("p", {class: "fact"}, make("i"), r.word), make("p", {class: "say"}, said),
    mates.length ? make("p", {class: "sub"}, "Shares its keys and values with ", mates.flatMap((m, i) => [joint(i), link(m)])) : null);
}
function mapFigure(a, below, h) {
  const w = 224, row = (...inside) => make("span", {}, ...inside), frame = make("div", {class: "mapframe"});
  const canvas = make("canvas", {id: "bigmap", width: a.shape[1], height: a.shape[0], role: "img", "aria-label": `Average map of ${D.names[h]}`});
  canvas.style.height = `${Math.round(w * a.shape[0] / a.shape[1])}px`;
  const side = row(row("queries"), row("end")), over = row(row("keys"), row("end")); side.className = "down"; over.className = "across";
  frame.append(over, side, canvas);
  if (below) {
    const v = zeros(array(below, h)), top = Math.max(...v, 1e-9), lane = w / v.length, under = row(below.title); under.className = "across";
    frame.append(chart(w, 30, below.title, v.map((x, i) => box(i * lane, 30 - 28 * x / top, Math.max(.5, lane - 1), 28 * x / top, "var(--tone)")),
      path(`M0 30H${w}`, "var(--line)")), under);
  }
  const ticks = [[0, "start"], [.05, "middle"], [.25, "middle"], [.5, "middle"], [1, "end"]];
  frame.append(make("canvas", {id: "ramp", width: w, height: 1, "aria-hidden": "true"}),
    chart(w, 14, "Scale of the map", ticks.map(([v, at]) => word(Math.sqrt(v) * w, 11, short(v, "share"), at))));
  return figure(a.title, "", frame);
}
function resolve(colour) {                     // a canvas knows no variables
  $("card").style.color = colour;
  const rgb = getComputedStyle($("card")).color.match(/[\d.]+/g).slice(0, 3).map(Number);
  $("card").style.color = "";
  return rgb;
}
function drawMap() {
  const a = Object.values(D.parts[S.part].arrays).find(x => x.chart === "map"); if (!a) return;
  const stops = ["var(--raise)", "var(--ground)", "var(--tone)", "var(--on)"].map(resolve);
  const fill = (canvas, values) => {
    const pen = canvas.getContext("2d"), image = pen.createImageData(canvas.width, canvas.height);
    values.forEach((v, i) => {
      if (isNaN(v)) return;                    // left as paper: cannot be seen
      const t = Math.sqrt(clamp(v)) * 3, k = Math.min(2, Math.floor(t));
      image.data.set([...stops[k].map((c, j) => c + (stops[k + 1][j] - c) * (t - k)), 255], i * 4);
    });
    pen.putImageData(image, 0, 0);
  };
  fill($("bigmap"), array(a, S.head));
  fill($("ramp"), Array.from({length: 224}, (_, x) => (x / 223) ** 2));
}
function lanes(a, h) {                         // [name, this head, mean]; by distance what lies back is at the left
  const v = zeros(array(a, h)), all = mean(a, h), end = v.length - 1;
  const far = i => i * 2 === end ? "self" : String(Math.abs(i - end / 2)), ends = i => i === 0 ? "start" : i === end ? "end" : "";
  const plain = name => name === "0" ? "self" : name.replace(/^(ahead|back) |^[-−]/, "");
  const name = i => a.labels.length ? a.distance ? plain(a.labels[i]) : a.labels[i] : a.distance ? far(i) : ends(i);
  const out = v.map((x, i) => [cut(name(i), 14), x, all[i] || 0]);
  if (a.flip) out.reverse();
  const used = out.map(([, , m]) => m > 0);      // distances at the ends that no head reaches are left out
  return a.distance && used.includes(true) ? out.slice(used.indexOf(true), used.lastIndexOf(true) + 1) : out;
}
function bars(a, h, w) {
  const all = lanes(a, h), lane = w / all.length, foot = 112, self = all.findIndex(([name]) => name === "self");
  const top = Math.max(.1, Math.ceil(10 * Math.max(...all.flatMap(([, x, m]) => [x, m]))) / 10), Y = x => (foot - (foot - 12) * clamp(x / top)).toFixed(1);
  const longest = Math.max(...all.map(([name]) => name.length)) * 6.4 + 8, every = Math.max(1, Math.ceil(longest / lane)), from = Math.max(0, self) % every;
  const named = all.map(([name], i) => name && i % every === from ? word(clamp((i + .5) * lane, 8, w - 8), foot + 15, name, "middle") : null);
  return chart(w, foot + (a.distance ? 34 : 20), a.title,
    all.map(([, x], i) => box((i * lane + .6).toFixed(1), Y(x), Math.max(.5, lane - 1.2).toFixed(1), (foot - Y(x)).toFixed(1), "var(--tone)")),
    path(all.map(([, , m], i) => `${i ? "" : `M0 ${Y(m)}`}V${Y(m)}H${((i + 1) * lane).toFixed(1)}`).join(""), "var(--ink)"),
    path(`M0 ${foot + .5}H${w}`, "var(--ink)"), word(0, 9, short(top, a.unit)), named,
    a.distance && self !== 0 ? word(0, foot + 31, "← tokens back") : null,
    a.distance && self < all.length - 1 ? word(w, foot + 31, "tokens ahead →", "end") : null);
}
function line(a, h, w) {
  const foot = 104, top = a.high > 0 ? a.high : 1, n = Math.max(1, a.shape[0] - 1), at = v => (foot - (foot - 14) * clamp(v / top)).toFixed(1);
  const trace = g => array(a, g).map((v, i, all) => isNaN(v) ? "" : `${i && !isNaN(all[i - 1]) ? "L" : "M"}${(i / n * w).toFixed(1)} ${at(v)}`).join("");
  const layer = HEADS.filter(g => g !== h && D.heads[g][0] === D.heads[h][0] && D.heads[g][1] === D.heads[h][1]);
  return chart(w, foot + 20, a.title, layer.map(g => path(trace(g), "var(--faint)", {opacity: .5})),
    path(trace(h), "var(--tone)", {"stroke-width": 2.4}), path(`M0 ${foot + .5}H${w}`, "var(--ink)"), word(0, 9, `${short(top, a.unit)} ${a.unit}`),
    word(0, foot + 15, "start"), word(w / 2, foot + 15, "middle", "middle"), word(w, foot + 15, "end", "end"));
}
const row = (label, drawing, text) => make("div", {class: "strip"}, make("bdi", {title: label}, label), drawing, make("b", {}, text));
function list(a, h) {
  const v = array(a, h), all = zeros(mean(a, h)), top = Math.max(...zeros(v), ...all, 1e-9), w = 160;
  return make("div", {class: "list"}, v.map((x, i) => row(a.labels[i] ?? String(i), chart(w, 16, a.title,
    box(0, 3, (x || 0) / top * w, 10, "var(--tone)"), path(`M${all[i] / top * w} 1V15`, "var(--ink)", {"stroke-width": 1.5})),
    show(isNaN(x) ? null : x, a.unit))));
}
function strip(q, h) {
  const w = 140, X = v => 3 + place(q, v) * (w - 6), part = D.parts[S.part], v = value(q.name, h);
  const ends = part.spread[q.name]?.map(e => e[h]).filter(e => e !== null) ?? [];
  q.trace ??= part.values[q.name].map(x => x === null ? "" : `M${X(x).toFixed(1)} 5v8`).join("");
  const marks = D.rules.filter(r => r.part === S.part && r.statistics.includes(q.name)).map(r => X(r.threshold));
  return row(q.title, chart(w, 18, `${q.title} among all heads`, path(q.trace, "var(--faint)", {"stroke-width": .7, opacity: .55}),
    marks.map(x => path(`M${x} 1V17`, "var(--ink)", {"stroke-dasharray": "1.5 1.5"})),
    ends.length === 2 ? path(`M${X(ends[0])} 9H${X(ends[1])}`, "var(--tone)", {"stroke-width": 1.8}) : null,
    v === null ? null : box(X(v) - 2.5, 3, 5, 12, "var(--tone)", {stroke: "var(--paper)"})), withUnit(v, q.unit));
}

// hands --------------------------------------------------------------------
function choose(h, focus = false) {
  for (const [i, on] of [[S.head, false], [h, true]]) {
    CELLS[i].setAttribute("aria-selected", on); CELLS[i].tabIndex = on ? 0 : -1;
    ROWS.get(i).classList.toggle("on", on);
    $("legend").querySelector(`[data-i="${i}"]`)?.classList.toggle("on", on);
  }
  S.head = h; card(); $("live").textContent = told(h);
  if (focus) { CELLS[h].focus({preventScroll: true}); CELLS[h].scrollIntoView({block: "nearest"}); }
}
function byHand(h, focus) {                    // a choice made on the page, not by its address
  choose(h, focus);
  try { history.replaceState(null, "", "#" + D.names[h]); } catch { /* an embedded page has no address of its own */ }
}
const fromAddress = () => D.names.findIndex(n => [`#${n}`, `#${encodeURIComponent(n)}`].includes(location.hash));
const inLine = (cells, k) => cells[clamp(k, 0, cells.length - 1)];
function step(cell, key, far) {                // the cell a key leads to
  const back = key === "ArrowLeft" || key === "ArrowUp", sideways = key === "ArrowLeft" || key === "ArrowRight";
  if (S.order === "ranked") {
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
function tip(target) {
  const at = target?.closest?.("[data-i]:not(tr)"), t = $("tip"); t.hidden = !at; if (!at) return;
  t.textContent = told(Number(at.dataset.i));
  const r = at.getBoundingClientRect(), middle = r.left + r.width / 2 - t.offsetWidth / 2;
  t.style.left = `${scrollX + clamp(middle, 8, Math.max(8, root.clientWidth - t.offsetWidth - 8))}px`;
  t.style.top = `${scrollY + r.top - t.offsetHeight - 6}px`;
}
function sort(button) {
  const th = button.parentElement, {sort: name, part} = button.dataset, now = th.getAttribute("aria-sort");
  const up = now ? now === "descending" : !part, key = i => part ? value(name, i, part) : name === "rule" ? D.heads[i][4] : i;
  const rank = (a, b) => (key(a) === null) - (key(b) === null) || (up ? 1 : -1) * compare(key(a), key(b)) || a - b;
  for (const other of th.parentElement.children) other.removeAttribute("aria-sort");
  th.setAttribute("aria-sort", up ? "ascending" : "descending");
  document.querySelector("tbody").append(...[...HEADS].sort(rank).map(i => ROWS.get(i)));
}
function settings() {                          // what the radio buttons say; a statistic the part lacks gives way to the facts
  const form = $("controls"), said = new FormData(form);
  for (const k of ["colour", "part", "order"]) S[k] = said.get(k) ?? S[k];
  if (S.colour && !chosen()) { S.colour = ""; form.querySelector('[name=colour][value=""]').checked = true; }
  for (const label of form.querySelectorAll("[data-in]")) label.hidden = !label.dataset.in.split(" ").includes(S.part);
  arrange(); paint();
}
function filter(key) { S.filter = S.filter === key ? null : key; paint(); }
function theme() {
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  root.dataset.theme = (root.dataset.theme ?? system) === "dark" ? "light" : "dark";
  drawMap();
}

document.addEventListener("change", e => {
  if (e.target.form?.id !== "controls") return;
  settings(); if (e.target.name === "part") card();
});
document.addEventListener("click", e => {
  const at = e.target.closest("[data-filter],[data-sort],[data-i]:not(tr),.skip"); if (!at) return;
  if (at.matches(".skip")) { e.preventDefault(); CELLS[S.head].focus(); }
  else if (at.dataset.filter) filter(at.dataset.filter);
  else if (at.dataset.sort) sort(at);
  else byHand(Number(at.dataset.i), at.matches(".cell"));
});
document.addEventListener("keydown", e => {
  if (e.altKey || e.metaKey) return;
  if (e.key === "Escape") { tip(null); if (S.filter !== null) filter(S.filter); }
  if (!e.target.matches?.(".cell") || !/^(Arrow(Left|Right|Up|Down)|Home|End)$/.test(e.key)) return;
  e.preventDefault();
  byHand(Number(step(e.target, e.key, e.ctrlKey).dataset.i), true);
});
document.addEventListener("pointerover", e => tip(e.target));
document.addEventListener("focusin", e => tip(e.target));
addEventListener("hashchange", () => { const h = fromAddress(); if (h >= 0) choose(h); });
$("theme").addEventListener("click", theme);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawMap);
let before; addEventListener("beforeprint", () => { before = root.dataset.theme; root.dataset.theme = "light"; drawMap(); });
addEventListener("afterprint", () => { if (before) root.dataset.theme = before; else delete root.dataset.theme; drawMap(); });
let wide = innerWidth; addEventListener("resize", () => { if (innerWidth !== wide) { wide = innerWidth; legend(); card(); } });
for (const cell of CELLS) { cell.tabIndex = -1; cell.setAttribute("aria-selected", "false"); }
settings(); choose(fromAddress() >= 0 ? fromAddress() : S.head);
