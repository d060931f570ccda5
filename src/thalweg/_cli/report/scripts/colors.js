// Colours: lightness alone orders them, so that they work for every kind of eye.
const SEQUENTIAL = ["#ffffe3", "#e7f5b5", "#bfe5b5", "#79c9bc", "#3eafc5", "#2189bd", "#225ca6", "#233a92", "#0a1d5a"];
const DIVERGING = ["#0b4a8f", "#3c86c0", "#93c3de", "#f2f2ef", "#e8b878", "#c8782a", "#7a3a04"];
const DIVERGING_DARK = ["#9fd0f7", "#4f94cf", "#285580", "#23272d", "#84521c", "#d08a3a", "#ffd79a"];
const NOT_FINITE = "#e8590c";
const SPREAD = 2; // decades to each side of usual
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
const dark = matchMedia("(prefers-color-scheme: dark)");
let printing = false, relative = false, theme;
const setTheme = () => {
  const isDark = dark.matches && !printing;
  const stops = relative ? (isDark ? DIVERGING_DARK : DIVERGING) : isDark ? [...SEQUENTIAL].reverse() : SEQUENTIAL;
  const zero = isDark ? "#565c64" : "#b4b8bd";
  theme = { stops, ramp: rampOf(stops), zero, codes: { [ZERO]: solid(zero), [NAN]: solid(NOT_FINITE), [INFINITE]: solid(NOT_FINITE), [UNMEASURED]: 0 } };
};
const rangeOf = (column) => (relative ? [-SPREAD, SPREAD] : ranges.get(column.key));

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
