// Plays one episode. A skill has a colour and a shape; the number in it is the agent.
const scene = JSON.parse(document.getElementById("data").textContent);
const byId = id => document.getElementById(id);
const last = scene.position.length - 1, rows = scene.wall.length, cols = scene.wall[0].length;
const skillLook = k => look(k).color;
const SHAPES = 6;
let frame = 0, timer = null, charts = [];

function shape(g, k, x, y, r) {
  g.beginPath();
  const corners = [0, 4, 3, 4, 5, 6][k % SHAPES];
  if (corners === 0) { g.arc(x, y, r, 0, 2 * Math.PI); return; }
  const turn = k % SHAPES === 1 ? Math.PI / 4 : 0, size = corners === 3 ? r * 1.3 : r * 1.18;
  for (let i = 0; i < corners; i++) {
    const a = turn - Math.PI / 2 + 2 * Math.PI * i / corners;
    g[i ? "lineTo" : "moveTo"](x + size * Math.cos(a), y + size * Math.sin(a) + (corners === 3 ? r * 0.2 : 0));
  }
  g.closePath();
}

function badge(g, k, x, y, r, text) {
  shape(g, k, x, y, r);
  g.fillStyle = skillLook(k); g.fill();
  g.lineWidth = Math.max(1.2, r * 0.14); g.strokeStyle = "#fff"; g.stroke();
  g.lineWidth = Math.max(0.7, r * 0.06); g.strokeStyle = "#1b1f24"; g.stroke();
  if (text === undefined) return;
  g.font = `600 ${Math.max(7, r * 1.1)}px system-ui, sans-serif`;
  g.textAlign = "center"; g.textBaseline = "middle";
  // Orange and sky blue are too light for white letters.
  g.fillStyle = [4, 5].includes(k % 7) ? "#000" : "#fff";
  g.fillText(text, x, y + r * 0.08);
}

// Agents on one cell step aside, so that all are seen.
function places(t) {
  const at = {};
  scene.position[t].forEach((p, i) => (at[p] = at[p] || []).push(i));
  return scene.position[t].map((p, i) => {
    const here = at[p], turn = 2 * Math.PI * here.indexOf(i) / here.length, off = here.length > 1 ? 0.22 : 0;
    return [p[1] + 0.5 + off * Math.cos(turn), p[0] + 0.5 + off * Math.sin(turn), here.length > 1 ? 0.27 : 0.4];
  });
}

function cellColour(r, c) {
  if (scene.wall[r][c]) return "#3d444d";
  const since = scene.covered_at[r][c];
  if (since < 0 || since > frame) return "#ffffff";
  const age = Math.min(1, (frame - since) / 30);  // fresh cells are darker, and pale over 30 steps
  return `rgb(${[150 + 62 * age, 186 + 38 * age, 214 + 20 * age].map(Math.round)})`;
}

function drawWorld() {
  const canvas = byId("world"), ratio = window.devicePixelRatio || 1, width = canvas.clientWidth;
  canvas.width = canvas.height = Math.round(width * ratio);
  const g = canvas.getContext("2d"), unit = width / Math.max(rows, cols);
  g.scale(ratio, ratio);
  g.fillStyle = "#fff"; g.fillRect(0, 0, width, width);
  for (let r = 0; r < rows; r++) for (let c = 0; c < cols; c++) {
    g.fillStyle = cellColour(r, c);
    g.fillRect(c * unit, r * unit, unit + 0.5, unit + 0.5);
  }
  g.strokeStyle = "rgba(27,31,36,0.10)"; g.lineWidth = 1;
  if (unit >= 7) for (let k = 1; k < Math.max(rows, cols); k++) {
    g.beginPath(); g.moveTo(k * unit, 0); g.lineTo(k * unit, width); g.moveTo(0, k * unit); g.lineTo(width, k * unit); g.stroke();
  }
  const at = places(frame).map(([x, y, r]) => [x * unit, y * unit, Math.max(5, r * unit)]);
  const whole = scene.lambda2[frame] > scene.bar;
  g.lineWidth = Math.max(1.5, unit * 0.09);
  g.strokeStyle = whole ? "#1b1f24" : "#D55E00"; g.setLineDash(whole ? [] : [unit * 0.3, unit * 0.2]);
  for (const [i, j] of scene.links[frame]) {
    g.beginPath(); g.moveTo(at[i][0], at[i][1]); g.lineTo(at[j][0], at[j][1]); g.stroke();
  }
  g.setLineDash([]);
  at.forEach(([x, y, r], i) => badge(g, scene.skill[frame][i], x, y, r, i + 1));
}

const percent = v => (100 * v).toFixed(1) + " %";

function show(t) {
  frame = Math.max(0, Math.min(last, Math.round(t)));
  drawWorld();
  byId("scrub").value = frame;
  byId("now").textContent = `step ${frame} of ${last}`;
  const whole = scene.lambda2[frame] > scene.bar;
  const held = scene.lambda2.slice(1, frame + 1).filter(v => v > scene.bar).length;
  byId("numbers").innerHTML =
    `<span><b>${percent(scene.coverage[frame])}</b><br><span class="soft">covered</span></span>` +
    `<span><b>${scene.lambda2[frame].toFixed(2)}</b><br><span class="soft">λ₂ now</span></span>` +
    `<span><b>${frame ? percent(held / frame) : "–"}</b><br><span class="soft">of steps connected</span></span>` +
    `<span><span class="state" style="color:${whole ? "#0b4f80" : "#a63c00"}">${whole ? "connected" : "apart: λ₂ ≤ " + scene.bar}</span></span>`;
  charts.forEach(c => c.mark(frame));
}

function legend() {
  const box = byId("legend");
  const item = (draw, text) => {
    const canvas = document.createElement("canvas"), span = document.createElement("span");
    const ratio = window.devicePixelRatio || 1;
    canvas.width = canvas.height = 20 * ratio;
    canvas.style.cssText = "width:20px;height:20px;border:0;display:inline-block;margin-right:4px";
    canvas.className = "swatch"; canvas.setAttribute("aria-hidden", "true");
    const g = canvas.getContext("2d"); g.scale(ratio, ratio); draw(g);
    span.append(canvas, text); box.append(span);
  };
  const cell = colour => g => { g.fillStyle = colour; g.fillRect(2, 2, 16, 16); g.strokeStyle = "#8c959f"; g.strokeRect(2.5, 2.5, 15, 15); };
  const link = (colour, dash) => g => {
    g.strokeStyle = colour; g.lineWidth = 2; g.setLineDash(dash); g.beginPath(); g.moveTo(1, 10); g.lineTo(19, 10); g.stroke();
  };
  scene.skill_names.forEach((name, k) => item(g => badge(g, k, 10, 10, 7), name));
  item(cell("#96bad6"), "covered just now"); item(cell("#d4e0ea"), "covered earlier");
  item(cell("#ffffff"), "not covered"); item(cell("#3d444d"), "wall");
  item(link("#1b1f24", []), "in range"); item(link("#D55E00", [4, 3]), "in range, team apart");
}

function drawCharts() {
  const x = scene.lambda2.map((_, t) => t);
  const pick = (v, e) => { if (v !== null && (e.type === "pointerdown" || e.buttons)) { pause(); show(v); } };
  const chart = (id, spec) => lineChart(byId(id), {xLabel: "step", wholeX: true, height: 160, onPick: pick, name: id, ...spec});
  const uses = scene.skill_names.map((name, k) => ({name, x, color: skillLook(k), dash: DASHES[k % 4],
    y: scene.skill.map(now => now.filter(s => s === k).length)}));
  charts = [
    chart("coverage", {lines: [{x, y: scene.coverage.map(v => 100 * v), color: "#0072B2"}], limits: [0, 100]}),
    chart("lambda2", {lines: [{x, y: scene.lambda2, color: "#009E73"}], bars: [{y: scene.bar, label: String(scene.bar)}]}),
    chart("skills", {lines: uses}),
  ];
}

function pause() { clearInterval(timer); timer = null; byId("play").textContent = "Play"; }
function play() {
  if (frame === last) show(0);
  byId("play").textContent = "Pause";
  timer = setInterval(() => frame < last ? show(frame + 1) : pause(), 1000 / byId("speed").value);
}
const toggle = () => timer ? pause() : play();
const step = d => { pause(); show(frame + d); };

byId("scrub").max = last;
byId("scrub").addEventListener("input", e => { pause(); show(+e.target.value); });
byId("play").addEventListener("click", toggle);
byId("back").addEventListener("click", () => step(-1));
byId("next").addEventListener("click", () => step(1));
byId("speed").addEventListener("change", () => { if (timer) { pause(); play(); } });
document.addEventListener("keydown", e => {
  if (e.target.matches("select, button") && e.key === " ") return;
  const act = {" ": toggle, ArrowLeft: () => step(-1), ArrowRight: () => step(1), Home: () => step(-last), End: () => step(last)}[e.key];
  if (act && !e.target.matches("select")) { e.preventDefault(); act(); }
});
const redraw = () => { drawCharts(); show(frame); };
legend();
redraw();
onNewWidth(redraw);
const asked = /^#(\d+)$/.exec(location.hash);
if (asked) show(+asked[1]);
