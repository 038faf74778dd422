// The host forks a JavaScript module. This one becomes the worker: execve replaces the process, and what stays is its id,
// its environment and its standard input and output, on which the host speaks to it.
import { accessSync, constants } from "node:fs";
import { fileURLToPath } from "node:url";

const worker = process.env.LEASEHOLD_WORKER ?? fileURLToPath(new URL("./bin/leasehold-worker", import.meta.url));
accessSync(worker, constants.X_OK); // execve ends the process without a word that a person could use
process.execve(worker, [worker], process.env);
