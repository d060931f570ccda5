// One training: its words, its loss, and a strip for each layer of each column.
const wordsOf = (mark) => {
  const usual = mark.usual === null || mark.usual === "NaN" ? "" : `, usually ${format(mark.usual)}`;
  return mark.number === null || mark.number === "NaN" ? mark.what + usual : `${mark.what}: ${format(mark.number)}${usual}`;
};
// The layers of a warning: one, all that left their band with a batch, or none for the loss.
const layersOf = (mark) => (mark.layer < 0 ? mark.layers : [mark.layer]);
const titleOf = (mark, own) => (mark.layer < 0 ? mark.kind : own.names[mark.layer]);
const several = data.trainings.length > 1;
// Few are shown at once, of many the groups.
const opens = data.trainings.reduce((sum, { names }) => sum + names.length, 0) <= 60;

const addWords = (training, into) => {
  const { own, marks, lead } = training;
  if (own.note) {
    into.before(make("p", {}, own.note));
    if (!marks.length) into.remove();
  }
  if (!lead) {
    const calm = marks.length ? "No layer was unusual before the loss left its band." : "Nothing was unusual.";
    if (!own.note) into.append(make("p", { class: "calm" }, calm));
    for (const mark of marks) into.append(make("p", { class: "calm" }, `Step ${grouped(mark.step)}: ${wordsOf(mark)}.`));
    return;
  }
  const list = make("ol", { tabindex: 0, "aria-label": "All that is not usual, by step" });
  for (const mark of marks) {
    const button = make("button", { type: "button" },
      make("span", { class: "step" }, grouped(mark.step)),
      make("span", { class: "where" }, titleOf(mark, own)),
      make("span", { class: "what" }, wordsOf(mark)));
    button.addEventListener("click", () => show(training, mark));
    list.append(make("li", {}, button));
  }
  into.append(make("p", { class: "lead" }, make("b", {}, titleOf(lead, own)), ` at step ${grouped(lead.step)}: `, wordsOf(lead), "."), list);
  if (own.more) into.append(make("p", { class: "unit" }, `and ${grouped(own.more)} more`));
};

const addDots = ({ marks, lead }, element, rows) => {
  const places = new Map(rows.flatMap((own, row) => own.map((layer) => [layer, row])));
  for (const mark of marks)
    for (const layer of layersOf(mark)) {
      if (!places.has(layer)) continue;
      const dot = make("i", { class: mark === lead ? "mark first" : "mark", "aria-hidden": "true" });
      dot.style.left = `${100 * shareOf(mark.step)}%`;
      dot.style.top = `${(100 * (places.get(layer) + 0.5)) / rows.length}%`;
      element.append(dot);
    }
};
const describe = (column, own) => {
  let best = -1;
  for (const layer of own)
    for (let i = layer * count; i < (layer + 1) * count; i++)
      if (column.codes[i] === NAN || column.codes[i] === INFINITE) { best = i; break; } else if (best < 0 ? column.codes[i] >= FIRST : column.logs[i] > column.logs[best]) best = i;
  return best < 0 ? "nothing was measured" : `largest ${format(valueOf(column.codes[best]))} at ${steps(best % count)}`;
};
const addStrip = (training, column, rows, label, focusable) => {
  const canvas = make("canvas", { "aria-hidden": "true" });
  const element = make("div", { class: "plot strip", role: "img", "aria-label": `${column.title}, ${label}: ${describe(column, rows.flat())}` }, canvas);
  if (focusable) element.tabIndex = 0;
  element.style.height = `calc(${rows.length} * var(--row))`;
  addDots(training, element, rows);
  const made = { training, element, canvas, column, rows };
  training.strips.push(made);
  listen(made);
  return element;
};
const listNames = ({ own, warned }, layers, cut) => {
  const box = make("div");
  for (const layer of layers) {
    const full = own.names[layer], name = make("span", { class: warned.has(layer) ? "name warned" : "name", title: full }, "");
    name.dataset.full = full.slice(cut);
    name.dataset.layer = layer;
    box.append(name);
  }
  return box;
};
const makePanel = (training, column) => {
  const { own, lead, warned } = training;
  column.legend = make("div", { class: "legend", "aria-hidden": "true" });
  const panel = make("section", { class: "panel", "aria-label": column.title },
    make("div", { class: "bar" }, make("div", {}, make(several ? "h3" : "h2", {}, column.title), make("p", { class: "unit" }, column.unit)), column.legend));
  for (const { prefix, layers } of training.groups) {
    const rows = layers.map((layer) => [layer]);
    if (!prefix) {
      const label = layers.length > 1 ? `${layers.length} layers` : own.names[layers[0]];
      panel.append(make("div", { class: "bare lane" }, listNames(training, layers, 0), addStrip(training, column, rows, label, true)));
      continue;
    }
    const head = make("span", { class: layers.some((layer) => warned.has(layer)) ? "name warned" : "name", title: `${prefix}: ${layers.length} layers` });
    head.dataset.full = `${prefix} (${layers.length})`;
    const details = make("details", {},
      make("summary", { "aria-label": `${prefix}, ${layers.length} layers` }, make("div", { class: "lane" }, head, addStrip(training, column, [layers], `largest of ${prefix}`, false))),
      make("div", { class: "body lane" }, listNames(training, layers, prefix.length + 1), addStrip(training, column, rows, prefix, true)));
    details.open = opens || (lead && layers.includes(lead.layer));
    details.addEventListener("toggle", () => details.open && drawWithin(training, details));
    panel.append(details);
  }
  return panel;
};

const addTraining = (own, number) => {
  const marks = own.warned.map(([layer, step, what, value, usual, kind, layers]) => ({ layer, step, what, number: value, usual, kind, layers }));
  const element = $("training").content.cloneNode(true).firstElementChild, find = (name) => element.querySelector(name);
  const training = {
    own, element, marks, strips: [], groups: groupsOf(own.names), curve: find(".loss canvas"), scale: find(".loss-scale"),
    lead: marks.find((mark) => mark.kind !== "loss"), warned: new Set(marks.flatMap(layersOf)),
  };
  if (several) {
    element.id = `training-${number + 1}`;
    element.setAttribute("aria-label", own.name);
    element.prepend(make("h2", { class: "title" }, `${number + 1}. ${own.name}`));
    for (const heading of element.querySelectorAll("section h2")) heading.replaceWith(make("h3", {}, heading.textContent));
    find(".loss h3").replaceChildren(`Loss of ${own.name} `, make("span", { class: "unit" }, "others in grey"));
  }
  find(".facts").textContent = [own.summary && `${own.summary[0].toUpperCase()}${own.summary.slice(1)}.`, own.facts].filter(Boolean).join(" ");
  addWords(training, find(".first"));
  for (const input of element.querySelectorAll(".switch input")) input.name = `view-${number}`;
  if (!own.columns.length) find(".switch").remove();
  find(".loss .plot").tabIndex = 0;
  training.curve.setAttribute("aria-label", `Loss from step ${grouped(first)} to ${grouped(last)}. ${own.facts}`);
  listen({ training, element: find(".loss .plot") });
  element.append(...own.columns.map((column) => makePanel(training, column)));
  return training;
};
const drawWithin = ({ strips }, root) => { // what is folded has no size until it is opened
  for (const each of strips) if (root.contains(each.element)) drawStrip(each);
  drawNames(root);
};
