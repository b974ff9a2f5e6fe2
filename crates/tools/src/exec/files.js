'use strict';
// --- writeToFile -----------------------------------------------------------------------------------------------------
const { lstat, mkdir, rename, rm, writeFile } = require('node:fs/promises');
const { createWriteStream } = require('node:fs');
const { dirname, join, relative, resolve, sep } = require('node:path');
const { Readable } = require('node:stream');
const { pipeline } = require('node:stream/promises');

/** Folders that may be written: [what they are called, where they are]. */
let folders = [];

/** Writes data to a file of the workspace, whole or not at all; answers with its path and length. */
async function writeToFile(path, data) {
  if (typeof path !== 'string' || path === '') throw new TypeError('writeToFile(path, data): the path must be a text');
  if (data === undefined) throw new TypeError(`writeToFile(${JSON.stringify(path)}, data): there is no data`);
  // Before anything is waited for: a result that has not come yet is streamed, and never held as a whole.
  const streamed = claim(data, (body) => put(path, body));
  return streamed ?? put(path, await data);
}

/** The data into a file beside the place, the file into its place. */
async function put(path, data) {
  const target = await place(path);
  await mkdir(dirname(target), { recursive: true });
  const partial = join(dirname(target), `.belljar-${process.pid}-${Math.random().toString(36).slice(2)}.new`);
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

/** Where a path is, by the rules of the tool `write`: beneath a folder that may be written, over no link. */
async function place(path) {
  let target = resolve(path);
  const within = (folder) => target.startsWith(folder + sep);
  const named = folders.find(([name, real]) => within(name) && !within(real));
  if (named) target = join(named[1], relative(named[0], target));
  const folder = folders.map(([, real]) => real).find(within);
  if (!folder) {
    const names = folders.map(([name]) => name).join(', ');
    throw new Error(`${path} is outside of the folders that may be written (${names})`);
  }
  let walked = folder;
  for (const name of relative(folder, target).split(sep)) {
    walked = join(walked, name);
    const found = await lstat(walked).catch((error) => {
      if (error.code !== 'ENOENT') throw error;
    });
    if (!found) return target;
    if (found.isSymbolicLink()) throw new Error(`${path} leads over the symbolic link ${walked}, and links are not followed`);
    if (walked === target && !found.isFile()) throw new Error(`${path} is not a file`);
  }
  return target;
}

