// hwqueue from plain Node, by HTTP or by SQL: a call is a name and its arguments. HTTP needs nothing
// installed; SQL needs `npm install pg`. It passes the conformance cases (conformance.mjs).
import { createHash } from "node:crypto";

// Each call over HTTP, below /api/v1; `> member`: where its answer is.
const ROUTES = {
  create_queue: "POST /queues",
  pause_queue: "POST /queues/{queue}/pause", resume_queue: "POST /queues/{queue}/resume",
  spawn_lease: "POST /leases", spawn_leases: "POST /leases/batch > items",
  spawn_gang: "POST /gangs > members",
  get_lease: "GET /leases/{lease}", lease_logs: "GET /leases/{lease}/logs > items",
  cancel_lease: "POST /leases/{lease}/cancel > state", requeue_lease: "POST /leases/{lease}/requeue > state",
  signal_lease: "POST /leases/{lease}/signals/{name}", drain_node: "POST /nodes/{node}/drain",
};
// Those of a worker, with the token that is bound to its node and the secret of its registration.
const WORKER_ROUTES = {
  register_node: "register > node_epoch", deregister_own_node: "leave > value", reap: "reap > items",
  claim_task: "claim > items", settle_and_claim: "settle > items", heartbeat_node: "heartbeat > items",
  extend_claim: "extend > value", report_progress: "progress > value", append_logs: "logs > value",
  save_checkpoint: "checkpoints > value", checkpoints: "saved > items", suspend_lease: "suspend > value",
  take_signal: "signal > items", gang_status: "gang > items",
};
// In SQL: calls that return one row, and arguments that are neither texts nor arrays of texts.
const ONE_ROW = ["spawn_lease", "get_lease", "signal_lease"];
const JSON_ARGUMENTS = ["policy", "params", "options", "leases", "members", "payload", "spec", "claims",
  "settle", "reports", "logs", "state"];
const SPANS = ["deadline", "claim_timeout", "extend", "delay"];
// Calls of a worker that take its node and its epoch.
const EPOCH = ["claim_task", "settle_and_claim", "heartbeat_node", "deregister_own_node"];

// What was refused: `code` is the SQLSTATE. Without a code of QH: `retryable` says whether to try again.
export class Refused extends Error {
  constructor(message, { code, status, field, hint, retryable }) {
    super(hint ? `${message}; ${hint}` : message);
    Object.assign(this, { code, status, field, retryable });
  }
}

// The id of a node: the version 5 UUID of its name in hwqueue's namespace.
export function idOfNode(name) {
  const namespace = Buffer.from("7bf56da71d865d78a4a80c0eac00828e", "hex");
  const hash = createHash("sha1").update(namespace).update(name).digest();
  hash[6] = (hash[6] & 0x0f) | 0x50;
  hash[8] = (hash[8] & 0x3f) | 0x80;
  return hash.toString("hex", 0, 16).replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");
}

export function overHttp(url, { token, workerToken }) {
  const secrets = new Map(); // of each registration, by node and epoch
  let after; // what was announced later is news
  const ask = async (method, path, worker, body, node, epoch) => {
    const headers = { authorization: `Bearer ${worker ? workerToken : token}` };
    if (worker) headers["node-secret"] = secrets.get(`${node} ${epoch}`) ?? "x".repeat(43);
    if (method === "POST") headers["content-type"] = "application/json";
    const sent = { method, headers, signal: AbortSignal.timeout(60_000) };
    if (method === "POST") sent.body = JSON.stringify(body);
    const response = await fetch(`${url}/api/v1${path}`, sent);
    const answer = await response.json().catch(() => ({})); // a proxy may answer with a page
    const retryable = answer.retryable ?? [408, 429, 502, 503, 504].includes(response.status);
    const { status, statusText } = response;
    if (!response.ok) throw new Refused(answer.detail ?? statusText, { ...answer, status, retryable });
    return answer;
  };
  return {
    async call(name, { ...body } = {}) {
      const { node, epoch } = body;
      const worker = WORKER_ROUTES[name];
      const route = worker ? `POST /nodes/{node}/${worker}` : ROUTES[name];
      const [, method, pattern, member] = /^(\w+) (\S+)(?: > (\w+))?$/.exec(route);
      delete body.epoch;
      const path = pattern.replace(/{(\w+)}/g, (_, key) => {
        const value = encodeURIComponent(body[key]);
        delete body[key];
        return value;
      });
      const answer = await ask(method, path, worker, body, node, epoch);
      if (name === "register_node") secrets.set(`${node} ${answer.node_epoch}`, answer.secret);
      return member ? answer[member] : answer;
    },
    // Until there may be work, or claims are to stop; 20 seconds at most. It is a hint: poll as well.
    async wait({ node, epoch }, queues) {
      const query = new URLSearchParams(queues.map((queue) => ["queue", queue]));
      if (after) query.set("after", after);
      const heard = await ask("GET", `/nodes/${node}/wait?${query}`, true, null, node, epoch);
      after = heard.after;
      return heard;
    },
    async close() {},
  };
}

export async function overSql(dsn) {
  const { default: pg } = await import("pg");
  const pool = new pg.Pool({ connectionString: dsn, max: 4 });
  pool.on("error", () => {}); // of an idle connection: the next call says so
  async function call(name, { ...given } = {}) {
    if (name in WORKER_ROUTES && name !== "register_node" && !EPOCH.includes(name)) delete given.node;
    if (!EPOCH.includes(name)) delete given.epoch;
    const values = Object.entries(given).map(([key, value]) => {
      if (SPANS.includes(key)) return `${value} seconds`;
      return JSON_ARGUMENTS.includes(key) ? JSON.stringify(value) : value;
    });
    const text = Object.keys(given).map((key, index) => `p_${key} => $${index + 1}`).join(", ");
    const { rows, fields } = await pool.query(`select * from hwqueue.${name}(${text})`, values).catch(refuse);
    if (fields.length === 1 && fields[0].name === name) return rows[0][name];
    return ONE_ROW.includes(name) ? rows[0] : rows;
  }
  function refuse(error) {
    if (!error.code?.startsWith("QH")) throw error;
    const { field, index } = JSON.parse(error.detail ?? "{}");
    const path = `${index === undefined ? "" : `leases[${index}].`}${field?.replace(/^p_/, "") ?? ""}`;
    throw new Refused(error.message, { code: error.code, field: path, hint: error.hint });
  }
  let listener;
  let heard = { work: true, stop: true }; // what came before is not known
  let hear = () => {};
  async function listen({ node }, queues) {
    const work = (await call("wake_payloads", { queues })).map((row) => row.payload);
    const stop = await call("node_wake_payload", { node });
    listener = await pool.connect();
    listener.on("notification", ({ payload }) => {
      heard = { work: heard.work || work.includes(payload), stop: heard.stop || payload === stop };
      if (heard.work || heard.stop) hear();
    });
    listener.on("error", () => (listener = undefined)); // the next wait listens again
    await listener.query("listen hwqueue");
  }
  return {
    call,
    async wait(own, queues) {
      if (!listener) await listen(own, queues);
      if (!heard.work && !heard.stop) await new Promise((resolve) => setTimeout((hear = resolve), 20_000));
      const now = heard;
      heard = { work: false, stop: false };
      return now;
    },
    async close() {
      listener?.release(true);
      await pool.end();
    },
  };
}

// The way that the environment names.
export async function connect(env) {
  const { HWQUEUE_URL: url, HWQUEUE_TOKEN: token, HWQUEUE_WORKER_TOKEN: workerToken } = env;
  return url ? overHttp(url, { token, workerToken }) : overSql(env.HWQUEUE_DSN);
}
