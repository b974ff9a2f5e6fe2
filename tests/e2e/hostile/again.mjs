// What Python has no client for: HTTP/2 on hosts that are given a key, fetch with its redirects, and Node's own view of its process.
import fs from "node:fs";
import http2 from "node:http2";
import { gunzipSync } from "node:zlib";

const told = JSON.parse(fs.readFileSync("told.json", "utf8"));
const keep = (name, text) => fs.appendFileSync(`report/node-${name}`, `${text}\n`);
fs.mkdirSync("report", { recursive: true });

const attempt = async (name, act) => {
  try {
    keep("outcomes", `${name}: ${await act()}`);
  } catch (error) {
    keep("outcomes", `${name}: ${error.code ?? error.message} ${error.cause?.code ?? ""}`);
  }
};

const unpacked = (bytes) => (bytes[0] === 0x1f && bytes[1] === 0x8b ? gunzipSync(bytes) : bytes).toString("latin1");

/** Streams of one connection, each with its own idea of whom it speaks to. */
const streams = (host, requests) =>
  new Promise((done, failed) => {
    const session = http2.connect(`https://${host}`, { rejectUnauthorized: false });
    session.setTimeout(8000, () => session.destroy());
    session.on("error", failed);
    const all = requests.map(
      (headers) =>
        new Promise((ended) => {
          const stream = session.request({ ":path": "/echo/raw/x", ...headers }, { endStream: !headers.body });
          let text = "";
          const pieces = [];
          const take = (received) => (text += JSON.stringify(received));
          stream.on("response", take).on("headers", take).on("trailers", take).on("push", take);
          stream.on("data", (piece) => pieces.push(piece));
          stream.on("error", (error) => ended(`${text} ${error.code}`));
          stream.on("close", () => ended(`${text} ${unpacked(Buffer.concat(pieces))}`));
          if (headers.body) stream.end(headers.body);
        }),
    );
    Promise.all(all).then((texts) => {
      session.close();
      done(texts.join("\n"));
    });
  });

for (const { host, kind } of told.bound) {
  const path = (how) => `/echo/${how}/${kind === "path" ? "credential-brokered" : "x"}`;
  await attempt(`h2 ${host}`, () =>
    streams(host, [
      ...["raw", "base64", "hex", "percent", "json", "gzip", "chunks", "cookie", "trailer"].map((how) => ({ ":path": path(how) })),
      { ":authority": told.free },
      { ":authority": told.unbound },
      { ":authority": host, host: told.free },
      { ":method": "TRACE" },
      { ":method": "POST", ":path": path("raw"), "content-type": "application/grpc", te: "trailers" },
      { ":path": path("raw"), range: "bytes=0-50" },
      { ":path": path("raw"), authorization: "Bearer credential-brokered", cookie: "credential-brokered" },
      { ":scheme": "http", ":path": path("raw") },
    ]),
  );
  for (const redirect of ["manual", "follow"]) {
    for (const to of ["free", "plain", "unbound", "circle"]) {
      await attempt(`fetch ${host} ${redirect} ${to}`, async () => {
        const response = await fetch(`https://${host}/redirect/${to}`, { redirect });
        return `${response.status} ${JSON.stringify([...response.headers])} ${await response.text()}`;
      });
    }
  }
}
for (const name of ["process.env", "process.argv", "process.execArgv", "process.report.getReport()", "process._getActiveHandles().map(String)"]) {
  await attempt(name, () => JSON.stringify(eval(name)));
}
