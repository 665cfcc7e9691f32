// An app with its own pool of jobs: it runs as many at once as the daemon says, follows each change, and goes on with
// one at a time while there is no daemon. Run: node build/examples/pool.js JOB...
import { CardError, connect } from "card-client";

const jobs = process.argv.slice(2);
const client = connect({ connectTimeoutMs: 60_000 });
let running = 0;

/** Start jobs until as many run as the daemon has room for. */
function fill(): void {
  while (running < client.capacity && jobs.length > 0) void run(jobs.shift() as string);
  if (running === 0) client.close();
}

async function run(job: string): Promise<void> {
  running += 1;
  try {
    const answer = await client.infer({ prompt: job, max_tokens: 24 });
    console.log(`${running} of ${client.capacity}: ${job} -> ${answer.text.trim()}`);
  } catch (error) {
    if (!(error instanceof CardError)) throw error;
    console.error(`${job}: ${error.message}`);
  }
  running -= 1;
  fill();
}

client.subscribe(fill);
fill();
