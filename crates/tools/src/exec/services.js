// --- services --------------------------------------------------------------------------------------------------------
// `services.<name>.<method>(args)` is a POST over a socket, and its promise the result. What may be called is written in the
// order; whoever listens there decides, whatever is written here.
const { createHash } = require('node:crypto');

/** Calls of one process under way at once; others wait. */
const AT_ONCE = 16;
/** The longest result that is held as a whole. */
const HELD = 64 * 1024 * 1024;

/** The results that have not come yet, each with what takes its body, if somebody does. */
const coming = new WeakMap();
const underWay = new Set();
const counts = new Map();
const waiting = [];
let free = AT_ONCE;

/** A call of a service that has no result. */
class ServiceError extends Error {
  constructor(status, { code, message, remedy, retry_after: retryAfter }) {
    super(message);
    Object.defineProperty(this, 'name', { value: 'ServiceError' });
    Object.assign(this, { code, status, ...(remedy && { remedy }), ...(retryAfter && { retryAfter }) });
  }
}

/** Makes the globals `services` and `describe` where there are services, and `background` where programs may go on. */
function offer({ socket, call, methods, background }) {
  const names = Object.entries(methods).map(([service, names]) => {
    const calls = names.map((method) => [method, (args) => invoke({ socket, call, service, method, args })]);
    return [service, bare(calls)];
  });
  const describe = (name) => (name === undefined ? ask(socket, '/v1/services') : types(socket, String(name), methods));
  const globals = {
    ...(names.length && { services: bare(names), describe }),
    ...(background && { background: (command, options) => inBackground(socket, command, options) }),
  };
  for (const [name, value] of Object.entries(globals)) {
    Object.defineProperty(globalThis, name, { value, enumerable: true });
  }
}

/** An object with these properties and no others, not even what every object has. */
function bare(entries) {
  const object = Object.create(null);
  for (const [name, value] of entries) object[name] = value;
  return Object.freeze(object);
}

function invoke({ socket, call, service, method, args = {} }) {
  const json = JSON.stringify(args);
  // The same for the n-th of equal calls whatever stands between them: run again after a crash, the code makes the same
  // calls in perhaps another order.
  const same = JSON.stringify([service, method, json]);
  const count = (counts.get(same) ?? 0) + 1;
  counts.set(same, count);
  const key = createHash('sha256').update(JSON.stringify([call, same, count])).digest('base64url');
  const body = `{"service":${JSON.stringify(service)},"method":${JSON.stringify(method)},"args":${json},` +
    `"call":${JSON.stringify(call)},"idempotency_key":"${key}"}`;
  const claimed = { take: undefined };
  const over = track();
  const result = inTurn(async () => {
    const response = await send(socket, { method: 'POST', path: '/v1/services' }, body);
    coming.delete(result);
    const pieces = whole(response, `${service}.${method}`);
    if (response.statusCode !== 200) throw await failure(response, pieces);
    return claimed.take ? await claimed.take(pieces) : parsed(response, await held(pieces));
  }, over);
  coming.set(result, claimed);
  return result;
}

/** Counts a call as under way until what it answers with is called. */
function track() {
  let over;
  const call = new Promise((done) => {
    over = () => done(underWay.delete(call));
  });
  underWay.add(call);
  return over;
}

/** The body of a result that has not come yet goes to `take`; answers with what becomes of it. */
function claim(data, take) {
  const claimed = typeof data === 'object' && data !== null ? coming.get(data) : undefined;
  if (!claimed || claimed.take) return undefined;
  claimed.take = take;
  return data;
}

/** What nobody waits for is waited for here, so that the end of the code does not cut it. */
async function settled() {
  while (underWay.size) {
    await Promise.all(underWay);
    // So that a failure that nobody caught is told of before the end.
    await new Promise(setImmediate);
  }
}

async function inTurn(work, over) {
  if (free > 0) free -= 1;
  else await new Promise((go) => waiting.push(go));
  try {
    return await work();
  } finally {
    const next = waiting.shift();
    if (next) next();
    else free += 1;
    over();
  }
}

/** Starts a command of the shell that goes on when this call is over; answers for how many minutes. */
async function inBackground(socket, command, { minutes } = {}) {
  const seconds = minutes === undefined ? undefined : Math.ceil(minutes * 60);
  const options = { method: 'POST', path: '/v1/background' };
  const response = await send(socket, options, JSON.stringify({ command, seconds }));
  const pieces = whole(response, 'background');
  if (response.statusCode !== 200) throw await failure(response, pieces);
  return { minutes: parsed(response, await held(pieces)).seconds / 60 };
}

async function types(socket, name, methods) {
  if (Object.hasOwn(methods, name)) return ask(socket, `/v1/services/${encodeURIComponent(name)}`);
  throw new Error(`there is no service ${JSON.stringify(name)}; there are ${Object.keys(methods).join(', ')}`);
}

async function ask(socket, path) {
  const response = await send(socket, { method: 'GET', path });
  const pieces = whole(response, path);
  if (response.statusCode !== 200) throw await failure(response, pieces);
  return String(await held(pieces));
}

function send(socketPath, options, body) {
  return new Promise((done, failed) => {
    const headers = { host: 'belljar', connection: 'close', ...(body && { 'content-type': 'application/json' }) };
    const request = require('node:http').request({ socketPath, agent: false, headers, ...options }, done);
    request.on('error', (cause) => failed(broken(`the way to the services broke off: ${cause.message}`)));
    request.end(body);
  });
}

/** The pieces of a body, and an error where it is cut. */
async function* whole(response, what) {
  try {
    yield* response;
  } catch (cause) {
    throw broken(`the result of ${what} broke off: ${cause.message}`);
  }
}

function broken(message) {
  const remedy = 'What the call does may have been done: look before you repeat it.';
  return new ServiceError(502, { code: 'broken_off', message, remedy });
}

async function held(pieces) {
  const all = [];
  let length = 0;
  for await (const piece of pieces) {
    length += piece.length;
    if (length > HELD) {
      const message = `the result is longer than ${HELD >> 20} MiB`;
      const remedy = 'writeToFile(path, services.x.y(args)) takes a result of any length.';
      throw new ServiceError(413, { code: 'too_long', message, remedy });
    }
    all.push(piece);
  }
  return Buffer.concat(all);
}

function parsed(response, bytes) {
  const type = response.headers['content-type'] ?? '';
  if (/[/+]json\b/.test(type)) return bytes.length ? JSON.parse(bytes) : null;
  return type.startsWith('text/') ? String(bytes) : bytes;
}

async function failure(response, pieces) {
  const text = String(await held(pieces));
  let error;
  try {
    ({ error } = JSON.parse(text));
  } catch {}
  return new ServiceError(response.statusCode, error ?? { code: 'unknown', message: text.slice(0, 500) });
}

