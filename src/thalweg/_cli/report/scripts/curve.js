// The loss: one scale for all trainings, each with its own curve and those of the others behind it.
const HEADROOM = 1.25;
const isNumber = (value) => typeof value === "number";
const scaleOfLosses = () => {
  const finite = data.trainings.flatMap(({ loss }) => [...loss.low, ...loss.high].filter(isNumber));
  if (!finite.length) return null;
  let low = finite.reduce((a, b) => Math.min(a, b)), high = finite.reduce((a, b) => Math.max(a, b));
  if (data.trainings.length > 1) {
    // One that blows up would press all others flat: it leaves the picture at the top.
    const starts = data.trainings.map(({ loss }) => loss.high.find(isNumber)).filter(isNumber);
    const start = starts.reduce((a, b) => Math.max(a, b));
    high = Math.max(low, Math.min(high, start + (HEADROOM - 1) * Math.abs(start)));
  }
  const logarithmic = low > 0 && high / low > 10;
  const labels = logarithmic
    ? [1, 2, 5].flatMap((digit) => Array.from({ length: 40 }, (_, at) => digit * 10 ** (at - 20))).filter((each) => each >= low && each <= high).sort((a, b) => a - b)
    : null;
  if (high === low) { high += 0.5 * (Math.abs(high) || 1); low -= 0.5 * (Math.abs(low) || 1); }
  return { low, high, labels: labels || ticksOf(low, high, 4), to: logarithmic ? Math.log10 : (each) => each };
};
const losses = scaleOfLosses();

// All bins from one that has a number to the last before one that is none; those without a loss are passed over.
const traceLine = (pen, values, x, y) => {
  pen.beginPath();
  let moved = false;
  for (let bin = 0; bin < count; bin++) {
    if (values[bin] === null) continue;
    if (!isNumber(values[bin])) { moved = false; continue; }
    pen[moved ? "lineTo" : "moveTo"](x(bin), y(values[bin]));
    moved = true;
  }
  pen.stroke();
};
const fillBand = (pen, { low, high }, x, y) => {
  let open = [];
  const close = () => {
    if (open.length > 1) {
      pen.beginPath();
      open.forEach((bin, at) => pen[at ? "lineTo" : "moveTo"](x(bin), y(high[bin])));
      [...open].reverse().forEach((bin) => pen.lineTo(x(bin), y(low[bin])));
      pen.fill();
    }
    open = [];
  };
  for (let bin = 0; bin < count; bin++)
    if (isNumber(low[bin]) && isNumber(high[bin])) open.push(bin);
    else if (low[bin] !== null) close();
  close();
};

const drawLoss = ({ own, curve, scale, marks, lead }) => {
  const box = curve.parentElement, wide = box.clientWidth, tall = box.clientHeight, ratio = devicePixelRatio;
  if (!wide) return;
  curve.width = Math.round(wide * ratio);
  curve.height = Math.round(tall * ratio);
  const pen = curve.getContext("2d"), style = getComputedStyle(document.documentElement);
  const color = (name) => style.getPropertyValue(name).trim();
  pen.scale(ratio, ratio);
  pen.clearRect(0, 0, wide, tall);
  const bottom = tall - 20, top = 18;
  pen.font = "11px system-ui, sans-serif";
  // x: whole steps
  pen.fillStyle = color("--soft");
  pen.strokeStyle = color("--line");
  pen.lineWidth = 1;
  pen.textBaseline = "top";
  let edge = -Infinity;
  for (const step of ticksOf(first, Math.max(last, first + 1), Math.max(2, wide / 75)).filter(Number.isInteger)) {
    const x = shareOf(step) * wide, text = grouped(step), half = pen.measureText(text).width / 2;
    const middle = Math.max(half, Math.min(wide - half, x));
    if (middle - half < edge + 8) continue;
    edge = middle + half;
    pen.fillText(text, middle - half, bottom + 6);
    pen.beginPath(); pen.moveTo(x, top); pen.lineTo(x, bottom + 3); pen.stroke();
  }
  scale.replaceChildren();
  if (losses) {
    const { low, high, labels, to } = losses, from = to(low), span = to(high) - from || 1;
    const y = (value) => bottom - ((to(value) - from) / span) * (bottom - top);
    const x = (bin) => ((bin + 0.5) / count) * wide;
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
    pen.save();
    pen.beginPath(); pen.rect(0, top - 2, wide, bottom - top + 4); pen.clip();
    pen.lineJoin = "round";
    pen.strokeStyle = color("--others");
    for (const other of data.trainings) if (other !== own) traceLine(pen, other.loss.mean, x, y);
    pen.fillStyle = color("--band");
    fillBand(pen, own.loss, x, y);
    pen.strokeStyle = color("--curve");
    pen.lineWidth = 1.4;
    traceLine(pen, own.loss.mean, x, y);
    pen.restore();
  }
  for (const step of own.resumed) {
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
    const text = `${elide(titleOf(lead, own), Math.floor(wide / 9))}, step ${grouped(lead.step)}`, half = pen.measureText(text).width / 2;
    pen.textBaseline = "bottom";
    pen.fillText(text, Math.max(0, Math.min(wide - 2 * half, shareOf(lead.step) * wide - half)), top - 2);
  }
};
