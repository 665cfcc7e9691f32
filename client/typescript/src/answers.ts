// The answer of a stream, its pieces joined.

import type { Answer, Chunk, OneAnswer, ToolCall } from "./protocol.js";

/** An answer whose text is always a string: empty if there is none, or if several answers have their own. */
export type WholeAnswer = Answer & { text: string };

/** Return the answer of a stream with the contents of its chunks. */
export function joined(answer: Answer, chunks: readonly Chunk[]): WholeAnswer {
  if (!answer.answers) return withChunks(answer, chunks);
  return {
    ...answer,
    text: "",
    answers: answer.answers.map((one, index) =>
      withChunks(
        one,
        chunks.filter((chunk) => (chunk.index ?? 0) === index),
      ),
    ),
  };
}

function withChunks<A extends Answer | OneAnswer>(answer: A, chunks: readonly Chunk[]): A & { text: string } {
  const reasoning = chunks.map((chunk) => chunk.reasoning ?? "").join("");
  const calls = joinedCalls(chunks);
  const tokens = concatenated(chunks.map((chunk) => chunk.tokens));
  const logprobs = concatenated(chunks.map((chunk) => chunk.logprobs));
  return {
    ...answer,
    text: chunks.map((chunk) => chunk.text).join(""),
    ...(reasoning && { reasoning }),
    ...(calls.length > 0 && { tool_calls: calls }),
    ...(tokens && { tokens }),
    ...(logprobs && { logprobs }),
  };
}

function joinedCalls(chunks: readonly Chunk[]): ToolCall[] {
  const calls = new Map<number, ToolCall>();
  for (const piece of chunks.flatMap((chunk) => chunk.tool_calls ?? [])) {
    const call = calls.get(piece.index) ?? {
      id: "",
      type: "function",
      function: { name: "", arguments: "" },
    };
    call.id ||= piece.id ?? "";
    call.function.name ||= piece.name ?? "";
    call.function.arguments += piece.arguments ?? "";
    if (piece.invalid) call.invalid = piece.invalid;
    calls.set(piece.index, call);
  }
  return [...calls.values()];
}

function concatenated<T>(lists: readonly (T[] | undefined)[]): T[] | undefined {
  const given = lists.filter((list) => list !== undefined);
  return given.length > 0 ? given.flat() : undefined;
}
