// --- The process -----------------------------------------------------------------------------------------------------
// Runs one piece of code as the body of an async function. It waits on standard input for a line of JSON
// ({mark, code, folders, services}), lets the code write to standard output as it likes, and says at the end, behind the
// mark and the number of its bytes, what came of it: `value:SHAPE\nJSON`, `nothing` or `error:TEXT`. Whoever holds the other end
// kills it as soon as all of that was read, or when it takes too long: nothing that the code does to this process, or leaves
// running in it, keeps it from ending.
const { createRequire, stripTypeScriptTypes } = require('node:module');
const { inspect } = require('node:util');
const vm = require('node:vm');

/** As they are before the code runs, which may put others in their place. */
const say = process.stdout.write.bind(process.stdout);
const { byteLength } = Buffer;

const NAME = 'exec';
const OLDEST = 22;
let mark = '';
let lines = [];
let ended = false;

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
    else if (raw instanceof ServiceError) seen = { ...raw, name: raw.name, message: raw.message };
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
  if (error instanceof ServiceError) text += ` (${error.code}, ${error.status})`;
  for (const more of [error.remedy, error.note]) if (more) text += `\n${more}`;
  if (line) text += `\n  ${own[1]} | ${line.trim().slice(0, 200)}`;
  for (const frame of frames.slice(0, 8)) text += `\n    at ${frame.trim()}`;
  if (error.cause !== undefined) text += `\nCaused by ${explain(error.cause)}`;
  for (const inner of (error.errors ?? []).slice?.(0, 5) ?? []) text += `\n- ${explain(inner)}`;
  return text;
}

function end(text) {
  if (ended) return;
  ended = true;
  say(`\x1e${mark}:${byteLength(text)}:${text}`);
}

async function run(order) {
  ({ mark, folders } = order);
  lines = order.code.split('\n');
  if (order.services) offer(order.services);
  process.on('uncaughtException', (error) => end(`error:${explain(error)}`));
  process.on('beforeExit', () => end('error:The code waits for a promise that nothing will ever settle.'));
  if (Number.parseInt(process.versions.node, 10) < OLDEST || !stripTypeScriptTypes) {
    return end(`error:exec needs Node ${OLDEST}.13 or newer, and the one in the PATH is ${process.version}.`);
  }
  try {
    const value = await compile(order.code)(writeToFile, createRequire(join(process.cwd(), NAME)));
    await settled();
    const json = value === undefined ? undefined : toJson(value);
    end(json === undefined ? 'nothing' : `value:${shape(value)}\n${json}`);
  } catch (error) {
    end(`error:${explain(error)}`);
  }
}

// Started ahead, it has time to load what it may need.
const ahead = setTimeout(() => {
  stripTypeScriptTypes?.('');
  require('node:http');
}, 30);
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
