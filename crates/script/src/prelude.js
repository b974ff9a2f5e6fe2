// Makes the functions that a host offers out of one that sends a call on its way, and leaves no way to make code of texts.
(send => {
  const { stringify } = JSON;
  const waiting = new Map();
  const offer = name => (...args) => new Promise((resolve, reject) => {
    waiting.set(waiting.size, { resolve, reject });
    send(name, stringify(args));
  });
  const settle = (call, good, answer) => {
    const { resolve, reject } = waiting.get(call);
    (good ? resolve : reject)(answer);
  };
  for (const made of [() => {}, async () => {}, function* () {}, async function* () {}]) {
    Object.defineProperty(Object.getPrototypeOf(made), "constructor", { value: undefined });
  }
  delete globalThis.eval;
  delete globalThis.Function;
  return [offer, settle];
})
