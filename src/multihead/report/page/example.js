// examples: what a head does on words, patches or moments ----------------------
const LEAST = .08;
function linksOf(e, h) {                       // for each unit: {links: [[place, weight]], sink, elsewhere}
  const at = e.heads.indexOf(h); if (at < 0) return null;
  e.bytes ??= bytes(e.data);
  const wide = (e.keys ?? e.words).length > 256, size = wide ? 3 : 2, root = q => (q / 255) ** 2;
  if (!e.starts) {
    e.starts = []; let i = 0;
    for (const _ of e.heads) { e.starts.push(i); for (const __ of e.words) i += 3 + e.bytes[i] * size; }
  }
  let i = e.starts[at];
  return e.words.map(() => {
    const n = e.bytes[i++], links = [];
    for (let k = 0; k < n; k++, i += size) links.push([wide ? e.bytes[i] + 256 * e.bytes[i + 1] : e.bytes[i], root(e.bytes[i + size - 1])]);
    const sink = root(e.bytes[i++]), elsewhere = root(e.bytes[i++]), left = 1 - sink;
    if (!aside()) return {links, sink, elsewhere};
    const by = left >= .1 ? 1 / left : 0;        // under a tenth left there is nothing to show
    return {links: links.map(([j, w]) => [j, Math.min(1, w * by)]), sink: 0, elsewhere: Math.min(1, elsewhere * by)};
  });
}
const offered = h => D.examples.map((e, i) => [e, i]).filter(([e]) => e.heads.includes(h));
const exampleNow = h => { const all = offered(h).map(([, i]) => i); return all.includes(S.ex) ? S.ex : all.includes(D.best[h]) ? D.best[h] : all[0] ?? -1; };
const patched = e => e.picture && e.grid && e.grid[0] > 1 && e.grid[0] * e.grid[1] === e.words.length && !e.keys;
function exampleFrame(h) {
  const all = offered(h); if (!all.length) return "";
  const now = exampleNow(h), e = D.examples[now], title = t(patched(e) ? "s.example.images" : e.picture ? "s.example.audio" : "s.example");
  const note = t(patched(e) ? "s.example.patch" : e.keys ? "s.example.cross" : "s.example.note");
  const name = (x, i) => (x.part === "repeats" ? t("s.example.random") : x.name) + (i === D.best[h] ? ` (${t("s.example.best")})` : "");
  return make("div", {class: "ex"},
    make("form", {class: "bar"}, make("fieldset", {}, make("legend", {}, title), all.map(([x, i]) => make("label", {}, make("input", {type: "radio", name: "ex", value: i, autocomplete: "off", ...(i === now ? {checked: ""} : {})}), make("bdi", {}, name(x, i))))), make("span", {class: "sub"}, note)),
    make("div", {id: "arcs", tabindex: 0, role: "group", "aria-label": t("s.example.words")}),
    make("p", {id: "spoken", class: "sub", "aria-live": "polite"}));
}
function example() {
  const frame = $("arcs"); if (!frame) return;
  const e = D.examples[exampleNow(S.head)], links = linksOf(e, S.head);
  if (S.word !== null && S.word >= e.words.length) S.word = null;
  frame.replaceChildren((patched(e) ? patches : e.keys ? across : arcs)(e, links, frame.clientWidth || 1200));
  $("spoken").textContent = S.word === null ? " " : spoken(e, links);
}
const seen = text => text.replace(/\n/g, "⏎").replace(/\t/g, "⇥").trim() || (text.includes("⏎") ? "⏎" : "␣");
function spoken(e, links) {                    // a word's weights as numbers
  const {links: mine, sink, elsewhere} = links[S.word], keys = e.keys ?? e.words;
  const told = mine.map(([j, w]) => t("s.link", {word: `\u2068${seen(keys[j])}\u2069`, v: percent(w)}));
  if (sink >= .005) told.push(t("s.sink.v", {v: percent(sink)}));
  if (elsewhere >= .005) told.push(t("s.elsewhere", {v: percent(elsewhere)}));
  return t("s.word", {word: `\u2068${seen(e.words[S.word])}\u2069`, links: told.join(t("comma")) || "–"});
}
const ruler = document.createElement("canvas").getContext("2d");
const RIGHT_TO_LEFT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff]/;
function lines(texts, full) {                  // where each word stands: [{line, x, w}], wrapped, mirrored where read so
  ruler.font = `15px ${getComputedStyle(root).getPropertyValue("--serif")}`;
  const widths = texts.map(w => ruler.measureText(seen(w)).width + 2), out = [];
  const mirrored = texts.filter(w => RIGHT_TO_LEFT.test(w)).length > texts.length / 2;
  const sum = widths.reduce((a, b) => a + b, 0), count = Math.max(1, Math.ceil((sum + 9 * texts.length) / (full - 8)));
  const goal = count > 1 ? full - 8 : Infinity, gap = count > 1 ? 9 : clamp((full - 8 - sum) / Math.max(1, texts.length - 1), 7, 46);
  let x = 4, line = 0;
  widths.forEach((w, i) => {
    if (x > 4 && x + w > goal) { x = 4; line++; }
    out.push({line, w, x: mirrored ? full - x - w / 2 : x + w / 2}); x += w + gap;
  });
  return out;
}
function told_(e, i, at, y, v) {               // a word, its weight below it while another is pointed at
  return make("g", {class: "w" + (S.word === i ? " on" : ""), "data-w": i}, make("text", {class: "word", x: at.x.toFixed(1), y, "text-anchor": "middle"}, seen(e.words[i])),
    v >= .005 ? make("text", {class: "pct", x: at.x.toFixed(1), y: y + 15, "text-anchor": "middle"}, percent(v)) : null);
}
function arcs(e, links, full) {
  const at = lines(e.words, full), count = at.at(-1).line + 1, shown = [];
  links.forEach(({links: mine, sink}, i) => {
    if (S.word !== null && S.word !== i) return;
    for (const [j, v] of mine) if (v >= (S.word === null ? LEAST : .03)) shown.push([i, j, v]);
    if (sink >= LEAST) shown.push([i, -1, sink]);
  });
  const picture = e.picture ? 76 : 0, span = l => Math.max(0, ...shown.filter(([i, j]) => j >= 0 && at[i].line === l && at[j].line === l).map(([i, j]) => Math.abs(at[i].x - at[j].x)));
  const ahead = shown.some(([i, j]) => j > i), tops = [], scale = count > 1 ? .16 : .28; let y = picture;
  for (let l = 0; l < count; l++) {
    const rise = clamp(span(l) * scale + 12, count > 1 ? 30 : 40, count > 1 ? 62 : 116);
    y += rise; tops.push({base: y + 16, rise}); y += 16 + (ahead ? Math.min(rise, 44) : 22);
  }
  const svg = make("svg", {width: full, height: y + 4, viewBox: `0 0 ${full} ${y + 4}`, role: "img", "aria-label": e.words.map(seen).join(" ")});
  if (picture) svg.append(make("image", {href: e.picture, x: 4, y: 0, width: full - 8, height: 68, preserveAspectRatio: "none"}));
  for (const [i, j, v] of shown) svg.append(...arc(at, tops, i, j, v));
  e.words.forEach((_, i) => {
    const w = S.word === null ? 0 : links[S.word].links.find(([j]) => j === i)?.[1] ?? 0;
    svg.append(told_(e, i, at[i], tops[at[i].line].base, w));
  });
  return svg;
}
function arc(at, tops, i, j, v) {
  const strength = S.word === null ? clamp(.2 + v * .8) : .9, wide = (.6 + 4.4 * v).toFixed(2), ink = "var(--tone)", a = at[i], top = tops[a.line].base - 15;
  if (j < 0) return [path(`M${a.x} ${top}V${top - 4 - 14 * v}`, ink, {"stroke-width": wide, opacity: .3, "stroke-linecap": "round"})];   // on the sink: a pale stalk
  const b = at[j], more = {"stroke-width": wide, opacity: strength.toFixed(2)};
  if (i === j) return [make("circle", {cx: a.x, cy: top, r: 1 + 3 * v, fill: ink, opacity: strength})];
  if (a.line !== b.line) {                     // to another line: a slanted curve
    const up = b.line < a.line, y1 = up ? top : top + 22, y2 = tops[b.line].base + (up ? 5 : -15), m = (y1 + y2) / 2;
    return [path(`M${a.x} ${y1}C${a.x} ${m} ${b.x} ${m} ${b.x} ${y2}`, ink, more)];
  }
  const r = Math.abs(a.x - b.x) / 2, back = j < i, tall = Math.min(r * .56, tops[a.line].rise - 8), y = back ? top : top + 22, sweep = back === (b.x < a.x) ? 0 : 1;
  return [path(`M${a.x} ${y}A${r} ${back ? tall : Math.min(tall, 36)} 0 0 ${sweep} ${b.x} ${y}`, ink, more)];
}
function across(e, links, full) {              // cross-attention: what asks above, what is looked at below
  const above = lines(e.words, full), under = e.picture ? e.keys.map((_, j) => ({line: 0, x: 4 + (j + .5) * (full - 8) / e.keys.length})) : lines(e.keys, full);
  const queries = above.at(-1).line + 1, keys = under.at(-1).line + 1, from = l => 18 + l * 30, to = from(queries - 1) + 92, tall = to + (e.picture ? 72 : keys * 28);
  const svg = make("svg", {width: full, height: tall, viewBox: `0 0 ${full} ${tall}`, role: "img", "aria-label": e.words.map(seen).join(" ")});
  const of = S.word === null ? new Map() : new Map(links[S.word].links);
  links.forEach(({links: mine}, i) => {
    if (S.word !== null && S.word !== i) return;
    for (const [j, v] of mine) if (v >= LEAST || S.word === i) {
      const a = above[i], b = under[j], y1 = from(a.line) + 5, y2 = to + b.line * 28 - (e.picture ? 2 : 15), m = (y1 + y2) / 2;
      svg.append(path(`M${a.x} ${y1}C${a.x} ${m} ${b.x} ${m} ${b.x} ${y2}`, "var(--tone)", {"stroke-width": (.6 + 4.4 * v).toFixed(2), opacity: (S.word === null ? clamp(.2 + v * .8) : .9).toFixed(2)}));
    }
  });
  if (e.picture) svg.append(make("image", {href: e.picture, x: 4, y: to, width: full - 8, height: 68, preserveAspectRatio: "none"}));
  else e.keys.forEach((w, j) => svg.append(make("text", {class: "word key", x: under[j].x.toFixed(1), y: to + under[j].line * 28, "text-anchor": "middle"}, seen(w)),
    of.get(j) >= .005 ? make("text", {class: "pct", x: under[j].x.toFixed(1), y: to + 13 + under[j].line * 28, "text-anchor": "middle"}, percent(of.get(j))) : ""));
  e.words.forEach((_, i) => svg.append(told_(e, i, above[i], from(above[i].line), 0)));
  return svg;
}
function patches(e, links, full) {             // a picture: the weights lie on its patches
  const [rows, columns] = e.grid, w = Math.min(420, full), tall = Math.round(w * rows / columns), lane = w / columns, high = tall / rows;
  const received = new Array(e.words.length).fill(0);
  if (S.word === null) for (const {links: mine} of links) for (const [j, v] of mine) received[j] += v; else for (const [j, v] of links[S.word].links) received[j] = v;
  const top = S.word === null ? Math.max(...received, 1e-9) : 1;
  const svg = make("svg", {width: w, height: tall, viewBox: `0 0 ${w} ${tall}`, role: "img", "aria-label": S.word === null ? t("s.mean") : spoken(e, links), class: "patches"},
    make("image", {href: e.picture, width: w, height: tall, preserveAspectRatio: "none"}));
  received.forEach((v, i) => {
    const x = (i % columns) * lane, y = Math.floor(i / columns) * high, on = i === S.word;
    svg.append(make("g", {class: "w" + (on ? " on" : ""), "data-w": i},
      box(x.toFixed(1), y.toFixed(1), lane.toFixed(1), high.toFixed(1), v > 0 ? "var(--induction-bg)" : "transparent", {"fill-opacity": (.85 * Math.sqrt(clamp(v / top))).toFixed(2), class: "patch"}),
      S.word !== null && v >= .03 ? make("text", {class: "pct", x: (x + lane / 2).toFixed(1), y: (y + high / 2 + 4).toFixed(1), "text-anchor": "middle"}, String(Math.round(100 * v))) : null));
  });
  if (S.word !== null) svg.append(svg.querySelector(".w.on"));
  return svg;
}
