// Events as they come, in the table that is there already. One stream, and none while the tab is hidden.
import { mend, refresh, say } from "./app.js";

const $ = (id) => document.getElementById(id);
const WORDS = { live: "connected", wait: "connecting", stale: "reconnecting", paused: "paused" };
const FIRST_WAIT = 1000, LONGEST_WAIT = 60_000;  // before a stream that was refused is tried again

let stream = null;
let paused = new URLSearchParams(location.search).get("live") === "off";
let cursor = BigInt($("follow").dataset.cursor);
let wait = FIRST_WAIT;
let timer = 0;
let unsaid = 0;
let waiting = [];  // rows that came while somebody reads

function show(state) {
  $("follow-state").dataset.state = state;
  if ($("follow-state").textContent !== WORDS[state]) $("follow-state").textContent = WORDS[state];
  $("follow-pause").textContent = paused ? "Go on" : "Pause";
  $("follow-pause").setAttribute("aria-pressed", String(paused));
  $("follow-new").hidden = waiting.length === 0;
  $("follow-new").textContent = `${waiting.length} new`;
}
function close() {
  clearTimeout(timer);
  stream?.close();
  stream = null;
}
function open() {
  close();
  if (paused || document.hidden) { show(paused ? "paused" : "wait"); return; }
  show("wait");
  const url = new URL($("follow").dataset.stream, location.href);
  url.searchParams.set("after", cursor);
  stream = new EventSource(url);
  stream.addEventListener("here", () => { wait = FIRST_WAIT; show("live"); });
  stream.addEventListener("away", () => show("stale"));
  stream.addEventListener("row", (event) => {
    cursor = BigInt(event.lastEventId);
    const made = document.createElement("template");
    made.innerHTML = event.data;
    waiting.push(made.content.querySelector("tr"));
    if (waiting.length > most()) waiting = waiting.slice(-most());
    if (isRead()) show("live"); else enter();
  });
  // So much has happened that the page is better read anew; it brings its own cursor.
  stream.addEventListener("gap", () => { close(); refresh(); });
  stream.addEventListener("error", () => {
    show("stale");
    if (stream?.readyState !== EventSource.CLOSED) return;  // it comes back by itself, with the last id
    close();
    timer = setTimeout(() => { refresh(); open(); }, wait);
    wait = Math.min(2 * wait, LONGEST_WAIT);
  });
}

// Nothing moves under a reader's hand: what comes meanwhile waits behind a button.
function isRead() {
  const rows = $("follow").querySelector("tbody");
  const selection = getSelection();
  return rows.matches(":hover") || rows.contains(document.activeElement)
    || (!selection.isCollapsed && rows.contains(selection.anchorNode));
}
function most() { return Number($("follow").dataset.most); }
function enter() {
  const rows = $("follow").querySelector("tbody");
  for (const row of waiting) {
    if ($(row.id)) continue;
    // by id: of transactions that overlapped, the later one may have been on the page before
    const next = [...rows.rows].find((each) => BigInt(each.dataset.id) < BigInt(row.dataset.id));
    rows.insertBefore(row, next ?? null);
    unsaid += 1;
  }
  waiting = [];
  while (rows.rows.length > most()) rows.lastElementChild.remove();
  if (rows.rows.length) {
    $("follow").querySelector(".scroll").hidden = false;
    $("follow").querySelector(":scope > .empty")?.remove();
    const older = $("older");
    if (older) {
      const url = new URL(older.href);
      url.searchParams.set("before", rows.lastElementChild.dataset.id);
      older.href = url;
    }
  }
  mend();
  show($("follow-state").dataset.state);
}

$("following").hidden = false;
$("follow-pause").addEventListener("click", () => {
  paused = !paused;
  if (paused) close(); else enter();
  open();
});
$("follow-new").addEventListener("click", enter);
document.addEventListener("visibilitychange", open);
window.addEventListener("pagehide", close);
window.addEventListener("pageshow", (event) => { if (event.persisted) open(); });
setInterval(() => { if (waiting.length && !paused && !isRead()) enter(); }, 1000);
setInterval(() => { if (unsaid) { say(`${unsaid} new ${unsaid === 1 ? "event" : "events"}`); unsaid = 0; } }, 10_000);
document.body.addEventListener("htmx:after:swap", () => {
  if (stream) return;
  const told = BigInt($("follow").dataset.cursor);
  if (told > cursor) cursor = told;
  open();
});
open();
