import { isFar, now, showTimes, zone } from "./times.js";

// Live refresh, dialogs, keys, copy buttons and charts. Pages work without it, save live, map and graph.
const body = document.body;
const root = document.documentElement;
const $ = (id) => document.getElementById(id);
const main = () => $("main");
const seconds = Number(body.dataset.live) || 0;
const isOff = new URLSearchParams(location.search).get("live") === "off";

function keep(key, value) {
  try { if (value === null) localStorage.removeItem(key); else localStorage.setItem(key, value); } catch { /* closed */ }
}
function kept(key) {
  try { return localStorage.getItem(key); } catch { return null; }
}
export function say(text) { if ($("said")) $("said").textContent = text; }

// Live: one event refreshes what is on the page; nothing moves under a reader's hand.
let paused = isOff;
let busy = false;
let failed = false;
let since = null;  // when the server, or its database, first did not answer

function isAway() { return since !== null || main().hasAttribute("data-stale"); }
function showAway(isGone) {
  since = isGone ? since ?? new Date(now()) : null;
  const told = $("away");
  told.hidden = since === null || main().hasAttribute("data-stale");  // that says it itself
  if (since !== null) {
    const time = told.querySelector("time");
    time.dateTime = since.toISOString();
    showTimes();
  }
  body.toggleAttribute("data-away", isAway());
  for (const link of document.querySelectorAll("a[data-ask]")) {
    if (isAway()) link.setAttribute("aria-disabled", "true"); else link.removeAttribute("aria-disabled");
  }
}

// A page is as old as its own answer: its parts are asked for beside it, and answer in any order.
function isOfPage(event) { return event.detail.ctx?.sourceElement === main(); }
function showFailed(hasFailed, isGone) {
  failed = hasFailed;
  showAway(isGone);
  showLive();
}

function isHeld() {
  const selection = getSelection();
  return paused || document.hidden || busy
    || document.querySelector("dialog[open]") !== null
    || chosen().length > 0
    || (selection && !selection.isCollapsed && main().contains(selection.anchorNode))
    || main().querySelector("input:focus, select:focus, textarea:focus") !== null;
}
export function refresh() {
  body.dispatchEvent(new CustomEvent("refresh"));
}
function showLive() {
  const chip = $("live")?.firstElementChild;
  if (!chip) return;
  const state = failed || isAway() ? "stale" : paused ? "paused" : chosen().length ? "held" : "live";
  chip.dataset.state = state;
  chip.textContent = state;
  $("live").setAttribute("aria-pressed", String(paused));
}
function pause() {
  paused = !paused;
  say(paused ? "Paused" : "Live");
  showLive();
  if (!paused) refresh();
}
if (seconds && $("live")) {
  $("live").hidden = false;
  $("live").addEventListener("click", pause);
  setInterval(() => { if (!isHeld()) refresh(); }, seconds * 1000);
  document.addEventListener("visibilitychange", () => { if (!isHeld()) refresh(); });
  showLive();
}
body.addEventListener("htmx:before:request", () => { busy = true; });
body.addEventListener("htmx:finally:request", () => { busy = false; });
body.addEventListener("htmx:error", (event) => { if (isOfPage(event)) showFailed(true, true); });
body.addEventListener("htmx:before:response", (event) => {
  const status = event.detail.ctx.response.status;
  if (isOfPage(event)) showFailed(status >= 400, status >= 500);
  if (status === 401) location.reload();
});
body.addEventListener("htmx:after:swap", () => { mend(); showAway(since !== null); showLive(); });

// What a fragment needs once it is in the page.
let row = -1;
export function mend() {
  for (const button of document.querySelectorAll("[data-copy][hidden]")) button.hidden = false;
  for (const plot of document.querySelectorAll("[data-plot]")) draw(plot);
  if (row >= 0) mark(row);
  showTimes();
  showChosen();
}

// Dialogs: an action's question, taken from its own page.
document.addEventListener("click", async (event) => {
  const target = event.target instanceof Element ? event.target : null;
  const copy = target?.closest("[data-copy]");
  if (copy) {
    await navigator.clipboard?.writeText(copy.dataset.copy);
    say("Copied");
    return;
  }
  const link = target?.closest("a[data-ask]");
  if (link && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
    event.preventDefault();
    if (isAway()) say("The database does not answer: nothing can be changed until it is back");
    else await ask(link);
    return;
  }
  if (target?.closest("[data-close]") && target.closest("dialog")) {
    event.preventDefault();
    target.closest("dialog").close();
  }
});
async function ask(link) {
  let answer;
  try {
    answer = await fetch(link.href, { headers: { "HX-Request": "true" } });
  } catch {
    showFailed(true, true);
    return;
  }
  if (!answer.ok && answer.status !== 409) { location.href = link.href; return; }
  if (!await show(answer, link)) location.href = link.href;
}
async function show(answer, opener) {
  const found = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector(".ask");
  if (!found) return false;
  const dialog = $("dialog");
  if (opener.matches("[data-go-on]") && !dialog.open) return true;  // somebody has stopped it
  dialog.replaceChildren(document.adoptNode(found));
  if (!dialog.open) {
    dialog.showModal();
    dialog.addEventListener("close", () => {
      opener.focus();
      if (dialog.querySelector("[data-done]")) { choose([]); $("choose-all").focus(); refresh(); }
    }, { once: true });
  }
  (dialog.querySelector("[autofocus]") ?? dialog.querySelector("[data-close]"))?.focus();
  dialog.querySelector("form[data-go-on]")?.requestSubmit();
  return true;
}

// Several leases: their question and what became of each come in the dialog, too.
function boxes() { return [...main().querySelectorAll("input[name=lease]")]; }
function chosen() { return boxes().filter((each) => each.checked); }
function choose(which) {
  for (const each of boxes()) each.checked = which.includes(each);
  showChosen();
}
function showChosen() {
  if (!$("bulk")) return;
  const count = chosen().length;
  $("choose-page").hidden = false;
  $("choose-all").checked = count > 0 && count === boxes().length;
  $("choose-all").indeterminate = count > 0 && count < boxes().length;
  $("chosen").textContent = `${count} chosen`;
  for (const button of $("bulk").querySelectorAll("[data-bulk]")) button.disabled = count === 0;
  showLive();
}
document.addEventListener("change", (event) => {
  if (event.target.id === "choose-all") choose(event.target.checked ? boxes() : []);
  else if (event.target.name === "lease") showChosen();
});
document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (!form.matches("form[data-ask]")) return;
  event.preventDefault();
  const { submitter } = event;
  const content = new URLSearchParams(new FormData(form));
  const action = submitter?.getAttribute("formaction") ?? form.action;
  if (submitter) submitter.disabled = true;
  try {
    const answer = await fetch(action, { method: "POST", body: content, headers: { "HX-Request": "true" } });
    if (answer.status === 401 || !await show(answer, submitter ?? form)) location.reload();
  } catch {
    say("The server does not answer");
    showFailed(true, true);
  } finally {
    if (submitter?.isConnected) submitter.disabled = false;
  }
});

// Theme and the way times are written.
const themes = ["auto", "light", "dark"];
function theme() { return root.dataset.theme ?? "auto"; }
function nextTheme() {
  const next = themes[(themes.indexOf(theme()) + 1) % themes.length];
  if (next === "auto") delete root.dataset.theme; else root.dataset.theme = next;
  keep("hwqueue-theme", next === "auto" ? null : next);
  $("theme").textContent = next;
  say(`Colours: ${next}`);
  repaint();
}
function repaint() {
  window.dispatchEvent(new Event("repaint"));
  for (const plot of document.querySelectorAll("[data-plot]")) { plot.chart?.destroy(); plot.chart = null; draw(plot); }
}
if ($("theme")) {
  $("theme").hidden = false;
  $("theme").textContent = theme();
  $("theme").addEventListener("click", nextTheme);
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
document.querySelector(".tabs [aria-current]")?.scrollIntoView({ inline: "center", block: "nearest" });
if ($("times") && isFar) {
  $("times").hidden = false;
  $("times").addEventListener("click", () => {
    if (root.dataset.times === "utc") delete root.dataset.times; else root.dataset.times = "utc";
    keep("hwqueue-times", root.dataset.times ?? null);
    showTimes();
    say(`Times: ${zone()}`);
    repaint();
  });
}

// Keys.
if ($("help")) {
  $("help").hidden = false;
  $("help").addEventListener("click", () => $("keys").showModal());
  $("keys-off").checked = kept("hwqueue-keys") === "off";
  $("keys-off").addEventListener("change", (event) => keep("hwqueue-keys", event.target.checked ? "off" : null));
}
let afterG = 0;
function rows() { return [...main().querySelectorAll("tbody tr")].filter((each) => each.querySelector("a")); }
function mark(index) {
  const all = rows();
  if (!all.length) return;
  row = Math.max(0, Math.min(index, all.length - 1));
  for (const each of all) each.classList.toggle("at", each === all[row]);
}
function go(index) {
  mark(index);
  const at = rows()[row];
  at?.scrollIntoView({ block: "nearest" });
  at?.querySelector("a")?.focus({ preventScroll: true });
}
function up() {
  const crumb = main().querySelector(".crumb a");
  if (crumb) crumb.click();
}
const single = {
  "/": () => $("jump")?.focus(),
  "?": () => $("keys")?.showModal(),
  j: () => go(row + 1),
  k: () => go(row - 1),
  x: () => rows()[row]?.querySelector("input[name=lease]")?.click(),
  r: () => { if (main().hasAttribute("hx-get")) refresh(); else location.reload(); },
  p: () => { if (seconds) pause(); else $("follow-pause")?.click(); },
  t: () => $("theme") && nextTheme(),
  Escape: up,
};
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  if (event.target.closest("input:not([type=checkbox]), select, textarea, dialog, [role=application]")) {
    if (event.key === "Escape" && event.target.id === "jump") event.target.blur();
    return;
  }
  if (kept("hwqueue-keys") === "off" && event.key !== "?") return;
  if (afterG && Date.now() - afterG < 1500) {
    afterG = 0;
    const tab = document.querySelector(`.tabs a[data-key="${CSS.escape(event.key)}"]`);
    if (tab) { event.preventDefault(); tab.click(); }
    return;
  }
  if (event.key === "g") { afterG = Date.now(); return; }
  const act = single[event.key];
  if (act) { event.preventDefault(); act(); }
});

// Charts: drawn from the table that stands below each of them, which is there without a script, too.
function colour(name) {
  const probe = $("said");
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}
function columns(table) {
  const lines = [...table.tBodies[0].rows].map((line) => [...line.cells].map((cell) => {
    const value = cell.dataset.v ?? cell.textContent.replaceAll(",", "");
    return value === "" || value === "-" ? null : Number(value);
  }));
  return lines[0]?.map((_, index) => lines.map((line) => line[index])) ?? [];
}
// What each line is, and its value where the pointer is: in the order of the table's columns.
function legend(series, time) {
  const list = document.createElement("ul");
  list.className = "legend";
  const item = (sign, text) => {
    const made = document.createElement("li"), value = document.createElement("strong");
    made.append(...sign, text, value);
    list.append(made);
    return value;
  };
  const values = series.map(({ label, stroke, dash }) => {
    const sign = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    sign.setAttribute("class", "line");
    const line = document.createElementNS(sign.namespaceURI, "line");
    for (const [name, value] of Object.entries({ x1: 0, x2: 24, y1: 4, y2: 4, stroke, "stroke-dasharray": (dash ?? []).join(" ") })) line.setAttribute(name, value);
    sign.append(line);
    return item([sign], label);
  });
  const at = item([], "");
  const show = (data, index) => {
    const isOn = index !== null && index !== undefined;
    values.forEach((value, number) => { value.textContent = isOn ? data[number + 1][index]?.toLocaleString("en") ?? "-" : ""; });
    at.textContent = isOn ? `at ${time(data[0][index])}` : "";
  };
  return { list, show };
}
// Points above the highest value that is drawn have a mark at the top; the caption tells them.
function most(plot) {
  return Number(plot.closest("figure")?.querySelector("details table")?.dataset.most ?? Infinity);
}
function markCut(chart, top) {
  const { ctx, bbox, data } = chart, size = 5 * devicePixelRatio;
  chart.series.slice(1).forEach(({ stroke }, number) => data[number + 1].forEach((value, index) => {
    if (value === null || value <= top) return;
    const x = chart.valToPos(data[0][index], "x", true);
    ctx.fillStyle = typeof stroke === "function" ? stroke(chart, number + 1) : stroke;
    ctx.beginPath();
    ctx.moveTo(x, bbox.top - size);
    ctx.lineTo(x - size, bbox.top + size);
    ctx.lineTo(x + size, bbox.top + size);
    ctx.fill();
  }));
}
function draw(plot) {
  const table = plot.closest("figure").querySelector("details table");
  if (!window.uPlot || !table || plot.clientWidth === 0) return;
  const data = columns(table);
  if (!data.length || data[0].length < 2) return;
  const names = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
  if (plot.chart) { plot.chart.setData(data); return; }
  plot.replaceChildren();
  const line = colour("line"), muted = colour("muted");
  const axis = { stroke: muted, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 }, font: "12px system-ui" };
  const dashes = [undefined, [6, 3], [2, 3], [8, 3, 2, 3], [1, 4]];
  const series = names.slice(1).map((label, index) => ({
    label, width: 1.5, dash: dashes[index], points: { show: false },
    stroke: colour(table.tHead.rows[0].cells[index + 1].dataset.colour ?? "accent"),
  }));
  const told = legend(series, (stamp) => new Date(stamp * 1000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", timeZone: zone() }));
  plot.chart = new window.uPlot({
    width: plot.clientWidth, height: 200, series: [{}, ...series], legend: { show: false },
    tzDate: (stamp) => window.uPlot.tzDate(new Date(stamp * 1000), zone()),
    axes: [{ ...axis, values: [[3600, "{HH}:{mm}", null, null, null, null, null, null, 1], [60, "{HH}:{mm}", null, null, null, null, null, null, 1], [1, "{HH}:{mm}:{ss}", null, null, null, null, null, null, 1]] }, { ...axis, size: 56 }],
    scales: { y: { range: (_, low, high) => [0, Math.max(Math.min(high ?? 0, most(plot)), 1) * 1.05] } },
    cursor: { drag: { x: false, y: false } },
    hooks: { setCursor: [(chart) => told.show(chart.data, chart.cursor.idx)], draw: [(chart) => markCut(chart, most(plot))] },
  }, data, plot);
  plot.append(told.list);
  new ResizeObserver(() => plot.chart?.setSize({ width: plot.clientWidth, height: 200 })).observe(plot);
}

// A notice of something done belongs to one view of the page.
if (new URLSearchParams(location.search).has("done")) {
  const clean = new URL(location.href);
  clean.searchParams.delete("done");
  history.replaceState(null, "", clean);
}
mend();
showAway(false);
showLive();
window.addEventListener("load", mend);
