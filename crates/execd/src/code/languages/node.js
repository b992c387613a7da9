'use strict';
// Runs the cells of one JavaScript or TypeScript context. execd starts it and talks with it over descriptor 3:
// it sends `LENGTH\n` and LENGTH bytes of code for a cell, and `!NUMBER\n` to interrupt the cell of that number,
// counted from 1. Every answer is a line of JSON, and before it the mark goes to both standard streams, so that
// execd knows what was written before the answer.
//
// A thread reads descriptor 3, because the main one may be busy with a cell. To interrupt a cell it does two things
// until the cell has ended: by the inspector it calls `interrupt` below on the main thread, even within an endless
// loop, which then terminates whatever runs there, and it sends a message, which is heard only when nothing runs and
// ends the cell. A termination throws away everything up to the event loop, promise jobs that wait included: so
// the driver's own way from a cell to its end holds no promise, and what must not be torn is done by `whole`.
const fs = require('fs');
const inspector = require('inspector');
const Module = require('module');
const path = require('path');
const { Writable } = require('stream');
const util = require('util');
const { promiseHooks } = require('v8');
const vm = require('vm');
const { Worker } = require('worker_threads');

// Characters of one answer's forms; a larger form is left out and named.
const MAX_FORM = 8 * 1024 * 1024;
// Bytes of a line: more are not read (`lines.rs`).
const MAX_LINE = 24 * 1024 * 1024;
const DISPLAY = Symbol.for('Jupyter.display');
const INTERRUPT = Symbol.for('osb.interrupt');
const TAKE = Symbol.for('osb.take');
// Where systems and npm keep packages for everybody.
const SHARED = ['/usr/lib/node_modules', '/usr/local/lib/node_modules', '/usr/share/nodejs',
    path.join(path.dirname(process.execPath), '../lib/node_modules')];

const [mark, isTypeScript] = head();
const { writeSync } = fs;
const pause = new Int32Array(new SharedArrayBuffer(4));
// Milliseconds between two looks at a pipe that is full and was told not to block, by a child process, say.
const FULL_PIPE = 2;
// Milliseconds between two attempts to interrupt a cell.
const INTERRUPT_EVERY = 50;
// Milliseconds after which child processes are interrupted again where the cell goes on.
const CHILD = 250;
// Milliseconds after which a cell that cannot begin, because one that was interrupted goes on, ends that.
const STUCK = 1000;
const session = new inspector.Session();
session.connect();
// What both threads know: numbers of the cells that were begun, ended and interrupted last.
const [BEGUN, ENDED, INTERRUPTED] = [0, 1, 2];
const state = new Int32Array(new SharedArrayBuffer(12));
// No cell.
const NONE = 0;

function head() {
    const [mark, dialect] = line().split(' ');
    return [mark, dialect === 'typescript'];
}

/** Reads a line, byte by byte: what follows it is not ours yet. */
function line() {
    const bytes = [];
    const byte = Buffer.alloc(1);
    while (fs.readSync(3, byte, 0, 1, null) === 1 && byte[0] !== 10) bytes.push(byte[0]);
    return Buffer.from(bytes).toString();
}

function writeAll(descriptor, data) {
    for (let at = 0; at < data.length;) {
        try {
            at += writeSync(descriptor, data, at);
        } catch (error) {
            if (error.code !== 'EAGAIN') throw error;
            Atomics.wait(pause, 0, 0, FULL_PIPE);
        }
    }
}

/** A standard stream without a state of its own: node's could be interrupted within a write and be stuck for ever. */
class Output extends Writable {
    constructor(fd) {
        super();
        this.fd = fd;
    }

    write(chunk, encoding, done) {
        const then = typeof encoding === 'function' ? encoding : done;
        const data = typeof chunk === 'string' ? Buffer.from(chunk, typeof encoding === 'string' ? encoding : undefined) : chunk;
        whole(() => writeAll(this.fd, data));
        if (typeof then === 'function') process.nextTick(then);
        return true;
    }

    end(chunk, ...rest) {
        if (chunk !== undefined && chunk !== null && typeof chunk !== 'function') this.write(chunk, ...rest);
        return this;
    }

    destroy() {
        return this;
    }
}

for (const [name, descriptor] of [['stdout', 1], ['stderr', 2]]) {
    Object.defineProperty(process, name, { value: new Output(descriptor), configurable: true, enumerable: true });
}

let cell = NONE; // the number of the one that runs
let holds = 0; // how many `whole` go on
let due; // the cell whose interrupt came meanwhile
let isTorn = false; // something was terminated since the last `clearAsyncIds`

/** Does work that no interrupt tears apart; one that comes meanwhile follows. */
function whole(work) {
    holds += 1;
    try {
        return work();
    } finally {
        holds -= 1;
        if (due !== undefined && holds === 0) {
            const isMeant = due === cell;
            due = undefined;
            if (isMeant) terminate();
        }
    }
}

/** Throws the main thread out of all that it does, at its next call or loop. */
function terminate() {
    isTorn = true;
    session.post('Runtime.terminateExecution');
}

/** Called on the main thread wherever it is, between two instructions of a cell, say. Without a cell, what an
 * earlier one left is meant. */
function interrupt(number) {
    if (cell !== number) return;
    const limit = Error.stackTraceLimit;
    Error.stackTraceLimit = 3;
    const frames = new Error().stack.split('\n').length - 1;
    Error.stackTraceLimit = limit;
    if (holds) due = number;
    else if (frames > 2) terminate(); // frames beside this one and the inspector's
    else queueMicrotask(() => terminateJobs(number));
}

/** Nothing seems to run: it may be so, or promise jobs follow each other for ever. This is one of them now, and ends
 * them with itself. Where nothing runs, nothing else is hit. */
function terminateJobs(number) {
    if (cell !== number || holds) return;
    terminate();
    for (;;);
}

/** A string without halves of surrogate pairs, which are no JSON. */
const wellFormed = (_, value) => (typeof value === 'string' ? Buffer.from(value).toString() : value);

/** A line as execd takes it. */
function lineOf(message) {
    const line = Buffer.from(JSON.stringify(message, wellFormed) + '\n');
    if (line.length <= MAX_LINE) return line;
    const value = `an answer of ${line.length} bytes is too large: at most ${MAX_LINE} are sent`;
    return Buffer.from(JSON.stringify({ kind: 'error', name: 'RangeError', value, traceback: [value] }) + '\n');
}

/** Answers, behind what was printed before. */
function send(message) {
    whole(() => {
        const line = lineOf(message);
        const marked = Buffer.from(mark);
        writeAll(1, marked);
        writeAll(2, marked);
        writeAll(3, line);
    });
}

function textOf(value) {
    return util.inspect(value, { depth: 4, maxArrayLength: 1000, maxStringLength: MAX_FORM / 8 });
}

function formsOf(value) {
    const forms = {};
    const isObject = value !== null && (typeof value === 'object' || typeof value === 'function');
    if (isObject && typeof value[DISPLAY] === 'function') {
        const given = value[DISPLAY]();
        if (given && typeof given.then !== 'function') Object.assign(forms, given);
    }
    const text = forms['text/plain'] === undefined ? textOf(value) : String(forms['text/plain']);
    delete forms['text/plain'];
    for (const [form, data] of Object.entries(forms)) {
        if ((typeof data === 'string' ? data : JSON.stringify(data) || '').length > MAX_FORM) {
            process.stderr.write(`${form} is left out: at most ${MAX_FORM} characters are sent; write it to a file\n`);
            delete forms[form];
        }
    }
    return { ...forms, text: text.length > MAX_FORM ? text.slice(0, 1000) + '... (cut)' : text };
}

const shown = (data) => send({ kind: 'display', data });
const display = (...values) => values.forEach((value) => shown(formsOf(value)));
display.html = (html) => shown({ text: String(html), 'text/html': String(html) });
display.forms = (forms) => shown(formsOf({ [DISPLAY]: () => forms }));

/** `import` statements become awaited imports, which a cell may hold. */
function withoutImports(code) {
    const names = (list) => list.split(',').map((name) => name.trim()).filter((name) => name && !/^type\s/.test(name))
        .map((name) => name.replace(/\s+as\s+/, ': ')).join(', ');
    const bindings = (clause) => {
        const [, first, rest] = /^(?:([\w$]+)\s*,?\s*)?([\s\S]*)$/.exec(clause.trim());
        const parts = [];
        if (rest.startsWith('{')) parts.push(names(rest.slice(1, rest.lastIndexOf('}'))));
        if (first) parts.push(`default: ${first}`);
        const whole = /^\*\s*as\s+([\w$]+)$/.exec(rest);
        return [parts.filter(Boolean).join(', '), whole && whole[1]];
    };
    return code
        .replace(/(?<=^|;)[ \t]*import\s+type\s[^;'"]*from\s*(['"])[^'"\n]+\1[ \t]*;?/gm, '')
        .replace(/(?<=^|;)([ \t]*)import\s+([\w$*{][^;'"()]*?)\s*from\s*((['"])[^'"\n]+\4)[ \t]*;?/gm, (_, indent, clause, from) => {
            const [parts, whole] = bindings(clause);
            const load = `await __osb_import(${from})`;
            if (whole) return `${indent}const ${whole} = ${load};` + (parts ? ` const {${parts}} = ${whole};` : '');
            return `${indent}const {${parts}} = ${load};`;
        })
        .replace(/(?<=^|;)([ \t]*)import\s*((['"])[^'"\n]+\3)[ \t]*;?/gm, '$1await __osb_import($2);')
        .replace(/(?<![\w$.])import\s*\(/g, '__osb_import(');
}

/** How TypeScript becomes JavaScript here, or undefined. */
function stripper() {
    const { stripTypeScriptTypes } = Module;
    if (stripTypeScriptTypes) {
        return (code) => {
            try {
                return stripTypeScriptTypes(code, { mode: 'transform' });
            } catch (error) {
                throw new SyntaxError(error.message);
            }
        };
    }
    for (const from of [process.cwd(), ...(process.env.NODE_PATH || '').split(':').filter(Boolean), ...SHARED]) {
        for (const name of ['typescript', path.join(from, 'typescript')]) {
            try {
                const ts = Module.createRequire(from + '/')(name);
                return (code) => transpiled(ts, code);
            } catch { /* the next place may have it */ }
        }
    }
    return undefined;
}

function transpiled(ts, code) {
    const compilerOptions = { target: ts.ScriptTarget.ES2022, module: ts.ModuleKind.ESNext };
    const made = ts.transpileModule(code, { compilerOptions, reportDiagnostics: true });
    const mistake = (made.diagnostics || []).find((found) => found.category === ts.DiagnosticCategory.Error);
    if (mistake) throw new SyntaxError(ts.flattenDiagnosticMessageText(mistake.messageText, '\n'));
    return made.outputText;
}

// For what cells started: they are in one group with this process, which is interrupted in its own way.
process.on('SIGINT', () => {});
process.on('uncaughtException', (error) => process.stderr.write(`Uncaught ${textOf(error)}\n`));
const warn = process.emitWarning;
process.emitWarning = (...warning) => (String(warning[1]?.type ?? warning[1]) === 'ExperimentalWarning' ? undefined : warn.apply(process, warning));

/** The value behind what the inspector tells. */
function valueOf(remote) {
    if (!remote.objectId) {
        return remote.unserializableValue === undefined ? remote.value : vm.runInThisContext(`(${remote.unserializableValue})`);
    }
    let value;
    globalThis[TAKE] = (taken) => { value = taken; };
    const functionDeclaration = `function (value) { globalThis[Symbol.for('osb.take')](value); }`;
    const { objectId } = remote;
    session.post('Runtime.callFunctionOn', { functionDeclaration, objectId, arguments: [{ objectId }] });
    session.post('Runtime.releaseObject', { objectId });
    delete globalThis[TAKE];
    return value;
}

const isError = (value) => value instanceof Error || util.types.isNativeError(value);

function report(error) {
    if (!isError(error)) return { kind: 'error', name: 'Error', value: typeof error === 'string' ? error : textOf(error), traceback: [`Uncaught ${textOf(error)}`] };
    const lines = String(error.stack || `${error.name}: ${error.message}`).split('\n');
    const ours = lines.findIndex((line) => /\bSession\.post\b|node:inspector/.test(line));
    return { kind: 'error', name: String(error.name), value: String(error.message), traceback: ours < 0 ? lines : lines.slice(0, ours) };
}

// The promises of cells that did not end, the first that each makes. When one is collected, because nothing can
// settle it any more, the inspector tells that within the collection, which ends node.
const promises = new Map();

/** Keeps the next promise; gives what makes that undone. */
function keepPromise(number) {
    const unhook = promiseHooks.onInit((promise) => whole(() => {
        promises.set(number, promise);
        unhook();
    }));
    return unhook;
}

function reportSafely(error) {
    try {
        return report(error);
    } catch {
        return { kind: 'error', name: 'Error', value: 'an error that cannot be shown', traceback: [] };
    }
}

function begin(number, code) {
    if (Atomics.load(state, BEGUN) >= number) return; // it was sent again
    cell = number;
    holds = 0; // whatever a cell did to this
    due = undefined;
    Atomics.store(state, BEGUN, number);
    if (Atomics.load(state, INTERRUPTED) === number) return end(number, INTERRUPTION);
    let expression;
    try {
        expression = withoutImports(code);
        if (strip) expression = strip(expression);
    } catch (error) {
        return end(number, reportSafely(error));
    }
    const unhook = whole(() => keepPromise(number));
    // The answer comes when all that is awaited has come.
    session.post('Runtime.evaluate', { expression, replMode: true, awaitPromise: true }, (error, made) => {
        unhook();
        promises.delete(number);
        if (cell !== number) return; // it was interrupted
        end(number, outcome(number, code, error, made));
    });
}

function outcome(number, code, error, made) {
    try {
        if (error) throw new Error(error.message || 'the code could not be run');
        if (made.exceptionDetails) throw valueOf(made.exceptionDetails.exception || { value: made.exceptionDetails.text });
        const value = valueOf(made.result);
        if (value === undefined || code.trimEnd().endsWith(';')) return undefined;
        return { kind: 'result', count: number, data: formsOf(value) };
    } catch (thrown) {
        return reportSafely(thrown);
    }
}

/** Ends a cell with its answer, if there is one. */
function end(number, answer) {
    whole(() => {
        cell = NONE;
        due = undefined;
        const wasInterrupted = Atomics.load(state, INTERRUPTED) === number;
        Atomics.store(state, ENDED, number);
        // A child process that was interrupted may have been quicker to fail.
        const isFailure = answer && answer.kind === 'error';
        if (wasInterrupted && isFailure) answer = INTERRUPTION;
        if (answer) send(answer);
        send({ kind: 'end' });
    });
}

const INTERRUPTION = { kind: 'error', name: 'KeyboardInterrupt', value: 'interrupted', traceback: ['KeyboardInterrupt: interrupted'] };

/** Ends the interrupted cell, if it goes on, now that nothing runs. */
function endInterrupted(number) {
    holds = 0; // what was terminated may not have given its own back
    due = undefined;
    if (number !== NONE && cell === number) end(number, INTERRUPTION);
    if (isTorn) clearAsyncIds();
}

/** Node keeps a stack of what runs in whose name, which it unwinds for errors but not for terminations. */
function clearAsyncIds() {
    isTorn = false;
    try {
        process.setUncaughtExceptionCaptureCallback(() => process.setUncaughtExceptionCaptureCallback(null));
    } catch {
        return; // a cell has set its own
    }
    throw new Error('unwind');
}

const strip = isTypeScript ? stripper() : undefined;
if (isTypeScript && !strip) {
    fs.writeSync(2, `typescript needs node 22.13 or newer, or the package "typescript"; this is node ${process.version}`);
    process.exit(1);
}
const define = (name, value) => Object.defineProperty(globalThis, name, { value, writable: true, configurable: true });
define('require', Module.createRequire(process.cwd() + '/'));
define('display', display);
define('__osb_import', (name) => import(name));

// A part of node whose first load is interrupted would stay broken.
const load = Module._load;
Module._load = (name, ...rest) => (Module.isBuiltin(name) ? whole(() => load(name, ...rest)) : load(name, ...rest));
Object.defineProperty(globalThis, INTERRUPT, { value: interrupt });

/** The thread that listens to execd. It is made of this text alone: nothing outside can be named. */
function listen() {
    const inspector = require('inspector');
    const net = require('net');
    const { parentPort: main, workerData: { state, BEGUN, ENDED, INTERRUPTED, NONE, EVERY, CHILD, STUCK } } = require('worker_threads');
    let pending = Buffer.alloc(0); // what came of words that are not whole yet
    let count = 1; // the main thread read one
    let interrupted = NONE;

    function take() {
        const end = pending.indexOf(10);
        if (end < 0) return false;
        const head = pending.subarray(0, end).toString();
        const length = head[0] === '!' ? 0 : Number(head);
        if (pending.length < end + 1 + length) return false;
        const code = pending.subarray(end + 1, end + 1 + length).toString();
        pending = pending.subarray(end + 1 + length);
        if (head[0] === '!') {
            interrupt(Number(head.slice(1)));
        } else {
            count += 1;
            begin({ kind: 'cell', number: count, code });
        }
        return true;
    }

    function begin(cell) {
        main.postMessage(cell);
        // Code that waited when it was interrupted goes on when what it awaits comes, perhaps for ever.
        if (!Atomics.load(state, INTERRUPTED)) return;
        setTimeout(() => terminate(NONE, cell, () => Atomics.load(state, BEGUN) >= cell.number), STUCK);
    }

    function interrupt(number) {
        if (number !== count || Atomics.load(state, ENDED) === number) return; // too late
        Atomics.store(state, INTERRUPTED, number);
        if (interrupted !== number) {
            interrupted = number;
            terminate(number, { kind: 'interrupted', number }, () => Atomics.load(state, ENDED) >= number);
        }
        process.kill(0, 'SIGINT'); // what the cell started
        // And what it was about to start, to wait for it.
        setTimeout(() => Atomics.load(state, ENDED) < number && process.kill(0, 'SIGINT'), CHILD);
    }

    /** Terminates what runs for a cell, and tells so to where nothing runs, until it is over. */
    function terminate(number, message, isOver) {
        if (isOver()) return;
        const session = new inspector.Session();
        session.connectToMainThread();
        const expression = `globalThis[Symbol.for('osb.interrupt')](${number})`;
        let isAsked = false;
        const again = () => {
            if (isOver()) {
                clearInterval(timer);
                session.disconnect();
                main.postMessage({ kind: 'interrupted', number: NONE });
                return;
            }
            if (!isAsked) session.post('Runtime.evaluate', { expression, silent: true }, () => { isAsked = false; });
            isAsked = true;
            main.postMessage(message);
        };
        const timer = setInterval(again, EVERY);
        again();
    }

    main.once('message', () => {
        const talk = new net.Socket({ fd: 3 });
        talk.on('data', (data) => {
            pending = Buffer.concat([pending, data]);
            while (take());
        });
        talk.on('close', () => {
            main.postMessage({ kind: 'over' });
            setTimeout(() => process.kill(process.pid, 'SIGKILL'), STUCK);
        });
    });
}

send({ kind: 'ready' });
// Its own environment, so that what NODE_OPTIONS names is not loaded twice.
const workerData = { state, BEGUN, ENDED, INTERRUPTED, NONE, EVERY: INTERRUPT_EVERY, CHILD, STUCK };
const listener = new Worker(`(${listen})()`, { eval: true, env: {}, execArgv: [], workerData });
listener.on('message', ({ kind, number, code }) => {
    if (kind === 'cell') begin(number, code);
    else if (kind === 'interrupted') endInterrupted(number);
    else process.exit(0);
});
listener.on('error', (error) => process.stderr.write(`${textOf(error)}\n`));
listener.on('exit', () => process.exit(1));

/** Reads the first cell here, where nothing else is to be done yet: it need not wait for the thread. */
function beginFirst() {
    const length = line();
    if (!length) process.exit(0);
    const code = Buffer.alloc(Number(length));
    for (let at = 0; at < code.length;) {
        const count = fs.readSync(3, code, at, code.length - at, null);
        if (!count) process.exit(0);
        at += count;
    }
    listener.postMessage('listen');
    begin(1, code.toString());
}
setImmediate(beginFirst);
