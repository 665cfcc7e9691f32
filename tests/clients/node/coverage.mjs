// Every method's examples, called over the daemon's socket by OpenRPC's own tool for it: node coverage.mjs SOCKET

import { connect } from "node:net";
import { createInterface } from "node:readline";
import { parseOpenRPCDocument } from "@open-rpc/schema-utils-js";
import coverage from "@open-rpc/test-coverage";
import examples from "@open-rpc/test-coverage/build/rules/examples-rule.js";

const socket = connect(process.argv[2]);
const waiting = new Map();
let last = 0;
createInterface({ input: socket }).on("line", (line) => {
  const message = JSON.parse(line);
  waiting.get(message.id)?.(message); // a notification has no id
});

function transport(_url, method, params) {
  last += 1;
  socket.write(`${JSON.stringify({ jsonrpc: "2.0", id: last, method, params })}\n`);
  return new Promise((resolve) => waiting.set(last, resolve));
}

/** The tool's rule reads the params of an example by their places; an example here gives some, by their names. */
class ByName extends examples.default {
  getCalls(document, method) {
    return method.examples.flatMap((example) =>
      super.getCalls(document, { ...method, params: example.params, examples: [example] }),
    );
  }
}

const { result } = await transport("", "rpc.discover", {});
const openrpcDocument = await parseOpenRPCDocument(result);
// A drained daemon answers no further call.
openrpcDocument.methods.sort((one, other) => (one.name === "daemon/drain") - (other.name === "daemon/drain"));
const calls = await coverage.default({
  openrpcDocument,
  transport,
  rules: [new ByName()],
  reporters: ["empty"],
  skip: [],
  only: [],
});
socket.end();
const outcome = Object.fromEntries(
  calls.map((call) => [call.methodName, call.valid ? "holds" : `${call.reason ?? call.requestError}`]),
);
process.stdout.write(`\n${JSON.stringify(outcome)}\n`);
