// the legend: every square is a head ----------------------------------------
function square(h, x, y, side, fill) {
  const kind = (matches(h) ? "" : "dim") + (h === S.head ? " on" : "");
  return box(x.toFixed(1), y.toFixed(1), side, side, fill, {"data-i": h, class: kind});
}
function legend() {
  const s = chosen(), frame = $("legend"), at = document.activeElement?.dataset?.edge;
  frame.replaceChildren(...(s ? distribution(s, frame.clientWidth || 1200) : blocks(frame.clientWidth || 1200)));
  if (at) frame.querySelector(`[data-edge=${at}]`)?.focus();
}
function blocks(width) {                       // one button a role
  const groups = D.rules.map((r, i) => [r, HEADS.filter(h => D.heads[h][4] === i)]).filter(([, heads]) => heads.length);
  const deep = 5, room = width - groups.length * 26;
  const widths = side => groups.map(([r, heads]) => Math.max(Math.ceil(heads.length / deep) * side, breadth(roleWord(r.key)) + 48));
  let side = 6.5;
  while (side > 4.5 && widths(side).reduce((a, b) => a + b) > room) side -= .5;   // smaller than this they wrap
  while (side > 1.5 && Math.max(...widths(side)) > width) side -= .5;
  const out = groups.map(([r, heads]) => {
    const fill = `color-mix(in srgb, var(--${r.key}-bg) 62%, var(--${r.key}))`, w = Math.ceil(heads.length / deep) * side;
    const squares = heads.map((h, k) => square(h, Math.floor(k / deep) * side, (k % deep) * side, side - 1, fill));
    const b = make("button", {type: "button", class: `block r-${r.key}`, "data-filter": r.key, "aria-pressed": r.key === S.filter},
      make("svg", {width: Math.max(w, 1), height: deep * side, viewBox: `0 0 ${Math.max(w, 1)} ${deep * side}`, "aria-hidden": "true"}, squares),
      make("span", {}, make("i", {class: "sign", "aria-hidden": "true"}), make("b", {}, String(heads.length)), " " + roleWord(r.key)));
    return b;
  });
  return [make("div", {class: "blocks", role: "group", "aria-label": t("s.by.role", {list: groups.map(([r, heads]) => `${heads.length} ${roleWord(r.key)}`).join(t("comma"))})}, out)];
}
function distribution(s, width) {
  const known = HEADS.filter(h => !isNaN(s.values[h])).sort((a, b) => compare(s.values[a], s.values[b]));
  const tall = 62, room = 46, X = v => place(s, v) * width, out = [word(0, 10, s.title, "start", "strong")];
  let side, piles, most;
  for (side of COUNT > 400 ? [6, 5, 4, 3] : COUNT > 150 ? [6, 5, 4] : [7, 6, 5]) {
    piles = new Map(); most = 1;
    for (const h of known) {
      const bin = Math.round(place(s, s.values[h]) * (width - side) / side), pile = piles.get(bin) ?? [];
      piles.set(bin, pile); most = Math.max(most, pile.push(h));
    }
    if (most * side <= room) break;
  }
  const pitch = Math.min(side, (room - side) / Math.max(1, most - 1));
  for (const [bin, pile] of piles) pile.forEach((h, k) => out.push(
    square(h, bin * side, tall - side - k * pitch, side - 1, `color-mix(in srgb, ${ground(s, s.values[h])} 66%, var(--ink))`)));
  const stops = [0, 1, 2, 3, 4].map(i => make("stop", {offset: i / 4, "stop-color": `var(--${hue(s)}${i})`}));
  out.push(make("linearGradient", {id: "scale"}, stops), box(0, tall + 2, width, 7, "url(#scale)"));
  for (const tick of s.ticks) out.push(word(X(tick), tall + 22, short(tick, s.unit), X(tick) < 20 ? "start" : X(tick) > width - 20 ? "end" : "middle"));
  const judge = v => s.unit === "share" ? Math.floor(v * 1000 + .5) / 1000 : Math.floor(v * 100 + .5) / 100, under = s.name === "output_ratio";
  s.lines.forEach(line => {
    const x = X(line), n = known.filter(h => under ? judge(s.values[h]) < line : judge(s.values[h]) >= line).length, right = x > width - 140;
    out.push(path(`M${x} ${tall - room}V${tall + 9}`, "var(--ink)", {"stroke-dasharray": "2 2"}));
    out.push(word(right ? x - 6 : x + 6, tall - room + 9, t(under ? "s.below" : "s.at", {n, t: short(line, s.unit)}), right ? "end" : "start", "ink halo"));
  });
  const note = S.brush ? t("s.brushed", {n: HEADS.filter(matches).length, a: withUnit(edge(S.brush[0], s), s), b: withUnit(edge(S.brush[1], s), s)})
    : known.length < COUNT ? t("s.without", {n: COUNT - known.length}) : "";
  if (note) out.push(word(width, 10, note, "end", "ink"));
  const at = part => show(s.values[known[Math.floor(part * (known.length - 1))]] ?? NaN, s.unit);
  const svg = chart(width, tall + 28, t("s.by", {n: known.length, title: s.title, a: at(0), b: at(1), m: at(.5)}), out);
  svg.id = "dots"; svg.dataset.stat = s.id;
  return [svg, brush(s, width)];
}
// brushing: two handles on the scale, by hand, by keys, or drawn with the pointer ---------
function brush(s, width) {
  const [a, b] = S.brush ? S.brush.map(v => place(s, edge(v, s))) : [0, 1];
  const handle = (edge, at, label) => {
    const input = make("input", {type: "range", min: 0, max: 1000, step: 1, value: Math.round(at * 1000), "data-edge": edge, "aria-label": `${s.title} ${label}`, autocomplete: "off"});
    input.value = Math.round(at * 1000);
    input.setAttribute("aria-valuetext", withUnit(valueAt(s, at), s));
    return input;
  };
  return make("div", {class: "brush"}, make("i", {class: S.brush ? "on" : ""}), handle("low", a, t("s.from")), handle("high", b, t("s.to")));
}
const edge = (v, s) => v === -Infinity ? s.low : v === Infinity ? s.high : v;
function setBrush(from, to) {                  // ends along the scale, 0..1; the whole scale is no brush
  const s = chosen(), [a, b] = from <= to ? [from, to] : [to, from];
  S.brush = a <= 0 && b >= 1 ? null : [a <= 0 ? -Infinity : valueAt(s, a), b >= 1 ? Infinity : valueAt(s, b)];
  paint(); remember();
}
function slide(input) {
  const both = [...$("legend").querySelectorAll("[data-edge]")].map(i => Number(i.value) / 1000);
  setBrush(Math.min(...both), Math.max(...both));
}
let drawn = null;                              // where a brush was begun with the pointer
function along(event) {
  const frame = $("dots").getBoundingClientRect();
  return clamp((event.clientX - frame.left) / frame.width);
}
