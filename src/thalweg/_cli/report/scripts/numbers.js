// What the page has of its trainings, and numbers: how they are kept in it, and how they are shown.
const data = JSON.parse(document.getElementById("data").textContent);
const { first, width, count, last } = data.bins;
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
const clamp = (value, most) => Math.max(0, Math.min(most - 1, value));
const binOf = (step) => clamp(Math.floor((step - first) / width), count);
const power = (exponent) => (exponent >= -2 && exponent <= 3 ? String(Number(`1e${exponent}`)) : `1e${exponent}`);
const ticksOf = (low, high, most) => {
  const rough = (high - low) / most, unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * unit).find((each) => each >= rough);
  const found = [];
  for (let each = Math.ceil(low / step); each * step <= high * (1 + 1e-9); each++) found.push(Number((each * step).toPrecision(12)));
  return found;
};

// Of each column its logarithms, and the median of each layer: all bins of the first layer, then of the second.
for (const { columns, names } of data.trainings)
  for (const column of columns) {
    const codes = (column.codes = decode(column.codes));
    const logs = (column.logs = new Float32Array(codes.length).fill(NaN));
    for (let i = 0; i < codes.length; i++)
      if (codes[i] >= FIRST) {
        const { digits, exponent } = partsOf(codes[i]);
        logs[i] = Math.log10(digits) + exponent - 3;
      }
    column.usual = names.map((_, layer) => {
      const own = logs.subarray(layer * count, (layer + 1) * count).filter((each) => each === each).sort();
      return own.length ? own[own.length >> 1] : NaN;
    });
  }
// One range of a column for all trainings, which are there to be compared.
const ranges = new Map();
for (const key of new Set(data.trainings.flatMap(({ columns }) => columns.map((column) => column.key)))) {
  const every = data.trainings.flatMap(({ columns }) => columns.filter((column) => column.key === key).map((column) => column.logs));
  const all = new Float32Array(every.reduce((size, logs) => size + logs.length, 0));
  let size = 0;
  for (const logs of every) for (const each of logs) if (each === each) all[size++] = each;
  const sorted = all.subarray(0, size).sort(), at = (share) => sorted[Math.min(size - 1, Math.floor(share * size))];
  const high = size ? Math.ceil(at(0.999)) : 0;
  const low = size ? Math.max(Math.floor(at(0.01)), high - 7) : -1;
  ranges.set(key, [Math.min(low, high - 1), high]);
}
