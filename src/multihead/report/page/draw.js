// building -----------------------------------------------------------------
const DRAWN = new Set(["svg", "g", "rect", "path", "circle", "text", "image", "linearGradient", "stop"]);
function make(tag, attributes = {}, ...children) {
  const e = DRAWN.has(tag) ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [k, v] of Object.entries(attributes)) if (v !== null) e.setAttribute(k, v);
  e.append(...children.flat(3).filter(c => c !== null && c !== undefined));
  return e;
}
const cut = (text, most) => [...text].length > most ? [...text].slice(0, most - 1).join("") + "…" : text;
const word = (x, y, text, anchor = "start", kind = null) => make("text", {x, y, "text-anchor": anchor, class: kind}, cut(text, 60));
const path = (d, stroke, more = {}) => make("path", {d, stroke, fill: "none", ...more});
const box = (x, y, width, height, fill, more = {}) => make("rect", {x, y, width, height, fill, ...more});
const figure = (title, note, ...inside) => make("figure", {}, make("h3", {}, title, note ? make("span", {}, " " + note) : null), ...inside);
const chart = (w, h, label, ...inside) => make("svg", {viewBox: `0 0 ${w} ${h}`, width: w, height: h, role: "img", "aria-label": label}, ...inside);
const link = h => make("a", {href: "#" + D.names[h]}, D.names[h]);
const button = (text, act) => { const b = make("button", {type: "button"}, text); b.addEventListener("click", act); return b; };

// heads --------------------------------------------------------------------
const rule = h => D.rules[D.heads[h][4]];
const rival = h => D.heads[h][5] < 0 ? null : D.rules[D.heads[h][5]];
const judged = h => rule(h).values?.[h] ?? NaN;
const layerOf = h => HEADS.filter(g => D.heads[g][0] === D.heads[h][0] && D.heads[g][1] === D.heads[h][1]);
const KINDS = {quiet: h => QUIET.has(h), twin: h => TWIN.has(h), unsure: h => rival(h) !== null};
function matches(h) {
  if (S.brush) {
    const v = chosen()?.values[h] ?? NaN;
    if (!(v >= S.brush[0] && v <= S.brush[1])) return false;
  }
  return S.filter === null || (KINDS[S.filter]?.(h) ?? rule(h).key === S.filter);
}
function told(h) {
  const s = chosen(), near = rival(h);
  if (s) return t("s.told", {head: D.names[h], title: s.title, value: withUnit(s.values[h], s)});
  return `${D.names[h]}${t("comma")}${roleWord(rule(h).key)}${near ? t("comma") + t("s.near", {role: roleWord(near.key)}) : ""}`;
}
const allHeads = h => COUNT === 1 ? t("s.heads.one") : D.stacks.length > 1
  ? t("s.heads.stack", {n: HEADS.filter(g => D.heads[g][0] === D.heads[h][0]).length, stack: D.stacks[D.heads[h][0]].name}) : t("s.heads.all", {n: COUNT});

// canvases: they know no variables ------------------------------------------
const probe = make("span", {hidden: ""}); document.body.append(probe);
function resolve(colour, within = null) {
  (within ?? document.body).append(probe);
  probe.style.color = colour;
  return getComputedStyle(probe).color.match(/[\d.]+/g).slice(0, 3).map(Number);
}
function inkOn(canvas, h) {                    // black of some strength over any ground, as the pictures of the grid
  const [rows, columns] = M.shape, causal = D.stacks[D.heads[h][0]].causal, fade = faded(h);
  canvas.width = columns; canvas.height = rows;
  const pen = canvas.getContext("2d"), image = pen.createImageData(columns, rows), map = mapOf(h);
  map.forEach((v, i) => {
    const unseen = isNaN(v) || (causal && (i % columns) / columns >= (Math.floor(i / columns) + 1) / rows - 1e-12);
    const shade = unseen ? 140 : 0, tone = unseen ? 255 : 0;
    image.data.set([tone, tone, tone, unseen ? shade : Math.round(230 * Math.sqrt(clamp(v * fade)))], i * 4);
  });
  pen.putImageData(image, 0, 0);
}

// weight by distance: what lies back is at the left --------------------------
function lanes(a, h) {                         // [name, weight off the sink, on the sink, mean of all]
  const twin = twinArray(Object.keys(A).find(k => A[k] === a)), end = a.size - 1, sink = sinkOf(h);
  const far = i => i * 2 === end ? "self" : String(Math.abs(i - end / 2)), ends = i => i === 0 ? t("s.start") : i === end ? t("s.finish") : "";
  const plain = name => name === "0" ? "self" : name.replace(/^(ahead|back) |^[-−]/, "");
  const name = i => a.labels.length ? a.distance ? plain(a.labels[i]) : a.labels[i] : a.distance ? far(i) : ends(i);
  const whole = zeros(array(a, h)), left = twin ? zeros(array(twin, h)) : null, all = mean(aside() && twin ? twin : a, h);
  const out = whole.map((x, i) => {
    if (!left) return [name(i), x, 0, all[i] || 0];
    if (aside()) return [name(i), left[i] * faded(h), 0, all[i] || 0];
    const off = Math.min(x, left[i] * (1 - (isNaN(sink) ? 0 : sink)));
    return [name(i), off, x - off, all[i] || 0];
  });
  if (a.flip) out.reverse();
  const used = out.map(([, , , m]) => m > 0);    // distances at the ends that no head reaches are left out
  return a.distance && used.includes(true) ? out.slice(used.indexOf(true), used.lastIndexOf(true) + 1) : out;
}
function distanceCell(h) {                     // a thumbnail of the profile
  const all = lanes(A.distance_histogram, h), lane = 92 / all.length, svg = make("svg", {viewBox: "0 0 96 96", preserveAspectRatio: "none", "aria-hidden": "true"});
  all.forEach(([, off, on], i) => {
    const tall = 90 * Math.sqrt(off + on), pale = off + on > 0 ? tall * on / (off + on) : 0, x = (2 + i * lane).toFixed(1), w = (lane * .86).toFixed(1);
    if (pale) svg.append(box(x, (94 - tall).toFixed(1), w, pale.toFixed(1), "#000", {opacity: .3}));
    svg.append(box(x, (94 - tall + pale).toFixed(1), w, (tall - pale).toFixed(1), "#000", {opacity: .85}));
  });
  return svg;
}
