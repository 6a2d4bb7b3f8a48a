// pg-boss by its own fetch and complete: https://timgit.github.io/pg-boss
import { PgBoss } from "pg-boss";
import { main, Window } from "./program.mjs";

const CHUNK = 5000;

async function started(connections = 2) {
  // Its maintenance has nothing to do here; without it the figures are a little higher.
  const boss = new PgBoss({ max: connections, supervise: false, schedule: false });
  boss.on("error", (error) => console.error(error));
  await boss.start();
  return boss;
}

async function loop(boss, queue, batch, window) {
  let open = true;
  window.over.then(() => (open = false));
  while (open) {
    const began = performance.now();
    const jobs = await boss.fetch(queue, { batchSize: batch });
    if (jobs.length === 0) break;
    await boss.complete(queue, jobs.map((job) => job.id));
    window.count(jobs.length, performance.now() - began);
  }
}

await main({
  async install({ kinds }) {
    const boss = await started();
    for (const kind of kinds) await boss.createQueue(kind);
    await boss.stop({ graceful: false });
  },

  async fill({ kind, count, payload }) {
    const boss = await started();
    for (let start = 0; start < count; start += CHUNK) {
      const jobs = Array.from({ length: Math.min(CHUNK, count - start) }, () => ({ data: payload }));
      await boss.insert(kind, jobs);
    }
    await boss.stop({ graceful: false });
  },

  async work({ kind, batch, connections, seconds, expected }) {
    const boss = await started(connections);
    const window = new Window(seconds, expected, connections);
    await Promise.all(Array.from({ length: connections }, () => loop(boss, kind, batch, window)));
    const result = window.result();
    await boss.stop({ graceful: false });
    return result;
  },
});
