// The protocol's objects: `make docs` writes this file from the definitions that the daemon decodes with.

/** The model; `subscribe` starts or ends `inference/capacity_changed`. */
export interface CapacityParams {
  /** the caller's own; only `traceparent` is read */
  _meta?: Record<string, unknown>;
  /**
   * the person of `[people]` for whom a delegate sends it: a user of its own; 1009 for other
   * processes and unknown persons
   */
  person?: string | null;
  /** the default model if absent */
  model?: string | null;
  /**
   * true also sends `inference/capacity_changed` with the same object when `generation` grew, false
   * ends that
   */
  subscribe?: boolean | null;
}

/**
 * The capacity object; counts are sequences or requests, `inputs` are the figures that the policy
 * decided by.
 */
export interface Capacity {
  /**
   * requests of this model that run at once now: declared, lowered by pressure and the machine's
   * limit, never below 1; 1 while its engine is not ready
   */
  capacity: number;
  /** the figure that its engine declared; null until it is ready */
  declared: number | null;
  /** sequences leased */
  in_use: number;
  /** free sequences of the model, which the limit of `machine` may keep from being leased */
  available: number;
  /** requests set aside, which hold no sequence */
  parked: number;
  /** requests of this model that wait, also outside of a full queue */
  queued: number;
  /** the bound of the queue, over all models */
  queue_limit: number;
  /** the rule that decided `declared` */
  policy: "config" | "env" | "flag" | "measured" | "memory" | "ram_per_8gb" | "ram_tiers" | null;
  /** of memory: the highest of the machine and of the model's GPUs */
  pressure: "critical" | "none" | "some";
  state: "draining" | "failed" | "loading" | "ready" | "unloaded";
  model: string;
  /** of one sequence, of replicas the longest; null until one is ready */
  context_tokens: number | null;
  /** over all models */
  machine: Machine;
  /** grows with every change of state, `declared`, pressure and limits; the counts change without it */
  generation: number;
  /** the version of this contract */
  protocol: string;
  /** of the daemon */
  version: string;
  /** the bounds in force */
  limits: Limits;
  /** the reason why it failed or found no room */
  reason?: string;
  /**
   * the figures that `policy` decided by: `free_bytes`, `kv_bytes_per_sequence`, `tokens_per_s_N`
   * with N sequences, and `cores_of_others` if other programs had cores meanwhile, until it is
   * measured again
   */
  inputs?: Record<string, number>;
}

/** The limit over all models, None if there is none, and the sequences leased under it. */
export interface Machine {
  /** null if there is none */
  limit: number | null;
  /** sequences leased under it */
  in_use: number;
}

/** The bounds in force; sizes in bytes, times in milliseconds. */
export interface Limits {
  /** a frame, without its newline. Default 8388608. */
  max_frame_bytes?: number;
  /** nesting of `json_schema`, `template_args` and the parameters of tools. Default 64. */
  max_depth?: number;
  /** values in each of these, in the parameters of all tools together. Default 100000. */
  max_values?: number;
  /** objects, arrays, texts of a frame, and of its calls' arguments. Default 200000. */
  max_members?: number;
  /** an id. Default 128. */
  max_id_bytes?: number;
  /** entries of a batch. Default 32. */
  max_batch?: number;
  /** can be configured; lowered if the system allows fewer open files. Default 1024. */
  max_connections?: number;
  /** of one user; can be configured. Default 600. */
  max_connections_per_uid?: number;
  /** connected at once, besides root and the daemon's own user. Default 14. */
  max_users?: number;
  /**
   * of all clients: unfinished frames, unread answers; see [bytes](#bytes-of-all-clients). Default
   * 268435456.
   */
  max_client_bytes?: number;
  /** the part of them that each user always keeps. Default 9437184. */
  user_floor_bytes?: number;
  /** requests of one connection. Default 64. */
  max_in_flight?: number;
  /** requests that wait; requests outside a full queue do not count; can be configured. Default 64. */
  queue_limit?: number;
  /** their params; can be configured. Default 67108864. */
  queue_max_bytes?: number;
  /** unsent output of a client; see [slow readers](#slow-readers). Default 1048576. */
  max_output_bytes?: number;
  /** the time that a stream waits for its client to read. Default 10000. */
  slow_reader_ms?: number;
  /** from a frame's first byte to its last. Default 30000. */
  frame_timeout_ms?: number;
  /** images and sounds of a request. Default 64. */
  max_images?: number;
  /** pixels of all images of a request. Default 64000000. */
  max_image_pixels?: number;
  /** seconds of all sounds of a request, each rounded up. Default 300. */
  max_audio_s?: number;
}

/**
 * The params of `infer` and `infer_stream`: a prompt and its options, and how the daemon is to run
 * it.
 */
export interface InferParams {
  /** randomness of the draw; 0 is greedy; 0.8 if absent, unless the model's entry has another */
  temperature?: number;
  /** keep this many of the likeliest tokens; 0 is off. Default 40. */
  top_k?: number;
  /**
   * keep the likeliest tokens that together have this probability; 1 is off; 0.95 if absent, unless
   * the model's entry has another
   */
  top_p?: number;
  /** drop tokens below this fraction of the likeliest one's probability; 0 is off. Default 0.05. */
  min_p?: number;
  /**
   * keep the tokens of most typical surprise that together have this probability; 1 is off. Default
   * 1.0.
   */
  typical_p?: number;
  /** keep tokens within this many standard deviations of the largest logit; -1 is off. Default -1.0. */
  top_n_sigma?: number;
  /** exclude top choices; off if absent */
  xtc?: Xtc;
  /** penalize runs of tokens that repeat; off if absent */
  dry?: Dry;
  /** keep the surprise of each token near a target, in place of all filters above; off if absent */
  mirostat?: Mirostat;
  /** divide the logits of recent tokens; 1 is off. Default 1.0. */
  repeat_penalty?: number;
  /** tokens that the penalties look back on; -1 is the whole context. Default 64. */
  repeat_last_n?: number;
  /** subtracted once from the logit of each recent token, also of the prompt. Default 0.0. */
  presence_penalty?: number;
  /**
   * subtracted from the logit of a recent token for every occurrence, also in the prompt. Default
   * 0.0.
   */
  frequency_penalty?: number;
  /** added to logits, by token id */
  logit_bias?: Record<string, number>;
  /** go on after an end token, up to `max_tokens`. Default false. */
  ignore_eos?: boolean;
  /**
   * texts of up to 256 bytes that end the answer before them: the earliest match, at equal start
   * the longest
   */
  stop?: string[];
  /** the sampler's seed; random if absent, 0 with `reproducible`; the answer has it */
  seed?: number;
  /**
   * the same request gives the same answer again, whatever else runs, at a cost; 1004 (`lacks:
   * reproducible`) if that cannot be kept. Default false.
   */
  reproducible?: boolean;
  /** likeliest tokens that come with each token, by the model alone, before any sampler */
  logprobs?: number;
  /** the most tokens of thoughts: a longer thought is closed there, and the answer follows */
  reasoning_tokens?: number;
  /** return the answer's token ids too. Default false. */
  return_tokens?: boolean;
  /** the model's adapters to apply, each with its scale */
  lora?: Lora[];
  /** special tokens in it count only with `parse_special` */
  prompt?: string;
  /**
   * the text after the gap that the answer fills; the text before is `prompt`; 1004 (`lacks: fill`)
   * of models that cannot
   */
  suffix?: string;
  /** token ids, taken as they are */
  tokens?: number[];
  /**
   * a conversation, rendered by the model's chat template; no text in it is ever parsed for special
   * tokens
   */
  messages?: Message[];
  /**
   * the longest answer, cut to what fits the context; if absent what fits, or the model's
   * `default_max_tokens`
   */
  max_tokens?: number;
  /** read special tokens that are written out in `prompt` and `suffix` as such. Default false. */
  parse_special?: boolean;
  /** a grammar in llama.cpp's GBNF, up to 256 KiB, that the whole answer follows */
  grammar?: string;
  /**
   * a JSON schema: the answer is valid under it, or calls one of the `tools`. An object's schema
   * that lists `properties` and says nothing of others forbids others, unless `allOf`, or a `$ref`
   * beside `properties`, is anywhere, or it is a branch beside `properties`. All its objects
   * together list up to 3000 `properties`, 3000 `required` and 64 `patternProperties`; so do the
   * tools of a forced call. With `allOf`, or a `$ref` with something beside it, a schema has up to
   * 16 `pattern`s. Not beside `grammar`
   */
  json_schema?: Record<string, unknown>;
  /**
   * leave out keywords of `json_schema` that cannot be enforced; the answer's `ignored` names them.
   * Default false.
   */
  lenient?: boolean;
  /** functions that the model may call, for templates that show tools */
  tools?: Tool[];
  /** `required` and a named tool force a call by a grammar. Default "auto". */
  tool_choice?: "auto" | "none" | "required" | NamedTool;
  /** false: the answer ends with its first call. Default true. */
  parallel_tool_calls?: boolean;
  /**
   * thoughts: `auto` (without another in the model's entry) returns them in `reasoning`; `keep`
   * leaves them in `text`; `on` also has a model think that thinks only on request (1004, `lacks:
   * thinking`, of others); `off` has it write none, or the fewest that its template allows
   */
  reasoning?: "auto" | "keep" | "off" | "on";
  /** go on in the last message, an assistant's text, and return only what follows it. Default false. */
  continue_last?: boolean;
  /** further variables for the chat template */
  template_args?: Record<string, unknown>;
  /**
   * `throughput` gives way to the other class; after 30 s of waiting it counts as that class.
   * Default "latency_critical".
   */
  priority?: "latency_critical" | "throughput";
  /** a name of `models/list`; the default model if absent */
  model?: string;
  /**
   * answers to this prompt, which is computed once: each takes a sequence and a place in the queue,
   * and answer i has the seed `seed` + i. Default 1.
   */
  n?: number;
  /** ms from arrival to the end of the answer: 1002 before the first token, an early end after it */
  timeout_ms?: number;
  /** ms from arrival to the lease: 1002 */
  queue_timeout_ms?: number;
  /** false: refused (1001) unless a sequence is free now. Default true. */
  wait?: boolean;
  /** false: refused (1001) when the queue is full, whatever its policy. Default true. */
  queue?: boolean;
  /**
   * a key of up to 128 bytes: a valid newer request of this connection with the same key cancels
   * the older one (`data.superseded`) and takes its place in a full queue, unless it is held back
   */
  supersede?: string;
  /**
   * `program`: `supersede` counts on all connections of the process for the same tenant. Default
   * "connection".
   */
  supersede_scope?: "connection" | "program";
  /** a name of up to 128 bytes; the replica that ran the session last is preferred */
  session?: string;
  /** a text of up to 128 bytes; prompts share prefixes with the same user and salt only */
  cache_salt?: string;
  /** false: neither uses cached prefixes nor leaves one. Default true. */
  cache_prompt?: boolean;
  /** `cpu`, `gpu` (any) or `gpu0` ...; 1004 (`lacks: device`) if no replica is there */
  device?: string;
  /** send `infer_stream/progress` notifications, also for `infer`. Default false. */
  progress?: boolean;
  /** a label of up to 64 bytes, for fairness, usage and status; the process if absent */
  client?: string;
  /**
   * whom the process sends this for, a name of up to 64 bytes: a share within the process; requests
   * without a name are of one tenant. Default "".
   */
  tenant?: string;
  /** the caller's own; only `traceparent` is read */
  _meta?: Record<string, unknown>;
  /**
   * the person of `[people]` for whom a delegate sends it: a user of its own; 1009 for other
   * processes and unknown persons
   */
  person?: string;
}

/** Exclude top choices: how often, and from which probability on. */
export interface Xtc {
  /** the probability of doing it at a token */
  probability: number;
  /** tokens count as top choices from this probability on */
  threshold: number;
}

/** Do not repeat yourself: what a repeated run of tokens costs as it grows. */
export interface Dry {
  /** 0 is off */
  multiplier: number;
  /** growth of the cost with each token of the run. Default 1.75. */
  base?: number;
  /** a run up to this length costs nothing. Default 2. */
  allowed_length?: number;
  /** -1 is the whole context. Default -1. */
  penalty_last_n?: number;
  /** a run ends at these; by default at a newline, a colon, a quote or a star */
  sequence_breakers?: string[];
}

/** Keep the surprise of each token near `tau`; takes the place of every filter of probabilities. */
export interface Mirostat {
  version: 1 | 2;
  /** the surprise to keep. Default 5.0. */
  tau?: number;
  /** learning rate of the correction. Default 0.1. */
  eta?: number;
}

/** One of the model's adapters, and how much of it. */
export interface Lora {
  /** of the model's `adapters` */
  name: string;
  /** Default 1.0. */
  scale?: number;
}

/** One turn of a conversation; content may be null if the turn is made of tool calls. */
export interface Message {
  /** up to 32 letters, digits, `_` and `-` */
  role: string;
  /** null beside tool calls only */
  content?: string | (TextPart | ImagePart | AudioPart)[] | null;
  /** thoughts of an earlier answer, for templates that show them */
  reasoning?: string | null;
  /** the calls of an earlier answer */
  tool_calls?: ToolCall[];
  /** the call that a `tool` message answers */
  tool_call_id?: string;
  /** of the tool, for templates */
  name?: string;
}

/** One piece of a message's content. */
export interface TextPart {
  type: "text";
  text: string;
}

/** A PNG, JPEG or GIF in a message's content; `data` is base64. */
export interface ImagePart {
  type: "image";
  /** base64 of a PNG, JPEG or GIF of up to 5 MiB and 16 megapixels */
  data: string;
}

/** A WAV or MP3 in a message's content; `data` is base64. */
export interface AudioPart {
  type: "audio";
  /** base64 of a WAV or MP3 of up to 5 MiB and 300 s */
  data: string;
}

/** One call that a model made; a `tool` message answers it by its id. */
export interface ToolCall {
  id: string;
  function: FunctionCall;
  /** Default "function". */
  type?: "function";
  /**
   * `name`: no tool has this name; `arguments`: they are not a JSON object, or were cut by
   * `max_tokens` or the deadline
   */
  invalid?: "arguments" | "name";
}

/** A function's name and its arguments as a JSON text. */
export interface FunctionCall {
  name: string;
  /** a JSON text */
  arguments: string;
}

/** A tool as OpenAI's clients write it. */
export interface Tool {
  type: "function";
  function: Function;
}

/** A function that a model may call; `parameters` is a JSON schema, unknown members are ignored. */
export interface Function {
  /** up to 64 letters, digits, `_`, `.` and `-` */
  name: string;
  /** Default "". */
  description?: string;
  /** a JSON schema */
  parameters?: Record<string, unknown>;
}

/** The function that has to be called. */
export interface NamedTool {
  /** up to 64 letters, digits, `_`, `.` and `-` */
  name: string;
}

/** The result of `infer`; that of `infer_stream` has `chunks` in place of the texts. */
export interface Answer {
  /** of `infer` */
  text?: string;
  /** of `infer`: a model's thoughts */
  reasoning?: string;
  /** of `infer` */
  tool_calls?: ToolCall[];
  /** `stop` is an end token or a stop string, `length` is `max_tokens` or the end of the context */
  finish_reason?: "deadline" | "length" | "stop";
  /** the string that was hit */
  stop?: string;
  model: string;
  /** the seed that the sampler used */
  seed: number;
  usage: Usage;
  timings: Timings;
  /** of `infer`, if requested */
  logprobs?: Logprob[];
  /** of `infer`, with `return_tokens` */
  tokens?: number[];
  /** with `lenient`: JSON pointers to keywords of the schema that were left out */
  ignored?: string[];
  /** of `infer_stream`: the number that was sent */
  chunks?: number;
  /**
   * a digest of the model's files, the builds of card and llama.cpp, the device and `kv_type`; it
   * stays the same after a restart
   */
  fingerprint?: string;
  /**
   * with `n` above 1: text, reasoning, tool_calls, finish_reason, stop, logprobs and tokens of each
   * answer, which are not beside it then
   */
  answers?: OneAnswer[];
}

/** Tokens of one request; `completion_tokens` counts every sampled token, the one that ended it too. */
export interface Usage {
  prompt_tokens: number;
  /** of the prompt, not computed again */
  cached_tokens: number;
  /** sampled tokens: also the token that ended the text, and tokens that a stop string cut off */
  completion_tokens: number;
  /** of `infer` and `infer_stream`: the reason why not more of the prompt is cached */
  parted?: Parted;
}

/** The reason why tokens were computed that an earlier prompt of the same caller has, or nearly has. */
export interface Parted {
  /**
   * the part that differs from the nearest earlier prompt: a `system` message, its `tools`, another
   * `message`, text of the `template`, a `prompt` without messages; or why its cells are not there:
   * `evicted` for others, `no_mark` to go on from, ended with an engine (`restart`)
   */
  reason: "evicted" | "message" | "no_mark" | "prompt" | "restart" | "system" | "template" | "tools";
  /** tokens that it has in common with the nearest earlier prompt */
  at: number;
  /** tokens that were computed for this reason */
  tokens: number;
  /** the message that differs, from 0 */
  message?: number;
  /** of that message */
  role?: string;
  /** the earlier prompt's words there */
  was?: string;
  /** this prompt's words there */
  now?: string;
}

/** The parts of one request's time, in milliseconds. */
export interface Timings {
  /** from arrival to the lease */
  queue_ms: number;
  /** the prompt's computation */
  prefill_ms: number;
  /** from arrival to the first token */
  ttft_ms: number;
  /** from the first token to the last, also while it was parked */
  decode_ms: number;
  /** from arrival to the end */
  total_ms: number;
}

/** The token that was chosen, and the likeliest tokens at its place. */
export interface Logprob {
  token: number;
  text: string;
  /** by the model alone, before any sampler; -1000.0 for a probability of 0 */
  logprob: number;
  /** the likeliest at its place */
  top: TokenChoice[];
}

/**
 * A token that the model could have chosen; `logprob` is a natural logarithm, -1000.0 for a
 * probability of 0.
 */
export interface TokenChoice {
  token: number;
  text: string;
  /** a natural logarithm; -1000.0 if impossible */
  logprob: number;
}

/** One of several answers; that of a stream has `finish_reason` and `stop` only. */
export interface OneAnswer {
  /** of `infer` */
  text?: string;
  /** of `infer`: a model's thoughts */
  reasoning?: string;
  /** of `infer` */
  tool_calls?: ToolCall[];
  /** `stop` is an end token or a stop string, `length` is `max_tokens` or the end of the context */
  finish_reason: "deadline" | "length" | "stop";
  /** the string that was hit */
  stop?: string;
  /** of `infer`, if requested */
  logprobs?: Logprob[];
  /** of `infer`, with `return_tokens` */
  tokens?: number[];
}

/** The request of this connection to cancel. */
export interface CancelParams {
  /** the caller's own; only `traceparent` is read */
  _meta?: Record<string, unknown>;
  /**
   * the person of `[people]` for whom a delegate sends it: a user of its own; 1009 for other
   * processes and unknown persons
   */
  person?: string | null;
  /** unknown ids are ignored */
  id: string | number;
}

/** A result without members. */
export interface Empty {
}

/** The texts to embed; vectors have length 1 unless `normalize` is false. */
export interface EmbedParams {
  /** the caller's own; only `traceparent` is read */
  _meta?: Record<string, unknown>;
  /**
   * the person of `[people]` for whom a delegate sends it: a user of its own; 1009 for other
   * processes and unknown persons
   */
  person?: string | null;
  /**
   * each of at most 512 tokens if the model also generates, else 2,048, and at most its trained
   * context
   */
  input: string[];
  model?: string | null;
  /** vectors have length 1. Default true. */
  normalize?: boolean;
  /** of a longer text its beginning counts; else such a text is refused. Default false. */
  truncate?: boolean;
  /** a label of up to 64 bytes, for fairness, usage and status; the process if absent */
  client?: string | null;
  /**
   * whom the process sends this for, a name of up to 64 bytes: a share within the process; requests
   * without a name are of one tenant. Default "".
   */
  tenant?: string;
}

/** A vector for every text, in their order. */
export interface Embeddings {
  /** a vector for every text, in their order */
  embeddings: number[][];
  model: string;
  usage: Usage;
}

/** A query, and the documents to order; `top_n` keeps the best. */
export interface RerankParams {
  /** the caller's own; only `traceparent` is read */
  _meta?: Record<string, unknown>;
  /**
   * the person of `[people]` for whom a delegate sends it: a user of its own; 1009 for other
   * processes and unknown persons
   */
  person?: string | null;
  query: string;
  /** each with the query as long as a text of `embed` */
  documents: string[];
  model?: string | null;
  /** the number of best documents to return; all if absent */
  top_n?: number | null;
  /** a label of up to 64 bytes, for fairness, usage and status; the process if absent */
  client?: string | null;
  /**
   * whom the process sends this for, a name of up to 64 bytes: a share within the process; requests
   * without a name are of one tenant. Default "".
   */
  tenant?: string;
}

/** The documents, the best first. */
export interface Ranking {
  /** the best first */
  results: Ranked[];
  model: string;
  usage: Usage;
}

/** One document by its place in the request, and how well it fits: higher is better. */
export interface Ranked {
  /** of the document in the request */
  index: number;
  /** the model's own; higher is better */
  score: number;
}

/** A state, and the questions about it; errors name the path of the member at fault. */
export interface DecideParams {
  /** the caller's own; only `traceparent` is read */
  _meta?: Record<string, unknown>;
  /**
   * the person of `[people]` for whom a delegate sends it: a user of its own; 1009 for other
   * processes and unknown persons
   */
  person?: string | null;
  /**
   * what the questions are about: a text, messages as `infer` takes them (images and sounds too),
   * or any other JSON value, shown as JSON with its keys in their order; not empty
   */
  state: unknown;
  questions: (Choice | Score | Predicate)[];
  /**
   * 2: a choice is read forwards and backwards, and both are averaged, which cancels a preference
   * for the first option and costs a second reading; as the model's family does it if absent, else
   * 1
   */
  orders?: number | null;
  /**
   * the same question gives the same numbers to the last bit, whatever else the daemon does, at a
   * cost. Default false.
   */
  reproducible?: boolean;
  /** as in `infer` */
  lora?: Lora[];
  /** as in `infer`. Default "latency_critical". */
  priority?: "latency_critical" | "throughput";
  /** a name of `models/list`; the default model if absent */
  model?: string | null;
  /** deadline of all answers in ms, from arrival: 1002 */
  timeout_ms?: number | null;
  /** as in `infer` */
  queue_timeout_ms?: number | null;
  /** as in `infer`. Default true. */
  wait?: boolean;
  /** as in `infer`. Default true. */
  queue?: boolean;
  /** as in `infer` */
  session?: string | null;
  /** as in `infer` */
  cache_salt?: string | null;
  /** as in `infer` */
  device?: string | null;
  /** send `infer_stream/progress` notifications with the number of questions done. Default false. */
  progress?: boolean;
  /** a label of up to 64 bytes, for fairness, usage and status; the process if absent */
  client?: string | null;
  /**
   * whom the process sends this for, a name of up to 64 bytes: a share within the process; requests
   * without a name are of one tenant. Default "".
   */
  tenant?: string;
}

/** Which of these values is it? */
export interface Choice {
  type: "choice";
  /** unique in the request; the question's index if absent */
  name?: string | null;
  /** a text, or any JSON value */
  instructions: unknown;
  options: Option[];
}

/** One of the values of a choice. */
export interface Option {
  /** unique in its question; `"true"` and `true` are two */
  value: string | boolean;
  /** a text, or any JSON value */
  description?: unknown;
}

/** How much is it, on a scale of these levels? */
export interface Score {
  type: "score";
  /** unique in the request; the question's index if absent */
  name?: string | null;
  /** a text, or any JSON value */
  instructions: unknown;
  /** the lowest first */
  levels: Level[];
}

/** One step of a score. */
export interface Level {
  /** a text, or any JSON value */
  label: unknown;
}

/** Is it so? */
export interface Predicate {
  type: "predicate";
  /** unique in the request; the question's index if absent */
  name?: string | null;
  /** a text, or any JSON value; may be absent if a side is described */
  instructions?: unknown;
  /** what it means that it is so */
  true?: unknown;
  /** what it means that it is not so */
  false?: unknown;
}

/** The result of `decide`. */
export interface Decision {
  model: string;
  /** in the order of the questions */
  answers: (ChoiceAnswer | ScoreAnswer | PredicateAnswer)[];
  usage: DecisionUsage;
  timings: DecisionTimings;
}

/** The answer to a choice. */
export interface ChoiceAnswer {
  type: "choice";
  name: string;
  /** the value of the likeliest option */
  choice: string | boolean;
  /** of the options, in their order; their sum is 1 */
  probabilities: number[];
  /**
   * 0 if all N options are equally likely, 1 if an option is certain: (p - 1/N) / (1 - 1/N) of the
   * likeliest
   */
  confidence: number;
  /**
   * the share of the whole vocabulary's probability that fell on the labels, before it was made to
   * sum to 1: if it is small, the model did not understand the form
   */
  mass: number;
}

/** The answer to a score. */
export interface ScoreAnswer {
  type: "score";
  name: string;
  /** the mean of the levels' indices: 1.5 of 4 is between the second and the third */
  score: number;
  /** of the levels, in their order; their sum is 1 */
  probabilities: number[];
  /** 1 if a level is certain, 0 if the answer is as spread as by chance */
  confidence: number;
  /** as of a choice */
  mass: number;
}

/** The answer to a predicate. */
export interface PredicateAnswer {
  type: "predicate";
  name: string;
  /** that it is so */
  probability: number;
  /** that it is so, and that it is not; their sum is 1 */
  probabilities: number[];
  /** as of a choice */
  mass: number;
}

/**
 * Tokens of one decision: every question is read as the state and itself, and computed behind the
 * others' state.
 */
export interface DecisionUsage {
  /** of all questions, each with the state */
  prompt_tokens: number;
  /** of them, not computed: the state after its first time, and what a cache had */
  cached_tokens: number;
  /** of them, computed */
  computed_tokens: number;
  /** nothing is written. Default 0. */
  answer_tokens?: 0;
}

/** The parts of one decision's time, in milliseconds. */
export interface DecisionTimings {
  /** from arrival to the lease */
  queue_ms: number;
  /** from the lease to the last answer, also while it was parked */
  compute_ms: number;
  /** from arrival to the end */
  total_ms: number;
}

/** The text to cut into tokens, or the conversation to render and cut as `infer` does. */
export interface TokenizeParams {
  /** the caller's own; only `traceparent` is read */
  _meta?: Record<string, unknown>;
  /**
   * the person of `[people]` for whom a delegate sends it: a user of its own; 1009 for other
   * processes and unknown persons
   */
  person?: string | null;
  /** either this or `messages` */
  text?: string | null;
  /** a conversation, whose tokens are the prompt's tokens of `infer` */
  messages?: Message[] | null;
  /** a name of `models/list`; the default model if absent */
  model?: string | null;
  /** with what the model puts around a text; goes with `text` only. Default false. */
  add_special?: boolean;
  /** special tokens in the text count; goes with `text` only. Default false. */
  parse_special?: boolean;
  /** as in `infer` */
  tools?: Tool[];
  /** as in `infer`. Default true. */
  parallel_tool_calls?: boolean;
  /** as in `infer` */
  template_args?: Record<string, unknown>;
  /** as in `infer` */
  reasoning?: "auto" | "keep" | "off" | "on";
  /** as in `infer`. Default false. */
  continue_last?: boolean;
  /** leave `tokens` out. Default false. */
  count_only?: boolean;
  /** a label of up to 64 bytes, for fairness, usage and status; the process if absent */
  client?: string | null;
  /**
   * whom the process sends this for, a name of up to 64 bytes: a share within the process; requests
   * without a name are of one tenant. Default "".
   */
  tenant?: string;
}

/** Token ids in order, and their number. */
export interface Tokens {
  /** left out with `count_only`; numbers below 0 stand for the positions of images */
  tokens?: number[];
  count: number;
}

/** The tokens to write out; with `special` control tokens too. */
export interface DetokenizeParams {
  /** the caller's own; only `traceparent` is read */
  _meta?: Record<string, unknown>;
  /**
   * the person of `[people]` for whom a delegate sends it: a user of its own; 1009 for other
   * processes and unknown persons
   */
  person?: string | null;
  tokens: number[];
  model?: string | null;
  /** write control tokens too. Default false. */
  special?: boolean;
  /** a label of up to 64 bytes, for fairness, usage and status; the process if absent */
  client?: string | null;
  /**
   * whom the process sends this for, a name of up to 64 bytes: a share within the process; requests
   * without a name are of one tenant. Default "".
   */
  tenant?: string;
}

/** Text; bytes that are not UTF-8 become U+FFFD. */
export interface Text {
  /** bytes that are not UTF-8 become U+FFFD */
  text: string;
}

/** No members. */
export interface NoParams {
  /** the caller's own; only `traceparent` is read */
  _meta?: Record<string, unknown>;
  /**
   * the person of `[people]` for whom a delegate sends it: a user of its own; 1009 for other
   * processes and unknown persons
   */
  person?: string | null;
}

/** Every entry, the default one first. */
export interface Models {
  models: Model[];
}

/** One model entry; sizes in bytes, times in seconds since the epoch. */
export interface Model {
  name: string;
  /** further names of it */
  aliases?: string[];
  /** values for members that a request leaves out */
  defaults?: Defaults;
  /** of its file for administrators, the file's name for others */
  path: string;
  state: "draining" | "failed" | "loading" | "ready" | "unloaded";
  default: boolean;
  /** stays loaded */
  pinned: boolean;
  /** of its file; null if there is none */
  size_bytes: number | null;
  /** as `inference/capacity` has it */
  capacity: number;
  context_tokens: number | null;
  /** names for `lora` */
  adapters: string[];
  /**
   * of `generate`, `chat`, `images`, `audio`, `tools` (its template shows them), `thinking`, `fill`
   * (a `suffix` beside the prompt), `decide`, `embed`, `rerank`; of a model that is not loaded by
   * its header
   */
  can: string[];
  /** `cpu`, `gpu`, `gpu0` ...; `auto` until GPUs were looked for; of several replicas joined by `+` */
  device: string;
  /** engines, over all of its devices */
  replicas: number;
  /** seconds since the epoch */
  loaded_at?: number;
  /** seconds since the epoch */
  last_used_at?: number;
  /** `here`, or `ray`: its engines run on machines of a cluster */
  place?: string;
  /** of `replicas`: the engines that serve now */
  up?: number;
  /** what no machine of the cluster has for a further engine */
  waiting_for?: string;
  /** the reason why it failed or found no room */
  reason?: string;
}

/**
 * Values for members that a request leaves out; `system` begins conversations without a system
 * message.
 */
export interface Defaults {
  max_tokens?: number;
  temperature?: number;
  top_p?: number;
  reasoning?: "auto" | "keep" | "off" | "on";
  /** the first message of conversations without a system message */
  system?: string;
}

/** The model to look into. */
export interface ShowParams {
  /** the caller's own; only `traceparent` is read */
  _meta?: Record<string, unknown>;
  /**
   * the person of `[people]` for whom a delegate sends it: a user of its own; 1009 for other
   * processes and unknown persons
   */
  person?: string | null;
  model: string;
}

/** One model entry with its file, or `why` the file could not be read. */
export interface ModelDetails {
  model: Model;
  file?: ModelFile;
  estimate?: Estimate;
  /** of a model that is loaded on GPUs: one for each engine and GPU */
  devices?: DeviceStatus[];
  /** layers whose experts the GPUs have no room for: the most of an engine */
  host_experts?: number;
  /** in place of the other two: why the file is not fit to be read */
  why?: string;
}

/** Facts of a model file's header; null if it lacks them. `metadata` has its keys unchanged. */
export interface ModelFile {
  architecture: string | null;
  parameters: number;
  /** llama.cpp's number */
  file_type: number | null;
  /** tokens of context that it was trained with */
  context_length: number;
  embedding_length: number;
  block_count: number;
  vocabulary: number | null;
  /**
   * what a sequence keeps of its tokens: cells of all, in some layers cells of the last tokens
   * alone, cells and states, or states alone
   */
  memory?: "attention" | "hybrid" | "recurrent" | "windows" | null;
  /**
   * of `block_count`: layers that guess further tokens (MTP), which are in the file and not used.
   * Default 0.
   */
  unused_layers?: number;
  /** files of a model that is split */
  parts: number;
  /** parts of the header that this version does not support; an engine tries the file all the same */
  warnings?: string[];
  /** up to 128 KiB */
  chat_template: string | null;
  /** its syntax of tool calls, as configured or by its template; null if it cannot be read */
  tool_style?: string | null;
  /** around its thoughts, as configured or by its template */
  thinking_tags?: string[] | null;
  /**
   * up to 256 keys of the header: numbers, truths and texts of up to 1,024 bytes as they are,
   * `{count}` in place of an array
   */
  metadata: Record<string, boolean | number | string | ArraySize>;
}

/** The number of values of an array in a file's header, in place of the values. */
export interface ArraySize {
  count: number;
}

/**
 * Memory of each replica with sequences of `context_tokens`, and how many its part of the free
 * memory holds. `sequences` is what an engine goes up to by itself, `most_sequences` the largest
 * explicit figure; null on a GPU, whose memory the daemon cannot read. The memory of a loaded model
 * counts as free for it.
 */
export interface Estimate {
  weights_bytes: number;
  /** buffers, and the process */
  other_bytes: number;
  /** of a sequence */
  context_tokens: number;
  kv_bytes_per_sequence: number;
  /** the memory that this model may use; its own counts as free */
  free_bytes: number;
  /** the number that an engine goes up to by itself, 0 if none fits; null on a GPU */
  sequences: number | null;
  /** the largest explicit figure of this length */
  most_sequences: number | null;
  /** the numbers in which keys and values are kept: `f16`, `q8_0` or `q4_0`. Default "f16". */
  kv_type?: string;
  /** longer and shorter sequences that an engine goes up to by itself, the longest first */
  offers?: Offer[];
}

/** A length of sequences, and how many of it fit at once. */
export interface Offer {
  sequences: number;
  context_tokens: number;
}

/**
 * A GPU that holds a part of a model, or has no room for any; sizes in bytes, as read once the
 * model was loaded.
 */
export interface DeviceStatus {
  /** ggml's, such as `CUDA0` */
  name: string;
  /** of the model, its output counted as one */
  layers: number;
  /** by the headers: weights, declared sequences, the buffers of a batch */
  planned_bytes: number;
  /** by the load, and by other programs meanwhile */
  taken_bytes: number;
  free_bytes: number;
  total_bytes: number;
  /** of its memory: engines on it run fewer requests. Default "none". */
  pressure?: "critical" | "none" | "some";
}

/** The model to load or to unload; with `progress` the load sends `models/progress`. */
export interface LoadParams {
  /** the caller's own; only `traceparent` is read */
  _meta?: Record<string, unknown>;
  /**
   * the person of `[people]` for whom a delegate sends it: a user of its own; 1009 for other
   * processes and unknown persons
   */
  person?: string | null;
  model: string;
  /** `models/progress` notifications while it is loaded. Default false. */
  progress?: boolean;
}

/**
 * With `subscribe` the status comes again every `interval_ms` as `daemon/status_changed`; false
 * ends that.
 */
export interface StatusParams {
  /** the caller's own; only `traceparent` is read */
  _meta?: Record<string, unknown>;
  /**
   * the person of `[people]` for whom a delegate sends it: a user of its own; 1009 for other
   * processes and unknown persons
   */
  person?: string | null;
  /**
   * true also sends `daemon/status_changed` with the same object every `interval_ms`, false ends
   * that
   */
  subscribe?: boolean | null;
  /** rounded to tenths of a second. Default 1000. */
  interval_ms?: number;
}

/** The status object. */
export interface Status {
  version: string;
  protocol: string;
  pid: number;
  /** since its start */
  uptime_s: number;
  state: "draining" | "serving";
  /** path of the socket that it listens on */
  socket: string;
  /** delay of the daemon's event loop */
  loop_lag_ms: number;
  /** of the default model */
  capacity: Capacity;
  /** each model's entry with its `engines`, the default one first */
  models: ModelStatus[];
  queue: Queue;
  /** leased by requests for answers: of the caller's user, for administrators of all */
  sequences: SequenceStatus[];
  /** of the caller's user, for administrators of all; the 100 busiest */
  connections: ConnectionStatus[];
  /** requests since the start */
  totals: Totals;
  /** of the machine */
  memory: Memory;
  /** of the caller's user, for administrators of all; 100 at most */
  waiting?: WaitingStatus[];
  /** sums over the connections that the list leaves out; absent if it has all */
  more_connections?: MoreConnections;
  /** all other users; left out for administrators */
  others?: OtherUsers;
  /** for administrators; left out without `[cluster]` */
  cluster?: ClusterStatus;
}

/** A model entry with its engines. */
export interface ModelStatus {
  name: string;
  /** further names of it */
  aliases?: string[];
  /** values for members that a request leaves out */
  defaults?: Defaults;
  /** of its file for administrators, the file's name for others */
  path: string;
  state: "draining" | "failed" | "loading" | "ready" | "unloaded";
  default: boolean;
  /** stays loaded */
  pinned: boolean;
  /** of its file; null if there is none */
  size_bytes: number | null;
  /** as `inference/capacity` has it */
  capacity: number;
  context_tokens: number | null;
  /** names for `lora` */
  adapters: string[];
  /**
   * of `generate`, `chat`, `images`, `audio`, `tools` (its template shows them), `thinking`, `fill`
   * (a `suffix` beside the prompt), `decide`, `embed`, `rerank`; of a model that is not loaded by
   * its header
   */
  can: string[];
  /** `cpu`, `gpu`, `gpu0` ...; `auto` until GPUs were looked for; of several replicas joined by `+` */
  device: string;
  /** engines, over all of its devices */
  replicas: number;
  /** seconds since the epoch */
  loaded_at?: number;
  /** seconds since the epoch */
  last_used_at?: number;
  /** `here`, or `ray`: its engines run on machines of a cluster */
  place?: string;
  /** of `replicas`: the engines that serve now */
  up?: number;
  /** what no machine of the cluster has for a further engine */
  waiting_for?: string;
  /** the reason why it failed or found no room */
  reason?: string;
  engines: EngineStatus[];
  /** prompt tokens computed again, by the reasons that `usage.parted` of an answer has */
  read_again?: Record<string, number>;
}

/** One engine process; rates in tokens per second, sizes in bytes. */
export interface EngineStatus {
  /** null of an engine on another machine */
  pid: number | null;
  /** engines started in place of one that died */
  restarts: number;
  /** memory of the process; 0 of one on another machine */
  rss_bytes: number;
  /** as `models/list` names it */
  device: string;
  /** filled by running requests */
  kv_bytes_used: number;
  kv_bytes_capacity: number;
  /** declared */
  sequences: number;
  /** rows of a step, lately */
  batch_size: number;
  /** sampled, lately */
  decode_tokens_per_s: number;
  /** prompt tokens computed, lately */
  prefill_tokens_per_s: number;
  /** requests whose prompt was computed only in part */
  cache_hits: number;
  /** prompt tokens that were not computed again */
  cached_tokens: number;
  /** prompt tokens and texts computed, those of lost cells again. Default 0. */
  computed_tokens?: number;
  /** tokens of answers. Default 0. */
  sampled_tokens?: number;
  /** prefixes that were evicted from their sequence */
  evicted_sequences: number;
  /** share of the time that it computes, 0 to 1 */
  utilisation: number;
  /**
   * of `rss_bytes`: cells and states of requests and prefixes, at most `saved_bytes` of the
   * configuration. Default 0.
   */
  saved_bytes?: number;
  /** of `cache_hits`: requests whose cells were read from a file of `cache_dir`. Default 0. */
  stored_hits?: number;
  /** of the files of `cache_dir` that the engine may use. Default 0. */
  stored_bytes?: number;
  /** tokens of parked requests whose cells came back from host memory. Default 0. */
  restored_tokens?: number;
  /** tokens of parked requests that were computed again. Default 0. */
  recomputed_tokens?: number;
  /** tokens of earlier text that were tried as the next tokens. Default 0. */
  lookup_tried?: number;
  /** tokens of `lookup_tried` that were right: each spared a step. Default 0. */
  lookup_right?: number;
  /** what the kernel lets the process not do; empty with `sandbox = "off"` */
  sandbox?: string[];
  /** null of an engine without memory limits */
  memory?: EngineMemory | null;
  /** GPUs that hold a part of the model, empty on a CPU */
  devices?: DeviceStatus[];
  /** layers whose experts the GPUs have no room for. Default 0. */
  host_experts?: number;
  /** the address of its machine; null on this one */
  host?: string | null;
  /** seconds of its steps so far, by phase: `decode`, `sample`, ... */
  seconds: Record<string, number>;
}

/**
 * Memory of an engine process and its limits, set once its model was loaded: an allocation beyond
 * one fails.
 */
export interface EngineMemory {
  /** writable and its own: KV caches, repacked weights, stacks, also if unused */
  private_bytes: number;
  private_limit_bytes: number;
  /** address space, also of mapped files and of what is only reserved */
  virtual_bytes: number;
  virtual_limit_bytes: number;
}

/** Requests that wait, by class; the oldest wait in milliseconds. */
export interface Queue {
  /** requests of that class that wait */
  latency_critical: number;
  /** requests of that class that wait */
  throughput: number;
  oldest_wait_ms: number;
  /** no class holds four fifths of the queue's limit */
  healthy: boolean;
}

/** One lease; `id` is left out for requests of other users, which only administrators are sent. */
export interface SequenceStatus {
  /** of the request; of a connection's last call */
  person?: string;
  /** the label, likewise */
  client?: string;
  /** likewise */
  tenant?: string;
  model: string;
  /** in the engine; -1 of texts, and before the first step */
  sequence: number;
  phase: "decode" | "prefill";
  uid: number;
  connection: number;
  prompt_tokens: number;
  /** of the prompt, then of the answer */
  done_tokens: number;
  /** since the request arrived */
  age_ms: number;
  /** left out for requests of other users */
  id?: string | number;
}

/** One connected client. */
export interface ConnectionStatus {
  /** of the request; of a connection's last call */
  person?: string;
  /** the label, likewise */
  client?: string;
  /** likewise */
  tenant?: string;
  /** its number */
  connection: number;
  uid: number;
  pid: number;
  /** requests */
  in_flight: number;
  /** completion tokens of ended requests */
  tokens_served: number;
}

/** Requests since the start; `received` is the sum of the others at every reading. */
export interface Totals {
  /** the sum of the others at every reading */
  received: number;
  /** answered with a result */
  completed: number;
  /** 1002, 1005, 1007 or -32603 */
  failed: number;
  /** -32800 */
  cancelled: number;
  /** all other errors */
  rejected: number;
  /** not answered yet */
  in_flight: number;
}

/** The machine's memory in bytes. */
export interface Memory {
  total: number;
  available: number;
  pressure: "critical" | "none" | "some";
}

/** Requests of one connection and label that wait for the same. */
export interface WaitingStatus {
  /** of the request; of a connection's last call */
  person?: string;
  /** the label, likewise */
  client?: string;
  /** likewise */
  tenant?: string;
  model: string;
  /**
   * a `place` in the full queue, an `engine`, which loads or restarts, the `prompt` as tokens, a
   * free `sequence`; `turn`: parked for others; `reader`: parked until their client reads
   */
  awaits: "engine" | "place" | "prompt" | "reader" | "sequence" | "turn";
  requests: number;
  /**
   * of the first of them in the queue of its model, if it waits there; 0 is next, 63 the last that
   * is told
   */
  position?: number;
  /** since the oldest of them arrived */
  oldest_ms: number;
  uid: number;
  connection: number;
}

/** Sums over the connections that a list of the busiest leaves out. */
export interface MoreConnections {
  connections: number;
  /** requests */
  in_flight: number;
  /** completion tokens of ended requests */
  tokens_served: number;
}

/** The figures of other users, whose connections and sequences only administrators are sent. */
export interface OtherUsers {
  connections: number;
  /** requests */
  in_flight: number;
  /** leased */
  sequences: number;
}

/** The cluster of `[cluster]`, as the placer reported it last. */
export interface ClusterStatus {
  /** of its head, as configured */
  address: string;
  /** of the process that places engines; null until one is needed */
  placer_pid: number | null;
  /** Ray's version; null until the placer is connected */
  ray: string | null;
  /** the reason why the placer has no connection to the cluster */
  reason?: string;
  nodes?: NodeStatus[];
}

/** A machine of the cluster; its resources are all that it has, in use or not. */
export interface NodeStatus {
  address: string;
  /** as the cluster has it: a machine that is cut off stays alive for about a minute */
  alive: boolean;
  /** in all */
  cpus: number;
  /** in all */
  gpus: number;
  /** of this daemon, connected */
  engines: number;
  /** seconds for which others come first: its connection was lost, or it refused an engine */
  avoided_s?: number;
  /** the reason why it is avoided */
  reason?: string;
}

/** The connection and the request to cancel, as the status names them. */
export interface CancelOtherParams {
  /** the caller's own; only `traceparent` is read */
  _meta?: Record<string, unknown>;
  /**
   * the person of `[people]` for whom a delegate sends it: a user of its own; 1009 for other
   * processes and unknown persons
   */
  person?: string | null;
  /** its number in the status */
  connection: number;
  /** its id in the status; an unknown id is ignored */
  id: string | number;
}

/** The time that running and waiting requests have to finish; None is the configured timeout. */
export interface DrainParams {
  /** the caller's own; only `traceparent` is read */
  _meta?: Record<string, unknown>;
  /**
   * the person of `[people]` for whom a delegate sends it: a user of its own; 1009 for other
   * processes and unknown persons
   */
  person?: string | null;
  /** five seconds less than `drain_timeout_s` if absent; of several the shortest counts */
  timeout_ms?: number | null;
}

/** Requests that the daemon completed while it drained, and requests that it refused at the timeout. */
export interface Drained {
  /** requests that were answered while the daemon drained, not counting errors */
  completed: number;
  /** requests that got 1003 at the timeout */
  refused: number;
}

/** One request, or all that are remembered. */
export interface WhyParams {
  /** the caller's own; only `traceparent` is read */
  _meta?: Record<string, unknown>;
  /**
   * the person of `[people]` for whom a delegate sends it: a user of its own; 1009 for other
   * processes and unknown persons
   */
  person?: string | null;
  /** of a request; absent for all */
  id?: string | number | null;
}

/** The last prompts of the caller. */
export interface Why {
  /** the newest first, at most 32 */
  prompts: ReadPrompt[];
}

/** A prompt that was answered: how much of it was computed, and why. */
export interface ReadPrompt {
  /** of the request */
  id: string | number;
  /** its number in the status */
  connection: number;
  model: string;
  /** since the answer */
  age_s: number;
  prompt_tokens: number;
  /** of the prompt, not computed again */
  cached_tokens: number;
  /** the label of the request */
  client?: string;
  /** as in the answer's `usage` */
  parted?: Parted;
}

/** The members by which rows are told apart, and the first and the last day that count. */
export interface UsageParams {
  /** the caller's own; only `traceparent` is read */
  _meta?: Record<string, unknown>;
  /**
   * the person of `[people]` for whom a delegate sends it: a user of its own; 1009 for other
   * processes and unknown persons
   */
  person?: string | null;
  /** what tells rows apart; `person` tells people and users apart */
  by?: ("app" | "day" | "model" | "person")[];
  /** the first day that counts, as `2026-01-31`; the last 30 days if absent */
  since?: string | null;
  /** the last day that counts; today if absent */
  until?: string | null;
}

/** The caller's own rows, for administrators all rows. */
export interface UsageReport {
  /** the first day that counts */
  since: string;
  /** today */
  until: string;
  /** the sum of all rows, those left out too */
  total: UsageRow;
  /** by day, then those with most tokens first */
  rows?: UsageRow[];
  /** rows beyond 1,000, which have fewest tokens. Default 0. */
  left_out?: number;
  /** why rows are missing: no ledger is kept, or its file cannot be used */
  why?: string;
}

/**
 * The amounts of one group of requests; members that are 0, or by which rows are not told apart,
 * are left out.
 */
export interface UsageRow {
  /** requests that were answered with a result. Default 0. */
  completed?: number;
  /** as in the status: 1002, 1005, 1007 or -32603. Default 0. */
  failed?: number;
  /** -32800. Default 0. */
  cancelled?: number;
  /** all other errors. Default 0. */
  rejected?: number;
  /** of the prompts of ended requests. Default 0. */
  prompt_tokens?: number;
  /** of prompts, found in the cache. Default 0. */
  cached_tokens?: number;
  /** of prompts, computed. Default 0. */
  computed_tokens?: number;
  /** sampled. Default 0. */
  completion_tokens?: number;
  /** answers of `decide`. Default 0. */
  decisions?: number;
  /** texts that were embedded or ranked. Default 0. */
  texts?: number;
  /** seconds of engines' steps, divided by the tokens in them. Default 0.0. */
  device_s?: number;
  /** seconds without a sequence. Default 0.0. */
  waited_s?: number;
  /** of the daemon's time zone */
  day?: string;
  /** of `[people]` */
  person?: string;
  /** of a user that is no person */
  uid?: number;
  /** the label of requests, else their tenant; empty without either */
  app?: string;
  /** a name of `[models]` */
  model?: string;
}

/** The params of `infer_stream/chunk`; `seq` counts from 0 without gaps. */
export interface Chunk {
  /** of the request */
  id: string | number;
  /** counts from 0 without gaps, over all answers */
  seq: number;
  /** of the answer that it belongs to, from 0, with `n` above 1 */
  index?: number;
  /** cut between characters; no part of a stop string is ever sent */
  text: string;
  /** a model's thoughts */
  reasoning?: string;
  /** pieces of calls as they come; they follow the chunk's text */
  tool_calls?: ToolCallDelta[];
  /** with `return_tokens` */
  tokens?: number[];
  /** as in the answer, if requested */
  logprobs?: Logprob[];
}

/** A piece of a tool call; the `arguments` of all pieces together are the arguments of the call. */
export interface ToolCallDelta {
  /** of the call in its answer, from 0 */
  index: number;
  /** of the call, in its first piece */
  id?: string;
  /** the function's, whole, in the call's first piece */
  name?: string;
  /** goes on with the arguments of the pieces before it */
  arguments?: string;
  /** as in the answer, in the call's last piece */
  invalid?: "arguments" | "name";
}

/**
 * The params of `infer_stream/progress`: position and time in the queue, or tokens or questions
 * done.
 */
export interface Progress {
  /** of the request */
  id: string | number;
  phase: "prefill" | "questions" | "queued";
  /** in the queue of its model; 0 is next */
  position?: number;
  /** null until a request has ended */
  eta_ms?: number | null;
  /** tokens of the prompt that were taken in, or questions with an answer */
  done?: number;
  /** tokens of the prompt, or questions */
  total?: number;
  /** of them, not computed again */
  cached?: number;
}

/** The params of `models/progress`: bytes of the model file, loaded and in all. */
export interface LoadProgress {
  /** of the request */
  id: string | number;
  model: string;
  /** bytes of the model's file */
  done: number;
  /** bytes of the model's file */
  total: number;
}

/** The params and the result of each method. */
export interface Methods {
  /** How many requests run at once, and why. At once, always. */
  "inference/capacity": { params: CapacityParams; result: Capacity };
  /** Answer a prompt in one piece. */
  "infer": { params: InferParams; result: Answer };
  /**
   * Answer a prompt piece by piece. `infer_stream/chunk` notifications come first, and the answer
   * has `chunks` in place of `text`.
   */
  "infer_stream": { params: InferParams; result: Answer };
  /**
   * Cancel a request of this connection. That request ends with -32800. Works as a notification
   * too.
   */
  "$/cancelRequest": { params: CancelParams; result: Empty };
  /**
   * Turn texts into vectors. Pooled as the model says, else by the mean. Takes a lease like
   * `infer`.
   */
  "embed": { params: EmbedParams; result: Embeddings };
  /** Order documents by how well they answer a query. */
  "rerank": { params: RerankParams; result: Ranking };
  /**
   * Answer typed questions about one state by probabilities. Nothing is written: the probabilities
   * are read at the labels of the options. 1004 (`lacks: decisions`) for models that cannot be read
   * so.
   */
  "decide": { params: DecideParams; result: Decision };
  /** Cut a text or a conversation into the model's tokens. */
  "tokenize": { params: TokenizeParams; result: Tokens };
  /** Write tokens out as text. */
  "detokenize": { params: DetokenizeParams; result: Text };
  /** List what the daemon can serve. */
  "models/list": { params: NoParams; result: Models };
  /** Look into a model's file. It loads nothing. */
  "models/show": { params: ShowParams; result: ModelDetails };
  /**
   * Load a model. Answers once it is served; 1004 if it cannot be served. `progress` sends
   * `models/progress` meanwhile. For administrators.
   */
  "models/load": { params: LoadParams; result: Model };
  /** Unload a model once it has finished its work. Answers once it is gone. For administrators. */
  "models/unload": { params: LoadParams; result: Model };
  /** What the daemon is doing now. */
  "daemon/status": { params: StatusParams; result: Status };
  /** Cancel another connection's request. A request of the same user; root may cancel any request. */
  "daemon/cancel": { params: CancelOtherParams; result: Empty };
  /**
   * Finish what runs and waits, then end. Admits nothing from now on (1003), and refuses the rest
   * at the timeout. Cancelling ends the wait, not the drain. For administrators.
   */
  "daemon/drain": { params: DrainParams; result: Drained };
  /**
   * Read the configuration again. A file that cannot be used changes nothing; -32602 names the key
   * in `data.param`. For administrators.
   */
  "daemon/reload": { params: NoParams; result: Empty };
  /**
   * What is counted, as Prometheus text. Requests by outcome, queue, capacity, engines, cache, and
   * histograms of waits.
   */
  "daemon/metrics": { params: NoParams; result: Text };
  /**
   * Why tokens of the last prompts were computed again. Of the caller's own requests for answers
   * alone; an unknown id has none.
   */
  "daemon/why": { params: WhyParams; result: Why };
  /**
   * What requests took, by day, person, app and model. The caller's own rows, for administrators
   * all. The ledger begins with the first person.
   */
  "daemon/usage": { params: UsageParams; result: UsageReport };
  /** This table as an OpenRPC document. */
  "rpc.discover": { params: NoParams; result: Record<string, unknown> };
}

/** The params of what the daemon sends by itself. */
export interface Notifications {
  "infer_stream/chunk": Chunk;
  "infer_stream/progress": Progress;
  "models/progress": LoadProgress;
  "inference/capacity_changed": Capacity;
  "daemon/status_changed": Status;
}

/** The code of each error, by `data.reason`. */
export const CODES = {
  parse_error: -32700,
  invalid_request: -32600,
  method_not_found: -32601,
  invalid_params: -32602,
  internal_error: -32603,
  cancelled: -32800,
  overloaded: 1001,
  quota: 1001,
  deadline_exceeded: 1002,
  draining: 1003,
  model_unavailable: 1004,
  engine_lost: 1005,
  context_exceeded: 1006,
  slow_reader: 1007,
  limit: 1008,
  not_permitted: 1009,
} as const;

/** The methods that the daemon answers at once: they count towards no bound of a connection. */
export const AT_ONCE: readonly string[] = [
  "inference/capacity",
  "$/cancelRequest",
  "daemon/status",
  "daemon/cancel",
  "daemon/reload",
  "daemon/metrics",
  "daemon/why",
  "rpc.discover",
];

/** The longest frame in bytes, until the daemon names its own bound. */
export const MAX_FRAME_BYTES = 8388608;

/** The most requests of a connection in flight, until the daemon names its own bound. */
export const MAX_IN_FLIGHT = 64;
