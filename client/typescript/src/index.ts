// card's thin client: the daemon's capacity, answers and streams.

export type { WholeAnswer } from "./answers.js";
export type { CallOptions } from "./call.js";
export { Client, type ClientOptions, connect } from "./client.js";
export * from "./errors.js";
export type * from "./protocol.js";
export { InferStream } from "./stream.js";
