"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);
  const { first, width, count, last } = data.bins;
  const layers = data.names.length;

  // ---- numbers ----
  const UNMEASURED = 0, ZERO = 1, NAN = 2, INFINITE = 3, FIRST = 4, LEAST_EXPONENT = -330;

  const decode = (text) => {
    const bytes = atob(text), codes = new Uint32Array(bytes.length / 3);
    for (let i = 0, j = 0; i < codes.length; i++, j += 3)
      codes[i] = bytes.charCodeAt(j) | (bytes.charCodeAt(j + 1) << 8) | (bytes.charCodeAt(j + 2) << 16);
    return codes;
  };
  const partsOf = (code) => {
    const rest = (code - FIRST) >> 1;
    return { digits: 1000 + (rest % 9000), exponent: LEAST_EXPONENT + Math.floor(rest / 9000), negative: (code - FIRST) & 1 };
  };
  const valueOf = (code) => {
    if (code < FIRST) return [null, 0, NaN, Infinity][code];
    const { digits, exponent, negative } = partsOf(code);
    return Number(`${negative ? "-" : ""}${digits}e${exponent - 3}`);
  };
  const format = (value) => {
    if (value === null) return "not measured";
    if (typeof value === "string") return value;
    if (!Number.isFinite(value)) return String(value);
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-3 || size >= 1e6)) {
      const [digits, exponent] = value.toExponential(3).split("e");
      return `${Number(digits)}e${Number(exponent)}`;
    }
    return String(Number(value.toPrecision(4)));
  };
  const grouped = (step) => step.toLocaleString("en-US");
  const steps = (bin) => {
    const from = first + bin * width, to = Math.min(last, from + width - 1);
    return from === to ? `step ${grouped(from)}` : `steps ${grouped(from)} to ${grouped(to)}`;
  };
  const shareOf = (step) => (step - first + 0.5) / (count * width); // of the width, 0 to 1

  for (const column of data.columns) {
    const codes = (column.codes = decode(column.codes)); // all bins of the first layer, then of the second
    const logs = (column.logs = new Float32Array(codes.length).fill(NaN));
    for (let i = 0; i < codes.length; i++)
      if (codes[i] >= FIRST) {
        const { digits, exponent } = partsOf(codes[i]);
        logs[i] = Math.log10(digits) + exponent - 3;
      }
    const all = logs.filter((each) => each === each).sort(); // of a typed array, which sorts numbers
    const at = (share) => all[Math.min(all.length - 1, Math.floor(share * all.length))];
    const high = all.length ? Math.ceil(at(0.999)) : 0;
    const low = all.length ? Math.max(Math.floor(at(0.01)), high - 7) : -1;
    column.range = [Math.min(low, high - 1), high];
    column.usual = new Float32Array(layers);
    for (let layer = 0; layer < layers; layer++) {
      const own = logs.subarray(layer * count, (layer + 1) * count).filter((each) => each === each).sort();
      column.usual[layer] = own.length ? own[own.length >> 1] : NaN;
    }
  }

  // ---- colours: lightness alone orders them, so that they work for every kind of eye ----
  const SEQUENTIAL = ["#ffffe3", "#e7f5b5", "#bfe5b5", "#79c9bc", "#3eafc5", "#2189bd", "#225ca6", "#233a92", "#0a1d5a"];
  const DIVERGING = ["#0b4a8f", "#3c86c0", "#93c3de", "#f2f2ef", "#e8b878", "#c8782a", "#7a3a04"];
  const DIVERGING_DARK = ["#9fd0f7", "#4f94cf", "#285580", "#23272d", "#84521c", "#d08a3a", "#ffd79a"];
  const channels = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  const rampOf = (stops) => {
    const ramp = new Uint32Array(256), known = stops.map(channels);
    for (let i = 0; i < 256; i++) {
      const place = (i / 255) * (known.length - 1), from = Math.min(known.length - 2, Math.floor(place)), share = place - from;
      const [r, g, b] = known[from].map((each, at) => Math.round(each + (known[from + 1][at] - each) * share));
      ramp[i] = (255 << 24) | (b << 16) | (g << 8) | r; // as ImageData lies in memory of small endian
    }
    return ramp;
  };
  const solid = (hex) => { const [r, g, b] = channels(hex); return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0; };
  const NOT_FINITE = "#e8590c";
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let printing = false, relative = false, theme;
  const setTheme = () => {
    const isDark = dark.matches && !printing;
    const stops = relative ? (isDark ? DIVERGING_DARK : DIVERGING) : isDark ? [...SEQUENTIAL].reverse() : SEQUENTIAL;
    const zero = isDark ? "#565c64" : "#b4b8bd";
    theme = { stops, ramp: rampOf(stops), zero, codes: { [ZERO]: solid(zero), [NAN]: solid(NOT_FINITE), [INFINITE]: solid(NOT_FINITE), [UNMEASURED]: 0 } };
  };
  const SPREAD = 2; // decades to each side of usual
  const rangeOf = (column) => (relative ? [-SPREAD, SPREAD] : column.range);

  // ---- elements ----
  const make = (tag, attributes = {}, ...inside) => {
    const element = document.createElement(tag);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...inside);
    return element;
  };
  const elide = (text, letters) => {
    if (text.length <= letters) return text;
    const tail = Math.ceil((letters - 1) * 0.6), head = Math.max(0, letters - 1 - tail);
    return `${text.slice(0, head)}…${text.slice(text.length - tail)}`;
  };

  // ---- groups: names alike up to their first number ----
  const prefixOf = (name) => { const found = /^(.*?\.)?\d+(?=\.)/.exec(name); return found ? found[0] : ""; };
  const groups = [];
  data.names.forEach((name, layer) => {
    const prefix = prefixOf(name);
    // Wherever they stand: an optimizer's groups of parameters tear apart what is one block.
    let group = prefix ? groups.find((each) => each.prefix === prefix) : groups[groups.length - 1];
    if (!group || group.prefix !== prefix) groups.push((group = { prefix, layers: [] }));
    group.layers.push(layer);
  });
  for (const group of groups) if (group.layers.length < 2) group.prefix = "";

  const marks = data.warned.map(([layer, step, what, number, usual, kind]) => ({ layer, step, what, number, usual, kind }));
  const lead = marks.find((mark) => mark.kind !== "loss");
  const warned = new Set(marks.filter((mark) => mark.layer >= 0).map((mark) => mark.layer));
  const strips = []; // each: {element, canvas, column, rows: [[layer, ...], ...]}

  // ---- the words at the top ----
  const wordsOf = (mark) => {
    const usual = mark.usual === null || mark.usual === "NaN" ? "" : `, usually ${format(mark.usual)}`;
    return mark.number === null || mark.number === "NaN" ? mark.what + usual : `${mark.what}: ${format(mark.number)}${usual}`;
  };
  $("title").textContent = data.title;
  $("facts").textContent = data.facts;
  $("foot").textContent = data.foot;
  if (lead) {
    const calls = make("p", { class: "lead" });
    calls.append(make("b", {}, data.names[lead.layer]), ` at step ${grouped(lead.step)}: `, wordsOf(lead), ".");
    const list = make("ol", { tabindex: 0, "aria-label": "All that is not usual, by step" });
    for (const mark of marks) {
      const button = make("button", { type: "button" },
        make("span", { class: "step" }, grouped(mark.step)),
        make("span", { class: "where" }, mark.layer < 0 ? "loss" : data.names[mark.layer]),
        make("span", { class: "what" }, wordsOf(mark)));
      button.addEventListener("click", () => show(mark));
      list.append(make("li", {}, button));
    }
    $("first").append(calls, list);
    if (data.more) $("first").append(make("p", { class: "unit" }, `and ${grouped(data.more)} more`));
  } else {
    $("first").append(make("p", { class: "calm" }, marks.length ? "No layer was unusual before the loss left its band." : "Nothing was unusual."));
    for (const mark of marks) $("first").append(make("p", { class: "calm" }, `Step ${grouped(mark.step)}: ${wordsOf(mark)}.`));
  }

  // ---- strips ----
  const addMarks = (element, rows) => {
    rows.forEach((own, row) => {
      for (const mark of marks)
        if (mark.layer >= 0 && own.includes(mark.layer)) {
          const dot = make("i", { class: mark === lead ? "mark first" : "mark", "aria-hidden": "true" });
          dot.style.left = `${100 * shareOf(mark.step)}%`;
          dot.style.top = `${(100 * (row + 0.5)) / rows.length}%`;
          element.append(dot);
        }
    });
  };
  const describe = (column, own) => {
    let best = -1;
    for (const layer of own)
      for (let i = layer * count; i < (layer + 1) * count; i++)
        if (column.codes[i] === NAN || column.codes[i] === INFINITE) { best = i; break; } else if (best < 0 ? column.codes[i] >= FIRST : column.logs[i] > column.logs[best]) best = i;
    return best < 0 ? "nothing was measured" : `largest ${format(valueOf(column.codes[best]))} at ${steps(best % count)}`;
  };
  const strip = (column, rows, label, focusable) => {
    const canvas = make("canvas", { "aria-hidden": "true" });
    const element = make("div", { class: "plot strip", role: "img", "aria-label": `${column.title}, ${label}: ${describe(column, rows.flat())}` }, canvas);
    if (focusable) element.tabIndex = 0;
    element.style.height = `calc(${rows.length} * var(--row))`;
    addMarks(element, rows);
    const made = { element, canvas, column, rows };
    strips.push(made);
    listen(made);
    return element;
  };
  const names = (own, cut) => {
    const box = make("div");
    for (const layer of own) {
      const full = data.names[layer], name = make("span", { class: warned.has(layer) ? "name warned" : "name", title: full }, "");
      name.dataset.full = full.slice(cut);
      name.dataset.layer = layer;
      box.append(name);
    }
    return box;
  };
  const opens = layers <= 60;
  for (const column of data.columns) {
    const legend = make("div", { class: "legend", "aria-hidden": "true" });
    column.legend = legend;
    const panel = make("section", { class: "panel", "aria-label": column.title },
      make("div", { class: "bar" }, make("div", {}, make("h2", {}, column.title), make("p", { class: "unit" }, column.unit)), legend));
    for (const { prefix, layers: own } of groups) {
      if (!prefix) {
        panel.append(make("div", { class: "bare lane" }, names(own, 0), strip(column, own.map((layer) => [layer]), own.length > 1 ? `${own.length} layers` : data.names[own[0]], true)));
        continue;
      }
      const head = make("span", { class: own.some((layer) => warned.has(layer)) ? "name warned" : "name", title: `${prefix}: ${own.length} layers` });
      head.dataset.full = `${prefix} (${own.length})`;
      const details = make("details", {},
        make("summary", { "aria-label": `${prefix}, ${own.length} layers` }, make("div", { class: "lane" }, head, strip(column, [own], `largest of ${prefix}`, false))),
        make("div", { class: "body lane" }, names(own, prefix.length + 1), strip(column, own.map((layer) => [layer]), prefix, true)));
      details.open = opens || (lead && own.includes(lead.layer));
      details.addEventListener("toggle", () => details.open && drawWithin(details));
      panel.append(details);
    }
    $("strips").append(panel);
  }

  // ---- drawing ----
  const drawStrip = ({ element, canvas, column, rows }) => {
    const wide = Math.max(1, Math.min(count, Math.round(element.clientWidth * devicePixelRatio)));
    if (!element.clientWidth) return;
    canvas.width = wide;
    canvas.height = rows.length;
    const image = new ImageData(wide, rows.length), pixels = new Uint32Array(image.data.buffer);
    const [low, high] = rangeOf(column), { ramp, codes: fixed } = theme;
    rows.forEach((own, row) => {
      for (let x = 0; x < wide; x++) {
        const from = Math.floor((x * count) / wide), to = Math.max(from + 1, Math.floor(((x + 1) * count) / wide));
        let best = -Infinity, code = UNMEASURED;
        for (const layer of own)
          for (let i = layer * count + from; i < layer * count + to; i++) {
            const here = column.codes[i];
            if (here >= FIRST) {
              const value = relative ? column.logs[i] - column.usual[layer] : column.logs[i];
              if (value > best) best = value;
            } else if (here !== UNMEASURED && (code === UNMEASURED || here > code)) code = here;
          }
        if (code > ZERO) pixels[row * wide + x] = fixed[code];
        else if (best > -Infinity) pixels[row * wide + x] = ramp[Math.max(0, Math.min(255, Math.round((255 * (best - low)) / (high - low))))];
        else pixels[row * wide + x] = fixed[code];
      }
    });
    canvas.getContext("2d").putImageData(image, 0, 0);
  };

  const power = (exponent) => (exponent >= -2 && exponent <= 3 ? String(Number(`1e${exponent}`)) : `1e${exponent}`);
  const drawLegend = (column) => {
    const [low, high] = rangeOf(column), every = Math.ceil((high - low) / 5);
    const scale = make("div", { class: "scale" }), ticks = make("div", { class: "ticks" });
    scale.style.background = `linear-gradient(to right, ${theme.stops.join(", ")})`;
    for (let each = low; each <= high; each += every) {
      const tick = make("i", {}, relative ? (each === 0 ? "usual" : `× ${power(each)}`) : power(each));
      tick.style.left = `${(100 * (each - low)) / (high - low)}%`;
      ticks.append(tick);
    }
    const key = (color, words) => { const box = make("i"); box.style.background = color; return make("span", {}, box, words); };
    column.legend.replaceChildren(scale, ticks, make("div", { class: "keys" }, key(theme.zero, "0"), key(NOT_FINITE, "not finite"), key("transparent", "not measured")));
  };

  const curve = $("loss-curve");
  const ticksOf = (low, high, most) => {
    const rough = (high - low) / most, unit = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((each) => each * unit).find((each) => each >= rough);
    const found = [];
    for (let each = Math.ceil(low / step); each * step <= high * (1 + 1e-9); each++) found.push(Number((each * step).toPrecision(12)));
    return found;
  };
  const drawLoss = () => {
    const box = curve.parentElement, wide = box.clientWidth, tall = box.clientHeight, ratio = devicePixelRatio;
    if (!wide) return;
    curve.width = Math.round(wide * ratio);
    curve.height = Math.round(tall * ratio);
    const pen = curve.getContext("2d"), style = getComputedStyle(document.documentElement);
    const color = (name) => style.getPropertyValue(name).trim();
    pen.scale(ratio, ratio);
    pen.clearRect(0, 0, wide, tall);
    const bottom = tall - 20, top = 18;
    const finite = [...data.loss.low, ...data.loss.high].filter((each) => typeof each === "number");
    pen.font = "11px system-ui, sans-serif";
    // x: whole steps
    pen.fillStyle = color("--soft");
    pen.strokeStyle = color("--line");
    pen.lineWidth = 1;
    pen.textBaseline = "top";
    const seen = [];
    for (const step of ticksOf(first, Math.max(last, first + 1), Math.max(2, wide / 75)).filter(Number.isInteger)) {
      const x = shareOf(step) * wide, text = grouped(step), half = pen.measureText(text).width / 2;
      const middle = Math.max(half, Math.min(wide - half, x));
      if (seen.length && middle - half < seen[seen.length - 1] + 8) continue;
      seen.push(middle + half);
      pen.fillText(text, middle - half, bottom + 6);
      pen.beginPath(); pen.moveTo(x, top); pen.lineTo(x, bottom + 3); pen.stroke();
    }
    const scale = $("loss-scale");
    scale.replaceChildren();
    if (finite.length) {
      let low = Math.min(...finite), high = Math.max(...finite);
      const logarithmic = low > 0 && high / low > 10;
      const to = logarithmic ? Math.log10 : (each) => each;
      if (high === low) { high += 0.5 * (Math.abs(high) || 1); low -= 0.5 * (Math.abs(low) || 1); }
      const from = to(low), span = to(high) - from || 1;
      const y = (value) => bottom - ((to(value) - from) / span) * (bottom - top);
      const labels = logarithmic
        ? [1, 2, 5].flatMap((digit) => Array.from({ length: 40 }, (_, at) => digit * 10 ** (at - 20))).filter((each) => each >= low && each <= high).sort((a, b) => a - b)
        : ticksOf(low, high, 4);
      let before = Infinity;
      for (const value of labels) {
        const at = y(value);
        if (before - at < 15) continue;
        before = at;
        const label = make("i", {}, format(value));
        label.style.top = `${at}px`;
        label.style.fontStyle = "normal";
        scale.append(label);
        pen.beginPath(); pen.moveTo(0, at); pen.lineTo(wide, at); pen.stroke();
      }
      const x = (bin) => ((bin + 0.5) / count) * wide;
      pen.fillStyle = color("--band");
      let open = [];
      const close = () => {
        if (open.length > 1) {
          pen.beginPath();
          open.forEach((bin, at) => pen[at ? "lineTo" : "moveTo"](x(bin), y(data.loss.high[bin])));
          [...open].reverse().forEach((bin) => pen.lineTo(x(bin), y(data.loss.low[bin])));
          pen.fill();
        }
        open = [];
      };
      for (let bin = 0; bin < count; bin++) typeof data.loss.low[bin] === "number" && typeof data.loss.high[bin] === "number" ? open.push(bin) : data.loss.low[bin] === null ? 0 : close();
      close();
      pen.strokeStyle = color("--curve");
      pen.lineWidth = 1.4;
      pen.lineJoin = "round";
      pen.beginPath();
      let moved = false;
      for (let bin = 0; bin < count; bin++) {
        const value = data.loss.mean[bin];
        if (value === null) continue; // a step that told no loss
        if (typeof value !== "number") { moved = false; continue; }
        pen[moved ? "lineTo" : "moveTo"](x(bin), y(value));
        moved = true;
      }
      pen.stroke();
    }
    for (const step of data.resumed) {
      const x = shareOf(step) * wide;
      pen.strokeStyle = color("--soft");
      pen.setLineDash([2, 3]);
      pen.beginPath(); pen.moveTo(x, top); pen.lineTo(x, bottom); pen.stroke();
      pen.setLineDash([]);
    }
    // One line for a step, however many layers; words for the first alone, which must not overlap.
    pen.strokeStyle = pen.fillStyle = color("--alarm");
    for (const step of new Set(marks.map((mark) => mark.step))) {
      const x = shareOf(step) * wide, isLead = lead && lead.step === step;
      pen.lineWidth = isLead ? 1.6 : 1;
      pen.globalAlpha = isLead ? 1 : 0.6;
      pen.beginPath(); pen.moveTo(x, isLead ? top - 2 : bottom - 8); pen.lineTo(x, bottom); pen.stroke();
      pen.globalAlpha = 1;
    }
    if (lead) {
      const text = `${elide(data.names[lead.layer], Math.floor(wide / 9))}, step ${grouped(lead.step)}`, half = pen.measureText(text).width / 2;
      pen.textBaseline = "bottom";
      pen.fillText(text, Math.max(0, Math.min(wide - 2 * half, shareOf(lead.step) * wide - half)), top - 2);
    }
  };
  const letters = make("span", { class: "name" }, "0".repeat(50));
  const drawNames = (root) => {
    letters.style.cssText = "position:absolute;visibility:hidden;padding:0";
    document.body.append(letters);
    const wide = letters.getBoundingClientRect().width / 50;
    letters.remove();
    const fitting = [];
    for (const name of root.querySelectorAll("[data-full]")) {
      if (!name.clientWidth) continue;
      const style = getComputedStyle(name);
      const free = name.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight) - (name.closest("summary") ? 12 : 0);
      fitting.push([name, elide(name.dataset.full, Math.max(4, Math.floor(free / wide - 0.05)))]);
    }
    for (const [name, text] of fitting) name.textContent = text; // after all sizes were read: one layout, not hundreds
  };
  const draw = () => {
    setTheme();
    drawLoss();
    data.columns.forEach(drawLegend);
    drawWithin(document);
  };
  const drawWithin = (root) => { // what is folded has no size until it is opened
    for (const each of strips) if (root.contains(each.element)) drawStrip(each);
    drawNames(root);
  };

  // ---- pointing ----
  const tip = $("tip");
  const crosses = new Map();
  let pointed = null; // {strip, row, bin}
  const cross = (bin) => {
    for (const { element } of [...strips, { element: curve.parentElement }]) {
      let line = crosses.get(element);
      if (!line) { line = make("i", { class: "cross", "aria-hidden": "true" }); crosses.set(element, line); element.append(line); }
      line.hidden = bin === null;
      if (bin !== null) line.style.left = `${(100 * (bin + 0.5)) / count}%`;
    }
  };
  const lossOf = (bin) => {
    const { low, high } = data.loss;
    if (low[bin] === null) return null;
    return low[bin] === high[bin] ? `loss ${format(low[bin])}` : `loss ${format(low[bin])} to ${format(high[bin])}`;
  };
  const point = (at, x, y) => {
    pointed = at;
    const { strip: own, row, bin } = at, lines = [];
    cross(bin);
    for (const name of document.querySelectorAll(".name.hot")) name.classList.remove("hot");
    if (own) {
      const { column } = own;
      let best = -1;
      for (const layer of own.rows[row]) {
        const here = layer * count + bin, code = column.codes[here];
        const size = (i) => (column.codes[i] === NAN ? Infinity : column.codes[i] === INFINITE ? 1e9 : column.codes[i] === UNMEASURED ? -1e9 : column.codes[i] === ZERO ? -1e8 : relative ? column.logs[i] - column.usual[layer] : column.logs[i]);
        if (best < 0 || size(here) > size(best)) best = here;
      }
      const layer = Math.floor(best / count);
      own.element.parentElement.querySelector(`[data-layer="${layer}"]`)?.classList.add("hot");
      lines.push(make("b", {}, data.names[layer]));
      const value = valueOf(column.codes[best]), usual = column.usual[layer];
      lines.push(make("div", { class: "value" }, `${column.short} ${format(value)}${width > 1 ? ", the largest" : ""}`));
      if (!Number.isNaN(usual)) lines.push(make("div", {}, `median of all steps ${format(Number((10 ** usual).toPrecision(3)))}`));
      for (const mark of marks)
        if (mark.layer === layer && Math.floor((mark.step - first) / width) === bin) lines.push(make("div", { class: "alarm" }, `step ${grouped(mark.step)}: ${wordsOf(mark)}`));
    }
    lines.push(make("div", {}, [steps(bin), lossOf(bin)].filter(Boolean).join(", ")));
    tip.replaceChildren(...lines);
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = x + 14 + box.width > innerWidth - 8 ? Math.max(8, x - 14 - box.width) : x + 14;
    const under = y + 16 + box.height > innerHeight - 8 ? Math.max(8, y - 12 - box.height) : y + 16;
    tip.style.left = `${left}px`;
    tip.style.top = `${under}px`;
  };
  function leave() {
    pointed = null;
    tip.hidden = true;
    cross(null);
    for (const name of document.querySelectorAll(".name.hot")) name.classList.remove("hot");
  }
  const clamp = (value, most) => Math.max(0, Math.min(most - 1, value));
  function listen(own) {
    const element = own.element, rows = own.rows ? own.rows.length : 1;
    const at = (event) => {
      const box = element.getBoundingClientRect();
      point({ strip: own.column ? own : null, row: clamp(Math.floor(((event.clientY - box.top) / box.height) * rows), rows),
        bin: clamp(Math.floor(((event.clientX - box.left) / box.width) * count), count) }, event.clientX, event.clientY);
    };
    element.addEventListener("pointermove", at);
    element.addEventListener("pointerdown", at);
    element.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && leave());
    const byKeys = (bin, row) => {
      const box = element.getBoundingClientRect();
      point({ strip: own.column ? own : null, row, bin }, box.left + ((bin + 0.5) / count) * box.width, box.top + ((row + 1) / rows) * box.height);
    };
    element.addEventListener("focus", () => element.matches(":focus-visible") && byKeys(pointed ? pointed.bin : count - 1, 0));
    element.addEventListener("blur", leave);
    element.addEventListener("keydown", (event) => {
      const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1], Home: [-count, 0], End: [count, 0], PageUp: [-Math.ceil(count / 10), 0], PageDown: [Math.ceil(count / 10), 0] }[event.key];
      if (event.key === "Escape") leave();
      if (!moves || !pointed) return;
      event.preventDefault();
      byKeys(clamp(pointed.bin + moves[0], count), clamp(pointed.row + moves[1], rows));
    });
  }
  const show = (mark) => {
    const bin = clamp(Math.floor((mark.step - first) / width), count);
    if (mark.layer < 0) { cross(bin); return; }
    const own = strips.find((each) => each.rows.length && each.rows.some((row) => row.length === 1 && row[0] === mark.layer) && each.column.key === (mark.what.startsWith("gradient") ? "gradient_norm" : data.columns[0].key)) || strips.find((each) => each.rows.some((row) => row.length === 1 && row[0] === mark.layer));
    const details = own.element.closest("details");
    if (details && !details.open) { details.open = true; drawWithin(details); }
    const row = own.rows.findIndex((each) => each[0] === mark.layer), height = own.element.clientHeight / own.rows.length;
    scrollTo({ top: scrollY + own.element.getBoundingClientRect().top + row * height - innerHeight / 2 });
    const box = own.element.getBoundingClientRect();
    point({ strip: own, row, bin }, box.left + ((bin + 0.5) / count) * box.width, box.top + (row + 1) * height);
  };
  curve.parentElement.tabIndex = 0;
  curve.setAttribute("aria-label", `Loss from step ${grouped(first)} to ${grouped(last)}. ${data.facts}`);
  listen({ element: curve.parentElement });
  for (const input of document.querySelectorAll("#view input"))
    input.addEventListener("change", () => { relative = input.value === "usual" && input.checked; draw(); });
  dark.addEventListener("change", draw);
  addEventListener("beforeprint", () => { printing = true; draw(); });
  addEventListener("afterprint", () => { printing = false; draw(); });
  addEventListener("resize", () => { leave(); draw(); });
  addEventListener("scroll", () => pointed && tip.matches(":not([hidden])") && !document.activeElement.matches(".plot") && leave(), { passive: true });
  draw();
  document.documentElement.dataset.drawn = "yes";
})();
