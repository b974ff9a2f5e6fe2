'use strict';
// Runs one piece of code as the body of an async function. It waits on standard input for a line of JSON
// ({mark, code}), lets the code write to standard output as it likes, and says at the end, behind the mark, what came
// of it: `value:SHAPE\nJSON`, `nothing` or `error:TEXT`. Whoever holds the other end kills it when it takes too long.
const { mkdir, rename, rm, writeFile } = require('node:fs/promises');
const { createWriteStream } = require('node:fs');
const { createRequire, stripTypeScriptTypes } = require('node:module');
const { dirname, join, resolve } = require('node:path');
const { Readable } = require('node:stream');
const { pipeline } = require('node:stream/promises');
const { inspect } = require('node:util');
const vm = require('node:vm');

const NAME = 'exec';
const OLDEST = 22;
let mark = '';
let lines = [];
let ended = false;

// --- What the code is given ------------------------------------------------------------------------------------------

/** Writes data to a file of the workspace, whole or not at all; answers with its path and length. */
async function writeToFile(path, data) {
  if (typeof path !== 'string' || path === '') throw new TypeError('writeToFile(path, data): the path must be a text');
  if (data === undefined) throw new TypeError(`writeToFile(${JSON.stringify(path)}, data): there is no data`);
  const target = resolve(path);
  const partial = join(dirname(target), `.belljar-${process.pid}-${Math.random().toString(36).slice(2)}.new`);
  await mkdir(dirname(target), { recursive: true });
  try {
    const source = data?.body?.getReader ? data.body : data;
    let bytes;
    if (typeof source === 'string' || ArrayBuffer.isView(source) || source instanceof ArrayBuffer) {
      const content = source instanceof ArrayBuffer ? Buffer.from(source) : source;
      await writeFile(partial, content);
      bytes = typeof content === 'string' ? Buffer.byteLength(content) : content.byteLength;
    } else if (source !== null && typeof source === 'object' && (source[Symbol.asyncIterator] || source.getReader)) {
      const stream = createWriteStream(partial);
      await pipeline(Readable.from(source), stream);
      bytes = stream.bytesWritten;
    } else {
      const content = JSON.stringify(source, null, 2);
      await writeFile(partial, content);
      bytes = Buffer.byteLength(content);
    }
    await rename(partial, target);
    return { path, bytes };
  } catch (error) {
    await rm(partial, { force: true });
    throw error;
  }
}

// --- From text to a function -----------------------------------------------------------------------------------------

const BLANK = /(?:\s+|\/\/[^\n]*|\/\*[\s\S]*?\*\/)*/y;
const IMPORT = /import\b(?!\s*[(.])\s*(?:([^'"();]*?)\s*\bfrom\b\s*)?(['"])([^'"\n]+)\2(?:\s*with\s*(\{[^}]*\}))?[ \t]*;?/y;
const DIRECTIVE = /(['"])use strict\1[ \t]*;?/y;

/** Rewrites the static imports that the code begins with into dynamic ones, each on its own lines. */
function rewriteImports(code) {
  let at = 0;
  let rewritten = '';
  const take = (pattern) => {
    pattern.lastIndex = at;
    const match = pattern.exec(code);
    if (match) at += match[0].length;
    return match;
  };
  for (;;) {
    rewritten += take(BLANK)[0];
    const directive = take(DIRECTIVE);
    if (directive) {
      rewritten += directive[0];
      continue;
    }
    const statement = take(IMPORT);
    if (!statement) return rewritten + code.slice(at);
    const [text, clause, , from, attributes] = statement;
    rewritten += dynamicImport(clause, JSON.stringify(from), attributes) + '\n'.repeat(text.split('\n').length - 1);
  }
}

function dynamicImport(clause, from, attributes) {
  const load = `await import(${from}${attributes ? `, { with: ${attributes} }` : ''})`;
  if (clause === undefined) return `${load};`;
  const plain = clause.replace(/\/\*[\s\S]*?\*\/|\/\/[^\n]*/g, ' ').trim();
  if (/^type\s+[\w${*]/.test(plain)) return '';
  const [, first, names] = /^([^{*,]*?)\s*,?\s*(\{[\s\S]*\}|\*\s*as\s+[\w$]+)?$/.exec(plain) ?? [];
  if (first === undefined) return `import ${plain} from ${from};`;
  const picked = first ? [`default: ${first}`] : [];
  if (names?.startsWith('*')) {
    const all = names.replace(/^\*\s*as\s+/, '');
    return `const ${all} = ${load};${first ? ` const { ${picked} } = ${all};` : ''}`;
  }
  for (const name of names?.slice(1, -1).split(',') ?? []) {
    const one = name.trim();
    if (one && !/^type\s+(?!as\b)/.test(one)) picked.push(one.replace(/\s+as\s+/, ': '));
  }
  return `const { ${picked.join(', ')} } = ${load};`;
}

function compile(code) {
  const body = rewriteImports(code);
  // The first line is ours, so that the numbers of the others are the author's.
  const source = `(async (writeToFile, require) => {\n${body}\n})`;
  const script = (text) =>
    new vm.Script(text, {
      filename: NAME,
      lineOffset: -1,
      importModuleDynamically: vm.constants.USE_MAIN_CONTEXT_DEFAULT_LOADER,
    });
  // A call with type arguments, `f<T>(x)`, is JavaScript too, with another meaning.
  const typed = /<\s*[A-Za-z_$][^<>;()=&|+]*>\s*\(/.test(body);
  let first;
  if (!typed) {
    try {
      return script(source).runInThisContext();
    } catch (error) {
      first = error;
    }
  }
  let stripped;
  try {
    stripped = stripTypeScriptTypes(source, { mode: 'strip' });
  } catch (error) {
    if (!first) return script(source).runInThisContext();
    first.note = `As TypeScript: ${error.message}`;
    if (/Cannot use import statement/.test(first.message)) first.note = 'Static imports go before everything else.';
    throw first;
  }
  return script(stripped).runInThisContext();
}

// --- What came of it -------------------------------------------------------------------------------------------------

function toJson(value) {
  const above = [];
  return JSON.stringify(value, function (key, item) {
    const raw = this[key];
    if (typeof raw === 'bigint') return Number.isSafeInteger(Number(raw)) ? Number(raw) : String(raw);
    if (typeof raw === 'number' && !Number.isFinite(raw)) return String(raw);
    if (raw === null || typeof raw !== 'object') return item;
    while (above.length && above.at(-1) !== this) above.pop();
    if (above.includes(raw)) return '[circular]';
    let seen = item;
    if (raw instanceof Map) seen = Object.fromEntries(raw);
    else if (raw instanceof Set) seen = [...raw];
    else if (raw instanceof Error) seen = { name: raw.name, message: raw.message };
    else if (raw instanceof RegExp) seen = String(raw);
    else if (Buffer.isBuffer(raw)) return `[${raw.length} bytes]`;
    else if (ArrayBuffer.isView(raw) && raw.length !== undefined) seen = Array.from(raw);
    above.push(seen);
    return seen;
  });
}

function shape(value, depth = 0) {
  if (Array.isArray(value)) {
    return `array of ${value.length}${value.length && depth < 2 ? ` × ${shape(value[0], depth + 1)}` : ''}`;
  }
  if (value !== null && typeof value === 'object') {
    const keys = Object.keys(value);
    return `{${keys.slice(0, 20).join(', ')}${keys.length > 20 ? `, … ${keys.length} keys` : ''}}`;
  }
  return typeof value;
}

function explain(error) {
  if (!(error instanceof Error)) return `The code threw ${inspect(error)}`;
  const [head, ...rest] = (typeof error.stack === 'string' ? error.stack : String(error)).split(/\n {4}at /);
  // Frames of the code itself and of files that it loaded, not of what runs it.
  const frames = rest.filter((frame) => !/node:|\[eval\]|\beval at\b/.test(frame) && /:\d+:\d+/.test(frame));
  const own = frames.map((frame) => /(?:^|\()exec:(\d+):\d+/.exec(frame)).find(Boolean);
  const line = own && lines[own[1] - 1];
  let text = head.trim();
  if (error.note) text += `\n${error.note}`;
  if (line) text += `\n  ${own[1]} | ${line.trim().slice(0, 200)}`;
  for (const frame of frames.slice(0, 8)) text += `\n    at ${frame.trim()}`;
  if (error.cause !== undefined) text += `\nCaused by ${explain(error.cause)}`;
  for (const inner of (error.errors ?? []).slice?.(0, 5) ?? []) text += `\n- ${explain(inner)}`;
  return text;
}

function end(text) {
  if (ended) return;
  ended = true;
  process.stdout.write(`\x1e${mark}:${text}`, () => process.reallyExit(0));
}

async function run(order) {
  ({ mark } = order);
  lines = order.code.split('\n');
  process.on('uncaughtException', (error) => end(`error:${explain(error)}`));
  process.on('beforeExit', () => end('error:The code waits for a promise that nothing will ever settle.'));
  if (Number.parseInt(process.versions.node, 10) < OLDEST || !stripTypeScriptTypes) {
    return end(`error:exec needs Node ${OLDEST}.13 or newer, and this image has ${process.version}.`);
  }
  try {
    const value = await compile(order.code)(writeToFile, createRequire(join(process.cwd(), NAME)));
    const json = value === undefined ? undefined : toJson(value);
    end(json === undefined ? 'nothing' : `value:${shape(value)}\n${json}`);
  } catch (error) {
    end(`error:${explain(error)}`);
  }
}

// Started ahead, it has time to load what it may need.
const ahead = setTimeout(() => stripTypeScriptTypes?.(''), 30);
let received = '';
process.stdin.setEncoding('utf8');
process.stdin.on('data', function take(piece) {
  received += piece;
  if (!piece.includes('\n')) return;
  clearTimeout(ahead);
  process.stdin.off('data', take);
  process.stdin.pause();
  process.stdin.unref?.();
  run(JSON.parse(received));
});
process.stdin.on('end', () => process.reallyExit(0));
