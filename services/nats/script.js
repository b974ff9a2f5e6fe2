// The monitoring endpoint gives pages of its own kind, and says one thing in several places. Fields: docs.nats.io, "Monitoring".

const PAGE = 256;
const MOST_PAGES = 40;

async function get(path) {
  const answer = await fetch(path);
  if (!answer.ok) throw new Error(answer.message);
  return answer.json();
}

const connection = (c) => ({
  cid: c.cid,
  name: c.name ?? "",
  address: `${c.ip}:${c.port}`,
  client: [c.lang, c.version].filter(Boolean).join(" "),
  subscriptions: c.subscriptions,
  pendingBytes: c.pending_bytes,
  inMsgs: c.in_msgs,
  outMsgs: c.out_msgs,
  idle: c.idle ?? "",
  uptime: c.uptime,
});

// Every account with its streams, page by page: pages are of accounts.
async function accounts(consumers) {
  const all = [];
  for (let page = 0; page < MOST_PAGES; page++) {
    const found = await get(`/jsz?accounts=true&streams=true&consumers=${consumers}&limit=${PAGE}&offset=${page * PAGE}`);
    const details = found.account_details ?? [];
    all.push(...details);
    if (details.length < PAGE) return all;
  }
  throw new Error(`there are more than ${MOST_PAGES * PAGE} accounts`);
}

const wanted = (account, args) => args.account === undefined || account.name === args.account;

export async function getServer() {
  const health = async () => {
    try {
      const answer = await fetch("/healthz");
      return answer.ok ? (await answer.json()).status : answer.message;
    } catch (error) {
      return error.message;
    }
  };
  const server = await get("/varz");
  const status = await health();
  return {
    name: server.server_name,
    version: server.version,
    health: status,
    uptime: server.uptime,
    cpu: server.cpu,
    mem: server.mem,
    connections: server.connections,
    totalConnections: server.total_connections,
    subscriptions: server.subscriptions,
    slowConsumers: server.slow_consumers,
    inMsgs: server.in_msgs,
    outMsgs: server.out_msgs,
    inBytes: server.in_bytes,
    outBytes: server.out_bytes,
    jetstream: server.jetstream?.stats ? { ...server.jetstream.stats, config: server.jetstream.config } : null,
  };
}

export async function listConnections({ state = "open", cursor = "0" }) {
  const offset = Number(cursor);
  const page = await get(`/connz?state=${state}&limit=${PAGE}&offset=${offset}`);
  const end = offset + page.connections.length;
  return {
    items: page.connections.map(connection),
    next: page.connections.length > 0 && end < page.total ? String(end) : null,
  };
}

export async function findSlowConnections({ leastPendingBytes = 1 }) {
  const slow = [];
  for (let page = 0; page < MOST_PAGES; page++) {
    const { connections } = await get(`/connz?sort=pending&limit=${PAGE}&offset=${page * PAGE}`);
    const found = connections.filter((c) => c.pending_bytes >= leastPendingBytes);
    slow.push(...found.map(connection));
    // They come sorted: after one that keeps up there is no other.
    if (found.length < PAGE) break;
  }
  return slow;
}

export async function listStreams(args) {
  const streams = [];
  for (const account of (await accounts(false)).filter((account) => wanted(account, args))) {
    for (const { name, state } of account.stream_detail ?? []) {
      streams.push({
        account: account.name,
        name,
        messages: state.messages,
        bytes: state.bytes,
        firstSeq: state.first_seq,
        lastSeq: state.last_seq,
        lastTime: state.last_ts,
        consumers: state.consumer_count,
      });
    }
  }
  return streams;
}

export async function listConsumers({ leastPending = 0, stream: only, ...args }) {
  const consumers = [];
  for (const account of (await accounts(true)).filter((account) => wanted(account, args))) {
    for (const stream of account.stream_detail ?? []) {
      if (only !== undefined && stream.name !== only) continue;
      for (const consumer of stream.consumer_detail ?? []) {
        consumers.push({
          account: account.name,
          stream: stream.name,
          name: consumer.name,
          pending: consumer.num_pending,
          ackPending: consumer.num_ack_pending,
          redelivered: consumer.num_redelivered,
          delivered: consumer.delivered.stream_seq,
        });
      }
    }
  }
  return consumers.filter((c) => c.pending >= leastPending).sort((a, b) => b.pending - a.pending);
}
