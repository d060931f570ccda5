// Pointing, with a mouse, a finger or keys: the number, its step, and a line at that step in all plots.
const tip = $("tip");
const crosses = new Map();
let pointed = null; // {plot, row, bin}
const cross = (bin) => {
  for (const [element, line] of crosses) {
    if (bin !== null && line.parentElement !== element) element.append(line);
    line.hidden = bin === null;
    if (bin !== null) line.style.left = `${(100 * (bin + 0.5)) / count}%`;
  }
};
const lossOf = ({ low, high }, bin) => {
  if (low[bin] === null) return null;
  return low[bin] === high[bin] ? `loss ${format(low[bin])}` : `loss ${format(low[bin])} to ${format(high[bin])}`;
};
const coolNames = () => { for (const name of document.querySelectorAll(".name.hot")) name.classList.remove("hot"); };
// The layer of a row whose number is the largest, or the farthest from usual.
const largestOf = ({ column, rows }, row, bin) => {
  const size = (layer) => {
    const i = layer * count + bin, code = column.codes[i];
    if (code < FIRST) return { [NAN]: Infinity, [INFINITE]: 1e9, [ZERO]: -1e8, [UNMEASURED]: -1e9 }[code];
    return relative ? column.logs[i] - column.usual[layer] : column.logs[i];
  };
  return rows[row].reduce((best, layer) => (size(layer) > size(best) ? layer : best));
};
const tell = ({ training: { own, marks }, column, element, ...plot }, row, bin) => {
  const layer = largestOf({ column, ...plot }, row, bin);
  element.parentElement.querySelector(`[data-layer="${layer}"]`)?.classList.add("hot");
  const value = valueOf(column.codes[layer * count + bin]), usual = column.usual[layer];
  const lines = [make("b", {}, own.names[layer]), make("div", { class: "value" }, `${column.short} ${format(value)}${width > 1 ? ", the largest" : ""}`)];
  if (!Number.isNaN(usual)) lines.push(make("div", {}, `median of all steps ${format(Number((10 ** usual).toPrecision(3)))}`));
  for (const mark of marks)
    if (layersOf(mark).includes(layer) && binOf(mark.step) === bin) lines.push(make("div", { class: "alarm" }, `step ${grouped(mark.step)}: ${wordsOf(mark)}`));
  return lines;
};
const point = (at, x, y) => {
  pointed = at;
  cross(at.bin);
  coolNames();
  const lines = at.plot.column ? tell(at.plot, at.row, at.bin) : [];
  lines.push(make("div", {}, [steps(at.bin), lossOf(at.plot.training.own.loss, at.bin)].filter(Boolean).join(", ")));
  tip.replaceChildren(...lines);
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = x + 14 + box.width > innerWidth - 8 ? Math.max(8, x - 14 - box.width) : x + 14;
  const under = y + 16 + box.height > innerHeight - 8 ? Math.max(8, y - 12 - box.height) : y + 16;
  tip.style.left = `${left}px`;
  tip.style.top = `${under}px`;
};
const leave = () => {
  pointed = null;
  tip.hidden = true;
  cross(null);
  coolNames();
};
const pointWithin = (plot, bin, row) => {
  const box = plot.element.getBoundingClientRect(), rows = plot.rows ? plot.rows.length : 1;
  point({ plot, row, bin }, box.left + ((bin + 0.5) / count) * box.width, box.top + ((row + 1) / rows) * box.height);
};
const listen = (plot) => {
  const { element } = plot, rows = plot.rows ? plot.rows.length : 1;
  crosses.set(element, make("i", { class: "cross", "aria-hidden": "true", hidden: "" }));
  const at = (event) => {
    const box = element.getBoundingClientRect();
    const row = clamp(Math.floor(((event.clientY - box.top) / box.height) * rows), rows);
    point({ plot, row, bin: clamp(Math.floor(((event.clientX - box.left) / box.width) * count), count) }, event.clientX, event.clientY);
  };
  element.addEventListener("pointermove", at);
  element.addEventListener("pointerdown", at);
  element.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && leave());
  element.addEventListener("focus", () => element.matches(":focus-visible") && pointWithin(plot, pointed ? pointed.bin : count - 1, 0));
  element.addEventListener("blur", leave);
  element.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1], Home: [-count, 0], End: [count, 0], PageUp: [-Math.ceil(count / 10), 0], PageDown: [Math.ceil(count / 10), 0] }[event.key];
    if (event.key === "Escape") leave();
    if (!moves || !pointed) return;
    event.preventDefault();
    pointWithin(plot, clamp(pointed.bin + moves[0], count), clamp(pointed.row + moves[1], rows));
  });
};
const show = (training, mark) => {
  const bin = binOf(mark.step);
  if (mark.layer < 0) { cross(bin); return; }
  const key = mark.what.startsWith("gradient") ? "gradient_norm" : training.own.columns[0].key;
  const having = training.strips.filter(({ rows }) => rows.some((row) => row.length === 1 && row[0] === mark.layer));
  const plot = having.find(({ column }) => column.key === key) || having[0];
  const details = plot.element.closest("details");
  if (details && !details.open) { details.open = true; drawWithin(training, details); }
  const row = plot.rows.findIndex((each) => each[0] === mark.layer), height = plot.element.clientHeight / plot.rows.length;
  scrollTo({ top: scrollY + plot.element.getBoundingClientRect().top + row * height - innerHeight / 2 });
  pointWithin(plot, bin, row);
};
