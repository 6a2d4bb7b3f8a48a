// Run the conformance cases of clients over hwqueue.mjs; exits with 1 if one fails.
//   HWQUEUE_URL=... HWQUEUE_TOKEN=... HWQUEUE_WORKER_TOKEN=... node conformance.mjs     # through HTTP
//   HWQUEUE_DSN=... node conformance.mjs                                                # through SQL
import { randomUUID } from "node:crypto";
import { readdirSync, readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { connect, idOfNode, Refused } from "./hwqueue.mjs";

const road = process.env.HWQUEUE_URL ? "http" : "sql";
const client = await connect(process.env);
const folder = process.argv[2] ?? fileURLToPath(new URL("../../../tests/clients/cases", import.meta.url));

const isName = (value) => typeof value === "string" && /^\$[a-z_]+$/.test(value);

function fresh() {
  const start = `conf-${randomUUID().slice(0, 13)}`;
  const [node_name, other_name] = [`${start}-node`, `${start}-other`];
  return { queue: start, other_queue: `${start}-2`, key: start, nobody: randomUUID(),
    node_name, other_name, node: idOfNode(node_name), other: idOfNode(other_name) };
}

function filled(value, names) {
  if (isName(value)) {
    if (!(value.slice(1) in names)) throw new Error(`${value} is not known`);
    return names[value.slice(1)];
  }
  if (Array.isArray(value)) return value.map((each) => filled(each, names));
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, filled(each, names)]));
}

function compare(found, wanted, names, place) {
  const fail = (what) => { throw new Error(`${place}: ${what}, not ${JSON.stringify(found)}`); };
  if (isName(wanted) && !(wanted.slice(1) in names)) {
    if (found == null) fail(`a value for ${wanted} was wanted`);
    if (wanted !== "$some") names[wanted.slice(1)] = found;
    return;
  }
  const value = isName(wanted) ? names[wanted.slice(1)] : wanted;
  if (Array.isArray(value)) {
    if (!Array.isArray(found) || found.length !== value.length) fail(`${value.length} elements were wanted`);
    value.forEach((each, index) => compare(found[index], each, names, `${place}[${index}]`));
  } else if (value !== null && typeof value === "object") {
    if (found === null || typeof found !== "object") fail("an object was wanted");
    Object.entries(value).forEach(([key, each]) => compare(found[key], each, names, `${place}.${key}`));
  } else {
    const integer = Number.isInteger(value) && typeof found === "string";
    if ((integer ? String(value) : value) !== (found ?? null)) fail(`${JSON.stringify(value)} was wanted`);
  }
}

async function run(steps) {
  const names = fresh();
  for (const [index, step] of steps.entries()) {
    const place = `step ${index + 1} (${step.call})`;
    let answer;
    try {
      answer = await client.call(step.call, filled(step.with ?? {}, names));
    } catch (error) {
      if (!(error instanceof Refused) || !step.error) throw new Error(`${place}: ${error.message}`);
      const { status, ...wanted } = step.error;
      compare(error, road === "http" ? { status, ...wanted } : wanted, names, `${place}: error`);
      continue;
    }
    if (step.error) throw new Error(`${place}: not refused`);
    if ("answer" in step) compare(answer, step.answer, names, `${place}: answer`);
  }
}

let failed = 0;
for (const file of readdirSync(folder).sort()) {
  const suite = JSON.parse(readFileSync(`${folder}/${file}`, "utf8"));
  for (const { id, roads, steps } of suite.cases) {
    if (roads && !roads.includes(road)) continue;
    try {
      await run([...(suite.before ?? []), ...steps]);
      console.log(`ok ${suite.suite}/${id}`);
    } catch (error) {
      failed += 1;
      console.log(`not ok ${suite.suite}/${id}: ${error.message}`);
    }
  }
}
await client.close();
process.exitCode = failed ? 1 : 0;
