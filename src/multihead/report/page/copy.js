// copies: the card as SVG, its numbers as CSV, the grid as PNG -------------------
function copies() {
  const said = make("span", {class: "said", "aria-live": "polite"}), tell = text => { said.textContent = text; };
  const act = work => () => work().then(how => tell(t(how)), () => tell(t("s.refused")));
  return make("p", {class: "copy sub noprint"}, t("s.copy"), " ", button(t("s.copy.svg"), act(() => copyText(cardAsSvg(), "svg"))), " ",
    button(t("s.copy.csv"), act(() => copyText(numbersAsCsv(), "csv"))), " ", button(t("s.copy.png"), act(gridAsPng)), " ", said);
}
async function copyText(text, kind) {          // to the clipboard; where the browser does not let us, to a file
  try { await navigator.clipboard.writeText(text); return "s.copied"; } catch { /* no clipboard here */ }
  save(new Blob([text], {type: kind === "svg" ? "image/svg+xml" : "text/csv"}), kind);
  return "s.saved";
}
function save(blob, kind) {
  const a = make("a", {href: URL.createObjectURL(blob), download: `${D.names[S.head]}.${kind}`});
  document.body.append(a); a.click(); a.remove(); setTimeout(() => URL.revokeObjectURL(a.href), 1000);
}
function numbersAsCsv() {
  const cell = x => /[",\n\r]/.test(String(x)) ? `"${String(x).replaceAll('"', '""')}"` : String(x), number = x => x === undefined || isNaN(x) ? "" : x;
  const rows = [["head", "looks like", "measured on", "statistic", "unit", "value", "interval low", "interval high", "title"]];
  for (const s of D.stats) {
    const [low, high] = s.ends?.[S.head] ?? [];
    rows.push([D.names[S.head], roleWord(rule(S.head).key), s.part, s.name, s.unit, number(s.values[S.head]), number(low), number(high), s.title]);
  }
  return rows.map(r => r.map(cell).join(",")).join("\r\n") + "\r\n";
}
const solid = colour => { const c = resolve(colour); return `rgb(${c.join(",")})`; };
function cardAsSvg() {
  const frame = $("card"), from = frame.getBoundingClientRect(), out = make("svg", {xmlns: "http://www.w3.org/2000/svg", width: Math.ceil(from.width + 32), height: 10, viewBox: "0 0 10 10"});
  let foot = 0; const X = r => r.left - from.left + 16, Y = r => r.top - from.top + 16;
  const visit = e => {
    const r = e.getBoundingClientRect(), style = getComputedStyle(e);
    if (!r.width || e.matches(".copy, .more, form, #spoken, .sr")) return;
    foot = Math.max(foot, Y(r) + r.height);
    if (e.tagName === "svg") { out.append(inlined(e, X(r), Y(r))); return; }
    if (e.tagName === "CANVAS") { out.append(make("image", {x: X(r), y: Y(r), width: r.width, height: r.height, href: e.toDataURL(), "image-rendering": "pixelated", preserveAspectRatio: "none"})); return; }
    if (e.matches("i") && style.backgroundColor !== "rgba(0, 0, 0, 0)") out.append(box(X(r), Y(r), r.width, r.height, style.backgroundColor));
    for (const child of e.childNodes) if (child.nodeType === 1) visit(child); else if (child.nodeType === 3 && child.data.trim()) write(child, style);
  };
  const write = (node, style) => {             // one text element a line
    const range = document.createRange(); let line = null;
    const flush = () => { if (line?.text.trim()) out.append(make("text", {x: line.x, y: line.y, fill: style.color, "font-family": style.fontFamily, "font-size": style.fontSize, "font-weight": style.fontWeight}, line.text.trim())); };
    for (const piece of node.data.matchAll(/\S+\s*/g)) {
      range.setStart(node, piece.index); range.setEnd(node, piece.index + piece[0].trimEnd().length);
      const r = range.getClientRects()[0]; if (!r) continue;
      if (line && Math.abs(line.top - r.top) < 2) line.text += piece[0];
      else { flush(); line = {text: piece[0], x: X(r), y: Y(r) + r.height * .78, top: r.top}; }
    }
    flush();
  };
  visit(frame);
  const tall = Math.ceil(foot + 16), wide = Math.ceil(from.width + 32);
  out.setAttribute("height", tall); out.setAttribute("viewBox", `0 0 ${wide} ${tall}`);
  out.prepend(box(0, 0, wide, tall, solid("var(--paper)")));
  return new XMLSerializer().serializeToString(out);
}
function inlined(svg, x, y) {                  // a chart with its colours and letters written into it
  const copy = svg.cloneNode(true), mine = [svg, ...svg.querySelectorAll("*")], theirs = [copy, ...copy.querySelectorAll("*")];
  mine.forEach((e, i) => {
    const style = getComputedStyle(e), to = theirs[i];
    for (const k of ["fill", "stroke"]) if (e.hasAttribute(k) || (k === "fill" && e.tagName === "text")) to.setAttribute(k, style[k]);
    if (e.tagName === "text") for (const [k, v] of [["font-family", style.fontFamily], ["font-size", style.fontSize], ["font-weight", style.fontWeight]]) to.setAttribute(k, v);
    for (const k of ["class", "data-i", "tabindex"]) to.removeAttribute(k);
  });
  copy.setAttribute("x", x); copy.setAttribute("y", y); copy.setAttribute("overflow", "visible");
  return copy;
}
async function gridAsPng() {
  const frame = $("heads"), from = frame.getBoundingClientRect(), by = 2, canvas = make("canvas", {width: Math.ceil((from.width + 16) * by), height: Math.ceil((from.height + 16) * by)});
  const pen = canvas.getContext("2d"); pen.scale(by, by); pen.imageSmoothingEnabled = false;
  pen.fillStyle = solid("var(--paper)"); pen.fillRect(0, 0, from.width + 16, from.height + 16);
  const flip = getComputedStyle(root).getPropertyValue("--flip").trim() !== "none", ink = document.createElement("canvas");
  for (const h of HEADS) {
    const i = CELLS[h].firstElementChild, r = i.getBoundingClientRect(), x = r.left - from.left + 8, y = r.top - from.top + 8;
    if (!r.width) continue;
    pen.globalAlpha = CELLS[h].classList.contains("dim") ? .13 : 1;
    pen.fillStyle = getComputedStyle(i).backgroundColor; pen.fillRect(x, y, r.width, r.height);
    if (!M) continue;
    inkOn(ink, h); pen.filter = flip ? "invert(1)" : "none"; pen.drawImage(ink, x, y, r.width, r.height); pen.filter = "none";
  }
  pen.globalAlpha = 1; pen.fillStyle = solid("var(--muted)"); pen.font = "11px sans-serif"; pen.textAlign = "center";
  for (const l of document.querySelectorAll(".layer")) {
    const r = l.getBoundingClientRect(); if (!r.width) continue;
    if (D.deep) pen.fillText(l.dataset.l, r.left - from.left + 8 + r.width / 2, r.top - from.top + 2);
    else pen.fillText(l.dataset.l, 30, r.top - from.top + 8 + r.height / 2 + 4);
  }
  const blob = await new Promise(done => canvas.toBlob(done, "image/png"));
  try { await navigator.clipboard.write([new ClipboardItem({"image/png": blob})]); return "s.copied"; } catch { /* no clipboard here */ }
  save(blob, "png");
  return "s.saved";
}
