// Draws the fleet on a canvas: one cell a GPU. Arrow keys move, N goes to the next GPU in trouble, Enter opens.
const GROUP = 15;
const HOST = 14;
const GAP = 6;
const SMALL = 9;

function geometry(data, width, height, context) {
  const cell = width / data.columns;
  context.font = "11px sans-serif";
  const fits = (names) => names.every((name) => context.measureText(name).width + 6 <= cell);
  const named = data.hosts.length > 64 ? null : [data.hosts, data.short].find(fits) ?? null;
  const groups = data.labels.some((label) => label[2]);
  const head = (groups ? GROUP : 0) + (named ? HOST : 0);
  const row = (height - data.bands * head - (data.bands - 1) * GAP) / (data.bands * data.rows);
  return { cell, row: Math.max(2, Math.min(row, cell * 1.6)), head, named, groups };
}

function place(data, g, n) {
  const node = data.node[n];
  const column = data.column[node] + Math.floor(data.slot[n] / data.rows);
  const top = data.band[node] * (g.head + g.row * data.rows + GAP) + g.head;
  return { x: column * g.cell, y: top + (data.slot[n] % data.rows) * g.row };
}

function paint(data, canvas, cursor, focused) {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth, height = canvas.clientHeight;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  const g = geometry(data, width, height, context);
  const gap = g.cell > 14 ? 3 : g.cell > 6 ? 1 : 0.5;
  const tall = Math.min(g.row, g.cell) > SMALL;
  context.textAlign = "center";
  context.textBaseline = "middle";
  for (let n = 0; n < data.node.length; n += 1) {
    const at = place(data, g, n), shade = data.shade[n];
    if (shade < 0) {
      context.strokeStyle = data.muted;
      context.lineWidth = 1;
      context.strokeRect(at.x + 1, at.y + 1, g.cell - gap - 1, g.row - gap - 1);
      continue;
    }
    context.fillStyle = data.colours[shade];
    context.fillRect(at.x, at.y, g.cell - gap, g.row - gap);
  }
  if (tall) marks(data, context, g, gap);
  else beacons(data, context, g);
  labels(data, context, g, width);
  if (cursor >= 0 && (focused || canvas.dataset.hover === "1")) {
    const at = place(data, g, cursor);
    context.strokeStyle = data.focus;
    context.lineWidth = 3;
    context.strokeRect(at.x - 1.5, at.y - 1.5, g.cell - gap + 3, g.row - gap + 3);
  }
  return g;
}

function marks(data, context, g, gap) {
  const size = Math.max(8, Math.min(15, Math.min(g.row, g.cell) * 0.5));
  context.font = `600 ${size}px sans-serif`;
  for (let n = 0; n < data.node.length; n += 1) {
    const number = data.numbers.length && g.cell > 24 ? data.numbers[n] : "";
    const words = [data.state[n] > 0 ? data.symbols[data.state[n]] : "", number].filter(Boolean).join(" ");
    if (!words) continue;
    const at = place(data, g, n), shade = data.shade[n];
    context.fillStyle = shade < 0 ? data.text : data.inks[shade];
    context.fillText(words, at.x + (g.cell - gap) / 2, at.y + (g.row - gap) / 2 + 1);
  }
}

// Cells too small for a symbol: what is critical or lost carries it beside the cell's edges, on a ground of its own.
function beacons(data, context, g) {
  const bad = [];
  for (let n = 0; n < data.state.length; n += 1) if (data.state[n] >= 3) bad.push(n);
  context.font = "600 10px sans-serif";
  for (const n of bad.slice(0, 400)) {
    const at = place(data, g, n);
    const x = at.x + g.cell / 2, y = at.y + g.row / 2;
    context.fillStyle = data.ground;
    context.beginPath();
    context.arc(x, y, 7, 0, 2 * Math.PI);
    context.fill();
    context.fillStyle = data.marks[data.state[n]];
    context.fillText(data.symbols[data.state[n]], x, y + 0.5);
  }
}

function labels(data, context, g, width) {
  const step = g.head + g.row * data.rows + GAP;
  context.textAlign = "left";
  context.fillStyle = data.muted;
  context.font = "11px sans-serif";
  if (g.groups) {
    for (const [x, band, name] of groupLabels(data, g, context, width)) context.fillText(name, x, band * step + GROUP / 2);
  }
  if (g.named) {
    g.named.forEach((name, node) => {
      const y = data.band[node] * step + (g.groups ? GROUP : 0) + HOST / 2 - 1;
      context.fillText(name, data.column[node] * g.cell, y);
    });
  }
}

// Each group by its name; where one does not fit above its group, the first and last of each band.
function groupLabels(data, g, context, width) {
  const room = data.labels.map(([column, band], n) => {
    const next = data.labels[n + 1];
    return (next && next[1] === band ? next[0] * g.cell : width) - column * g.cell - 4;
  });
  if (data.labels.every((label, n) => context.measureText(label[2]).width <= room[n])) {
    return data.labels.map(([column, band, name]) => [column * g.cell, band, name]);
  }
  return Array.from({ length: data.bands }, (_, band) => {
    const here = data.labels.filter((label) => label[1] === band).map((label) => label[2]);
    return [0, band, here.length > 1 ? `${here[0]} – ${here.at(-1)}` : here[0] ?? ""];
  });
}

function nearest(data, g, x, y) {
  const step = g.head + g.row * data.rows + GAP;
  const band = Math.floor(y / step), column = Math.floor(x / g.cell);
  const row = Math.floor((y - band * step - g.head) / g.row);
  if (row < 0 || row >= data.rows) return -1;
  return data.grid.get(`${band},${column},${row}`) ?? -1;
}

function index(data) {
  data.grid = new Map();
  data.where = data.node.map((node, n) => {
    const spot = [data.band[node], data.column[node] + Math.floor(data.slot[n] / data.rows), data.slot[n] % data.rows];
    data.grid.set(spot.join(","), n);
    return spot;
  });
}

function describe(data, n) {
  const node = data.node[n];
  const name = data.index[n] === null ? `${data.hosts[node]} · ${data.slot[n]}` : `${data.hosts[node]} · GPU ${data.index[n]}`;
  const lines = [`${name}${data.groups[node] ? ` · ${data.groups[node]}` : ""}`];
  lines.push(`${data.symbols[data.state[n]]} ${data.names[data.state[n]]}`);
  const known = [];
  if (data.temperature[n] >= 0) known.push(`${data.temperature[n]} °C`);
  if (data.utilization[n] >= 0) known.push(`${data.words.utilization} ${data.utilization[n]} %`);
  if (data.memory[n] >= 0) known.push(`${data.words.memory} ${data.memory[n]} %`);
  if (known.length) lines.push(known.join(" · "));
  if (data.risk[n] >= 0) lines.push(`${data.words.risk} ${data.risk[n]} %`);
  return lines;
}

function moved(data, from, key) {
  if (from < 0) return 0;
  if (key === "Home") return 0;
  if (key === "End") return data.node.length - 1;
  if (key === "n" || key === "N") {
    for (let step = 1; step <= data.node.length; step += 1) {
      const n = (from + (key === "n" ? step : data.node.length - step)) % data.node.length;
      if (data.state[n] >= 2) return n;
    }
    return from;
  }
  let [band, column, row] = data.where[from];
  const [dx, dy] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[key];
  for (let step = 0; step < data.columns + data.rows; step += 1) {
    column += dx;
    row += dy;
    if (row < 0 || row >= data.rows) {
      band += dy;
      row = dy > 0 ? 0 : data.rows - 1;
    }
    const found = data.grid.get(`${band},${column},${row}`);
    if (found !== undefined) return found;
  }
  return from;
}

export default function (component) {
  const { data, parentElement, setTriggerValue } = component;
  const canvas = parentElement.querySelector("canvas");
  const tip = parentElement.querySelector(".tip");
  const said = parentElement.querySelector(".said");
  const state = (canvas.fleet ??= { cursor: -1, focused: false });
  state.data = data;
  index(data);
  if (state.cursor >= data.node.length) state.cursor = -1;
  canvas.setAttribute("aria-label", data.label);
  canvas.style.setProperty("--focus", data.focus);
  Object.assign(tip.style, { background: data.ground, color: data.text, borderColor: data.muted });

  const draw = () => {
    state.g = paint(state.data, canvas, state.cursor, state.focused);
    canvas.dataset.cells = String(state.data.node.length);
  };
  const point = (n) => {
    state.cursor = n;
    canvas.dataset.hover = n >= 0 ? "1" : "0";
    draw();
    tip.hidden = n < 0;
    if (n < 0) return;
    const at = place(state.data, state.g, n);
    tip.replaceChildren(...describe(state.data, n).map((line) => Object.assign(document.createElement("div"), { textContent: line })));
    const right = at.x > canvas.clientWidth * 0.6;
    tip.style.left = right ? "auto" : `${at.x + state.g.cell + 8}px`;
    tip.style.right = right ? `${canvas.clientWidth - at.x + 8}px` : "auto";
    tip.style.top = `${Math.min(at.y, canvas.clientHeight - 90)}px`;
    canvas.dataset.x = String(at.x + state.g.cell / 2);
    canvas.dataset.y = String(at.y + state.g.row / 2);
  };
  const open = (n) => {
    const d = state.data;
    if (n >= 0) setTriggerValue("opened", { host: d.hosts[d.node[n]], group: d.groups[d.node[n]], slot: d.slot[n] });
  };
  const under = (event) => nearest(state.data, state.g, event.offsetX, event.offsetY);
  canvas.onmousemove = (event) => {
    const n = under(event);
    if (n !== state.cursor) point(n);
    canvas.style.cursor = n >= 0 ? "pointer" : "default";
  };
  canvas.onmouseleave = () => point(-1);
  canvas.onclick = (event) => open(under(event));
  canvas.onfocus = () => { state.focused = canvas.matches(":focus-visible"); draw(); };
  canvas.onblur = () => { state.focused = false; point(-1); };
  canvas.onkeydown = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Enter" || event.key === " ") open(state.cursor);
    else if (/^(Arrow(Left|Right|Up|Down)|Home|End|[nN])$/.test(event.key)) {
      point(moved(state.data, state.cursor, event.key));
      said.textContent = state.cursor >= 0 ? describe(state.data, state.cursor).join(", ") : "";
    } else return;
    event.preventDefault();
  };
  const observer = new ResizeObserver(draw);
  observer.observe(canvas);
  draw();
  return () => observer.disconnect();
}
