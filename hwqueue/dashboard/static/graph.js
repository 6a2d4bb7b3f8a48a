// The arrow keys go from step to step of a graph: to a parent, to a child, along a layer.
const boxes = () => [...document.querySelectorAll("#graph a.box")];
const middle = (box) => Number(box.dataset.middle);
const nearest = (all, to) => all.toSorted((one, other) => Math.abs(middle(one) - middle(to)) - Math.abs(middle(other) - middle(to)))[0];

function related(box, here, there) {
  const names = new Set([...document.querySelectorAll("#graph .edge")]
    .filter((edge) => edge.dataset[here] === box.dataset.step).map((edge) => edge.dataset[there]));
  return boxes().filter((each) => names.has(each.dataset.step));
}
function beside(box, step) {
  const row = boxes().filter((each) => each.dataset.layer === box.dataset.layer).sort((one, other) => middle(one) - middle(other));
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
  for (const edge of document.querySelectorAll("#graph .edge")) {
    edge.classList.toggle("near", Boolean(box) && [edge.dataset.from, edge.dataset.to].includes(box.dataset.step));
  }
}
// One that is wider than its page begins where something goes on.
function show() {
  const frame = document.querySelector(".graph");
  const going = frame?.querySelector(".box:is(.is-running, .is-pending, .is-failed)");
  if (going && frame.scrollWidth > frame.clientWidth) frame.scrollLeft = middle(going) - frame.clientWidth / 2;
}
show();
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
