// The sockets that a client tries, in the contract's order of precedence.

import { homedir } from "node:os";
import { join } from "node:path";
import { BadSocketPath } from "./errors.js";

const SYSTEM_SOCKET = "/run/car/card.sock";
// sockaddr_un.sun_path with its closing NUL: 108 bytes on Linux, 104 elsewhere.
const MAX_PATH_BYTES = (process.platform === "linux" ? 108 : 104) - 1;

/**
 * Return the paths to try in turn: the given one or `CAR_SOCKET` alone, else the user's and then the system's.
 *
 * @throws BadSocketPath if a path is longer than the platform can connect to.
 */
export function candidatePaths(given?: string, env: NodeJS.ProcessEnv = process.env): string[] {
  const only = given || env.CAR_SOCKET;
  const paths = only ? [only] : [userSocket(env), SYSTEM_SOCKET];
  for (const path of paths) {
    if (Buffer.byteLength(path) > MAX_PATH_BYTES) {
      throw new BadSocketPath(`the socket path is longer than ${MAX_PATH_BYTES} bytes: ${path}`);
    }
  }
  return paths;
}

function userSocket(env: NodeJS.ProcessEnv): string {
  if (env.XDG_RUNTIME_DIR) return join(env.XDG_RUNTIME_DIR, "car", "card.sock");
  if (process.platform === "darwin") return join(homedir(), "Library", "Caches", "car", "card.sock");
  return `/tmp/car-${process.getuid?.() ?? 0}/card.sock`;
}
