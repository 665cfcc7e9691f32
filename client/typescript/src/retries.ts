// Whether and when a call is sent again, and the pauses between attempts to connect.

import { type CardError, ConnectionLost, DeadlineExceeded, RequestError } from "./errors.js";

export const CONNECT_TIMEOUT_MS = 5_000;
export const MAX_RETRIES = 2;
// The pauses between attempts to connect, doubling.
const FIRST_DELAY_MS = 50;
const LONGEST_DELAY_MS = 2_000;
// The pauses between attempts of one call if the daemon names none, doubling.
const FIRST_PAUSE_MS = 250;
// A call that would have to pause for longer fails at once.
const LONGEST_PAUSE_MS = 10_000;

/** Return the milliseconds before attempt `n` (from 0) to connect again. */
export function connectDelayMs(n: number): number {
  return Math.min(FIRST_DELAY_MS * 2 ** n, LONGEST_DELAY_MS);
}

/** The attempts that one call has left; `most` is 0 for a call that is sent once. */
export class Retries {
  #made = 0;

  constructor(private readonly most: number) {}

  /**
   * Return the milliseconds to pause before the next attempt.
   *
   * @throws the error itself if there is no further attempt, or it would come after `remainingMs`.
   */
  pauseMs(error: CardError, remainingMs: number): number {
    const named = error instanceof RequestError ? error.retryAfterMs : undefined;
    const pause = named ?? Math.min(FIRST_PAUSE_MS * 2 ** this.#made, LONGEST_PAUSE_MS);
    const soon = pause <= Math.min(remainingMs, LONGEST_PAUSE_MS);
    if (this.#made >= this.most || !isTransient(error) || !soon) throw error;
    this.#made += 1;
    return pause;
  }
}

/** Return whether the same call may succeed in a moment; a deadline of its own is over for good. */
export function isTransient(error: CardError): boolean {
  if (error instanceof RequestError) return error.retryable && !(error instanceof DeadlineExceeded);
  return error instanceof ConnectionLost;
}
