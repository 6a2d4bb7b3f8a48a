// A worker in plain Node. It draws frames, four at a time, until SIGTERM.
//   HWQUEUE_URL=http://127.0.0.1:8080 HWQUEUE_WORKER_TOKEN=... node worker.mjs edge-7
//   HWQUEUE_DSN=postgresql://... node worker.mjs edge-7        # after: npm install pg
import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { connect, idOfNode } from "./hwqueue.mjs";

const QUEUES = ["renders"];
const SLOTS = 4;
const GRACE = 30_000; // what runs may take to end, when the worker is stopped
const handlers = {
  // What a handler returns is the result; `signal` tells it to stop.
  async draw({ frame, seconds = 0.05 }, signal) {
    if (frame < 0) throw new RangeError(`there is no frame ${frame}`);
    await sleep(seconds * 1000, null, { signal });
    return { drawn: frame };
  },
};

const [name = "edge-7"] = process.argv.slice(2);
const client = await connect(process.env);
// An instance is one start of this program: a registration that is sent twice has one epoch.
const tasks = Object.keys(handlers);
const spec = { name, instance_id: randomUUID(), queues: QUEUES, tasks, concurrency: SLOTS };
const own = { node: idOfNode(name) }; // with the epoch: what every call says
const running = new Map(); // by lease: the token of its claim, and what stops its handler
const ended = []; // settlements to send
let heartbeatAt = 0;
let stopping = false;
let news = false; // since the last claim
let wake = () => {};
function nudge() {
  news = true;
  wake();
}

// One loop makes all calls of the node, one after the other. So a claim that a heartbeat does not name
// is one that never arrived.
async function turn() {
  if (own.epoch === undefined) own.epoch = await client.call("register_node", { ...own, spec });
  if (Date.now() >= heartbeatAt) await heartbeat();
  const settle = ended.slice(0, SLOTS);
  const qty = stopping ? 0 : SLOTS - running.size;
  news = false;
  if (settle.length || qty) {
    const rows = await client.call("settle_and_claim", { ...own, settle, queues: QUEUES, qty, tasks });
    const sent = ended.splice(0, settle.length);
    for (const row of rows) {
      if (row.kind === "claimed") start(row);
      else if (row.verdict === "busy") ended.push(sent[row.ordinal - 1]);
      else if (row.verdict !== "ok") console.error(`lease ${row.lease_id} is ${row.verdict}: dropped`);
    }
    if (rows.some((row) => row.kind === "claimed")) return;
  }
  if (!news && !ended.length && (running.size || !stopping)) await idle();
}

function start({ lease_id, claim_token, task_name, params, expires_at }) {
  const stop = new AbortController();
  running.set(lease_id, { claim_token, stop });
  keepUntil(expires_at);
  Promise.resolve()
    .then(() => handlers[task_name](params, stop.signal))
    .then((result) => ({ outcome: "complete", result }))
    .catch(({ name: type, message }) =>
      stop.signal.aborted ? { outcome: "release" } : { outcome: "fail", error: { type, message } })
    .then((end) => {
      running.delete(lease_id);
      // what is lost is another's, or nobody's
      if (stop.signal.reason !== "lost") ended.push({ lease_id, claim_token, ...end });
      nudge();
    });
}

async function heartbeat() {
  const held = [...[...running].map(([lease_id, claim]) => ({ lease_id, ...claim })), ...ended];
  const claims = held.map(({ lease_id, claim_token }) => ({ lease_id, claim_token }));
  const rows = await client.call("heartbeat_node", { ...own, claims });
  heartbeatAt = Date.now() + 15_000;
  for (const { lease_id, claim_token, verdict, expires_at } of rows) {
    if (verdict === "unnamed") ended.push({ lease_id, claim_token, outcome: "release" });
    else if (["cancelled", "preempted", "lost"].includes(verdict)) running.get(lease_id)?.stop.abort(verdict);
    else if (expires_at) keepUntil(expires_at);
  }
}

// The next heartbeat comes when a quarter of the claim's time is over.
function keepUntil(expires_at) {
  heartbeatAt = Math.min(heartbeatAt, Date.now() + (new Date(expires_at) - Date.now()) / 4);
}

// Until a handler ends, something is announced, or a heartbeat is due.
let announced;
async function idle() {
  const timer = new AbortController();
  const woken = new Promise((resolve) => (wake = resolve));
  const due = sleep(Math.max(0, heartbeatAt - Date.now()), null, { signal: timer.signal }).catch(() => {});
  announced ??= client.wait(own, QUEUES).catch(() => sleep(1000)).then((heard) => {
    if (heard?.stop) heartbeatAt = 0;
    announced = undefined;
    nudge();
  });
  await Promise.race([woken, due]);
  timer.abort();
}

function stop() {
  stopping = true;
  setTimeout(() => running.forEach((claim) => claim.stop.abort("stopping")), GRACE).unref();
  nudge();
}
process.on("SIGTERM", stop).on("SIGINT", stop);

for (let failures = 0; !stopping || running.size || ended.length; ) {
  try {
    await turn();
    failures = 0;
  } catch (error) {
    console.error(error.message);
    const [, wrong] = /^settle\[(\d+)\]/.exec(error.field) ?? [];
    // Another worker has the node, or the token lets nobody in: what runs here is not ours any more.
    if (/^QHN0[1347]$/.test(error.code) || [401, 403].includes(error.status)) process.exit(5);
    if (wrong) { // such as a result that is too large
      const { lease_id, claim_token } = ended[wrong];
      const told = { type: "Refused", message: error.message };
      ended[wrong] = { lease_id, claim_token, outcome: "fail", retry: false, error: told };
    }
    heartbeatAt = 0; // after an outage first, to hear which claims are left
    await sleep(Math.min(100 * 2 ** failures++, 30_000) * (0.5 + Math.random()));
  }
}
await client.call("deregister_own_node", own).catch((error) => console.error(error.message));
process.exit(0);
