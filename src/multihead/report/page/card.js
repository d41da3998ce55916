// the card -----------------------------------------------------------------
function card() {
  const h = S.head, frame = $("card"), open = frame.querySelector(".more")?.open ?? false;
  const charts = make("div", {class: "charts"}), last = make("div", {class: "last"});
  frame.className = `r-${rule(h).key}${M ? "" : " nomap"}`;
  frame.replaceChildren(...[words(h), M && mapFigure(h), charts, last].filter(Boolean));
  for (const [column, drawn] of [[charts, onTheLeft(h)], [last, onTheRight(h)]]) {
    const figures = drawn.map(([title, note]) => figure(title, note));
    column.append(...figures);
    drawn.forEach(([, , draw], i) => figures[i].append(draw(figures[i].clientWidth || 320)));
  }
  frame.append(others(h, open), exampleFrame(h), copies());
  drawMap(); example();
}
const charted = kind => Object.values(A).find(a => a.chart === kind && !a.of);
function onTheLeft(h) {                        // [title, note, what draws it]
  const all = allHeads(h), out = [], [profile, along, against] = ["profile", "line", "length"].map(charted);
  if (profile) out.push([t("s.profile"), t("s.profile.line", {heads: all}), w => bars(profile, h, w)]);
  if (along) out.push([t("s.entropy"), t("s.entropy.note", {unit: along.word}), w => line(along, h, w)]);
  if (against && octaves(against, h).length > 1) out.push([t("s.length"), t("s.length.note", {unit: against.word}), w => length(against, h, w)]);
  return out;
}
const judgedOn = s => TWIN_OF.get(s.id)?.lines.length ? TWIN_OF.get(s.id) : s;   // where the sink was set aside for the word
function onTheRight(h) {
  const all = allHeads(h), out = [], first = D.stats.filter(s => s.first), lands = charted("list");
  const note = t("s.numbers.note", {heads: all}) + (first.some(s => s.sampled) ? t("s.numbers.sampled") : "");
  out.push([t("s.numbers"), note, () => make("div", {class: "strips"}, first.map(s => strip(judgedOn(s), h)))]);
  if (lands) out.push([t("s.lands"), t("s.lands.note", {heads: all}), () => list(lands, h)]);
  return out;
}
function others(h, open) {                     // every other number, and the arrays without a place of their own
  const rest = D.stats.filter(s => !s.first && !(s.of && TWIN_OF.get(`${s.part}/${s.of}`))), plain = Object.values(A).filter(a => a.chart === "bars" && !a.of);
  const inside = make("div", {class: "inside"}), more = make("details", {class: "more"}, make("summary", {}, t("s.more", {n: D.stats.length})), inside);
  const fill = () => {
    if (inside.childNodes.length) return;
    const parts = [...new Set(rest.map(s => s.part))];
    inside.append(make("p", {class: "sub"}, t("s.more.note")), make("div", {class: "strips"}, rest.map(s => {
      const one = strip(s, h);
      if (s.part !== "texts" && parts.length > 1) one.firstElementChild.append(make("small", {}, " " + t("s.random")));
      return one;
    })));
    for (const a of plain) {
      const frame = figure(a.title, t("s.profile.line", {heads: allHeads(h)}));
      inside.append(frame); frame.append(bars(a, h, Math.min(660, frame.clientWidth || 400)));
    }
  };
  more.addEventListener("toggle", () => { if (more.open) fill(); });
  if (open) { more.open = true; queueMicrotask(fill); }
  return more;
}
function words(h) {
  const [stack, layer, head, kv] = D.heads[h], r = rule(h), near = rival(h);
  const shares = D.stacks[stack].shared ? HEADS.filter(g => g !== h && [0, 1, 3].every(k => D.heads[g][k] === D.heads[h][k])) : [];
  const joint = i => i === 0 ? "" : i === shares.length - 1 ? t("and") : t("comma");
  const even = r.even?.[h] ?? NaN, numbers = isNaN(judged(h)) ? "" : ` (${show(judged(h), "share")}${isNaN(even) ? "" : t("comma") + t("s.even", {v: show(even, "share")})})`;
  return make("div", {class: "words"},
    make("h2", {}, D.names[h], make("small", {}, " " + (D.stacks.length > 1 ? D.stacks[stack].name + t("comma") : "") + t("s.place", {l: layer, h: head}))),
    make("p", {class: "fact"}, make("i", {class: "sign", "aria-hidden": "true"}), make("span", {}, t("s.looks") + t("colon")), roleWord(r.key), make("span", {class: "nums"}, numbers)),
    near ? make("p", {class: "near"}, t("s.near", {role: roleWord(near.key)})) : null,
    make("p", {class: "say"}, sentences(h)),
    shares.length ? make("p", {class: "sub"}, t("s.shares"), shares.flatMap((m, i) => [joint(i), link(m)])) : null,
    alike(h));
}
function sentences(h) {
  const r = rule(h), out = [t(`said.${r.key}`, {v: show(judged(h), "share"), sink: D.sink[0]})], own = r.ends?.[h];
  const setAside = r.aside ? ` (${D.sink[0]} ${t("s.aside")})` : "";
  if (setAside) out[0] = out[0].replace(/[.。]$/, end => setAside + end);
  if (own && !isNaN(own[0])) out[0] = out[0].replace(/[.。]$/, end => `${t("comma")}${t("s.interval", {a: show(own[0], "share"), b: show(own[1], "share")})}${end}`);
  if (!r.values) {
    const closest = D.rules.filter(x => x.values && !isNaN(x.values[h])).sort((a, b) => b.values[h] / b.threshold - a.values[h] / a.threshold)[0];
    if (closest) out.push(t("s.nearest", {role: roleWord(closest.key), v: show(closest.values[h], "share"), t: short(closest.threshold, "share")}));
  }
  if (["induction", "same"].includes(r.key) && sinkOf(h) >= .5) out.push(t("s.text", {v: show(sinkOf(h), "share"), sink: D.sink[0]}));
  const ratio = byName("output_ratio")?.values[h] ?? NaN;
  if (!isNaN(ratio)) out.push(t("s.writes", {v: show(ratio, "")}));
  return out.join(t("space"));
}
function alike(h) {                            // the three heads of its layer that look most like it
  const near = LIKE ? likest(h) : [], kinds = ["pattern", "aside", "output"].filter(k => LIKE?.[k]);
  if (!near.length) return null;
  return make("div", {class: "alike"},
    make("h3", {}, t("s.alike", {l: D.heads[h][1]}), make("span", {}, " " + kinds.map(k => t(`s.alike.${k}`)).join(t("comma")))),
    make("div", {}, near.map(([g, at]) => {
      const classes = [...CELLS[g].classList].filter(k => /^(cell|p\d+|k\d+|r-)/.test(k)), canvas = CELLS[g].querySelector("canvas");
      const copy = canvas ? make("canvas", {width: canvas.width, height: canvas.height}) : null;
      copy?.getContext("2d").drawImage(canvas, 0, 0);
      const twin = make("span", {class: [...classes, copy ? "own" : ""].join(" ")}, make("i", {}, copy));
      const b = make("button", {type: "button", "data-i": g}, twin, make("b", {}, D.names[g].split(".").slice(-2).join(".")), kinds.map(k => make("span", {}, t(`s.alike.${k}.v`, {v: show(LIKE[k][at], "")}))));
      return b;
    })));
}
