// What both programs share: `node PROGRAM.mjs COMMAND JSON` calls a command and prints what it returns as JSON.
// The database is that of the environment: PGHOST, PGDATABASE, ...

/** Jobs that run before the clock starts, so that plans and connections are made. */
export const WARMUP_JOBS = 40;

export async function main(commands) {
  const [name, options] = process.argv.slice(2);
  const result = await commands[name](JSON.parse(options));
  console.log(JSON.stringify(result ?? {}));
}

/** Counts jobs from the one after the warm-up on, until the time is over or the expected number is done. */
export class Window {
  constructor(seconds, expected, loops) {
    this.seconds = seconds;
    this.warming = loops; // steps that began before the clock: one of each loop
    this.left = expected;
    this.seen = 0;
    this.done = 0;
    this.startedAt = null;
    this.latencies = [];
    this.over = new Promise((resolve) => (this.end = resolve));
  }

  /** Called after each step with the jobs that it did and the milliseconds that it took. */
  count(jobs, milliseconds) {
    this.left -= jobs;
    if (this.startedAt === null) {
      this.seen += jobs;
      this.warming -= 1;
      if (this.seen >= WARMUP_JOBS && this.warming <= 0) this.start();
    } else {
      this.done += jobs;
      this.latencies.push(milliseconds);
    }
    if (this.left <= 0) this.end();
  }

  start() {
    this.startedAt = performance.now();
    this.timer = setTimeout(this.end, this.seconds * 1000);
  }

  /** To be called when all that was counted is committed. */
  result() {
    clearTimeout(this.timer);
    if (this.latencies.length === 0) throw new Error("nothing was left after the warm-up");
    const seconds = (performance.now() - this.startedAt) / 1000;
    this.latencies.sort((a, b) => a - b);
    const percentile = (percent) =>
      this.latencies[Math.max(0, Math.round((this.latencies.length * percent) / 100) - 1)];
    return { seconds, done: this.done, p50_ms: percentile(50), p99_ms: percentile(99) };
  }
}
