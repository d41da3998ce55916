// the grid -----------------------------------------------------------------
const own = () => (S.cell === "dist" && A.distance_histogram) || (aside() && M?.content);   // drawn by the script, not by the pictures
let drawing = 0;
function thumbnails() {                        // in idle time where there are many
  const mine = ++drawing, queue = [...HEADS], now = own();
  for (const cell of CELLS) cell.classList.toggle("own", Boolean(now));
  if (!now) { for (const cell of CELLS) cell.firstElementChild.replaceChildren(); return; }
  const some = n => {
    for (const h of queue.splice(0, n)) {
      const i = CELLS[h].firstElementChild;
      if (S.cell === "dist") { i.replaceChildren(distanceCell(h)); continue; }
      const canvas = make("canvas", {"aria-hidden": "true"}); inkOn(canvas, h); i.replaceChildren(canvas);
    }
  };
  const more = () => { if (mine !== drawing || !queue.length) return; some(60); setTimeout(more); };
  if (COUNT > 500) more(); else some(COUNT);
}
function paint() {
  const s = chosen();
  CELLS.forEach((cell, h) => {
    const v = s ? s.values[h] : judged(h), fill = s ? ground(s, v) : "";
    cell.firstElementChild.style.background = fill ?? "";
    cell.classList.toggle("na", fill === null);
    cell.classList.toggle("dim", !matches(h));
    cell.dataset.v = s || !isNaN(v) ? show(v, s ? s.unit : "share") : "";
    cell.setAttribute("aria-label", told(h));
  });
  root.classList.toggle("bystat", Boolean(s));   // a role's sign stands on a role's ground alone
  root.classList.toggle("filtered", S.filter !== null || S.brush !== null);
  for (const b of document.querySelectorAll("[data-filter]")) b.setAttribute("aria-pressed", b.dataset.filter === S.filter);
  legend();
}
function arrange() {                           // in layers, or from the highest value to the lowest
  const s = chosen(), key = h => s ? s.values[h] : judged(h), group = h => s ? 0 : D.heads[h][4];
  const rank = (a, b) => group(a) - group(b) || compare(key(b), key(a)) || a - b, ranked = S.order === "rank", had = document.activeElement;
  for (const stack of document.querySelectorAll(".stack")) {
    const mine = ORDER.filter(c => stack.contains(c));
    if (ranked) stack.querySelector(".ranks").append(...mine.sort((a, b) => rank(+a.dataset.i, +b.dataset.i)));
    else if (stack.querySelector(".ranks .cell")) for (const cell of mine) HOME.get(cell).append(cell);
    stack.querySelector(".layers").hidden = ranked;
    stack.querySelector(".ranked").hidden = !ranked;
  }
  if (had?.matches(".cell")) had.focus({preventScroll: true});   // what is moved loses the focus
  staples();
}

// staples join heads that look at the same places -----------------------------
function staples() {
  for (const old of document.querySelectorAll(".staples")) old.remove();
  if (S.order === "rank") return;
  for (const stack of document.querySelectorAll(".stack")) {
    const frame = stack.querySelector(".layers"), from = frame.getBoundingClientRect(), svg = make("svg", {class: "staples", "aria-hidden": "true"});
    const reach = clamp(parseFloat(getComputedStyle(stack).getPropertyValue("--g")) - 1, 2, 3.5);   // stays within the gap
    D.families.forEach((family, k) => {
      if (!stack.contains(CELLS[family[0]])) return;
      const boxes = family.map(h => CELLS[h].getBoundingClientRect());
      const d = D.deep ? sideways(boxes, from, reach) : below(boxes, from);
      svg.append(path(d, "currentColor", {class: "twin", "data-family": k}));
    });
    if (svg.childNodes.length) frame.append(svg);
  }
  mark();
}
function sideways(boxes, from, reach) {        // to the right of a column of heads
  const x = boxes[0].right - from.left + .5, mid = b => Math.round((b.top + b.bottom) / 2 - from.top) + .5;
  return `M${x} ${mid(boxes[0])}h${reach}V${mid(boxes.at(-1))}h-${reach}` + boxes.slice(1, -1).map(b => `M${x} ${mid(b)}h${reach}`).join("");
}
function below(boxes, from) {                  // under a row of heads; a row that wraps is joined line by line
  const lines = new Map();
  for (const b of boxes) if (lines.has(b.top)) lines.get(b.top).push(b); else lines.set(b.top, [b]);
  return [...lines.values()].map(line => {
    const y = line[0].bottom - from.top + .5, mid = b => Math.round((b.left + b.right) / 2 - from.left) + .5;
    const ticks = line.map(b => `M${mid(b)} ${y}v3`).join("");
    return `${ticks}M${mid(line[0])} ${y + 3}H${mid(line.at(-1))}`;
  }).join("");
}
function mark() {                              // the chosen head's staple, layer and number in bold
  const h = S.head;
  for (const p of document.querySelectorAll(".twin")) p.classList.toggle("on", S.filter === "twin" || D.families[p.dataset.family].includes(h));
  for (const l of document.querySelectorAll(".layer")) l.classList.toggle("on", l.contains(CELLS[h]));
}
