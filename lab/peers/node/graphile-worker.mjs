// graphile-worker by its own runner: https://worker.graphile.org/docs/performance
import { Logger, run, runMigrations } from "graphile-worker";
import { main, Window } from "./program.mjs";

const logger = new Logger(() => (level, message) => {
  if (level === "error") console.error(message);
});

await main({
  install: () => runMigrations({ logger }),

  /** A batch above 1: jobs are fetched into a local queue of that size and completed in batches. */
  async work({ kind, batch, connections, seconds, expected }) {
    const window = new Window(seconds, expected, connections);
    let previous = performance.now();
    const handler = async () => {
      const now = performance.now();
      window.count(1, now - previous);
      previous = now;
    };
    const batching = { localQueue: { size: batch }, completeJobBatchDelay: 0, failJobBatchDelay: 0 };
    const runner = await run({
      taskList: { [kind]: handler },
      noHandleSignals: true,
      logger,
      preset: {
        worker: {
          maxPoolSize: connections + 1, // one of them listens
          concurrentJobs: batch === 1 ? connections : Math.min(24, batch),
          ...(batch === 1 ? {} : batching),
        },
      },
    });
    await window.over;
    await runner.stop();
    return window.result();
  },
});
