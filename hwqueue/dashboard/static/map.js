// The map of the fleet: racks as groups, nodes as cells of one canvas, drawn again only when something changes.
const box = document.getElementById("map");
const canvas = box?.querySelector("canvas");
const tip = box?.querySelector(".tip");
const legend = document.getElementById("map-legend");
const STATES = ["live", "silent", "cordoned", "draining"];
const TONES = ["completed", "failed", "cancelled", "pending"];
const VERDICTS = ["could take it now", "matches, but is full", "one rule away", "further"];
const GAP = 2, LABEL = 16, PAD = 8;
const NAMED = 300;    // so many nodes have room for their names

let nodes = null;      // columns, as the server sends them
let places = [];       // where each node is drawn
let groups = [];       // racks: name, frame
let verdicts = null;   // of the class that was asked for
let size = 14, wide = 14;  // height and width of a cell
let at = -1;
let paint = box?.dataset.fit ? "fit" : "use";
let only = null;       // the entry of the legend that stands out

function colour(name) {
  const probe = document.getElementById("said");
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}
const kinds = {
  use: {
    of: (i) => Math.min(4, Math.floor(nodes.use[i] / 20)),
    names: ["0 to 19 %", "20 to 39 %", "40 to 59 %", "60 to 79 %", "80 % and more"],
    colours: ["use-0", "use-1", "use-2", "use-3", "use-4"],
  },
  state: { of: (i) => nodes.state[i], names: STATES, colours: TONES },
  free: {
    of: (i) => (nodes.gpus[i] === 0 ? 0 : nodes.free[i] >= 8 ? 4 : nodes.free[i] >= 2 ? 3 : nodes.free[i] === 1 ? 2 : 1),
    names: ["no GPU", "none free", "room for 1 GPU", "for 2 to 7", "for 8 and more"],
    colours: ["line", "use-0", "use-1", "use-3", "use-4"],
  },
  fit: {
    of: (i) => (verdicts ? verdicts.verdict[i] : 3),
    names: VERDICTS,
    colours: ["completed", "pending", "no-match", "use-0"],
  },
};

function arrange() {
  const byRack = new Map();
  nodes.name.forEach((_, i) => {
    const rack = nodes.rack[i];
    if (!byRack.has(rack)) byRack.set(rack, []);
    byRack.get(rack).push(i);
  });
  const racks = [...byRack].sort(([a], [b]) => a.localeCompare(b, "en", { numeric: true }));
  const width = canvas.clientWidth || box.clientWidth;
  size = nodes.name.length > 2000 ? 10 : nodes.name.length > NAMED ? 14 : 28;
  wide = nodes.name.length > NAMED ? size : width < 500 ? 60 : 72;
  const step = size + GAP, across = wide + GAP;
  places = new Array(nodes.name.length);
  groups = [];
  let x = 0, y = 0, tallest = 0;
  for (const [rack, members] of racks) {
    const columns = Math.max(wide > size ? 2 : 3, Math.min(Math.ceil(Math.sqrt(members.length * (wide > size ? 0.4 : 1.6))), Math.floor((width - 2 * PAD) / across)));
    const rows = Math.ceil(members.length / columns);
    const w = Math.max(columns * across - GAP + 2 * PAD, 56), h = rows * step - GAP + PAD + LABEL + 4;
    if (x && x + w > width) { x = 0; y += tallest + PAD; tallest = 0; }
    groups.push({ rack, x, y, w, h });
    members.forEach((i, n) => { places[i] = { x: x + PAD + (n % columns) * across, y: y + LABEL + 4 + Math.floor(n / columns) * step }; });
    x += w + PAD;
    tallest = Math.max(tallest, h);
  }
  const height = y + tallest;
  const ratio = window.devicePixelRatio || 1;
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
}

function draw() {
  if (!nodes) return;
  arrange();
  const context = canvas.getContext("2d");
  const ratio = window.devicePixelRatio || 1;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  const kind = kinds[paint];
  const fills = kind.colours.map(colour);
  const line = colour("line"), text = colour("muted"), strong = colour("text");
  const inks = fills.map(ink);
  context.font = "11px system-ui";
  context.lineWidth = 1;
  for (const group of groups) {
    context.strokeStyle = line;
    context.strokeRect(group.x + 0.5, group.y + 0.5, group.w - 1, group.h - 1);
    context.fillStyle = text;
    context.fillText(group.rack === "-" ? "no rack" : `rack ${group.rack}`, group.x + PAD, group.y + 13, group.w - 2 * PAD);
  }
  places.forEach((place, i) => {
    const value = kind.of(i);
    context.globalAlpha = only !== null && value !== only ? 0.15 : 1;
    const isHollow = (paint === "fit" && value === 1) || (paint !== "state" && nodes.state[i] === 1);
    if (isHollow) {
      context.strokeStyle = paint === "fit" ? fills[value] : text;
      context.lineWidth = 2;
      context.setLineDash(paint === "fit" ? [] : [2, 2]);
      context.strokeRect(place.x + 1, place.y + 1, wide - 2, size - 2);
      context.setLineDash([]);
      context.lineWidth = 1;
    } else {
      context.fillStyle = fills[value];
      context.fillRect(place.x, place.y, wide, size);
    }
    const ink = isHollow ? strong : inks[value];
    if (paint !== "state" && nodes.state[i] >= 2) hatch(context, place, ink);
    if (wide > size) {
      context.fillStyle = ink;
      context.fillText(nodes.name[i], place.x + 6, place.y + size / 2 + 4, wide - 12);
    } else if (paint === "fit" && value === 2 && size >= 14) {
      context.fillStyle = ink;
      context.fillText((verdicts.rule[i] || "?")[0], place.x + 4, place.y + size - 3);
    }
  });
  context.globalAlpha = 1;
  if (at >= 0 && document.activeElement === canvas) {
    context.strokeStyle = colour("accent");
    context.lineWidth = 2;
    context.strokeRect(places[at].x - 1, places[at].y - 1, wide + 2, size + 2);
  }
  explain(kind);
}

// What can be read on a colour.
function ink(fill) {
  const [red, green, blue] = fill.match(/[\d.]+/g).map(Number);
  return 0.299 * red + 0.587 * green + 0.114 * blue > 140 ? "#12161c" : "#ffffff";
}
// Cordoned and draining nodes are hatched in a corner.
function hatch(context, place, stroke) {
  context.strokeStyle = stroke;
  context.beginPath();
  for (let offset = 3; offset <= 14; offset += 4) {
    context.moveTo(place.x + wide - offset, place.y);
    context.lineTo(place.x + wide, place.y + offset);
  }
  context.stroke();
}

function explain(kind) {
  const counts = kind.names.map(() => 0);
  places.forEach((_, i) => { counts[kind.of(i)] += 1; });
  legend.replaceChildren(...kind.names.map((name, value) => {
    const button = document.createElement("button");
    const swatch = document.createElement("span");
    button.type = "button";
    button.setAttribute("aria-pressed", String(only === value));
    swatch.className = "swatch";
    swatch.style.background = `var(--${kind.colours[value]})`;
    button.append(swatch, `${name}: ${counts[value].toLocaleString("en")}`);
    button.addEventListener("click", () => { only = only === value ? null : value; draw(); });
    return button;
  }));
  document.getElementById("map-sum").textContent = `${nodes.name.length.toLocaleString("en")} nodes in ${groups.length.toLocaleString("en")} racks`;
}

function words(i) {
  const parts = [
    `${nodes.name[i]}, ${nodes.rack[i] === "-" ? "no rack" : `rack ${nodes.rack[i]}`}, ${STATES[nodes.state[i]]}`,
    `${nodes.use[i]} % used`,
    nodes.gpus[i] ? `${nodes.free[i]} of ${nodes.gpus[i]} GPUs free` : "no GPU",
    `${nodes.claims[i]} running`,
  ];
  if (paint === "fit" && verdicts) parts.push(VERDICTS[verdicts.verdict[i]] + (verdicts.rule[i] ? `: ${verdicts.rule[i]}` : ""));
  return parts;
}
function find(event) {
  const frame = canvas.getBoundingClientRect();
  const x = event.clientX - frame.left, y = event.clientY - frame.top;
  return places.findIndex((place) => x >= place.x && x < place.x + wide && y >= place.y && y < place.y + size);
}
function show(i) {
  tip.hidden = i < 0;
  if (i < 0) return;
  tip.replaceChildren(...words(i).map((line) => Object.assign(document.createElement("div"), { textContent: line })));
  const left = Math.min(places[i].x + wide + 8, canvas.clientWidth - tip.offsetWidth);
  tip.style.left = `${Math.max(0, left)}px`;
  tip.style.top = `${places[i].y + size + 8}px`;
}
function open(i) {
  if (i >= 0) location.href = box.dataset.nodes + encodeURIComponent(nodes.name[i]);
}
function step(dx, dy) {
  const here = places[at];
  let best = -1, nearest = Infinity;
  places.forEach((place, i) => {
    const along = (place.x - here.x) * dx + (place.y - here.y) * dy;
    const across = Math.abs((place.x - here.x) * dy) + Math.abs((place.y - here.y) * dx);
    const far = along + 4 * across;
    if (along > 0 && far < nearest) { nearest = far; best = i; }
  });
  return best < 0 ? at : best;
}

async function load() {
  const answer = await fetch(box.dataset.url);
  if (!answer.ok) return;
  nodes = await answer.json();
  if (box.dataset.fit && !verdicts) {
    const fit = await fetch(box.dataset.fit);
    if (fit.ok) {
      const found = await fit.json();
      const index = new Map(found.name.map((name, i) => [name, i]));
      const pick = (column, missing) => nodes.name.map((name) => (index.has(name) ? column[index.get(name)] : missing));
      verdicts = { verdict: pick(found.verdict, 3), rule: pick(found.rule, "") };
    } else paint = "use";
  }
  at = Math.min(at, nodes.name.length - 1);
  draw();
  canvas.dataset.nodes = String(nodes.name.length);
}

if (box) {
  for (const button of document.querySelectorAll("[data-paint]")) button.setAttribute("aria-pressed", String(button.dataset.paint === paint));
  document.addEventListener("click", (event) => {
    const button = event.target.closest?.("[data-paint]");
    if (!button) return;
    paint = button.dataset.paint;
    only = null;
    for (const each of document.querySelectorAll("[data-paint]")) each.setAttribute("aria-pressed", String(each === button));
    draw();
  });
  document.body.addEventListener("htmx:after:swap", () => {
    for (const each of document.querySelectorAll("[data-paint]")) each.setAttribute("aria-pressed", String(each.dataset.paint === paint));
    if (nodes) draw();
  });
  canvas.addEventListener("pointermove", (event) => show(find(event)));
  canvas.addEventListener("pointerleave", () => show(-1));
  canvas.addEventListener("click", (event) => open(find(event)));
  canvas.addEventListener("focus", () => { if (at < 0) at = 0; draw(); });
  canvas.addEventListener("blur", () => { show(-1); draw(); });
  canvas.addEventListener("keydown", (event) => {
    const moves = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };
    if (event.key === "Enter") { open(at); return; }
    if (!moves[event.key] || at < 0) return;
    event.preventDefault();
    at = step(...moves[event.key]);
    draw();
    show(at);
    document.getElementById("said").textContent = words(at).join(", ");
  });
  document.body.addEventListener("refresh", load);
  window.addEventListener("repaint", draw);
  new ResizeObserver(draw).observe(box);
  load();
}
