import { decrossDfs, decrossTwoLayer, graph, sugiyama } from "./vendor/d3-dag.esm.min.js";

// The picture of a graph: where its boxes and lines go. The arrow keys go from step to step: to a parent, to a child,
// along a layer.
const WIDTH = 200, HEIGHT = 56, GAP = [32, 44], MARGIN = 12;
const all = (what) => [...document.querySelectorAll(`#graph ${what}`)];
const boxes = () => all("a.box");
const place = (box) => laid.places.get(box.dataset.step);
const nearest = (some, to) => some.toSorted((one, other) => Math.abs(place(one).x - place(to).x) - Math.abs(place(other).x - place(to).x))[0];
let laid = { of: "" };

// As few crossings as can be found, and otherwise the order of the definition.
const uncross = decrossTwoLayer().inits([() => {}, decrossDfs(), decrossDfs().topDown(false)]);
const number = ({ data }) => (data.node ?? data.link.source).data;
function order(layers) {
  for (const layer of layers) layer.sort((one, other) => number(one) - number(other));
  uncross(layers);
}
// Steps by the middles of their boxes, lines by the middles of the layers that they go through.
function layOut(steps, edges) {
  const dag = graph(), nodes = new Map();
  steps.forEach(({ step, last }, at) => { if (last === undefined) nodes.set(step, dag.node(at)); });
  const links = edges.map(({ from, to }) => dag.link(nodes.get(from), nodes.get(to)));
  let { width, height } = sugiyama().decross(order).nodeSize([WIDTH, HEIGHT]).gap(GAP)(dag);
  const ends = steps.filter(({ step }) => !nodes.has(step));  // they come after all others, in a layer of their own
  const wide = ends.length * (WIDTH + GAP[0]) - GAP[0];
  ends.forEach(({ step }, at) => nodes.set(step, { x: (width - wide + WIDTH) / 2 + at * (WIDTH + GAP[0]), y: height + GAP[1] + HEIGHT / 2 }));
  const left = Math.max(0, wide - width) / 2 + MARGIN;
  width = Math.max(width, wide);
  if (ends.length) height += GAP[1] + HEIGHT;
  const moved = (x, y) => ({ x: x + left, y: y + MARGIN });
  return {
    width: width + 2 * MARGIN, height: height + 2 * MARGIN,
    places: new Map([...nodes].map(([step, { x, y }]) => [step, moved(x, y)])),
    lines: links.map(({ points }) => points.map(([x, y]) => moved(x, y))),
  };
}
// A line leaves and arrives straight down, and runs straight beside the boxes of a layer that it passes.
function path([from, ...rest]) {
  let { x, y } = from, made = `M${x} ${y += HEIGHT / 2}`;
  rest.forEach((next, at) => {
    const top = next.y - HEIGHT / 2, half = (y + top) / 2;
    made += `C${x} ${half} ${next.x} ${half} ${next.x} ${top}`;
    [x, y] = [next.x, top];
    if (at < rest.length - 1) made += `V${y += HEIGHT}`;
  });
  return made;
}
const move = (element, { x, y }) => { element.style.transform = `translate(${x}px, ${y}px)`; };
function draw() {
  const svg = document.getElementById("graph");
  if (!svg) return;
  const steps = boxes().map(({ dataset: { step, last } }) => ({ step, last }));
  const edges = all(".edge").map(({ dataset: { from, to } }) => ({ from, to }));
  const of = JSON.stringify([steps, edges]);
  if (of !== laid.of) laid = { of, ...layOut(steps, edges) };
  Object.assign(svg.style, { width: `${laid.width}px`, height: `${laid.height}px` });
  for (const box of boxes()) move(box, { x: place(box).x - WIDTH / 2, y: place(box).y - HEIGHT / 2 });
  all(".edge").forEach((edge, at) => {
    const line = laid.lines[at], end = line.at(-1);
    edge.firstElementChild.setAttribute("d", path(line));
    move(edge.lastElementChild, { x: end.x, y: end.y - HEIGHT / 2 });
    const words = document.getElementById(`words-${edge.id}`);  // on the middle of the first curve
    if (words) move(words, { x: (line[0].x + line[1].x) / 2, y: (line[0].y + line[1].y) / 2 });
  });
}

function related(box, here, there) {
  const names = new Set(all(".edge").filter((edge) => edge.dataset[here] === box.dataset.step).map((edge) => edge.dataset[there]));
  return boxes().filter((each) => names.has(each.dataset.step));
}
function beside(box, step) {
  const row = boxes().filter((each) => place(each).y === place(box).y).sort((one, other) => place(one).x - place(other).x);
  return row[row.indexOf(box) + step];
}
const moves = {
  ArrowUp: (box) => nearest(related(box, "to", "from"), box),
  ArrowDown: (box) => nearest(related(box, "from", "to"), box),
  ArrowLeft: (box) => beside(box, -1),
  ArrowRight: (box) => beside(box, 1),
  Home: () => boxes()[0],
  End: () => boxes().at(-1),
};
function light(box) {
  for (const edge of all(".edge")) {
    edge.classList.toggle("near", Boolean(box) && [edge.dataset.from, edge.dataset.to].includes(box.dataset.step));
  }
}
// One that is wider than its page begins where something goes on.
function show() {
  const frame = document.querySelector(".graph");
  const going = frame?.querySelector(".box:is(.is-running, .is-pending, .is-failed)");
  if (going && frame.scrollWidth > frame.clientWidth) frame.scrollLeft = place(going).x - frame.clientWidth / 2;
}
draw();
show();
document.body.addEventListener("htmx:after:swap", draw);
document.addEventListener("keydown", (event) => {
  const box = event.target.closest?.("#graph a.box");
  if (!box || !moves[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  const next = moves[event.key](box);
  next?.focus();
});
document.addEventListener("focusin", (event) => light(event.target.closest?.("#graph a.box")));
document.addEventListener("pointerover", (event) => {
  const box = event.target.closest?.("#graph a.box");
  if (box || !document.activeElement?.closest("#graph a.box")) light(box);
});
