// Spawns frames to draw, and waits for what became of them.
//   HWQUEUE_URL=http://127.0.0.1:8080 HWQUEUE_TOKEN=... node producer.mjs 7 8
import { connect } from "./hwqueue.mjs";

const client = await connect(process.env);
const frames = process.argv.slice(2).map(Number);
const spawned = await client.call("spawn_leases", {
  queue: "renders",
  leases: frames.map((frame) => ({
    task: "draw",
    params: { frame },
    options: { idempotency_key: `frame-${frame}` }, // so it can be sent again if the answer is lost
  })),
});
for (const { lease_id } of spawned) {
  let lease;
  do {
    lease = await client.call("get_lease", { lease: lease_id });
    await new Promise((resolve) => setTimeout(resolve, 100));
  } while (!["completed", "failed", "cancelled"].includes(lease.state));
  console.log(lease.params.frame, lease.state, JSON.stringify(lease.result));
}
await client.close();
