// One line chart as inline SVG, drawn at the width it has. No library, no network.
"use strict";
const PALETTE = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"];
const DASHES = ["", "7 3", "2 3", "9 3 2 3"];
// Past the seven colours the dash changes too, so that no two lines look the same.
const look = i => ({color: PALETTE[i % 7], dash: DASHES[Math.floor(i / 7) % 4]});
const escapeText = s => String(s).replace(/[&<>"]/g, c => "&#" + c.charCodeAt(0) + ";");
const known = v => v !== null && v !== undefined && Number.isFinite(v);

function number(v) {
  if (!known(v)) return "–";
  const a = Math.abs(v);
  if (a >= 1e9) return +(v / 1e9).toPrecision(3) + "G";
  if (a >= 1e6) return +(v / 1e6).toPrecision(3) + "M";
  if (a >= 1e4) return +(v / 1e3).toPrecision(3) + "k";
  if (a !== 0 && a < 1e-3) return (+v.toPrecision(2)).toExponential();
  return String(+v.toPrecision(a >= 1000 ? 4 : 3));
}

function ticks(low, high, wanted) {
  const raw = (high - low) / Math.max(wanted, 1), power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map(f => f * power).find(s => s >= raw * 0.999);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) found.push(k * step);
  return found;
}

// Range of the curves. A band may widen it by as much again, not more: wide intervals of two or
// three seeds would flatten everything.
function range(spec) {
  const core = spec.lines.flatMap(l => l.y).concat((spec.bars || []).map(b => b.y)).filter(known);
  let low = Math.min(...core), high = Math.max(...core);
  const span = high - low;
  const bands = spec.lines.flatMap(l => (l.low || []).concat(l.high || [])).filter(known);
  if (bands.length) {
    low = Math.max(Math.min(low, ...bands), low - span);
    high = Math.min(Math.max(high, ...bands), high + span);
  }
  if (low >= 0 && low < 0.5 * high) low = 0;
  if (high === low) { const pad = Math.abs(high) * 0.1 || 1; high += pad; if (low !== 0) low -= pad; }
  if (spec.limits) { low = Math.max(low, spec.limits[0]); high = Math.min(high, spec.limits[1]); }
  return high > low ? [low, high] : [low, low + 1];
}

// host: an element. spec: {x, xLabel, unit, lines: [{name, x, y, low, high, color, dash, width}],
// bars: [{y, label}], limits, height, onPick}. Returns {mark(x)}, which moves the cursor.
function lineChart(host, spec) {
  const width = Math.max(host.clientWidth, 220), height = spec.height || 210;
  const [low, high] = range(spec);
  const pad = (high - low) * 0.04;
  const xs = spec.lines.flatMap(l => l.x).filter(known);
  const x0 = Math.min(...xs), x1 = Math.max(...xs) > x0 ? Math.max(...xs) : x0 + 1;
  const yTicks = ticks(low, high, Math.max(3, Math.floor(height / 36)));
  const left = 14 + 6.6 * Math.max(...yTicks.map(t => number(t).length)), right = 16, top = 8;
  const bottom = 38;
  const sx = v => left + (v - x0) / (x1 - x0) * (width - left - right);
  const sy = v => top + (high + pad - v) / (high - low + 2 * pad) * (height - top - bottom);
  const clip = "c" + Math.random().toString(36).slice(2);
  const out = [`<svg width="${width}" height="${height}" role="img" aria-label="${escapeText(spec.name || "")}">`];
  out.push(`<clipPath id="${clip}"><rect x="${left}" y="${top - 2}" width="${width - left - right}" height="${height - top - bottom + 4}"/></clipPath>`);
  for (const t of yTicks) {
    out.push(`<line class="grid" x1="${left}" x2="${width - right}" y1="${sy(t)}" y2="${sy(t)}"/>`);
    out.push(`<text x="${left - 6}" y="${sy(t) + 4}" text-anchor="end">${number(t)}</text>`);
  }
  for (const t of ticks(x0, x1, Math.floor((width - left) / 75))) {
    if (spec.wholeX && t !== Math.round(t)) continue;
    out.push(`<line class="tick" x1="${sx(t)}" x2="${sx(t)}" y1="${height - bottom}" y2="${height - bottom + 4}"/>`);
    out.push(`<text x="${sx(t)}" y="${height - bottom + 17}" text-anchor="middle">${number(t)}</text>`);
  }
  out.push(`<line class="axis" x1="${left}" x2="${width - right}" y1="${height - bottom}" y2="${height - bottom}"/>`);
  out.push(`<text class="label" x="${(left + width - right) / 2}" y="${height - 4}" text-anchor="middle">${escapeText(spec.xLabel || "")}</text>`);
  for (const bar of spec.bars || []) {
    out.push(`<line class="bar" x1="${left}" x2="${width - right}" y1="${sy(bar.y)}" y2="${sy(bar.y)}"/>`);
    out.push(`<text class="barlabel" x="${left + 3}" y="${sy(bar.y) - 4}">${escapeText(bar.label)}</text>`);
  }
  out.push(`<g clip-path="url(#${clip})">`);
  for (const line of spec.lines) if (line.low) out.push(band(line, sx, sy));
  for (const line of spec.lines) {
    const dash = line.dash ? ` stroke-dasharray="${line.dash}"` : "";
    out.push(`<path d="${path(line, sx, sy)}" fill="none" stroke="${line.color}" stroke-width="${line.width || 1.8}"${dash} stroke-linejoin="round" opacity="${line.opacity || 1}"/>`);
  }
  out.push(`</g><line class="cursor" y1="${top}" y2="${height - bottom}" visibility="hidden"/></svg>`);
  host.innerHTML = out.join("");
  const svg = host.firstChild, cursor = svg.querySelector(".cursor");
  const mark = v => {
    cursor.setAttribute("visibility", known(v) ? "visible" : "hidden");
    if (known(v)) { cursor.setAttribute("x1", sx(v)); cursor.setAttribute("x2", sx(v)); }
  };
  if (spec.onPick) {
    const pick = e => {
      const px = e.clientX - svg.getBoundingClientRect().left;
      spec.onPick(Math.min(x1, Math.max(x0, x0 + (px - left) / (width - left - right) * (x1 - x0))), e);
    };
    svg.addEventListener("pointermove", pick);
    svg.addEventListener("pointerdown", pick);
    svg.addEventListener("pointerleave", () => spec.onPick(null));
  }
  return {mark};
}

// Also when a scroll bar takes its share of the width, which is no resize of the window.
function onNewWidth(redraw) {
  let width = document.body.clientWidth;
  new ResizeObserver(() => {
    if (document.body.clientWidth === width) return;
    width = document.body.clientWidth;
    redraw();
  }).observe(document.body);
}

// A gap in the numbers is a gap in the line; a lone point becomes a dot.
function path(line, sx, sy) {
  let d = "", open = false;
  line.y.forEach((v, i) => {
    if (!known(v) || !known(line.x[i])) { open = false; return; }
    d += `${open ? "L" : "M"}${sx(line.x[i]).toFixed(1)} ${sy(v).toFixed(1)}`;
    if (!open && !known(line.y[i + 1])) d += "h2";
    open = true;
  });
  return d;
}

function band(line, sx, sy) {
  const at = line.low.map((v, i) => known(v) && known(line.high[i]) && known(line.x[i]) ? i : -1).filter(i => i >= 0);
  if (!at.length) return "";
  const up = at.map(i => `${sx(line.x[i]).toFixed(1)} ${sy(line.high[i]).toFixed(1)}`);
  const down = at.reverse().map(i => `${sx(line.x[i]).toFixed(1)} ${sy(line.low[i]).toFixed(1)}`);
  return `<path d="M${up.join("L")}L${down.join("L")}Z" fill="${line.color}" opacity="0.16"/>`;
}
