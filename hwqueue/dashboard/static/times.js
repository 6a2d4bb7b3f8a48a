// Times in the viewer's zone or in UTC, and ages that stay true; without a script they are UTC.
const root = document.documentElement;
const own = Intl.DateTimeFormat().resolvedOptions().timeZone;
const formats = new Map();
const written = new WeakMap();  // a time's element: the zone and day for which it has this text

export const isFar = !["UTC", "Etc/UTC"].includes(own);
export function zone() { return root.dataset.times === "utc" ? "UTC" : own; }

function parts(at) {
  const name = zone();
  if (!formats.has(name)) {
    formats.set(name, new Intl.DateTimeFormat("en-GB", {
      timeZone: name, timeZoneName: "short", year: "numeric", month: "2-digit", day: "2-digit",
      hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23",
    }));
  }
  return Object.fromEntries(formats.get(name).formatToParts(at).map((each) => [each.type, each.value]));
}
function day(at) { return `${at.year}-${at.month}-${at.day}`; }
function absolute(at, today) {
  const time = `${at.hour}:${at.minute}:${at.second} ${at.timeZoneName}`;
  return day(at) === today ? time : `${day(at)} ${time}`;
}

// As hwqueue/text.py has them.
function age(since) {
  const seconds = Math.max(Math.floor(since), 0);
  const minutes = Math.floor(seconds / 60), hours = Math.floor(seconds / 3600);
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${minutes} min`;
  if (seconds < 86400) return `${hours} h ${String(minutes % 60).padStart(2, "0")} min`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}
function ago(seconds) {
  const whole = age(Math.abs(seconds));
  if (whole === "0 s") return "now";
  return seconds > 0 ? `${whole} ago` : `in ${whole}`;
}

// The server's clock: the browser's own may be wrong. What the page shows is as old as it says.
let skew = 0, stamp = "";
export function now() {
  const told = document.getElementById("main").dataset.asOf;
  if (told !== stamp) { stamp = told; skew = Date.parse(told) - Date.now(); }
  return Date.now() + skew;
}
function write(element, text) {  // what has not changed stays selected
  if (element && element.textContent !== text) element.textContent = text;
}

export function showTimes() {
  const at = now();
  const today = day(parts(at));
  for (const each of document.querySelectorAll("time[datetime]")) {
    const when = Date.parse(each.dateTime);
    const abs = each.querySelector(".abs");
    if (abs) {
      const key = `${zone()} ${today} ${each.dateTime}`;
      if (written.get(abs)?.key !== key) {
        const told = parts(when);
        written.set(abs, { key, text: "minute" in abs.dataset ? `${told.hour}:${told.minute}` : absolute(told, today) });
      }
      write(abs, written.get(abs).text);
    }
    const seconds = (at - when) / 1000;
    write(each.querySelector(".rel"), "age" in each.dataset ? age(seconds) : ago(seconds));
  }
  write(document.getElementById("zone"), zone());
  write(document.getElementById("times"), parts(at).timeZoneName);
}
setInterval(() => { if (!document.hidden) showTimes(); }, 1000);
