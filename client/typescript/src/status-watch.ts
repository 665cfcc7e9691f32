// The daemon's status again and again, for all watchers of a client over one subscription.

import type { CardError } from "./errors.js";
import type { Status, StatusParams } from "./protocol.js";
import type { Reconnector } from "./reconnector.js";

/** Subscribes with the shortest interval of all watchers, and ends the subscription with the last. */
export class StatusWatch {
  #intervals = new Set<{ ms: number }>();

  constructor(
    private readonly reconnector: Reconnector,
    private readonly request: (params: StatusParams) => Promise<Status>,
  ) {}

  /**
   * Yield a status now and then as the daemon sends them, of several unread statuses the newest.
   *
   * A step rejects with the errors of `status`, and with ConnectionLost if the connection ended.
   */
  async *watch(intervalMs: number): AsyncGenerator<Status, undefined> {
    const interval = { ms: intervalMs };
    let newest: Status | undefined;
    let loss: CardError | undefined;
    let wake = () => {};
    const onStatus = (status: Status) => {
      newest = status;
      wake();
    };
    const onLoss = (error: CardError) => {
      loss = error;
      wake();
    };
    this.#intervals.add(interval);
    try {
      yield await this.#subscribe();
      this.reconnector.statusListeners.add(onStatus);
      this.reconnector.lossListeners.add(onLoss);
      const connection = this.reconnector.connection;
      connection?.hold();
      try {
        for (;;) {
          if (!newest && !loss) await new Promise<void>((resolve) => (wake = resolve));
          if (loss) throw loss;
          const status = newest as unknown as Status;
          newest = undefined;
          yield status;
        }
      } finally {
        connection?.release();
      }
    } finally {
      this.reconnector.statusListeners.delete(onStatus);
      this.reconnector.lossListeners.delete(onLoss);
      this.#intervals.delete(interval);
      if (this.reconnector.connection) await this.#subscribe();
    }
  }

  #subscribe(): Promise<Status> {
    const shortest = Math.min(...[...this.#intervals].map((each) => each.ms));
    return this.request(
      this.#intervals.size > 0 ? { subscribe: true, interval_ms: shortest } : { subscribe: false },
    );
  }
}
