// charts of the card: each takes an array, a head and a width -----------------
function bars(a, h, w) {
  const all = lanes(a, h), lane = w / all.length, foot = 112, self = all.findIndex(([name]) => name === "self"), sum = ([, off, on]) => off + on;
  const top = Math.max(.1, Math.ceil(10 * Math.max(...all.flatMap(l => [sum(l), l[3]]))) / 10), Y = x => foot - (foot - 12) * clamp(x / top);
  const saying = name => name === "self" ? t("s.itself") : name.replace(/^(\d+)-\d+$/, "$1");
  const longest = Math.max(...all.map(([name]) => saying(name).length)) * 6.4 + 8, every = Math.max(1, Math.ceil(longest / lane)), from = Math.max(0, self) % every;
  const named = all.map(([name], i) => name && i % every === from ? word(clamp((i + .5) * lane, 8, w - 8), foot + 15, cut(saying(name), 14), "middle") : null);
  const pale = all.some(l => l[2] > .002), two = self > 0 && self < all.length - 1;
  // Two ways to look, and little room: what is pale is told on a line of its own.
  const said = t("s.pale", {sink: D.sink[1]}), under = a.distance && pale && two && breadth(said + t("s.back") + t("s.ahead")) > w - 24;
  return chart(w, foot + (a.distance ? 34 : 20) + (under ? 15 : 0), a.title,
    all.map((l, i) => [
      box((i * lane + .6).toFixed(1), Y(l[1]).toFixed(1), Math.max(.5, lane - 1.2).toFixed(1), (foot - Y(l[1])).toFixed(1), "var(--tone)"),
      l[2] > .002 ? box((i * lane + .6).toFixed(1), Y(sum(l)).toFixed(1), Math.max(.5, lane - 1.2).toFixed(1), (Y(l[1]) - Y(sum(l))).toFixed(1), "var(--tone)", {opacity: .3}) : null]),
    path(all.map(([, , , m], i) => `${i ? "" : `M0 ${Y(m).toFixed(1)}`}V${Y(m).toFixed(1)}H${((i + 1) * lane).toFixed(1)}`).join(""), "var(--ink)"),
    path(`M0 ${foot + .5}H${w}`, "var(--ink)"), word(0, 9, short(top, a.unit)), named,
    a.distance && self !== 0 ? word(0, foot + 31, t("s.back")) : null,
    a.distance && self < all.length - 1 ? word(w, foot + 31, t("s.ahead"), "end") : null,
    a.distance && pale ? word(two ? w / 2 : w, foot + (under ? 46 : 31), said, two ? "middle" : "end") : null);
}
function trace(values, X, Y) {                 // a line with gaps where there is no value
  return values.map((v, i) => isNaN(v) ? "" : `${i && !isNaN(values[i - 1]) ? "L" : "M"}${X(i).toFixed(1)} ${Y(v).toFixed(1)}`).join("");
}
function neighbours(h, drawn) {                // the other heads of its layer; more than a hundred as one stroke
  const others = layerOf(h).filter(g => g !== h).map(drawn), pale = {opacity: .5};
  return (others.length > 100 ? [others.join("")] : others).map(d => path(d, "var(--faint)", pale));
}
function line(a, h, w) {
  const foot = 96, top = a.high > 0 ? a.high : 1, n = Math.max(1, a.size - 1), X = i => i / n * w, Y = v => foot - (foot - 14) * clamp(v / top);
  return chart(w, foot + 20, a.title, neighbours(h, g => trace(array(a, g), X, Y)),
    path(trace(array(a, h), X, Y), "var(--tone)", {"stroke-width": 2.4}), path(`M0 ${foot + .5}H${w}`, "var(--ink)"), word(0, 9, short(top, a.unit)),
    word(0, foot + 15, t("s.start")), word(w / 2, foot + 15, t("s.middle"), "middle"), word(w, foot + 15, t("s.finish"), "end"));
}
function octaves(a, h) {                       // the bins in which any head of its stack has a value
  return a.labels.map((_, i) => i).filter(i => HEADS.some(g => D.heads[g][0] === D.heads[h][0] && !isNaN(array(a, g)[i])));
}
function length(a, h, w) {                     // entropy by number of visible keys, one bin an octave
  const used = octaves(a, h), from = used[0], to = used.at(-1);
  const labels = a.labels.slice(from, to + 1), of = g => array(a, g).slice(from, to + 1), n = Math.max(1, labels.length - 1);
  const middle = labels.map(l => { const [low, high] = l.match(/\d+/g).map(Number); return Math.log(high ? Math.sqrt(low * high) : low * 1.5); });
  const foot = 96, top = Math.max(...middle, a.high, .1), X = i => i / n * w, Y = v => foot - (foot - 14) * clamp(v / top);
  const every = Math.max(1, Math.ceil(n / 6));
  return chart(w, foot + 34, a.title, neighbours(h, g => trace(of(g), X, Y)),
    path(trace(middle, X, Y), "var(--ink)", {"stroke-dasharray": "2 2"}), path(trace(of(h), X, Y), "var(--tone)", {"stroke-width": 2.4}),
    path(`M0 ${foot + .5}H${w}`, "var(--ink)"), word(0, 9, short(top, a.unit)),
    labels.map((l, i) => i % every ? null : word(X(i), foot + 15, l.match(/\d+/)[0], i === 0 ? "start" : i === n ? "end" : "middle")),
    word(w, foot + 31, t("s.length.axis"), "end"));
}
const row = (label, drawing, text, title = label) => make("div", {class: "strip"}, make("bdi", {title}, label), drawing, make("b", {}, text));
function list(a, h) {                          // where the weight lands
  const twin = twinArray("token_class"), shown = aside() && twin ? twin : a, w = 150, v = array(shown, h), all = zeros(mean(shown, h));
  const top = Math.max(...zeros(v), ...all, 1e-9), left = twin && !aside() ? zeros(array(twin, h)) : null, sink = sinkOf(h);
  return make("div", {class: "list"}, v.map((x, i) => {
    if (!(all[i] > .0005 || x > .0005)) return null;
    const off = left ? Math.min(x, left[i] * (1 - (isNaN(sink) ? 0 : sink))) : x || 0, X = y => ((y || 0) / top * w).toFixed(1);
    return row(a.labels[i] ?? String(i), chart(w, 16, a.title,
      box(0, 3, X(off), 10, "var(--tone)"), x - off > 1e-4 ? box(X(off), 3, X(x - off), 10, "var(--tone)", {opacity: .3}) : null,
      path(`M${X(all[i])} 1V15`, "var(--ink)", {"stroke-width": 1.5})), show(x, a.unit));
  }));
}
function strip(base, h) {                      // one number among all heads
  const s = version(base), w = 140, X = v => 3 + place(s, v) * (w - 6), v = s.values[h];
  s.trace ??= s.values.map(x => isNaN(x) ? "" : `M${X(x).toFixed(1)} 5v8`).join("");
  const own = s.ends?.[h], rows = s.sampled?.[h];
  const title = [s.title, own && !isNaN(own[0]) ? t("s.interval", {a: show(own[0], s.unit), b: show(own[1], s.unit)}) : "",
    rows && !isNaN(rows[0]) ? t("s.sampled", {a: show(rows[0], s.unit), b: show(rows[1], s.unit)}) : ""].filter(Boolean).join(t("comma"));
  return row(base.short, chart(w, 18, t("s.among", {title}), path(s.trace, "var(--faint)", {"stroke-width": .7, opacity: .55}),
    s.lines.map(x => path(`M${X(x)} 1V17`, "var(--ink)", {"stroke-dasharray": "1.5 1.5"})),
    rows && !isNaN(rows[0]) ? box(X(rows[0]), 6.5, Math.max(1, X(rows[1]) - X(rows[0])), 5, "var(--paper)", {stroke: "var(--tone)"}) : null,
    own && !isNaN(own[0]) ? path(`M${X(own[0])} 9H${X(own[1])}M${X(own[0])} 6.5v5M${X(own[1])} 6.5v5`, "var(--tone)", {"stroke-width": 1.6}) : null,
    isNaN(v) ? null : box(X(v) - 2.5, 3, 5, 12, "var(--tone)", {stroke: "var(--paper)"})), Math.abs(v) < 999.5 ? withUnit(v, s) : show(v, s.unit), title);
}
function mapFigure(h) {
  const w = 224, [rows, columns] = M.shape, tall = Math.round(w * rows / columns), span = (...inside) => make("span", {}, ...inside), frame = make("div", {class: "mapframe"});
  const canvas = make("canvas", {id: "bigmap", width: columns, height: rows, role: "img", "aria-label": `${t("s.map")} ${D.names[h]}`});
  canvas.style.height = `${tall}px`;
  const side = span(span(t("s.queries")), span(t("s.finish"))), over = span(span(t("s.keys")), span(t("s.finish"))); side.className = "down"; over.className = "across";
  frame.append(over, side, canvas);
  if (A.sink_by_position) {                    // beside each row: its weight on the sink
    const v = zeros(array(A.sink_by_position, h)), lane = tall / v.length, beside = chart(30, tall, t("s.onsink"),
      v.map((x, i) => box(0, (i * lane).toFixed(1), (28 * x).toFixed(1), Math.max(.5, lane - 1).toFixed(1), "var(--tone)", {opacity: .45})), path(`M0 0V${tall}`, "var(--line)"));
    beside.classList.add("beside"); const over2 = span(t("s.onsink")); over2.className = "beside over";
    frame.append(beside, over2);
  }
  const ticks = [[0, "start"], [.05, "middle"], [.25, "middle"], [.5, "middle"], [1, "end"]];
  if (A.received) {
    const twin = twinArray("received"), v = zeros(array(aside() && twin ? twin : A.received, h)), top = Math.max(...v, 1e-9), lane = w / v.length, under = span(t("s.received")); under.className = "across";
    frame.append(chart(w, 30, t("s.received"), v.map((x, i) => box(i * lane, (30 - 28 * x / top).toFixed(1), Math.max(.5, lane - 1), (28 * x / top).toFixed(1), "var(--tone)")),
      path(`M0 30H${w}`, "var(--line)")), under);
  }
  frame.append(make("canvas", {id: "ramp", width: w, height: 1, "aria-hidden": "true"}),
    chart(w, 14, t("s.scale"), ticks.map(([v, at]) => word(Math.sqrt(v) * w, 11, short(v, "share"), at))));
  const left = 1 - sinkOf(h), of = aside() && !isNaN(left) ? t("s.map.of", {v: show(left, "share"), sink: D.sink[0]}) : "";
  return figure(t("s.map"), of, frame);
}
function drawMap() {
  const frame = $("card"); if (!M || !$("bigmap")) return;
  const stops = ["var(--raise)", "var(--ground)", "var(--tone)", "var(--on)"].map(c => resolve(c, frame)), fade = faded(S.head);
  const fill = (canvas, values, by) => {
    const pen = canvas.getContext("2d"), image = pen.createImageData(canvas.width, canvas.height);
    values.forEach((v, i) => {
      if (isNaN(v)) return;                    // left as paper: cannot be seen
      const x = Math.sqrt(clamp(v * by)) * 3, k = Math.min(2, Math.floor(x));
      image.data.set([...stops[k].map((c, j) => c + (stops[k + 1][j] - c) * (x - k)), 255], i * 4);
    });
    pen.putImageData(image, 0, 0);
  };
  fill($("bigmap"), mapOf(S.head), fade);
  fill($("ramp"), Array.from({length: 224}, (_, x) => (x / 223) ** 2), 1);
}
