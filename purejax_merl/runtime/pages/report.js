// Draws every panel over the chosen horizontal axis. One group: a colour per quantity; several:
// a colour per group, the same in all panels.
const report = JSON.parse(document.getElementById("data").textContent);
const many = report.groups.length > 1;
const AXES = {round: ["Round", "round", 1], steps: ["Team steps", "team steps", 1], seconds: ["Time", "minutes of training", 60]};
let axis = "round";

const swatch = l => `<svg class="swatch" width="26" height="10" aria-hidden="true"><line x1="1" x2="25" y1="5" y2="5" stroke="${l.color}" stroke-width="2.6" stroke-dasharray="${l.dash}"/></svg>`;
const abscissa = group => report.axes[group][axis].map(v => known(v) ? v / AXES[axis][2] : null);

function lines(panel) {
  const drawn = [];
  panel.lines.forEach((line, i) => {
    const style = look(many ? line.group : i), x = abscissa(line.group);
    if (!many && i && !style.dash) style.dash = DASHES[i % 4];
    for (const run of line.runs) drawn.push({x, y: run, color: style.color, dash: style.dash, width: 0.8, opacity: 0.55});
    drawn.push({...style, name: line.name, x, y: line.mean, low: line.low, high: line.high, width: 2, main: true});
  });
  return drawn;
}

// The number of a line nearest to x.
function at(line, x) {
  let best = null, gap = Infinity;
  line.x.forEach((v, i) => {
    if (known(v) && known(line.y[i]) && Math.abs(v - x) < gap) { gap = Math.abs(v - x); best = line.y[i]; }
  });
  return best;
}

function build() {
  const root = document.getElementById("sections");
  root.replaceChildren();
  const built = [];
  for (const section of report.sections) {
    const head = document.createElement("h2"), grid = document.createElement("div");
    head.textContent = section.title;
    grid.className = "panels";
    root.append(head, grid);
    for (const panel of section.panels) {
      const box = document.createElement("div");
      box.className = "panel";
      box.innerHTML = `<h3>${escapeText(panel.title)} <span class="unit">${escapeText(panel.unit)}</span></h3><div class="legend"></div><div class="plot"></div>`;
      grid.append(box);
      built.push([box, panel]);
    }
  }
  charts = [];
  for (const [box, panel] of built) draw(box, panel);
}

let charts = [];
function draw(box, panel) {
  const all = lines(panel), main = all.filter(l => l.main), legend = box.querySelector(".legend");
  const read = x => main.forEach((l, i) => legend.querySelectorAll(".value")[i].textContent = number(x === null ? l.y.filter(known).at(-1) : at(l, x)));
  legend.innerHTML = main.map(l => `<span>${swatch(l)}${many ? "" : escapeText(l.name) + " "}<span class="value"></span></span>`).join("");
  const chart = lineChart(box.querySelector(".plot"), {
    lines: all, limits: panel.limits, bars: panel.bars, xLabel: AXES[axis][1], wholeX: axis === "round", name: panel.title,
    onPick: x => charts.forEach(c => { c.mark(x); c.read(x); }),
  });
  charts.push({mark: x => { chart.mark(x); if (box === charts[0].box) where(x); }, read, box});
  read(null);
}
function where(x) {
  document.getElementById("where").textContent = x === null ? "" : `at ${number(x)} ${AXES[axis][1]}`;
}

function choices() {
  const host = document.getElementById("axis");
  for (const name of Object.keys(AXES)) {
    if (!report.axes.some(a => a[name].some(known))) continue;
    const button = document.createElement("button");
    button.textContent = AXES[name][0];
    button.setAttribute("aria-pressed", name === axis);
    button.onclick = () => {
      axis = name;
      [...host.children].forEach(b => b.setAttribute("aria-pressed", b === button));
      build();
    };
    host.append(button);
  }
  if (many) document.getElementById("groups").innerHTML = report.groups.map((g, i) =>
    `<span>${swatch(look(i))}${escapeText(g.label)} <span class="soft">(seed ${g.seeds.map(escapeText).join(", ")})</span></span>`).join("");
}

choices();
build();
onNewWidth(build);
